"""Raw values of the interactions of a split, kept in a file until all of them are there.

A feature is described by its training values, so these have to be read before any is encoded. The
file has blocks of a fixed number of rows: sums over blocks are then the same, whatever the size of
the engine's batches is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..rows.readers import REAL, TEXT
from .encoding import UNITS, Raw

BLOCK_ROWS = 1 << 18


class Spool:
    """A file of columns.

    Args:
      path: file to write.
      held: what each of the columns holds, see ``rows.readers``.
    """

    def __init__(self, path: Path, held: Sequence[str]):
        self._path = path
        self._held = held
        kinds = {TEXT: pa.string(), REAL: pa.float64()}
        self._schema = pa.schema(
            [(f"x{place}", kinds.get(kind, pa.int64())) for place, kind in enumerate(held)]
        )
        self._writer = pa.ipc.new_file(path, self._schema)
        self._waiting: list[pa.RecordBatch] = []
        self._num_waiting = 0

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return len(self._held)

    def append(self, columns: Sequence[pa.Array]) -> None:
        """Adds rows at the end."""
        arrays = [column.cast(field.type) for column, field in zip(columns, self._schema)]
        self._waiting.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._num_waiting += len(arrays[0])
        if self._num_waiting >= BLOCK_ROWS:
            self._write(self._num_waiting - self._num_waiting % BLOCK_ROWS)

    def close(self) -> None:
        """Writes what is left. Nothing can be added afterwards."""
        self._write(self._num_waiting)
        self._writer.close()

    def blocks(self, place: int, is_kept: np.ndarray | None = None) -> Iterator[Raw]:
        """The values of a column, in blocks of rows.

        Args:
          place: number of the column.
          is_kept: for each row, whether it is wanted; None for all rows.
        """
        kind = self._held[place]
        unit = kind if kind in UNITS else None
        start = 0
        with pa.memory_map(str(self._path)) as file, pa.ipc.open_file(file) as reader:
            for number in range(reader.num_record_batches):
                raw = Raw(reader.get_batch(number).column(place), unit)
                end = start + len(raw.values)
                yield raw if is_kept is None else raw.filter(is_kept[start:end])
                start = end

    def _write(self, num_rows: int) -> None:
        if not num_rows:
            return
        table = pa.Table.from_batches(self._waiting, self._schema)
        for start in range(0, num_rows, BLOCK_ROWS):
            block = table.slice(start, min(BLOCK_ROWS, num_rows - start)).combine_chunks()
            self._writer.write_table(block)
        self._waiting = table.slice(num_rows).to_batches()
        self._num_waiting -= num_rows
