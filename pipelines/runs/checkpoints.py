"""Checkpoints of a training run, from which it continues after any interruption.

::

    checkpoints/step-000001234/   everything at that step: weights, optimizer, and training.json
                                  with the history, the best so far and the patience used up
    best/                         the weights of the best validation, and best.json about it

Both appear under their names only when complete. The older checkpoint is removed when the newer
one is in place.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfrs_croloss.models import TwoTowerModel

from ..common.files import atomic_folder, read_json, sha256, write_json
from ..common.program import command
from ..errors import UserError

_WEIGHTS = "weights"


@dataclasses.dataclass
class TrainingState:
    """The progress of a run.

    Attributes:
      step: number of training steps done.
      rows: the history, one row for each validation.
      best_row: index of the row with the best monitored value; None before the first validation.
      patience_used: validations since the best one.
      seconds: time spent so far, over all interruptions.
      stopped: why the run is over; None while it is not.
      mean_loss: weights of the metric that averages the loss since the last validation.
    """

    step: int = 0
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best_row: int | None = None
    patience_used: int = 0
    seconds: float = 0.0
    stopped: str | None = None
    mean_loss: list[float] | None = None

    @property
    def best(self) -> dict[str, Any] | None:
        """The best row of the history."""
        return None if self.best_row is None else self.rows[self.best_row]

    def add(self, row: dict[str, Any], monitor: str) -> bool:
        """Appends a row; returns whether it is the best so far."""
        best = self.best
        self.rows.append(row)
        if best is not None and row[monitor] <= best[monitor]:
            self.patience_used += 1
            return False
        self.best_row = len(self.rows) - 1
        self.patience_used = 0
        return True


class Checkpoints:
    """The saved states of one run.

    Args:
      run_folder: folder of the run.
      model: compiled model, with all variables of towers and optimizer created.
      writes: whether to save at all; of several workers with equal weights, only one saves.
    """

    def __init__(self, run_folder: Path, model: TwoTowerModel, writes: bool = True) -> None:
        self._writes = writes
        self._folder = run_folder / "checkpoints"
        self._best = run_folder / "best"
        self._weights = _weights(model)
        # Not the mean loss, which the training state has: each replica counts its own part, and
        # all of them would have to take part in saving.
        self._everything = tf.train.Checkpoint(weights=self._weights, optimizer=model.optimizer)

    def save(self, state: TrainingState) -> None:
        """Saves everything."""
        if not self._writes:
            return
        final = self._folder / f"step-{state.step:09d}"
        with atomic_folder(final, overwrite=True) as folder:
            self._everything.write(str(folder / "state"))
            write_json(folder / "training.json", dataclasses.asdict(state))
        for older in self._saved():
            if older != final:
                shutil.rmtree(older, ignore_errors=True)

    def save_best(self, row: dict[str, Any]) -> None:
        """Keeps the weights as the best so far."""
        if not self._writes:
            return
        with atomic_folder(self._best, overwrite=True) as folder:
            self._weights.write(str(folder / _WEIGHTS))
            write_json(folder / "best.json", row)

    def restore(self) -> TrainingState | None:
        """Restores the newest checkpoint; returns None where there is none."""
        saved = self._saved()
        if not saved:
            return None
        self._everything.read(str(saved[-1] / "state")).assert_consumed()
        return TrainingState(**read_json(saved[-1] / "training.json"))

    def _saved(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        names = (path for path in self._folder.iterdir() if re.fullmatch(r"step-\d+", path.name))
        return sorted(names, key=lambda path: int(path.name[5:]))


def restore_best(run_folder: Path, model: TwoTowerModel) -> dict[str, Any]:
    """Gives ``model`` the best weights of a run, and returns its row of the history."""
    folder = _best_folder(run_folder)
    _weights(model).read(str(folder / _WEIGHTS)).assert_consumed()
    row: dict[str, Any] = read_json(folder / "best.json")
    return row


def best_checksum(run_folder: Path) -> str:
    """Identifies the best weights of a run: their index file holds the checksums of all tensors."""
    return sha256(_best_folder(run_folder) / f"{_WEIGHTS}.index")


def _best_folder(run_folder: Path) -> Path:
    folder = run_folder / "best"
    if not (folder / "best.json").is_file():
        raise UserError(
            f"{run_folder} has no trained weights yet. Run '{command('train')}' until the "
            "first validation at least."
        )
    return folder


def _weights(model: TwoTowerModel) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(query_tower=model.query_tower, candidate_tower=model.candidate_tower)
