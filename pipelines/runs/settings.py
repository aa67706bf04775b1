"""The settings of a training run: everything that shapes its result.

``TrainSettings`` is one dataclass. Its fields are the options of ``train``, the keys of a run's
``config.json`` and the keys of a file for ``--config``; all of them are derived from the fields.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Mapping
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
    add_options,
    checked,
    dashed,
    given_options,
    options_of,
)
from ..common.program import command
from ..errors import UserError
from . import encoders, feature_settings
from .config_file import read_config
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
        Real(above=0.0), 0.05, "standard deviation that the embeddings start from", "model"
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
    blocks: int = _setting(Whole(1), 2, "blocks of --encoder transformer", "model")
    heads: int = _setting(
        Whole(1), 1, "attention heads of --encoder transformer, which divide --dim", "model"
    )
    dropout: float = _setting(
        Real(least=0.0, most=0.9), 0.2, "share that --encoder transformer drops", "model"
    )
    similarity: str = _setting(
        OneOf(("cosine", "dot")), "cosine", "similarity function used for scoring", "model"
    )
    item_bias: bool = _setting(
        Flag(),
        False,
        "learn a bias of each item, which is added to the similarity as one more dimension",
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
        Whole(1), 256, "examples per step, or sequences with --positions sequences", "examples"
    )
    negatives_per_example: int = _setting(
        Whole(0), 10, "uniform negatives per example, which the whole batch shares", "examples"
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
        "factor of the weights that is added to their gradient (coupled L2)",
        "optimization",
    )
    schedule: str = _setting(
        OneOf(("constant", "cosine", "linear", "exponential")),
        "constant",
        f"schedule of the learning rate; all but constant end at {FINAL_RATE_SHARE:.0%} of its "
        "initial value",
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
        "how that metric is averaged: over users, or over pairs of user and target",
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
        "validations without a new best before training stops; 0 for never",
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
            **_settled(self),
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

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> TrainSettings:
        """The settings from the options of ``add_settings``, and from the file of ``--config``."""
        options = options_of(cls)
        given = given_options(args, options)
        file = read_config(args.config, options) if args.config else None
        from_file = {} if file is None else dict(file.values)
        own = from_file.get("loss", _LOSS.default)
        loss = given.get("loss", own)
        for name in _foreign(loss, given):
            raise _does_not_take(loss, dashed(name), name, given[name])
        if loss != own:
            # The options of the loss in the file belong to that loss alone.
            from_file = {k: v for k, v in from_file.items() if k not in loss_options()}
        elif file is not None and not file.is_record:
            for name in _foreign(loss, from_file):
                fixed = LOSSES[loss].fixed.get(name, options[name].default)
                if from_file[name] != fixed:
                    label = f"`{name}` in {args.config}"
                    raise _does_not_take(loss, label, name, from_file[name])
        for name, option in options.items():
            # An option that is given also overrides its counterpart in the file.
            if option.replaces in given and name not in given:
                from_file.pop(name, None)
            if option.replaces is not None and name in given:
                from_file.pop(option.replaces, None)
        try:
            return cls(**{**from_file, **given})
        except UserError as error:
            if not from_file:
                raise
            raise UserError(f"{error} Some settings are from --config {args.config}.") from error


def _settled(settings: TrainSettings) -> dict[str, Any]:
    """The settings that follow from the name of the loss.

    Raises:
      UserError: settings were given that do not go with the loss, or are missing.
    """
    loss = LOSSES[settings.loss]
    settled: dict[str, Any] = {}
    for name, option in loss_options().items():
        value = getattr(settings, name)
        if name in loss.options:
            if value is None and name in loss.defaults:
                settled[name] = loss.defaults[name]
            if value is None and name in loss.required:
                raise UserError(f"--loss {settings.loss} requires {dashed(name)}. Received: none.")
        elif option.defining:
            fixed = loss.fixed.get(name, option.default)
            if value not in (fixed, option.default):
                raise _does_not_take(settings.loss, dashed(name), name, value)
            settled[name] = fixed
        replaced = option.replaces
        if replaced is not None and replaced in loss.options and value is not None:
            other = getattr(settings, replaced)
            if other != loss.options[replaced].default:
                raise UserError(
                    f"{dashed(name)} cannot be combined with {dashed(replaced)}, which it "
                    f"replaces. Received: {value!r} and {other!r}. Leave out one of them."
                )
    return settled


def _foreign(loss: str, given: Iterable[str]) -> list[str]:
    """The settings of other losses among those that were given: they would have no effect."""
    return [name for name in given if name in loss_options() and name not in LOSSES[loss].options]


def _does_not_take(loss: str, label: str, name: str, value: Any) -> UserError:
    takers = ", ".join(other for other, entry in LOSSES.items() if name in entry.options)
    return UserError(
        f"--loss {loss} cannot be combined with {label}, which is an option of --loss {takers}. "
        f"Received: {value!r}. Leave out one or the other."
    )


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds ``--config`` and the options of all settings."""
    add_config(parser)
    add_options(parser, options_of(TrainSettings))


def add_config(parser: argparse.ArgumentParser) -> None:
    """Adds ``--config``."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="YAML or JSON file of settings, whose keys are the names of the options with "
        "underscores, such as batch_size: 256; or the config.json of a run. Options on the "
        "command line override it (none)",
    )


def add_shared_settings(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Adds ``--config`` and some settings to a step that has defaults of its own for them."""
    add_config(parser)
    options = options_of(TrainSettings)
    title = "settings of every run (by default those of the experiment)"
    add_options(parser, {name: options[name] for name in names}, title, defaults=False)


def shared_settings(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The settings that were given through ``add_shared_settings``."""
    from_file: dict[str, Any] = {}
    if args.config:
        from_file = read_config(args.config, options_of(TrainSettings), names).values
    return {**from_file, **given_options(args, names)}


def train_command(settings: TrainSettings, data: str, out: str) -> str:
    """The command that trains with these settings, without the options at their defaults.

    >>> train_command(TrainSettings(loss="lambda", alpha=1.2, exclude_history=True), "d", "o")
    'python -m pipelines train --data d --out o --loss lambda --alpha 1.2 --exclude-history'
    """
    words = ["train", "--data", data, "--out", out]
    loss = LOSSES[settings.loss]
    of_others = set(loss_options()) - set(loss.options)
    for name, option in options_of(TrainSettings).items():
        value = getattr(settings, name)
        default = loss.defaults.get(name, option.default)
        if name == "positions":
            default = encoders.default_positions(settings)
        if name in of_others or value == default or value is None:
            continue
        if isinstance(value, bool):
            words.append(dashed(name) if value else f"--no-{dashed(name)[2:]}")
        elif isinstance(value, tuple):
            words += [dashed(name), *map(str, value)]
        else:
            words += [dashed(name), str(value)]
    return command(*words)
