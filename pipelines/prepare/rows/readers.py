"""The interface of a reader, and the readers of text formats.

A reader offers its rows in two ways. ``select`` is SQL for DuckDB: it is fast, and fails or returns
NULLs where a file is not clean. ``rows`` reads the file in Python, one row at a time, and finds
which line is bad and why; it is used only if ``select`` was not enough.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from . import text_files
from .bad_rows import BROKEN_JSON, NOT_UTF8, BadRows
from .sql import sql_name, sql_text, sql_time
from .values import INTEGER

# A row's part is 0, 1 or 2 for the train, valid and test files of a log that is already split, 0
# for every row of another log, and this for rows of a kind that is not used.
UNWANTED = -1


class Row(NamedTuple):
    """One row as text. ``time`` is None if the rows of the file are already in time order."""

    line: int
    part: int
    user: str
    item: str
    time: str | None


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

    def select(self) -> str | None:
        """A SELECT of user, item, time and part in file order; None if only ``rows`` works."""

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
        time = "NULL::BIGINT" if self.time is None else sql_time(f"c{self.time}", self.time_form)
        part = str(self.part)
        if self.wanted is not None:
            column, value = self.wanted
            part = f"CASE WHEN c{column} = {sql_text(value)} THEN {part} ELSE {UNWANTED} END"
        columns = ", ".join(f"'c{index}': 'VARCHAR'" for index in range(self.num_columns))
        compression = "gzip" if text_files.is_gzip(self.path) else "uncompressed"
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
    """Reads one JSON object per line; ``user``, ``item`` and ``time`` are its keys."""

    path: Path
    user: str
    item: str
    time: str
    has_time: bool = True
    time_form: str = INTEGER
    header_lines: int = 0

    def select(self) -> str:
        columns = ", ".join(f"{sql_text(key)}: 'VARCHAR'" for key in self.keys)
        compression = "gzip" if text_files.is_gzip(self.path) else "uncompressed"
        # A list or an object in place of an id would be read as text; NULL asks for a closer look.
        user, item = (
            f"CASE WHEN left({name}, 1) NOT IN ('[', '{{') THEN {name} END"
            for name in map(sql_name, (self.user, self.item))
        )
        return f"""
            SELECT {user} AS "user", {item} AS item,
                {sql_time(sql_name(self.time), INTEGER)} AS time, 0 AS part
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
    """Reads one user per line, with items in time order; the line number is the user's id."""

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
