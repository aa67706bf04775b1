"""Writes the layout of ``prepared`` out of the engine's tables, a batch of rows at a time."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from pipelines.folders import sha256
from pipelines.logsource import PAIRS_ARE_SPLIT
from pipelines.logtable import ordered_items

BATCH_ROWS = 1 << 20


def write_item_ids(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Writes ``item_ids.txt``."""
    _write_lines(folder / "item_ids.txt", connection, "SELECT name FROM items ORDER BY id")


def write_split(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    name: str,
    split: str,
    history_share: float,
) -> dict[str, int]:
    """Writes the folder of one split.

    Args:
      connection: With the tables of ``logtable``.
      folder: Parent of the new folder.
      name: ``train``, ``valid`` or ``test``.
      split: How the log is split, see ``logsource``.
      history_share: Share of a user's items that are the history, unless the pairs of the log
        come split.

    Returns:
      Statistics: the numbers of users and interactions, and of history items and targets.
    """
    target = folder / name
    target.mkdir()
    members = f"FROM members WHERE split = '{name}' ORDER BY position"
    _write_lines(target / "user_ids.txt", connection, f"SELECT name {members}")
    table = connection.sql(f"SELECT total, history {members}").to_arrow_table()
    totals = table["total"].to_numpy()
    offsets = np.zeros(len(totals) + 1, np.int64)
    np.cumsum(totals, out=offsets[1:])
    np.save(target / "offsets.npy", offsets, allow_pickle=False)
    statistics = {"users": len(totals), "interactions": int(offsets[-1])}
    if name != "train":
        if split == PAIRS_ARE_SPLIT:
            lengths = table["history"].to_numpy()
        else:
            lengths = history_lengths(totals, history_share)
        np.save(target / "history_lengths.npy", lengths.astype(np.int32), allow_pickle=False)
        history = int(lengths.sum())
        statistics["history_interactions"] = history
        statistics["target_interactions"] = statistics["interactions"] - history
    with open_flat_array(target / "items.npy", statistics["interactions"]) as append:
        for batch in _batches(connection, ordered_items(split, name)):
            append(batch.column(0).to_numpy())
    return statistics


def history_lengths(totals: np.ndarray, share: float) -> np.ndarray:
    """How many items are the history: the share, rounded down, but never none and never all.

    Args:
      totals: ``[num_users]`` integers, at least 2: items of each user.
      share: Between 0 and 1.

    >>> history_lengths(np.array([2, 5, 9, 10]), 0.8)
    array([1, 4, 7, 8])
    """
    # The small constant undoes products such as 0.29 * 100 = 28.999999999999996.
    lengths = np.floor(totals * share + 1e-9).astype(np.int64)
    return np.clip(lengths, 1, totals - 1)


def write_item_counts(folder: Path, num_items: int) -> np.ndarray:
    """Writes ``item_counts.npy``, and gives its content, out of the training split."""
    items = np.load(folder / "train" / "items.npy", mmap_mode="r", allow_pickle=False)
    counts = np.zeros(num_items, np.int64)
    for start in range(0, len(items), BATCH_ROWS):
        counts += np.bincount(items[start:start + BATCH_ROWS], minlength=num_items)
    np.save(folder / "item_counts.npy", counts, allow_pickle=False)
    return counts


def file_entries(folder: Path) -> dict[str, dict[str, object]]:
    """Size and checksum of every file below ``folder``, for the manifest."""
    return {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": sha256(path),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@contextlib.contextmanager
def open_flat_array(path: Path, length: int) -> Iterator[_Append]:
    """A .npy file of ``length`` int32 numbers that is written from front to back.

    Yields:
      A function that writes the next numbers.
    """
    with open(path, "wb") as file:
        header = {"descr": "<i4", "fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(file, header)
        append = _Append(file)
        yield append
    if append.written != length:
        raise RuntimeError(f"{path.name} got {append.written} numbers instead of {length}")


class _Append:
    def __init__(self, file: io.BufferedWriter):
        self._file = file
        self.written = 0

    def __call__(self, values: np.ndarray) -> None:
        self._file.write(values.astype("<i4", copy=False).tobytes())
        self.written += len(values)


def _batches(
    connection: duckdb.DuckDBPyConnection, query: str
) -> Iterator[pa.RecordBatch]:
    yield from connection.sql(query).to_arrow_reader(BATCH_ROWS)


def _write_lines(path: Path, connection: duckdb.DuckDBPyConnection, query: str) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for batch in _batches(connection, query):
            for text in batch.column(0).to_pylist():
                file.write(text)
                file.write("\n")
