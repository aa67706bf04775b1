"""Checkpoints of a training run, from which it continues after any interruption.

::

    checkpoints/step-000001234/   everything at that step: weights, optimizer, and training.json
                                  with the history, the best so far and the patience used up
    best/                         the weights of the best validation, and best.json about it

Both appear under their names only when complete, and hold the checksums of their files. The two
newest checkpoints are kept: should the newer one be damaged, the other is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfrs_croloss.models import TwoTowerModel
from tfrs_croloss.optimizers import WeightAverage

from ..common import keras_version
from ..common.files import atomic_folder, file_entries, read_json, sha256, write_json
from ..common.program import command
from ..errors import UserError

KEPT = 2

_WEIGHTS = "weights"
_FILES = "files.json"
# How often weights are read that change meanwhile.
_ATTEMPTS = 5

# TensorFlow has an error of its own for most damage, and errors of Python for the rest.
_READING_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    AssertionError,
    IndexError,
    KeyError,
    RuntimeError,
)


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

    def add(self, row: dict[str, Any], monitor: str, last_counts: bool = False) -> bool:
        """Appends a row; returns whether it is the best so far.

        If the last row counts, whatever its value, every row is.
        """
        best = self.best
        self.rows.append(row)
        if not last_counts and best is not None and row[monitor] <= best[monitor]:
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
      average: the average of the weights, if there is one.
    """

    def __init__(
        self,
        run_folder: Path,
        model: TwoTowerModel,
        writes: bool = True,
        average: WeightAverage | None = None,
    ) -> None:
        self._writes = writes
        self._folder = run_folder / "checkpoints"
        self._best = run_folder / "best"
        self._weights = _weights(model)
        # Not the mean loss, which the training state has: each replica counts its own part, and
        # all of them would have to take part in saving.
        self._everything = tf.train.Checkpoint(weights=self._weights, optimizer=model.optimizer)
        if average is not None:
            self._everything.average = average.variables

    def save(self, state: TrainingState) -> None:
        """Saves everything."""
        if not self._writes:
            return
        final = self._folder / f"step-{state.step:09d}"
        with atomic_folder(final, overwrite=True) as folder:
            self._everything.write(str(folder / "state"))
            write_json(folder / "training.json", dataclasses.asdict(state))
            write_json(folder / _FILES, file_entries(folder))
        # Checkpoints after this step are those that could not be read when training continued.
        saved = self._saved()
        kept = [path for path in saved if _step(path) <= state.step][-KEPT:]
        for path in saved:
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def save_best(self, row: dict[str, Any]) -> None:
        """Keeps the weights as the best so far."""
        if not self._writes:
            return
        with atomic_folder(self._best, overwrite=True) as folder:
            self._weights.write(str(folder / _WEIGHTS))
            write_json(folder / "best.json", row)
            write_json(folder / _FILES, file_entries(folder))

    def restore(self) -> TrainingState | None:
        """Restores the newest checkpoint that is whole; returns None where there is none at all.

        Raises:
          UserError: there are checkpoints, and none of them can be read.
        """
        problems = []
        for folder in reversed(self._saved()):
            try:
                state = self._read(folder)
            except UserError as error:
                problems.append(str(error))
                continue
            for problem in problems:
                print(f"note: {problem} The one before it is used.", file=sys.stderr)
            return state
        if problems:
            raise UserError(
                f"{problems[0]} There is no other to continue from. Pass --overwrite to start over."
            )
        return None

    def _read(self, folder: Path) -> TrainingState:
        with _reading(folder):
            record = read_json(folder / "training.json", dict)
            names = [field.name for field in dataclasses.fields(TrainingState)]
            state = TrainingState(**{name: record[name] for name in names})
            if state.step != _step(folder) or not _is_valid(state):
                raise UserError("training.json should hold the progress of a run")
            self._everything.read(str(folder / "state")).assert_consumed()
        return state

    def _saved(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        names = (path for path in self._folder.iterdir() if re.fullmatch(r"step-\d+", path.name))
        return sorted(names, key=_step)


def _step(path: Path) -> int:
    return int(path.name[5:])


def _is_valid(state: TrainingState) -> bool:
    """Whether a state that was read holds what training puts into it."""
    rows, best, loss = state.rows, state.best_row, state.mean_loss
    return (
        isinstance(rows, list)
        and all(isinstance(row, dict) and row and _are_numbers(row.values()) for row in rows)
        and len({frozenset(row) for row in rows}) <= 1
        and (type(best) is int and 0 <= best < len(rows) if rows else best is None)
        and type(state.patience_used) is int
        and _are_numbers([state.patience_used, state.seconds])
        and (state.stopped is None or isinstance(state.stopped, str))
        and (loss is None or (isinstance(loss, list) and _are_numbers(loss)))
    )


def _are_numbers(values: Iterable[Any]) -> bool:
    """Whether all values are numbers that TensorFlow can hold."""
    return all(
        (type(value) is float and abs(value) <= float(tf.float32.max))
        or (type(value) is int and abs(value) < 2**63)
        for value in values
    )


def restore_best(run_folder: Path, model: TwoTowerModel) -> dict[str, Any]:
    """Gives ``model`` the best weights of a run, and returns its row of the history.

    Raises:
      UserError: there are none, or they are damaged.
    """
    folder = _best_folder(run_folder)
    try:
        for _ in range(_ATTEMPTS - 1):
            # Training may save better ones meanwhile, of which this row would be another.
            with contextlib.suppress(_ChangedError):
                return _read_best(folder, model)
        return _read_best(folder, model)
    except _ChangedError as error:
        raise UserError(f"{error} Run the same command again when it does not.") from error
    except UserError as error:
        raise UserError(f"{error} Train the run again with --overwrite.") from error


def _read_best(folder: Path, model: TwoTowerModel) -> dict[str, Any]:
    with _reading(folder):
        _weights(model).read(str(folder / _WEIGHTS)).assert_consumed()
        row: dict[str, Any] = read_json(folder / "best.json", dict)
        row["step"]  # A record without it names the file.
        if not _are_numbers(row.values()):
            raise UserError("best.json should hold a row of the history, all numbers")
    return row


class _ChangedError(UserError):
    """A checkpoint was exchanged for another while it was read."""


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Verifies the files of a checkpoint, and turns errors in reading them into user errors.

    What is read is what was verified: files that are exchanged in between are noticed.
    """
    before = _file_states(folder)
    changed = _ChangedError(f"{folder} changed while it was read.")
    is_whole = False
    try:
        if (folder / _FILES).is_file():  # Earlier versions wrote none.
            _check_files(folder)
            is_whole = True
        yield
    except (*_READING_ERRORS, tf.errors.OpError) as error:
        if _file_states(folder) != before:
            raise changed from error
        reason = str(getattr(error, "message", "") or error).strip().splitlines()
        # TensorFlow names the variable whose shape differs, or that is not in the file.
        is_other = is_whole and type(error) in (ValueError, AssertionError)
        fault = "was written by a version with another model" if is_other else "is damaged"
        detail = textwrap.shorten(reason[0].rstrip("."), 160) if reason else type(error).__name__
        raise UserError(f"{folder} {fault} ({detail}).") from error
    if _file_states(folder) != before:
        raise changed


def _file_states(folder: Path) -> dict[str, tuple[int, ...]]:
    """What identifies each file of a folder as it is now; nothing where the folder is gone."""
    found: dict[str, tuple[int, ...]] = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            status = path.stat()
            times = (status.st_mtime_ns, status.st_ctime_ns)
            found[path.name] = (status.st_ino, status.st_size, *times)
    return found


def _check_files(folder: Path) -> None:
    files = read_json(folder / _FILES, dict)
    there = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    if unnamed := there - {*files, _FILES}:
        raise UserError(f"{_FILES} should name {min(unnamed)}")
    for name, entry in files.items():
        path = folder / name
        if path.stat().st_size != entry["bytes"] or sha256(path) != entry["sha256"]:
            raise UserError(f"{name} differs from its checksum")


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
    parts: dict[str, Any] = {
        "query_tower": model.query_tower,
        "candidate_tower": model.candidate_tower,
    }
    if model.item_bias is not None:
        parts["item_bias"] = model.item_bias
    if keras_version.running() != "2":
        known: dict[int, tf.train.Checkpoint] = {}
        parts = {name: _as_in_keras_2(tower, known) for name, tower in parts.items()}
    return tf.train.Checkpoint(**parts)


def _layers_in(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple, dict)):
        held = value.values() if isinstance(value, dict) else value
        return [layer for one in held for layer in _layers_in(one)]
    return [value] if isinstance(value, tf.keras.layers.Layer) else []


def _as_in_keras_2(part: Any, known: dict[int, tf.train.Checkpoint]) -> Any:
    """A layer of Keras 3, or layers in a list or mapping, as a checkpoint of Keras 2 has them.

    There, every variable has the name of the layer's attribute, and a layer that two others share
    is one. So either Keras can read what the other has written.
    """
    if id(part) in known:
        return known[id(part)]
    if isinstance(part, tf.keras.layers.Layer):
        # Keras and TensorFlow keep lists of all layers beside the attributes that hold them.
        lists = ("_layers", "_self_")
        inner = {name: value for name, value in vars(part).items() if not name.startswith(lists)}
    else:
        inner = dict(part) if isinstance(part, dict) else {str(i): p for i, p in enumerate(part)}
    children: dict[str, Any] = {}
    nested: set[int] = set()
    for name, value in inner.items():
        layers = _layers_in(value)
        if layers:
            children[name] = _as_in_keras_2(value, known)
            nested.update(id(variable) for one in layers for variable in one.variables)
    # Those of dropout count, too; seeds, which Keras 2 does not keep, are no weights.
    for variable in getattr(part, "weights", ()):
        if id(variable) not in nested:
            children[variable.name] = variable.value
    known[id(part)] = tf.train.Checkpoint(**children)
    return known[id(part)]
