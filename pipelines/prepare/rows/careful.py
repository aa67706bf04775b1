"""Checks rows one at a time in Python, and writes the good ones to a Parquet file.

This is where a bad row gets its kind and its line number, with either engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from .bad_rows import BadRows
from .readers import UNWANTED, Reader, Row, extra_names
from .values import DATE, BadValue, check_ids, parse_time, time_form

BATCH_ROWS = 1 << 18

# Times are written as text, since only the end of the log shows whether all are integers.
_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("user", pa.string()),
        ("item", pa.string()),
        ("time", pa.string()),
        ("part", pa.int8()),
    ]
)


def are_dates(readers: Sequence[Reader]) -> bool:
    """Whether the times of a log are dates, which the first valid time decides."""
    for reader in readers:
        for row in reader.rows(BadRows()):
            if row.part == UNWANTED:
                continue
            if row.time is None:
                return False
            with contextlib.suppress(BadValue):
                check_ids(row.user, row.item)
                form = time_form(row.time)
                if form is not None:
                    return form == DATE
    return False


class CleanLog:
    """A Parquet file of good rows.

    Args:
      path: file to write.
      dates: whether times should be dates, see ``are_dates``.
      bad_rows: counter of the bad rows.
      num_extras: number of further columns, which are written as text.

    Attributes:
      all_integers: whether every time so far is an integer.
    """

    def __init__(self, path: Path, dates: bool, bad_rows: BadRows, num_extras: int = 0):
        self.all_integers = True
        self._dates = dates
        self._bad_rows = bad_rows
        extras = [(name, pa.string()) for name in extra_names(num_extras)]
        self._schema = pa.schema([*_SCHEMA, *extras])
        self._no_extras = ("",) * num_extras
        self._writer = pq.ParquetWriter(path, self._schema)
        self._batch: list[tuple[object, ...]] = []

    def __enter__(self) -> CleanLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._writer.close()

    def add(self, rows: Iterable[tuple[int, Row]], file_name: str) -> None:
        """Writes the good rows of a file, and counts the bad ones.

        Args:
          rows: rows, each with its position in the order of the log.
          file_name: name of the file in the report of bad rows.
        """
        for number, row in rows:
            time: int | float | None = None
            if row.part != UNWANTED:
                try:
                    check_ids(row.user, row.item)
                    if row.time is not None:
                        time = parse_time(row.time, self._dates)
                        self.all_integers = self.all_integers and isinstance(time, int)
                except BadValue as error:
                    self._bad_rows.add(error.kind, file_name, row.line)
                    continue
            text = None if time is None else repr(time)
            extras = row.extras or self._no_extras
            self._batch.append((number, row.user, row.item, text, row.part, *extras))
            if len(self._batch) == BATCH_ROWS:
                self._flush()

    def _flush(self) -> None:
        schema = self._schema
        nothing = [()] * len(schema)
        columns: Iterable[tuple[object, ...]] = zip(*self._batch) if self._batch else nothing
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema)]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        self._batch = []
