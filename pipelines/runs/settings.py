"""The settings of a training run: everything that shapes its result, as options and as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from .. import cli
from ..data.batches import POSITIONS, WindowOptions
from ..errors import UserError
from .losses import LossSettings, add_loss_settings, check_given

SCHEDULES = ("constant", "cosine", "linear", "exponential")
TOWERS = ("history", "matrix-factorization")
OPTIMIZERS = ("auto", "adam", "lazy-adam")
LAZY_FROM_ROWS = 100_000


@dataclasses.dataclass(frozen=True)
class TrainSettings(LossSettings):
    """What ``train`` takes; the options' help texts say what each is."""

    dim: int = 32
    tower: str = "history"
    encoder: str = "mean"
    similarity: str = "cosine"
    temperature: float = 0.1
    history_length: int = 20
    min_history: int = 4
    positions: str = "all"
    batch_size: int = 256
    negatives_per_example: int = 10
    whole_catalogue: bool = False
    in_batch_negatives: bool = False
    memory_size: int = 0
    mask_known_positives: bool = False
    optimizer: str = "auto"
    learning_rate: float = 0.01
    schedule: str = "constant"
    epochs: int = 20
    max_steps: int | None = None
    steps_per_epoch: int | None = None
    early_stopping_patience: int = 3
    monitor: str = "recall@50"
    monitor_average: str = "users"
    max_validation_users: int | None = 10_000
    cutoffs: tuple[int, ...] = (10, 50, 100, 200, 500)
    exclude_history: bool = False
    mixed_precision: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("temperature", "learning_rate"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise UserError(
                    f"--{name.replace('_', '-')} should be a finite number above 0. Received: "
                    f"{getattr(self, name)}."
                )
        popular = self.in_batch_negatives or self.memory_size
        if not (self.negatives_per_example or popular or self.whole_catalogue):
            raise UserError(
                "there should be negatives: --negatives-per-example or --memory-size above 0, "
                "--in-batch-negatives or --whole-catalogue. Received: none of them."
            )
        if self.whole_catalogue and popular:
            raise UserError(
                "--whole-catalogue takes every item for a negative already, so it should come "
                "without --in-batch-negatives and --memory-size. Leave out one or the other."
            )
        if not 0 <= self.seed < 2**63:
            raise UserError(f"--seed should be from 0 to 2**63 - 1. Received: {self.seed}.")
        if not re.fullmatch(r"recall@[1-9]\d*", self.monitor):
            raise UserError(
                f"--monitor should be recall@N, such as recall@50. Received: {self.monitor!r}."
            )

    @property
    def monitor_cutoff(self) -> int:
        """The N of the Recall@N that early stopping watches."""
        return int(self.monitor.partition("@")[2])

    @property
    def window_options(self) -> WindowOptions:
        """What concerns the input."""
        return WindowOptions(
            batch_size=self.batch_size,
            history_length=self.history_length,
            min_history=self.min_history,
            positions=self.positions,
            negatives_per_example=0 if self.whole_catalogue else self.negatives_per_example,
            known_positives=self.mask_known_positives,
            users=self.tower == "matrix-factorization",
            seed=self.seed,
        )

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**dataclasses.asdict(self), "cutoffs": list(self.cutoffs)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainSettings:
        """The inverse of ``as_dict``. What an older version did not have is at its default."""
        unknown = set(values) - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise UserError(
                f"the run's settings should be known to this version. Not known: {sorted(unknown)}."
                " Use the version that trained the run, or train again."
            )
        return cls(**{**values, "cutoffs": tuple(values["cutoffs"])})

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> TrainSettings:
        """The settings that the options of ``add_settings`` stand for."""
        values = {
            field.name: getattr(args, field.name)
            for field in dataclasses.fields(cls)
            if getattr(args, field.name) is not None
        }
        values["cutoffs"] = tuple(sorted(set(args.cutoffs)))
        if args.loss is not None:
            check_given(args.loss, values)
        return cls(**values)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds the options that make ``TrainSettings``."""
    defaults = TrainSettings()
    flag = argparse.BooleanOptionalAction

    def option(group: Any, name: str, text: str, **keywords: Any) -> None:
        default = getattr(defaults, name[2:].replace("-", "_"))
        note = "" if default is None or isinstance(default, bool) else f" ({default})"
        group.add_argument(name, help=text + note, default=default, **keywords)

    add_loss_settings(parser)

    model = parser.add_argument_group("model")
    option(model, "--dim", "of the embeddings", type=cli.positive)
    option(
        model,
        "--tower",
        "users by their history, or by a vector for each training user",
        choices=TOWERS,
    )
    option(model, "--encoder", "of the history", choices=("mean", "gru"))
    option(model, "--similarity", "that scores", choices=("cosine", "dot"))
    option(model, "--temperature", "scores are divided by it", type=float)

    examples = parser.add_argument_group("examples")
    option(examples, "--history-length", "latest items used", type=cli.positive)
    option(examples, "--min-history", "least items before a position", type=cli.count)
    option(examples, "--positions", "of a user in an epoch", choices=POSITIONS)
    option(examples, "--batch-size", "examples per step", type=cli.positive)
    option(
        examples,
        "--negatives-per-example",
        "uniform, shared by the batch",
        type=cli.count,
    )
    option(
        examples,
        "--whole-catalogue",
        "take every item for a negative, in place of a sample",
        action=flag,
    )
    option(examples, "--in-batch-negatives", "take the other examples' items as well", action=flag)
    option(
        examples,
        "--memory-size",
        "take the items of so many earlier examples as well, as they were then",
        type=cli.count,
    )
    option(
        examples,
        "--mask-known-positives",
        "never take an item that the user chose for a negative",
        action=flag,
    )

    fit = parser.add_argument_group("optimization")
    option(
        fit,
        "--optimizer",
        f"auto is lazy-adam from {LAZY_FROM_ROWS:,} items on, which touches only the rows in the "
        "batch",
        choices=OPTIMIZERS,
    )
    option(fit, "--learning-rate", "at the start", type=float)
    option(fit, "--schedule", "of the learning rate, down to 1 %% of it", choices=SCHEDULES)
    option(fit, "--epochs", "passes over the examples at most", type=cli.positive)
    option(fit, "--max-steps", "in place of --epochs", type=cli.positive)
    option(fit, "--mixed-precision", "compute in float16 (mixed_float16)", action=flag)
    option(fit, "--seed", "of everything random", type=cli.count)

    validation = parser.add_argument_group("validation")
    option(
        validation,
        "--steps-per-epoch",
        "steps from one validation to the next (a pass over the examples)",
        type=cli.positive,
    )
    option(validation, "--monitor", "recall@N of the validation split that decides")
    option(
        validation,
        "--monitor-average",
        "each user counts alike, or each pair of user and target",
        choices=("users", "pairs"),
    )
    option(
        validation,
        "--max-validation-users",
        "validate on the first so many, in the order that prepare has shuffled them into",
        type=cli.positive,
    )
    option(
        validation,
        "--early-stopping-patience",
        "stop after so many validations without a new best; 0: never",
        type=cli.count,
    )
    validation.add_argument(
        "--cutoffs",
        nargs="+",
        type=cli.positive,
        default=list(defaults.cutoffs),
        help="N of the Recall@N in the history of the run (%(default)s)",
    )
    option(
        validation,
        "--exclude-history",
        "leave items of the user's history out of the ranking (the paper does not)",
        action=flag,
    )
