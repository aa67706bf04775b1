"""A cell of an experiment: settings with a seed, identified by a hash of their content."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..common.files import json_sha256
from ..common.options import options_of
from ..data.features import BELONGINGS
from ..data.prepared import PreparedData
from ..runs.feature_settings import NONE
from ..runs.folder import data_checksum
from ..runs.losses import LOSSES, loss_options
from ..runs.settings import TrainSettings

# Raise this number when results of older cells are no longer comparable.
FORMAT = 1
# The same for cells of models with side features.
FEATURES_FORMAT = 2

# Settings that came after that number was raised last. At their defaults they do what there was
# before them, so they are not part of the key, and older results count.
_LATER_SETTINGS = ("weight_average", "item_feature_dim")

SHARED_SETTINGS = (
    "tower",
    "encoder",
    "blocks",
    "heads",
    "dropout",
    "dim",
    "stddev",
    "item_bias",
    "temperature",
    "batch_size",
    "negatives_per_example",
    "whole_catalogue",
    "mask_known_positives",
    "history_length",
    "min_history",
    "positions",
    "optimizer",
    "learning_rate",
    "weight_decay",
    "schedule",
    "weight_average",
    "max_steps",
    "steps_per_epoch",
    "early_stopping_patience",
    "max_validation_users",
    "exclude_history",
)
"""The settings that ``reproduce``, ``compare`` and ``tune`` take for all of their runs."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """A loss with its options, whatever the other settings are.

    Attributes:
      name: name in reports.
      loss: name of the loss in ``pipelines.runs.losses.LOSSES``.
      options: settings of the loss, and others that go with it.
    """

    name: str
    loss: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def settings(self, base: TrainSettings, seed: int) -> TrainSettings:
        """``base`` with this loss and ``seed``."""
        # Options of other losses would make equal cells differ.
        plain = {name: option.default for name, option in loss_options().items()}
        entry = LOSSES[self.loss]
        own = {**plain, **entry.fixed, **self.options}
        return base.with_loss(self.loss, **own, seed=seed)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One training run and one measurement.

    Attributes:
      name: name in reports; cells that differ in it alone are equal.
      settings: settings of the run, with the seed.
      split: the split to measure in the end: ``test``, or ``valid`` for a trial of a search.
    """

    name: str
    settings: TrainSettings
    split: str = "test"

    def key(self, data: PreparedData) -> str:
        """Sixteen hexadecimal digits that any change of settings, seed, data or split changes."""
        settings = self.settings.as_dict()
        for name in _LATER_SETTINGS:
            if settings[name] == options_of(TrainSettings)[name].default:
                del settings[name]
        has_features = any(
            data.features(of) and settings[f"{of}_features"] != NONE for of in BELONGINGS
        )
        content = {
            "format": FEATURES_FORMAT if has_features else FORMAT,
            "settings": settings,
            "data": data_checksum(data),
            "split": self.split,
        }
        return json_sha256(content)[:16]


def seed_by_seed(
    variants: Iterable[Variant], base: TrainSettings, seeds: Sequence[int], split: str = "test"
) -> list[Cell]:
    """All variants with the first seed, then all with the second, to have early results."""
    chosen = list(variants)
    return [
        Cell(variant.name, variant.settings(base, seed), split)
        for seed in seeds
        for variant in chosen
    ]


def experiment_folder(args: argparse.Namespace, step: str) -> Path:
    """The folder of ``--out``, or by default the name of ``--data`` followed by the step."""
    return Path(args.out or f"{str(args.data).rstrip('/')}-{step}")


def data_defaults(data: PreparedData) -> dict[str, Any]:
    """Settings that depend on the kind of data.

    Where every user's pairs are split at random there is no order in time, so a recommendation of
    an item that the user already has is never a hit.
    """
    return {"exclude_history": True} if data.manifest["source"] == "presplit" else {}
