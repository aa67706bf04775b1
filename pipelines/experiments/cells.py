"""A cell of an experiment: settings with a seed, known by a hash of their content."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import cli
from ..common.files import json_sha256
from ..data.prepared import PreparedData
from ..runs.folder import data_checksum
from ..runs.settings import OPTIMIZERS, SCHEDULES, TOWERS, TrainSettings

# Raised when results of older cells would mean something else.
FORMAT = 1

_OVERRIDES: dict[str, tuple[Any, str]] = {
    "tower": (TOWERS, "users by their history, or by a vector for each training user"),
    "dim": (cli.positive, "of the embeddings"),
    "temperature": (float, "scores are divided by it, where it is not tuned"),
    "batch_size": (cli.positive, "examples per step"),
    "negatives_per_example": (cli.count, "uniform, shared by the batch"),
    "whole_catalogue": (bool, "take every item for a negative, in place of a sample"),
    "mask_known_positives": (bool, "never take an item that the user chose for a negative"),
    "history_length": (cli.positive, "latest items used"),
    "min_history": (cli.count, "least items before a position"),
    "positions": (("all", "one-per-user"), "of a user in an epoch"),
    "optimizer": (OPTIMIZERS, "as in train"),
    "learning_rate": (float, "at the start"),
    "schedule": (SCHEDULES, "of the learning rate"),
    "max_steps": (cli.positive, "of each run at most"),
    "steps_per_epoch": (cli.positive, "steps from one validation to the next"),
    "early_stopping_patience": (cli.count, "validations without a new best; 0: never stop"),
    "max_validation_users": (cli.positive, "validate on the first so many"),
    "exclude_history": (bool, "leave items of the user's history out of the ranking"),
}


@dataclasses.dataclass(frozen=True)
class Variant:
    """A loss with its options, whatever the other settings are.

    Attributes:
      name: for people.
      loss: one of ``pipelines.runs.losses.LOSS_NAMES``.
      options: fields of the settings that it sets.
    """

    name: str
    loss: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def settings(self, base: TrainSettings, seed: int) -> TrainSettings:
        """``base`` with this loss and ``seed``."""
        # with_loss keeps the options of the other losses: they would make equal cells differ.
        plain = TrainSettings()
        kept = {
            name: getattr(plain, name)
            for name in ("margin", "calibration", "activation", "negative_exponent")
            + ("weight_temperature", "retrieval_size")
        }
        return base.with_loss(self.loss, **{**kept, "seed": seed, **self.options})


@dataclasses.dataclass(frozen=True)
class Cell:
    """One training run and one measurement.

    Attributes:
      name: for people; not part of what a cell is.
      settings: of the run, with the seed.
      split: that is measured in the end, ``test``, or ``valid`` for a trial of a search.
    """

    name: str
    settings: TrainSettings
    split: str = "test"

    def key(self, data: PreparedData) -> str:
        """Sixteen hexadecimal digits that any change of settings, seed, data or split changes."""
        content = {
            "format": FORMAT,
            "settings": self.settings.as_dict(),
            "data": data_checksum(data),
            "split": self.split,
        }
        return json_sha256(content)[:16]


def seed_by_seed(
    variants: Iterable[Variant], base: TrainSettings, seeds: Sequence[int], split: str = "test"
) -> list[Cell]:
    """All variants with the first seed, then all with the second: a part is of use, too."""
    chosen = list(variants)
    return [
        Cell(variant.name, variant.settings(base, seed), split)
        for seed in seeds
        for variant in chosen
    ]


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Adds options for the settings that all cells share; what is not given stays as it is."""
    group = parser.add_argument_group("settings of every run, in place of the experiment's own")
    for name, (kind, text) in _OVERRIDES.items():
        option = f"--{name.replace('_', '-')}"
        if kind is bool:
            group.add_argument(option, action=argparse.BooleanOptionalAction, help=text)
        elif isinstance(kind, tuple):
            group.add_argument(option, choices=kind, help=text)
        else:
            group.add_argument(option, type=kind, help=text)


def overrides(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given on the command line."""
    return {name: getattr(args, name) for name in _OVERRIDES if getattr(args, name) is not None}


def data_defaults(data: PreparedData) -> dict[str, Any]:
    """What the kind of data asks for.

    Where every user's pairs are split at random there is no order in time, and what a user has is
    not to be found again.
    """
    return {"exclude_history": True} if data.manifest["source"] == "presplit" else {}
