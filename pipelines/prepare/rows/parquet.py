"""The reader of Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .bad_rows import NOT_UTF8, BadRows
from .readers import Row
from .sql import sql_name, sql_required, sql_text, sql_time
from .values import INTEGER

ROW_BATCH = 1 << 16


@dataclass(frozen=True)
class ParquetReader:
    """Reads columns of a Parquet file: ids as text or integers, times as numbers, dates or text.

    The line of a bad row is its row number, from 1.
    """

    path: Path
    user: str
    item: str
    time: str | None = None
    time_form: str = INTEGER

    @property
    def has_time(self) -> bool:
        return self.time is not None

    def type_of(self, column: str) -> pa.DataType:
        """Type of a column; of its values, if the column is dictionary-encoded."""
        kind = pq.read_schema(self.path).field(column).type
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    def select(self) -> str:
        return f"""
            SELECT {self._sql_id(self.user)} AS "user", {self._sql_id(self.item)} AS item,
                {self._sql_time()} AS time, 0 AS part
            FROM read_parquet({sql_text(self.path)})"""

    def _sql_id(self, column: str) -> str:
        name = sql_name(column)
        return f"decode({name})" if is_binary(self.type_of(column)) else f"CAST({name} AS VARCHAR)"

    def _sql_time(self) -> str:
        if self.time is None:
            return "NULL::BIGINT"
        name, kind = sql_name(self.time), self.type_of(self.time)
        if pa.types.is_integer(kind):
            value = f"CAST({name} AS BIGINT)"
        elif pa.types.is_timestamp(kind) and kind.unit == "ns":
            value = f"epoch_ns({name})"
        elif pa.types.is_temporal(kind):
            value = f"epoch_us({name})"
        else:
            return sql_time(f"CAST({name} AS VARCHAR)", self.time_form)
        return sql_required(f"{name} IS NOT NULL", value)

    def rows(self, bad_rows: BadRows) -> Iterator[Row]:
        columns = [self.user, self.item] + ([] if self.time is None else [self.time])
        line = 0
        with pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(batch_size=ROW_BATCH, columns=columns):
                values = [_plain_values(batch.column(name)) for name in columns]
                for row in zip(*values):
                    line += 1
                    yield from self.parse(line, row, bad_rows)

    def parse(self, line: int, values: Sequence[Any], bad_rows: BadRows) -> Iterator[Row]:
        """Yields the row with these values of user, item and possibly time, unless it is bad.

        Text is passed as bytes.
        """
        try:
            texts = [_text(value) for value in values]
        except UnicodeDecodeError:
            bad_rows.add(NOT_UTF8, self.path.name, line)
            return
        yield Row(line, 0, texts[0], texts[1], None if self.time is None else texts[2])


def is_binary(kind: pa.DataType) -> bool:
    """Whether a column holds bytes."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _plain_values(column: pa.Array) -> list[Any]:
    """A column as Python values: text as bytes, dates as numbers."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # As bytes, so that a bad character makes one row bad and not the whole batch.
        column = column.cast(pa.large_binary())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_date(kind):
        column = column.cast(pa.timestamp("us")).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
