"""Writes prepared data (see ``data.prepared``) from the engine's tables, batch by batch."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .engines.base import Engine
from .features.spool import Spool
from .sources.base import SPLIT_USERS, USERS_ARE_SPLIT
from .tables import LogOptions, members, ordered_items

BATCH_ROWS = 1 << 20


def write_item_ids(engine: Engine, folder: Path) -> None:
    """Writes ``item_ids.txt``."""
    _write_lines(folder / "item_ids.txt", engine, "items")


def write_split(
    engine: Engine,
    folder: Path,
    name: str,
    split: str,
    options: LogOptions,
    history_share: float,
    spool: Spool | None = None,
) -> dict[str, int]:
    """Writes the folder of one split.

    Args:
      engine: engine with the tables of ``tables``.
      folder: parent of the new folder.
      name: ``train``, ``valid`` or ``test``.
      split: how the log is split, see ``sources.base``.
      options: the options of the split.
      history_share: share of a user's items that form the history, if users are split.
      spool: takes the further columns of the interactions, if there are any.

    Returns:
      Statistics: the numbers of users and interactions, and of history items and targets.
    """
    target = folder / name
    target.mkdir()
    table = members(name)
    _write_lines(target / "user_ids.txt", engine, table)
    num_users = engine.count(table)
    interactions = history = 0
    with contextlib.ExitStack() as files:
        offsets = files.enter_context(
            open_flat_array(target / "offsets.npy", num_users + 1, np.int64)
        )
        offsets(np.zeros(1, np.int64))
        if name != "train":
            lengths_file = files.enter_context(
                open_flat_array(target / "history_lengths.npy", num_users, np.int32)
            )
        for batch in engine.numbered(table, ["total", "history"]):
            totals = batch.column(0).to_numpy()
            ends = interactions + np.cumsum(totals)
            offsets(ends)
            interactions = int(ends[-1]) if len(ends) else interactions
            if name != "train":
                if split in (SPLIT_USERS, USERS_ARE_SPLIT):
                    lengths = history_lengths(totals, history_share)
                else:
                    lengths = batch.column(1).to_numpy()
                lengths_file(lengths)
                history += int(lengths.sum())
    statistics = {"users": num_users, "interactions": interactions}
    if name != "train":
        statistics["history_interactions"] = history
        statistics["target_interactions"] = interactions - history
    with open_flat_array(target / "items.npy", interactions, np.int32) as append:
        extras = 0 if spool is None else spool.num_columns
        for batch in engine.batches(ordered_items(split, name, options, engine.row, extras)):
            append(batch.column(0).to_numpy())
            if spool is not None:
                spool.append(batch.columns[1:])
    if spool is not None:
        spool.close()
    return statistics


def history_lengths(totals: np.ndarray, share: float) -> np.ndarray:
    """Lengths of the histories: the share of each total, rounded down, but never none or all.

    Args:
      totals: ``[num_users]`` integers of at least 2, the number of items of each user.
      share: number between 0 and 1.

    >>> history_lengths(np.array([2, 5, 9, 10]), 0.8)
    array([1, 4, 7, 8])
    """
    # The small constant undoes products such as 0.29 * 100 = 28.999999999999996.
    lengths = np.floor(totals * share + 1e-9).astype(np.int64)
    return np.clip(lengths, 1, totals - 1)


def write_item_counts(folder: Path, num_items: int) -> np.ndarray:
    """Writes ``item_counts.npy`` from the training split, and returns its content."""
    items = np.load(folder / "train" / "items.npy", mmap_mode="r", allow_pickle=False)
    counts = np.zeros(num_items, np.int64)
    for start in range(0, len(items), BATCH_ROWS):
        counts += np.bincount(items[start : start + BATCH_ROWS], minlength=num_items)
    np.save(folder / "item_counts.npy", counts, allow_pickle=False)
    return counts


@contextlib.contextmanager
def open_flat_array(path: Path, length: int, kind: type[np.number]) -> Iterator[Append]:
    """Opens a .npy file of ``length`` numbers of type ``kind`` to write from front to back.

    Yields:
      A function that appends numbers.
    """
    dtype = np.dtype(kind).newbyteorder("<")
    with open(path, "wb") as file:
        header = {"descr": dtype.str, "fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(file, header)
        append = Append(file, dtype)
        yield append
    if append.written != length:
        raise RuntimeError(f"{path.name} has {append.written} numbers instead of {length}")


class Append:
    """Appends numbers of one type to a file.

    Args:
      file: file to write.
      dtype: type of the numbers.

    Attributes:
      written: how many were written.
    """

    def __init__(self, file: io.BufferedWriter, dtype: np.dtype):
        self.file = file
        self._dtype = dtype
        self.written = 0

    def __call__(self, values: np.ndarray) -> None:
        self.file.write(values.astype(self._dtype, copy=False).tobytes())
        self.written += len(values)


def _write_lines(path: Path, engine: Engine, table: str) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for batch in engine.numbered(table, ["name"]):
            for text in batch.column(0).to_pylist():
                file.write(text)
                file.write("\n")
