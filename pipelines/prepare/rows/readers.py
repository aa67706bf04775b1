"""One small reader per file format.

A reader offers its rows twice. ``select`` is SQL for the engine: fast, and it fails or gives
NULLs where a file is not clean. ``rows`` goes through the file in Python, one row at a time, and
says which line is bad and why; it is only asked when ``select`` was not enough.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from . import text_files
from .bad_rows import BROKEN_JSON, NOT_UTF8, BadRows
from .values import DATE, DECIMAL, INTEGER

# The part of a log that a row belongs to: 0, 1, 2 for the train, valid and test files of a log
# that comes split, 0 for every row of another log, and this for rows that were not asked for.
UNWANTED = -1

ROW_BATCH = 1 << 16


class Row(NamedTuple):
    """One row as text. ``time`` is None where the order of the file is the order in time."""

    line: int
    part: int
    user: str
    item: str
    time: str | None


class Reader(Protocol):
    """A file of interactions."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def has_time(self) -> bool:
        """Whether rows carry a time."""

    @property
    def time_form(self) -> str:
        """How times are written at the head of the file."""

    def select(self) -> str | None:
        """A SELECT of user, item, time and part in file order; None if only ``rows`` can."""

    def rows(self, bad_rows: BadRows) -> Iterator[Row]:
        """The rows, with those that cannot be taken apart counted in ``bad_rows``."""


class TextReader(Reader, Protocol):
    """A file of text, whose rows can be had from some of its lines alone."""

    @property
    def header_lines(self) -> int:
        """Number of lines, blank ones too, up to the end of the header's first line."""

    def parse(self, lines: Iterable[tuple[int, bytes]], bad_rows: BadRows) -> Iterator[Row]:
        """The rows of consecutive lines, each with its number from 1.

        A header is passed over where the lines begin with the first of the file.
        """


def sql_text(value: object) -> str:
    """``value`` as a SQL string.

    >>> print(sql_text("it's"))
    'it''s'
    """
    return "'" + str(value).replace("'", "''") + "'"


@dataclass(frozen=True)
class DelimitedReader:
    """Columns between separators: CSV and its relatives.

    Attributes:
      path: Plain or gzip file.
      separator: One character.
      has_header: Whether the first line names the columns.
      num_columns: Fields in every row.
      user, item: Columns of the ids, from 0.
      time: Column of the time, or None.
      time_form: How times are written at the head of the file.
      part: Part of the log that this file is.
      wanted: A column and the value it must have for a row to be used.
    """

    path: Path
    separator: str
    has_header: bool
    num_columns: int
    user: int
    item: int
    time: int | None = None
    time_form: str = INTEGER
    part: int = 0
    wanted: tuple[int, str] | None = None

    @property
    def has_time(self) -> bool:
        return self.time is not None

    def select(self) -> str:
        time = "NULL::BIGINT" if self.time is None else _sql_time(f"c{self.time}", self.time_form)
        part = str(self.part)
        if self.wanted is not None:
            column, value = self.wanted
            part = f"CASE WHEN c{column} = {sql_text(value)} THEN {part} ELSE {UNWANTED} END"
        columns = ", ".join(f"'c{index}': 'VARCHAR'" for index in range(self.num_columns))
        compression = "gzip" if text_files.is_gzip(self.path) else "none"
        return f"""
            SELECT c{self.user} AS "user", c{self.item} AS item, {time} AS time, {part} AS part
            FROM read_csv({sql_text(self.path)}, columns = {{{columns}}},
                delim = {sql_text(self.separator)}, quote = '"', escape = '"',
                header = {str(self.has_header).lower()}, compression = '{compression}',
                auto_detect = false, strict_mode = true)"""

    @property
    def header_lines(self) -> int:
        if not self.has_header:
            return 0
        with contextlib.closing(text_files.read_lines(self.path)) as lines:
            return next((number for number, line in enumerate(lines, start=1) if line), 0)

    def rows(self, bad_rows: BadRows) -> Iterator[Row]:
        return self.parse(enumerate(text_files.read_lines(self.path), start=1), bad_rows)

    def parse(self, lines: Iterable[tuple[int, bytes]], bad_rows: BadRows) -> Iterator[Row]:
        numbered = iter(lines)
        first = next(numbered, None)
        if first is None:
            return
        skip_header = self.has_header and first[0] == 1
        records = text_files.read_records(
            itertools.chain([first], numbered), self.separator, self.num_columns
        )
        for line, record in records:
            if skip_header:
                skip_header = False
                continue
            if isinstance(record, str):
                bad_rows.add(record, self.path.name, line)
                continue
            if self.wanted is not None and record[self.wanted[0]] != self.wanted[1].encode():
                yield Row(line, UNWANTED, "", "", None)
                continue
            try:
                yield Row(
                    line,
                    self.part,
                    record[self.user].decode("utf-8"),
                    record[self.item].decode("utf-8"),
                    None if self.time is None else record[self.time].decode("utf-8"),
                )
            except UnicodeDecodeError:
                bad_rows.add(NOT_UTF8, self.path.name, line)


@dataclass(frozen=True)
class JsonReader:
    """One JSON object a line; the keys name user, item and time."""

    path: Path
    user: str
    item: str
    time: str
    has_time: bool = True
    time_form: str = INTEGER
    header_lines: int = 0

    def select(self) -> str:
        columns = ", ".join(f"{sql_text(key)}: 'VARCHAR'" for key in self.keys)
        compression = "gzip" if text_files.is_gzip(self.path) else "none"
        # A list or an object in place of an id would come as its text; NULL asks for a closer look.
        user, item = (
            f"CASE WHEN left({name}, 1) NOT IN ('[', '{{') THEN {name} END"
            for name in map(_sql_name, (self.user, self.item))
        )
        return f"""
            SELECT {user} AS "user", {item} AS item,
                {_sql_time(_sql_name(self.time), INTEGER)} AS time, 0 AS part
            FROM read_json({sql_text(self.path)}, columns = {{{columns}}},
                format = 'newline_delimited', compression = '{compression}')"""

    @property
    def keys(self) -> tuple[str, str, str]:
        """The keys of user, item and time."""
        return self.user, self.item, self.time

    def rows(self, bad_rows: BadRows) -> Iterator[Row]:
        return self.parse(enumerate(text_files.read_lines(self.path), start=1), bad_rows)

    def parse(self, lines: Iterable[tuple[int, bytes]], bad_rows: BadRows) -> Iterator[Row]:
        for line, text in lines:
            if not text.strip():
                continue
            try:
                entry = json.loads(text.decode("utf-8"))
            except UnicodeDecodeError:
                bad_rows.add(NOT_UTF8, self.path.name, line)
                continue
            except ValueError:
                bad_rows.add(BROKEN_JSON, self.path.name, line)
                continue
            values = [entry.get(key) for key in self.keys] if isinstance(entry, dict) else [[]]
            if any(not isinstance(value, (str, int, float, type(None))) for value in values):
                bad_rows.add(BROKEN_JSON, self.path.name, line)
                continue
            user, item, time = ("" if value is None else str(value) for value in values)
            yield Row(line, 0, user, item, time)


@dataclass(frozen=True)
class SequenceReader:
    """One user a line, items between blanks in time order; the line number is the user's id."""

    path: Path
    has_time: bool = False
    time_form: str = INTEGER

    def select(self) -> None:
        return None

    def rows(self, bad_rows: BadRows) -> Iterator[Row]:
        for line, text in enumerate(text_files.read_lines(self.path), start=1):
            try:
                items = text.decode("utf-8").split(" ")
            except UnicodeDecodeError:
                bad_rows.add(NOT_UTF8, self.path.name, line)
                continue
            for item in items:
                if item:
                    yield Row(line, 0, str(line), item, None)


@dataclass(frozen=True)
class ParquetReader:
    """Columns of a Parquet file; ids are text or integers, times numbers, dates or text.

    The "line" of a bad row is its row number, from 1.
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
        """Type of a column, with dictionaries taken off."""
        kind = pq.read_schema(self.path).field(column).type
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    def select(self) -> str:
        return f"""
            SELECT {self._sql_id(self.user)} AS "user", {self._sql_id(self.item)} AS item,
                {self._sql_time()} AS time, 0 AS part
            FROM read_parquet({sql_text(self.path)})"""

    def _sql_id(self, column: str) -> str:
        name = _sql_name(column)
        return f"decode({name})" if is_binary(self.type_of(column)) else f"CAST({name} AS VARCHAR)"

    def _sql_time(self) -> str:
        if self.time is None:
            return "NULL::BIGINT"
        name, kind = _sql_name(self.time), self.type_of(self.time)
        if pa.types.is_integer(kind):
            value = f"CAST({name} AS BIGINT)"
        elif pa.types.is_timestamp(kind) and kind.unit == "ns":
            value = f"epoch_ns({name})"
        elif pa.types.is_temporal(kind):
            value = f"epoch_us({name})"
        else:
            return _sql_time(f"CAST({name} AS VARCHAR)", self.time_form)
        return _sql_required(f"{name} IS NOT NULL", value)

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
        """The row with these values of user, item and perhaps time; none if it is a bad one.

        Text comes as bytes.
        """
        try:
            texts = [_text(value) for value in values]
        except UnicodeDecodeError:
            bad_rows.add(NOT_UTF8, self.path.name, line)
            return
        yield Row(line, 0, texts[0], texts[1], None if self.time is None else texts[2])


def _sql_name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _sql_required(condition: str, value: str) -> str:
    return f"CASE WHEN {condition} THEN {value} ELSE error('a time needs a closer look') END"


def _sql_time(text: str, form: str) -> str:
    """SQL that turns a time as text into a number, and fails where ``fields`` has to decide."""
    if form == DATE:
        return _sql_required(f"{text} IS NOT NULL", f"epoch_us(CAST({text} AS TIMESTAMPTZ))")
    if form == DECIMAL:
        return _sql_required(f"isfinite(CAST({text} AS DOUBLE))", f"CAST({text} AS DOUBLE)")
    # A cast alone would round 1.5 to 2; what comes back as it was written was an integer.
    value = f"CAST({text} AS BIGINT)"
    return _sql_required(f"CAST({value} AS VARCHAR) = {text}", value)


def is_binary(kind: pa.DataType) -> bool:
    """Whether a column holds bytes."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _plain_values(column: pa.Array) -> list[Any]:
    """A column as Python values: text as bytes, dates as their number."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # As bytes, so that one bad character costs one row and not the batch.
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
