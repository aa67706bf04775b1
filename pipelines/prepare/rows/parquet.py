"""The reader of Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import UserError
from .bad_rows import NOT_UTF8, BadRows
from .readers import DAYS, MICROSECONDS, NANOSECONDS, REAL, TEXT, WHOLE, Row, extra_names
from .sql import sql_name, sql_required, sql_text, sql_time
from .values import INTEGER

ROW_BATCH = 1 << 16

LIST_SEPARATOR = "|"

# Parquet has no seconds: Arrow writes them as milliseconds.
_EPOCHS = {"s": "epoch_ms", "ms": "epoch_ms", "us": "epoch_us", "ns": "epoch_ns"}


@dataclass(frozen=True)
class ParquetReader:
    """Reads columns of a Parquet file: ids as text or integers, times as numbers, dates or text.

    The line of a bad row is its row number, from 1. ``extras`` are further columns to read. The
    values of a list become one text.
    """

    path: Path
    user: str
    item: str
    time: str | None = None
    time_form: str = INTEGER
    extras: tuple[str, ...] = ()

    @property
    def has_time(self) -> bool:
        return self.time is not None

    def type_of(self, column: str) -> pa.DataType:
        """Type of a column; of its values, if the column is dictionary-encoded."""
        kind = pq.read_schema(self.path).field(column).type
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    @property
    def extra_types(self) -> tuple[str, ...]:
        return tuple(extra_type(self.type_of(column)) for column in self.extras)

    def select(self) -> str | None:
        names = pq.read_schema(self.path).names
        if len({name.lower() for name in names}) < len(names):
            return None  # DuckDB does not tell names apart by their case.
        extras = "".join(
            f", {_sql_extra(column, self.type_of(column))} AS {name}"
            for column, name in zip(self.extras, extra_names(len(self.extras)))
        )
        return f"""
            SELECT {self._sql_id(self.user)} AS "user", {self._sql_id(self.item)} AS item,
                {self._sql_time()} AS time, 0 AS part{extras}
            FROM read_parquet({sql_text(self.path)})"""

    def _sql_id(self, column: str) -> str:
        name = sql_name(column)
        return f"decode({name})" if is_binary(self.type_of(column)) else f"CAST({name} AS VARCHAR)"

    def _sql_time(self) -> str:
        if self.time is None:
            return "NULL::BIGINT"
        name, kind = sql_name(self.time), self.type_of(self.time)
        if pa.types.is_integer(kind):
            return sql_required(f"{name} IS NOT NULL", f"CAST({name} AS BIGINT)")
        if pa.types.is_floating(kind):
            value = f"CAST({name} AS DOUBLE)"
        elif pa.types.is_date(kind):
            value = f"date_diff('day', DATE '1970-01-01', {name})"
        elif pa.types.is_timestamp(kind):
            value = f"{_EPOCHS[kind.unit]}({name})"
        else:
            return sql_time(f"CAST({name} AS VARCHAR)", self.time_form)
        # DuckDB takes the largest date for infinity, and has no number for it.
        return sql_required(f"isfinite({name})", value)

    def check(self) -> bool:
        for _ in self._batches():
            pass
        return True

    def rows(self, bad_rows: BadRows) -> Iterator[Row]:
        line = 0
        for batch in self._batches():
            own = batch.num_columns - len(self.extras)
            values = [_plain_values(column) for column in batch.columns[:own]]
            values += [_extra_values(column) for column in batch.columns[own:]]
            for row in zip(*values):
                line += 1
                yield from self.parse(line, row, bad_rows)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        times = [] if self.time is None else [self.time]
        columns = [self.user, self.item, *times, *self.extras]
        wanted = list(dict.fromkeys(columns))
        try:
            with pq.ParquetFile(self.path, page_checksum_verification=True) as file:
                for batch in file.iter_batches(batch_size=ROW_BATCH, columns=wanted):
                    # Without the elements of lists and structures.
                    yield pa.RecordBatch.from_arrays(
                        [batch.column(name) for name in columns], columns
                    )
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise UserError(
                f"{self.path} is a damaged Parquet file ({reason}). Download or write it again."
            ) from error

    def parse(self, line: int, values: Sequence[Any], bad_rows: BadRows) -> Iterator[Row]:
        """Yields the row with these values of user, item, possibly time, and extras, unless bad.

        Text is passed as bytes.
        """
        try:
            texts = [_text(value) for value in values]
        except UnicodeDecodeError:
            bad_rows.add(NOT_UTF8, self.path.name, line)
            return
        own = 2 if self.time is None else 3
        time = None if self.time is None else texts[2]
        yield Row(line, 0, texts[0], texts[1], time, tuple(texts[own:]))


def is_binary(kind: pa.DataType) -> bool:
    """Whether a column holds bytes."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether the values of a column are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether a column holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def extra_type(kind: pa.DataType) -> str:
    """What a further column of this type holds, see ``readers``."""
    if pa.types.is_timestamp(kind):
        return NANOSECONDS if kind.unit == "ns" else MICROSECONDS
    if pa.types.is_date(kind):
        return DAYS
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return REAL
    # The largest numbers of 64 bits without a sign do not fit.
    return WHOLE if pa.types.is_integer(kind) and not pa.types.is_uint64(kind) else TEXT


def can_be_extra(kind: pa.DataType) -> bool:
    """Whether a further column may have this type."""
    if is_list(kind):
        kind = kind.value_type
        return is_text(kind) or bool(pa.types.is_integer(kind))
    return (
        extra_type(kind) != TEXT
        or is_text(kind)
        or is_binary(kind)
        or bool(pa.types.is_boolean(kind) or pa.types.is_uint64(kind))
    )


def _sql_extra(column: str, kind: pa.DataType) -> str:
    name, held = sql_name(column), extra_type(kind)
    if is_binary(kind):
        return f"decode({name})"
    if is_list(kind):
        return f"array_to_string(CAST({name} AS VARCHAR[]), '{LIST_SEPARATOR}')"
    if held == DAYS:
        return f"date_diff('day', DATE '1970-01-01', {name})"
    if held == MICROSECONDS:
        return f"epoch_us({name})"
    if held == NANOSECONDS:
        return f"epoch_ns({name})"
    if pa.types.is_decimal(kind):
        # By its text, which every engine rounds to the nearest number.
        return f"CAST(CAST({name} AS VARCHAR) AS DOUBLE)"
    return (
        f"CAST({name} AS {'DOUBLE' if held == REAL else 'BIGINT' if held == WHOLE else 'VARCHAR'})"
    )


def _extra_values(column: pa.Array) -> list[Any]:
    """A further column as Python values: text as bytes, and what is missing as None."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if is_list(kind):
        if is_text(kind.value_type):
            column = column.cast(pa.list_(pa.large_binary()))
        mark = LIST_SEPARATOR.encode()
        return [
            None if row is None else mark.join(_as_bytes(one) for one in row if one is not None)
            for row in column.to_pylist()
        ]
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("ns" if kind.unit == "ns" else "us", kind.tz))
        column = column.cast(pa.int64())
    elif pa.types.is_date(kind):
        column = column.cast(pa.date32()).cast(pa.int32())
    elif pa.types.is_boolean(kind):
        column = column.cast(pa.string())
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.string()).cast(pa.float64())
    elif pa.types.is_floating(kind):
        column = column.cast(pa.float64())
    elif is_text(kind):
        column = column.cast(pa.large_binary())
    values: list[Any] = column.to_pylist()
    return values


def _plain_values(column: pa.Array) -> list[Any]:
    """A column as Python values: text as bytes, dates as numbers."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # As bytes, so that a bad character makes one row bad and not the whole batch.
        column = column.cast(pa.large_binary())
    elif pa.types.is_timestamp(kind):
        if kind.unit == "s":
            column = column.cast(pa.timestamp("ms", kind.tz))
        column = column.cast(pa.int64())
    elif pa.types.is_date(kind):
        # Days, which no column of another type is compared with.
        column = column.cast(pa.date32()).cast(pa.int32())
    values: list[Any] = column.to_pylist()
    return values


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
