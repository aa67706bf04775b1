"""Runs the cells of an experiment that have no result yet.

::

    OUT/results/KEY.json   one finished cell, written atomically
    OUT/results/KEY.npz    the ranks of its test, if they are kept
    OUT/runs/KEY/          the cell in training: an ordinary run with its checkpoint and log.txt

A process that is killed loses at most the steps since the last checkpoint of the current cell.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import tensorflow as tf

from ..common.files import installed_versions, read_json, write_json
from ..common.json_shapes import check_shape
from ..common.ownership import check_outside
from ..data.prepared import PreparedData
from ..errors import DivergedError, UserError
from ..runs.folder import Run, exclusive, open_run
from ..train.loop import train
from .cells import Cell
from .measure import figures_by_user, measure_gradient, measure_ranks

HISTORY = "history.json"

# What is read of a result, where it is there.
_HISTORY_SHAPE = [{"*": float}]
_METRICS = {"standard_errors": {"*": (float, None)}, "*": float}
_RESULT_SHAPE = {
    "name": str,
    "key": str,
    "loss": str,
    "settings": {"monitor": str},
    "seed": int,
    "versions": {"*": str},
    "failed": str,
    "best": {"*": float},
    "history": _HISTORY_SHAPE,
    "test": {"users": _METRICS, "pairs": _METRICS, "curve": {"*": [float]}},
    "gradient": [{"*": float}],
    "wall_seconds": float,
}

Result = dict[str, Any]
AfterValidation = Callable[[dict[str, Any]], None]


class Runner:
    """The cells of one output folder.

    Args:
      folder: folder of the experiment; created if it does not exist.
      data: prepared data that every cell is trained on.
      keep_runs: whether to keep the runs of finished cells, with their weights.
      stream: stream that progress is printed to; stdout by default.
      keep_ranks: whether to keep the ranks of the test split, for ``by_user``.
    """

    def __init__(
        self,
        folder: Path,
        data: PreparedData,
        keep_runs: bool = False,
        stream: TextIO | None = None,
        keep_ranks: bool = False,
    ) -> None:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--out {folder} should be a folder, but a file has that name.")
        check_outside(folder, {"--data": [data.path]})
        if folder.is_dir() and any(folder.iterdir()) and not (folder / "results").is_dir():
            raise UserError(
                f"--out {folder} exists and is not an experiment. Choose another folder."
            )
        self.folder = folder
        self.data = data
        self._keep_runs = keep_runs
        self._keep_ranks = keep_ranks
        self._stream = sys.stdout if stream is None else stream

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes out of the folder."""
        (self.folder / "results").mkdir(parents=True, exist_ok=True)
        with exclusive(self.folder):
            for leftover in (self.folder / "results").glob(".tmp-*"):
                leftover.unlink()
            yield

    def result(self, cell: Cell) -> Result | None:
        """The result of a cell; None if it is not finished."""
        path = self._result_path(cell)
        if not path.is_file():
            return None
        result: Result = read_json(path, dict)
        remedy = "Remove it, and run the same command again."
        check_shape(path, result, _RESULT_SHAPE, remedy)
        return result

    def results(self, cells: Sequence[Cell]) -> list[Result | None]:
        """The results of several cells; None for those that are not finished."""
        return [self.result(cell) for cell in cells]

    def run(self, cells: Sequence[Cell], after: Callable[[], None] | None = None) -> list[Result]:
        """Runs the cells that have no result, in order.

        Args:
          cells: cells of the experiment; equal cells run once.
          after: function to call after each cell that was run.

        Returns:
          The results of all cells, in order.
        """
        missing = {cell.key(self.data): cell for cell in cells if self.result(cell) is None}
        done = len({cell.key(self.data) for cell in cells}) - len(missing)
        if done:
            self._print(f"{done} of {done + len(missing)} runs are already finished")
        seconds: list[float] = []
        for number, cell in enumerate(missing.values(), start=1):
            result = self.run_one(cell)
            seconds.append(result["wall_seconds"])
            left = (len(missing) - number) * sum(seconds) / len(seconds)
            self._print(
                f"[{done + number}/{done + len(missing)}] {cell.name}, seed {cell.settings.seed}: "
                f"{headline(result)}, {result['wall_seconds']:.0f} s; {_duration(left)} left"
            )
            if after is not None:
                after()
        return [result for result in self.results(cells) if result is not None]

    def by_user(self, result: Result, size: int) -> dict[str, np.ndarray]:
        """Test Recall@N and NDCG@N of each user, from the ranks that were kept with a result.

        Raises:
          UserError: the ranks are missing or damaged.
        """
        path = self._ranks_path(result["key"])
        try:
            with np.load(path, allow_pickle=False) as file:
                return figures_by_user(file["ranks"], file["users"], size)
        except Exception as error:  # Also those of the parsers of zip files and headers.
            raise UserError(
                f"{path} should hold the ranks of a finished run, but: {error}. Remove "
                f"{path.with_suffix('.json')}, and run the command again."
            ) from error

    def run_folder(self, cell: Cell) -> Path:
        """The folder that a cell is trained in."""
        return self.folder / "runs" / cell.key(self.data)

    def run_one(self, cell: Cell, after_validation: AfterValidation | None = None) -> Result:
        """Trains and measures a cell, or continues with it.

        Args:
          cell: cell without a result.
          after_validation: function that receives each new row of the history, and may raise to
            abandon the cell.
        """
        start = time.monotonic()
        result: Result = {
            "name": cell.name,
            "key": cell.key(self.data),
            "split": cell.split,
            "loss": cell.settings.loss_title,
            "settings": cell.settings.as_dict(),
            "seed": cell.settings.seed,
            "versions": installed_versions(),
        }
        with open_run(self.run_folder(cell), self.data, cell.settings) as run:
            with open(run.path / "log.txt", "a", encoding="utf-8") as log:
                with contextlib.redirect_stdout(log):
                    result.update(self._train_and_measure(run, cell, after_validation))
        result["wall_seconds"] = round(time.monotonic() - start, 1)
        write_json(self._result_path(cell), result)
        if not self._keep_runs:
            shutil.rmtree(run.path, ignore_errors=True)
        # Each cell leaves graphs behind that are no longer needed.
        tf.keras.backend.clear_session()
        gc.collect()
        return result

    def discard(self, cell: Cell) -> None:
        """Removes the run of a cell that was abandoned."""
        shutil.rmtree(self.run_folder(cell), ignore_errors=True)

    def _train_and_measure(
        self, run: Run, cell: Cell, after_validation: AfterValidation | None
    ) -> Result:
        try:
            trained = run.result or train(
                run, self.data, after_validation=after_validation, pictures=False
            )
        except DivergedError as error:
            return {"failed": str(error)}
        history = read_history(run.path)
        found = {
            "best": trained["best"],
            "stopped": trained["stopped"],
            "steps": trained["steps"],
            "seconds": trained["seconds"],
            "history": history,
        }
        if cell.split == "test":
            ranks_file = self._ranks_path(cell.key(self.data)) if self._keep_ranks else None
            found["test"] = measure_ranks(run, self.data, "test", ranks_file)
            found["gradient"] = measure_gradient(run, self.data)
        return found

    def _result_path(self, cell: Cell) -> Path:
        return self.folder / "results" / f"{cell.key(self.data)}.json"

    def _ranks_path(self, key: str) -> Path:
        return self.folder / "results" / f"{key}.npz"

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


def read_history(run_folder: Path) -> list[dict[str, float]]:
    """The history of a run, one row for each validation.

    Raises:
      UserError: the file is missing or damaged.
    """
    path = run_folder / HISTORY
    rows: list[dict[str, float]] = read_json(path, list)
    check_shape(path, rows, _HISTORY_SHAPE, f"Remove {run_folder}, and run the command again.")
    return rows


def monitored(result: Result) -> float:
    """The best validation Recall@N of a result; -1 where training diverged."""
    if "failed" in result:
        return -1.0
    return float(result["best"][result["settings"]["monitor"]])


def headline(result: Result) -> str:
    """A result in a few words."""
    if "failed" in result:
        return "training diverged"
    return f"validation {result['settings']['monitor']} {monitored(result):.4f}"


def _duration(seconds: float) -> str:
    """A duration as a person would say it.

    >>> _duration(42), _duration(150), _duration(7500)
    ('42 s', '2 min', '2 h 05 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
