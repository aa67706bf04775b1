"""The settings of a training run: everything that shapes its result.

``TrainSettings`` is one dataclass. Its fields are the options of ``train``, the keys of a run's
``config.json`` and the keys of a file for ``--config``; all of them are derived from the fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..common.options import (
    Cutoffs,
    Flag,
    Kind,
    OneOf,
    Option,
    Real,
    RecallAt,
    Whole,
    checked,
    dashed,
    options_of,
)
from ..errors import UserError
from . import encoders, feature_settings, loss_settings
from .feature_settings import FeatureFields
from .losses import LOSSES, loss_options

if TYPE_CHECKING:
    from ..data.batches import WindowOptions

LAZY_FROM_ROWS = 100_000
FINAL_RATE_SHARE = 0.01


def _positions() -> tuple[str, ...]:
    from ..data.batches import POSITIONS

    return POSITIONS


def _setting(kind: Kind, default: Any, text: str, group: str, **more: Any) -> Any:
    return Option(kind, default, text, group, **more).field


_LOSS = Option(
    OneOf(lambda: LOSSES),
    "cro",
    "loss to train with. "
    + "; ".join(f"{name}: {loss.summary}" for name, loss in LOSSES.items())
    + ". Each option below names the losses that take it",
)

LossFields: Any = dataclasses.make_dataclass(
    "LossFields",
    [
        ("loss", str, _LOSS.field),
        *((name, Any, option.field) for name, option in loss_options().items()),
    ],
    frozen=True,
)
"""The fields of all losses in the registry."""


@dataclasses.dataclass(frozen=True)
class TrainSettings(FeatureFields, LossFields):
    """The settings of ``train``; the help texts of the fields say what each is."""

    dim: int = _setting(Whole(1), 32, "size of the embeddings", "model")
    stddev: float = _setting(
        Real(above=0.0), 0.05, "standard deviation of the initial embeddings", "model"
    )
    tower: str = _setting(
        OneOf(("history", "matrix-factorization")),
        "history",
        "how users are represented: by their history, or by a vector for each training user",
        "model",
    )
    encoder: str = _setting(
        OneOf(encoders.ENCODERS),
        "mean",
        "encoder of the history: the mean of its items, a GRU, or causal self-attention",
        "model",
    )
    blocks: int = _setting(Whole(1), 2, "number of blocks of --encoder transformer", "model")
    heads: int = _setting(
        Whole(1),
        1,
        "number of attention heads of --encoder transformer; it must divide --dim",
        "model",
    )
    dropout: float = _setting(
        Real(least=0.0, most=0.9), 0.2, "dropout rate of --encoder transformer", "model"
    )
    similarity: str = _setting(
        OneOf(("cosine", "dot")), "cosine", "similarity function used for scoring", "model"
    )
    item_bias: bool = _setting(
        Flag(),
        False,
        "learn a bias for each item, and add it to the similarity as one more dimension",
        "model",
    )
    temperature: float = _setting(
        Real(above=0.0), 0.1, "temperature that scores are divided by", "model"
    )

    history_length: int = _setting(
        Whole(1), 20, "maximum number of items in a history, the latest ones", "examples"
    )
    min_history: int = _setting(
        Whole(0), 4, "minimum number of items before a training position", "examples"
    )
    positions: str = _setting(
        OneOf(_positions),
        None,
        "training positions per user and epoch: all, a random one, or all in one pass over each "
        "sequence",
        "examples",
        shown_default="all; sequences for a transformer",
    )
    batch_size: int = _setting(
        Whole(1),
        256,
        "number of examples per step, or of sequences with --positions sequences",
        "examples",
    )
    negatives_per_example: int = _setting(
        Whole(0),
        10,
        "number of uniform negatives per example; the whole batch shares them",
        "examples",
    )
    whole_catalogue: bool = _setting(
        Flag(), False, "use every item of the catalogue as a negative, without sampling", "examples"
    )
    in_batch_negatives: bool = _setting(
        Flag(), False, "use the other examples' items as negatives as well", "examples"
    )
    memory_size: int = _setting(
        Whole(0),
        0,
        "number of earlier examples whose item embeddings are kept as additional negatives",
        "examples",
    )
    mask_known_positives: bool = _setting(
        Flag(), False, "never use an item as a negative for a user who chose it", "examples"
    )

    optimizer: str = _setting(
        OneOf(("auto", "adam", "lazy-adam")),
        "auto",
        "optimizer; lazy-adam updates only the rows of a batch, and auto chooses it from "
        f"{LAZY_FROM_ROWS:,} items on",
        "optimization",
    )
    learning_rate: float = _setting(Real(above=0.0), 0.01, "initial learning rate", "optimization")
    weight_decay: float = _setting(
        Real(least=0.0),
        0.0,
        "L2 weight decay: this multiple of the weights is added to their gradient",
        "optimization",
    )
    schedule: str = _setting(
        OneOf(("constant", "cosine", "linear", "exponential")),
        "constant",
        f"schedule of the learning rate; all but constant end at {FINAL_RATE_SHARE:.0%} of its "
        "initial value",
        "optimization",
    )
    weight_average: float = _setting(
        Real(least=0.0, most=0.99999),
        0.0,
        "decay of the moving average of the weights, which is validated and kept in their place: "
        "0.998 averages over about 500 steps, 0 over none",
        "optimization",
    )
    epochs: int = _setting(
        Whole(1), 20, "maximum number of passes over the examples", "optimization"
    )
    max_steps: int | None = _setting(
        Whole(1),
        None,
        "maximum number of steps; replaces --epochs",
        "optimization",
        replaces="epochs",
    )
    mixed_precision: bool = _setting(
        Flag(), False, "compute in half precision, Keras' mixed_float16", "optimization"
    )
    seed: int = _setting(Whole(0, 2**63 - 1), 0, "seed of all random numbers", "optimization")

    steps_per_epoch: int | None = _setting(
        Whole(1),
        None,
        "number of steps between validations",
        "validation",
        shown_default="one pass over the examples",
    )
    monitor: str = _setting(
        RecallAt(), "recall@50", "validation metric that chooses the best weights", "validation"
    )
    monitor_average: str = _setting(
        OneOf(("users", "pairs")),
        "users",
        "how --monitor is averaged: over users, or over pairs of user and target",
        "validation",
    )
    max_validation_users: int | None = _setting(
        Whole(1),
        10_000,
        "maximum number of validation users; the first ones are used, which prepare has shuffled",
        "validation",
        optional=True,
    )
    early_stopping_patience: int = _setting(
        Whole(0),
        3,
        "number of validations without a new best after which training stops; 0 for never",
        "validation",
    )
    cutoffs: tuple[int, ...] = _setting(
        Cutoffs(),
        (10, 50, 100, 200, 500),
        "cutoffs N of the Recall@N in the history of the run",
        "validation",
    )
    exclude_history: bool = _setting(
        Flag(),
        False,
        "leave items of the user's history out of the ranking, unlike the paper",
        "validation",
    )

    def __post_init__(self) -> None:
        for name, option in options_of(type(self)).items():
            try:
                value = checked(option, dashed(name), getattr(self, name))
            except ValueError as error:
                raise UserError(str(error)) from None
            object.__setattr__(self, name, value)
        for name, value in {
            **loss_settings.settled(self),
            **encoders.settled(self, options_of(type(self))),
        }.items():
            object.__setattr__(self, name, value)
        feature_settings.check(self)
        popular = self.in_batch_negatives or self.memory_size
        if not (self.negatives_per_example or popular or self.whole_catalogue):
            raise UserError(
                "training requires negatives: --negatives-per-example or --memory-size above 0, "
                "--in-batch-negatives or --whole-catalogue. Received: none of them."
            )
        if self.whole_catalogue and popular:
            raise UserError(
                "--whole-catalogue uses every item as a negative already, so it cannot be combined "
                "with --in-batch-negatives or --memory-size. Leave out one or the other."
            )

    @property
    def loss_title(self) -> str:
        """The loss with its options in words, for reports."""
        loss = LOSSES[self.loss]
        return loss.summary if loss.title is None else loss.title(self)

    @property
    def monitor_cutoff(self) -> int:
        """The N of the Recall@N that early stopping watches."""
        return int(self.monitor.partition("@")[2])

    @property
    def window_options(self) -> WindowOptions:
        """The settings of the input."""
        from ..data.batches import WindowOptions

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

    def with_loss(self, loss: str, **options: Any) -> TrainSettings:
        """The same settings with another loss.

        What defines the old loss, such as its kernel, is dropped; other options keep their values.

        Args:
          loss: name of the loss.
          **options: settings that should differ from what they are or would be.
        """
        entry = LOSSES[loss]
        changes: dict[str, Any] = {
            name: entry.fixed.get(name, option.default)
            for name, option in loss_options().items()
            if option.defining and not (name == "retrieval_size" and entry.sized)
        }
        return dataclasses.replace(self, **{**changes, "loss": loss, **options})

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON has them."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainSettings:
        """The inverse of ``as_dict``; a setting that is missing takes its default."""
        unknown = set(values) - set(options_of(cls))
        if unknown:
            raise UserError(
                f"the run has settings that this version does not know: {sorted(unknown)}. Use the "
                "version that trained the run, or train again."
            )
        if values.get("loss") == "sl_at_k":
            # Before there was the setting, the weight had no gradient.
            values = {"differentiate_weight": False, **values}
        return cls(**values)
