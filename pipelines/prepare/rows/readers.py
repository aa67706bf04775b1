"""The interface of a reader, and the readers of text formats.

A reader offers its rows in two ways. ``select`` is SQL for DuckDB: it is fast, and fails or returns
NULLs where a file is not clean. ``rows`` reads the file in Python, one row at a time, and finds
which line is bad and why; it is used only if ``select`` was not enough.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from . import text_files
from .bad_rows import BROKEN_JSON, NOT_UTF8, BadRows
from .json_objects import Integer, parse_object
from .sql import sql_name, sql_text, sql_time
from .values import INTEGER, PLAIN_INTEGER

# What a further column holds, and how engines store it. Times are counted since 1970.
TEXT = "text"
WHOLE = "whole number"
REAL = "real number"
DAYS = "days"
MICROSECONDS = "microseconds"
NANOSECONDS = "nanoseconds"
SQL_TYPES = {
    TEXT: "VARCHAR",
    WHOLE: "BIGINT",
    REAL: "DOUBLE",
    DAYS: "BIGINT",
    MICROSECONDS: "BIGINT",
    NANOSECONDS: "BIGINT",
}

# A row's part is 0, 1 or 2 for the train, valid and test files of a log that is already split, 0
# for every row of another log, and this for rows of a kind that is not used.
UNWANTED = -1


class Row(NamedTuple):
    """One row as text. ``time`` is None if the rows of the file are already in time order.

    ``extras`` are the values of the further columns; those that are missing are empty.
    """

    line: int
    part: int
    user: str
    item: str
    time: str | None
    extras: tuple[str, ...] = ()


def extra_names(count: int) -> list[str]:
    """The names of further columns in the tables of an engine."""
    return [f"x{index}" for index in range(count)]


class Reader(Protocol):
    """Reads one file of interactions."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def has_time(self) -> bool:
        """Whether rows carry a time."""

    @property
    def time_form(self) -> str:
        """How the first rows write their times, see ``values``."""

    @property
    def extra_types(self) -> tuple[str, ...]:
        """What the further columns hold, which ``select`` names x0, x1, ..."""

    def select(self) -> str | None:
        """A SELECT of user, item, time, part and the further columns in file order.

        Returns:
          The SELECT, or None if only ``rows`` works.
        """

    def check(self) -> bool:
        """Reads the file to the end of its own checks.

        Returns:
          Whether DuckDB may read it; False if only ``rows`` finds the ends of its lines.

        Raises:
          UserError: the file is damaged or cut off.
        """

    def rows(self, bad_rows: BadRows) -> Iterator[Row]:
        """Yields the rows, and counts those that cannot be parsed in ``bad_rows``."""


class TextReader(Reader, Protocol):
    """Reads a text file, and can also parse some of its lines alone."""

    @property
    def header_lines(self) -> int:
        """Number of lines up to and including the header, blank ones too; 0 without a header."""

    def parse(self, lines: Iterable[tuple[int, bytes]], bad_rows: BadRows) -> Iterator[Row]:
        """Yields the rows of consecutive lines, which come with their numbers from 1.

        The header is skipped if the lines start with the first line of the file.
        """


@dataclass(frozen=True)
class DelimitedReader:
    """Reads delimited text, such as CSV.

    Attributes:
      path: plain or gzipped file.
      separator: one character.
      has_header: whether the first line names the columns.
      num_columns: number of fields in every row.
      user, item: columns of the ids, from 0.
      time: column of the time, or None.
      time_form: how the first rows write their times, see ``values``.
      part: part of the log that this file holds.
      wanted: a column and the value it must have for a row to be used, or None.
      extras: further columns to read, from 0.
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
    extras: tuple[int, ...] = ()

    @property
    def has_time(self) -> bool:
        return self.time is not None

    @property
    def extra_types(self) -> tuple[str, ...]:
        return (TEXT,) * len(self.extras)

    def select(self) -> str:
        time = "NULL::BIGINT" if self.time is None else sql_time(f"c{self.time}", self.time_form)
        part = str(self.part)
        if self.wanted is not None:
            column, value = self.wanted
            part = f"CASE WHEN c{column} = {sql_text(value)} THEN {part} ELSE {UNWANTED} END"
        columns = ", ".join(f"'c{index}': 'VARCHAR'" for index in range(self.num_columns))
        extras = "".join(
            f", c{column} AS {name}"
            for column, name in zip(self.extras, extra_names(len(self.extras)))
        )
        compression = "gzip" if text_files.is_gzip(self.path) else "uncompressed"
        return f"""
            SELECT c{self.user} AS "user", c{self.item} AS item, {time} AS time, {part} AS part
                {extras}
            FROM read_csv({sql_text(self.path)}, columns = {{{columns}}},
                delim = {sql_text(self.separator)}, quote = '"', escape = '"',
                header = {str(self.has_header).lower()}, compression = '{compression}',
                auto_detect = false, strict_mode = true)"""

    def check(self) -> bool:
        return text_files.check(self.path)

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
                    tuple([record[column].decode("utf-8") for column in self.extras]),
                )
            except UnicodeDecodeError:
                bad_rows.add(NOT_UTF8, self.path.name, line)


@dataclass(frozen=True)
class JsonReader:
    """Reads one JSON object per line; ``user``, ``item`` and ``time`` are its keys."""

    path: Path
    user: str
    item: str
    time: str
    has_time: bool = True
    time_form: str = INTEGER
    header_lines: int = 0
    extra_types: tuple[str, ...] = ()

    def select(self) -> str:
        columns = ", ".join(f"{sql_text(key)}: 'JSON'" for key in self.keys)
        compression = "gzip" if text_files.is_gzip(self.path) else "uncompressed"
        user, item, time = (_sql_json_text(sql_name(key)) for key in self.keys)
        return f"""
            SELECT {user} AS "user", {item} AS item, {sql_time(time, INTEGER)} AS time, 0 AS part
            FROM read_json({sql_text(self.path)}, columns = {{{columns}}},
                format = 'newline_delimited', compression = '{compression}')"""

    def check(self) -> bool:
        return text_files.check(self.path)

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
                entry = parse_object(text.decode("utf-8"))
            except UnicodeDecodeError:
                bad_rows.add(NOT_UTF8, self.path.name, line)
                continue
            values = [[]] if entry is None else [entry.get(key) for key in self.keys]
            # The time may also be a fraction, which numbers it, and an id may not.
            if not all(value is None or type(value) in (str, Integer) for value in values[:2]) or (
                isinstance(values[-1], (bool, list, dict))
            ):
                bad_rows.add(BROKEN_JSON, self.path.name, line)
                continue
            user, item, time = ("" if value is None else str(value) for value in values)
            yield Row(line, 0, user, item, time)


def _sql_json_text(column: str) -> str:
    """SQL for a string or a whole number of JSON as text; NULL asks for a closer look."""
    return (
        f"CASE WHEN left({column}, 1) = '\"' THEN json_extract_string({column}, '$') "
        f"WHEN regexp_full_match({column}, '{PLAIN_INTEGER}') THEN CAST({column} AS VARCHAR) END"
    )


@dataclass(frozen=True)
class SequenceReader:
    """Reads one user per line, with items in time order.

    The line number is the user's id, unless the line begins with the id (``has_user``).
    """

    path: Path
    has_user: bool = False
    has_time: bool = False
    time_form: str = INTEGER
    extra_types: tuple[str, ...] = ()

    def select(self) -> None:
        return None

    def check(self) -> bool:
        return text_files.check(self.path)

    def rows(self, bad_rows: BadRows) -> Iterator[Row]:
        for line, text in enumerate(text_files.read_lines(self.path), start=1):
            try:
                items = [field for field in text.decode("utf-8").split(" ") if field]
            except UnicodeDecodeError:
                bad_rows.add(NOT_UTF8, self.path.name, line)
                continue
            user = str(line)
            if self.has_user and items:
                user = items.pop(0)
            for item in items:
                yield Row(line, 0, user, item, None)
