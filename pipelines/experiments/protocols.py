"""The data and the model of each table with published results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..data.prepared import PreparedData
from ..errors import UserError
from ..runs.feature_settings import NONE
from ..runs.losses import Contestant
from ..runs.settings import TrainSettings
from ..runs.spaces import Range
from .cells import data_defaults
from .compare import comparison_settings
from .item_attributes import COLUMN
from .published_splits import ATTRIBUTES_SOFTMAX, SAMPLED_SOFTMAX

SEARCH_SEED = 0
"""The seed of all trials."""

_WIDE = 128


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a table prepares its data, and what it trains.

    Attributes:
      prepare: options of ``prepare``, but for the input and the output.
      inputs: the input of a data set is the first of these in ``--data`` that exists.
      expected: what such an input is, in words.
      settings: returns the settings of all runs, from the data and the settings that were given.
      temperatures: range of temperatures to search.
      temperature: temperature of the first trial.
      rates: range of learning rates to search, relative to the one of the settings.
      contestants: losses of this table alone.
      attributes: the attributes of the items are in the first of these files in ``--data`` that
        exists; without one, the data has none.
    """

    prepare: tuple[str, ...]
    inputs: tuple[str, ...]
    expected: str
    settings: Callable[[PreparedData, dict[str, Any], int], TrainSettings]
    temperatures: Range
    temperature: float
    rates: Range
    contestants: Mapping[str, Contestant] = dataclasses.field(default_factory=dict)
    attributes: tuple[str, ...] = ()

    def attributes_of(self, folder: Path, name: str) -> Path | None:
        """The file with the attributes of a data set's items, if there is one."""
        paths = (folder / pattern.format(name=name) for pattern in self.attributes)
        return next(filter(Path.is_file, paths), None)

    def needs_attributes(self, loss: str) -> bool:
        """Whether a loss of this table is trained with attributes of the items."""
        return loss in self.contestants and "item_features" in self.contestants[loss].options

    def check_attributes(self, folder: Path, name: str, losses: Iterable[str]) -> None:
        """Checks that losses which need attributes have some.

        Raises:
          UserError: there is no file.
        """
        needy = [loss for loss in losses if self.needs_attributes(loss)]
        if needy and self.attributes_of(folder, name) is None:
            raise UserError(
                f"--losses {' '.join(needy)} requires attributes of the items in "
                f"{self.attributes[0].format(name=name)}. Received: {folder}, which has no such "
                "file. Put it there, or leave these losses out."
            )

    def input(self, folder: Path, name: str) -> Path:
        """The input of a data set.

        Raises:
          UserError: there is none.
        """
        for pattern in self.inputs:
            if (path := folder / pattern.format(name=name)).exists():
                return path
        raise UserError(
            f"--data should be a folder with {self.expected.format(name=name)}. "
            f"Received: {folder}. Check the path, or change --sets."
        )


def factorization_settings(data: PreparedData, given: dict[str, Any], size: int) -> TrainSettings:
    """The settings of the published matrix factorisations, with what was given in place of them.

    Batches of 1,024 pairs with as many uniform negatives, embeddings that start from N(0, 1), and a
    validation after every fifth pass over the pairs, of which the best decides. One thing differs:
    the learning rate decays over 50 passes instead of staying constant for 200. On Beauty, that is
    half a percent below a constant rate for 150 passes, in a third of the time. Training never
    stops early: a validation split of one pair in ten is so noisy that patience ends runs long
    before their best.
    """
    steps = math.ceil(len(data.split("train").items) / given.get("batch_size", 1_024))
    base = dataclasses.replace(
        comparison_settings(size, "matrix-factorization"),
        cutoffs=(20, 50, 100),
        stddev=1.0,
        schedule="linear",
        max_steps=50 * steps,
        steps_per_epoch=5 * steps,
        early_stopping_patience=0,
        max_validation_users=None,
        seed=SEARCH_SEED,
    )
    return dataclasses.replace(base, **{**data_defaults(data), **given})


def sequence_settings(data: PreparedData, given: dict[str, Any], size: int) -> TrainSettings:
    """The settings of self-attention over sequences, with what was given in place of them.

    Two blocks of self-attention over the last 50 items, trained on all positions at once, for at
    most 60 passes over the users; it stops after five validations without a new best. Two fifths
    are dropped: with 64 dimensions on Beauty, a fifth of it overfits, and three fifths learn less.
    From 128 dimensions on there are four heads, half is dropped, and the learning rate is half.
    The average of the weights over some 500 steps is validated and kept.
    """
    batch_size = given.get("batch_size", 256)
    is_wide = given.get("dim", 64) >= _WIDE
    steps = math.ceil(data.split("train").num_users / batch_size)
    base = TrainSettings(
        encoder="transformer",
        blocks=2,
        heads=4 if is_wide else 1,
        dropout=0.5 if is_wide else 0.4,
        weight_average=0.998,
        dim=64,
        history_length=50,
        min_history=1,
        batch_size=batch_size,
        negatives_per_example=8,
        whole_catalogue=True,
        temperature=0.07,
        learning_rate=0.001 if is_wide else 0.002,
        monitor=f"recall@{size}",
        cutoffs=(5, 10, 20, 50),
        max_steps=60 * steps,
        steps_per_epoch=steps,
        early_stopping_patience=5,
        max_validation_users=None,
        exclude_history=True,
        item_features=NONE,
        seed=SEARCH_SEED,
    )
    return dataclasses.replace(base, **given)


_SAMPLED = {"whole_catalogue": False}

PROTOCOLS = {
    "leaderboard": Protocol(
        prepare=("--source", "presplit"),
        inputs=("{name}",),
        expected="a folder {name} of train and test files, as --source presplit reads them",
        settings=factorization_settings,
        # Few trials find little in wide ranges: these are around the published settings.
        temperatures=Range(0.1, 0.4, logarithmic=True),
        temperature=0.2,
        rates=Range(0.3, 3.0, logarithmic=True),
    ),
    "sequences": Protocol(
        prepare=(
            *("--source", "sequences", "--user-column", "1", "--split", "leave-one-out"),
            *("--drop-cold-targets", "--drop-repeated-targets"),
        ),
        inputs=("{name}.txt.gz", "{name}.txt"),
        expected="a file {name}.txt or {name}.txt.gz with a line for each user: user, items",
        settings=sequence_settings,
        temperatures=Range(0.03, 0.2, logarithmic=True),
        temperature=0.07,
        rates=Range(0.25, 2.0, logarithmic=True),
        contestants={
            SAMPLED_SOFTMAX: Contestant("softmax", _SAMPLED),
            ATTRIBUTES_SOFTMAX: Contestant("softmax", {**_SAMPLED, "item_features": COLUMN}),
        },
        attributes=("{name}_item2attributes.json.gz", "{name}_item2attributes.json"),
    ),
}
"""The protocol of each table of ``BENCHMARKS``."""
