"""A large matrix of vectors in files, written in shards by several processes and read in parts.

::

    vectors-00003-of-00008.npy    float32 [rows of the shard, dim]
    vectors-00003-of-00008.json   the range of rows, their checksum and their origin

A shard is complete if its description exists and matches, since the description is written last.
Indexes accept the files in place of an array, and then hold the vectors only once.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import FileIO
from typing import Any

import numpy as np

from tfrs_croloss._replicas import BLOCK_SIZE
from tfrs_croloss.indexes._shards import (
    DTYPE,
    Folder,
    Shard,
    check_data,
    read_shards,
    write_shard,
)

__all__ = ["Shard", "VectorFiles", "read_shards", "row_blocks", "write_shard"]

# Number of missing shards that an error lists.
_LISTED = 10


def row_blocks(rows: Any, block_size: int = BLOCK_SIZE) -> Iterator[tuple[int, np.ndarray]]:
    """Yields blocks of ``[num_rows, dim]`` rows, each with the number of its first row."""
    for first in range(0, len(rows), block_size):
        yield first, rows[first : first + block_size]


class VectorFiles:
    """The rows of a matrix in files, ``[num_items, dim]`` float32, read on demand.

    Slices and arrays of row numbers work as with an array; nothing is kept in memory.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> rows = np.arange(10.0).reshape(5, 2)
    >>> for shard in range(2):
    ...     _ = write_shard(folder, shard, lambda first, last: rows[first:last], num_shards=2,
    ...                     num_items=5, dim=2, origin={"of": "an example"})
    >>> files = VectorFiles.open(folder)
    >>> print(files.shape, files[1:4].tolist(), files[[4, 0]].tolist())
    (5, 2) [[2.0, 3.0], [4.0, 5.0], [6.0, 7.0]] [[8.0, 9.0], [0.0, 1.0]]

    Args:
      shards: complete shards in order; see `open`.
    """

    dtype = np.dtype(np.float32)
    ndim = 2

    def __init__(self, shards: list[Shard]) -> None:
        self.shards = tuple(shards)
        self.shape = (shards[0].num_items, shards[0].dim)
        self.origin = shards[0].origin
        self._firsts = np.array([shard.first for shard in shards])
        self._offsets = [check_data(shard) for shard in shards]

    @classmethod
    def open(cls, folder: Folder) -> VectorFiles:
        """Opens the files of a folder, and checks that they are complete and belong together.

        The data is not read; see `verify`.

        Raises:
          ValueError: a shard is missing or does not match the others.
        """
        shards = read_shards(folder)
        if not shards:
            raise ValueError(
                f"{folder} should contain files of vectors. It has no description of any "
                "(vectors-….json). Write them first, with `write_shard`."
            )
        for name in ("num_shards", "num_items", "dim", "origin"):
            values = [getattr(shard, name) for shard in shards]
            if other := next((one for one in shards if getattr(one, name) != values[0]), None):
                raise ValueError(
                    f"the shards in {folder} should belong to one matrix. {shards[0].path.name} "
                    f"and {other.path.name} differ in `{name}`: {_short(values[0])} and "
                    f"{_short(getattr(other, name))}. Remove the shards that do not belong there."
                )
        present = {shard.shard for shard in shards}
        missing = [number for number in range(shards[0].num_shards) if number not in present]
        if missing:
            listed = ", ".join(map(str, missing[:_LISTED]))
            more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
            raise ValueError(
                f"{folder} should have {shards[0].num_shards} shards of vectors. Missing: "
                f"{listed}{more}. Write the missing ones too."
            )
        return cls(sorted(shards, key=lambda shard: shard.shard))

    def verify(self) -> None:
        """Reads all data and compares it with its checksums.

        Raises:
          ValueError: shards have changed since they were written; the error names them.
        """
        changed = [one.path.name for one in self.shards if not one.is_unchanged()]
        if changed:
            raise ValueError(
                f"{', '.join(changed)} in {self.shards[0].path.parent} should have the checksum of "
                "its description. Remove both files and write the shard again."
            )

    def blocks(self, block_size: int = BLOCK_SIZE) -> Iterator[np.ndarray]:
        """Yields the rows in order, in blocks of ``[at most block_size, dim]``."""
        for _, block in row_blocks(self, block_size):
            yield block

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Copies rows: ``[num, dim]`` for a slice, ``[..., dim]`` for row numbers ``[...]``."""
        if isinstance(rows, slice):
            first, last, step = rows.indices(len(self))
            if step == 1:
                return self._read(first, max(first, last))
            rows = np.arange(first, last, step)
        numbers = np.asarray(rows)
        if numbers.size == 0 and not isinstance(rows, np.ndarray):
            numbers = numbers.astype(np.int64)
        if numbers.dtype.kind not in "iu":
            raise TypeError(
                "rows should be a slice or whole numbers. Received: "
                f"{type(rows).__name__} of dtype {numbers.dtype}."
            )
        flat = numbers.reshape(-1).astype(np.int64)
        flat = np.where(flat < 0, flat + len(self), flat)
        if flat.size and not 0 <= flat.min() <= flat.max() < len(self):
            raise IndexError(
                f"rows should be from {-len(self)} to {len(self) - 1}. Received: numbers from "
                f"{numbers.min()} to {numbers.max()}."
            )
        return self._gather(flat).reshape(*numbers.shape, self.shape[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All rows in one array."""
        if copy is False:
            raise ValueError(
                "vectors in files cannot become an array without a copy. Leave `copy` out."
            )
        everything = self._read(0, len(self))
        return everything if dtype is None else everything.astype(dtype, copy=False)

    def _read(self, first: int, last: int) -> np.ndarray:
        # Not mapped, since mapped pages would count as memory of this process.
        rows = np.empty([last - first, self.shape[1]], DTYPE)
        start = first
        while start < last:
            shard, offset = self._find(start)
            end = min(last, shard.last)
            wanted = rows[start - first : end - first].data.cast("B")
            with open(shard.path, "rb", buffering=0) as file:
                file.seek(offset)
                _read_exactly(file, wanted)
            start = end
        return rows

    def _gather(self, numbers: np.ndarray) -> np.ndarray:
        found = np.empty([len(numbers), self.shape[1]], DTYPE)
        order = np.argsort(numbers, kind="stable")
        in_order = numbers[order]
        done = 0
        while done < len(order):
            # Only one window of one file is mapped at a time.
            start = int(in_order[done])
            shard, offset = self._find(start)
            end = min(start + BLOCK_SIZE, shard.last)
            last = int(np.searchsorted(in_order, end))
            shape = (end - start, self.shape[1])
            window = np.memmap(shard.path, DTYPE, "r", offset, shape)
            found[order[done:last]] = window[in_order[done:last] - start]
            del window
            done = last
        return found

    def _find(self, row: int) -> tuple[Shard, int]:
        """The shard with a row, and the offset of the row in its data file."""
        # Of several shards that start at the same row, all but the last are empty.
        place = int(np.searchsorted(self._firsts, row, side="right")) - 1
        shard = self.shards[place]
        return shard, self._offsets[place] + (row - shard.first) * self.shape[1] * DTYPE.itemsize


def _read_exactly(file: FileIO, wanted: memoryview) -> None:
    while wanted:
        read = file.readinto(wanted)
        if not read:
            raise ValueError(
                f"{file.name!s} has become shorter since it was opened. Write the shard again."
            )
        wanted = wanted[read:]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
