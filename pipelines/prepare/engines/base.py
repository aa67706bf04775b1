"""The interface of an engine: named tables that are filled by SQL.

Filters, ids and splits (``tables``) and the arrays (``writer``) are written once, in SQL that both
engines understand. An engine adds what they cannot share: how it reads a log, stores a table and
numbers rows in a given order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from ...errors import UserError
from ..rows.bad_rows import BadRows
from ..rows.readers import SQL_TYPES, UNWANTED, Reader

Note = Callable[[str], None]

DEFAULT_MEMORY = "2GB"

_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)


class Engine(Protocol):
    """Holds the tables of one log and runs SQL on them.

    Attributes:
      row: name of the column of table ``raw`` that follows the order of the files.
    """

    row: str

    def read(self, readers: Sequence[Reader], max_bad_rows: int, note: Note) -> BadRows:
        """Fills ``raw`` (see ``tables``), and ``user_names`` and ``item_names`` from it.

        Args:
          readers: the readers of the files, in order.
          max_bad_rows: maximum number of bad rows to leave out.
          note: called with a text before extra work that takes a while.

        Returns:
          The bad rows that were left out.

        Raises:
          UserError: there are too many bad rows, or a file cannot be read.
        """

    def create(self, table: str, select: str) -> None:
        """Stores the rows of a SELECT as a table, which may replace one that the SELECT reads."""

    def number(self, table: str, select: str, order: str, column: str) -> None:
        """Stores the rows of a SELECT with a ``column`` that counts them from 0 in ``order``."""

    def drop(self, table: str) -> None:
        """Removes a table."""

    def count(self, table: str) -> int:
        """Number of rows of a table that ``create`` or ``number`` has made."""

    def value(self, select: str) -> Any:
        """The single value that a SELECT returns."""

    def batches(self, select: str) -> Iterator[pa.RecordBatch]:
        """The rows of a SELECT with ORDER BY, in that order, one batch at a time."""

    def numbered(self, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Columns of a table that ``number`` has made, in the order of its numbers."""

    def progress(self) -> float:
        """Percentage of the running query that is done; negative if unknown."""


def scalar(engine: Engine, select: str) -> int:
    """The single integer that a SELECT returns, with NULL as 0."""
    return int(engine.value(select) or 0)


def sql_extra(name: str, held: str) -> str:
    """SQL for a further column that ``CleanLog`` has written as text."""
    return f"CAST(nullif({name}, '') AS {SQL_TYPES[held]}) AS {name}"


def create_names(engine: Engine) -> None:
    """Creates ``user_names`` and ``item_names`` from ``raw``.

    They have one row per id: name, code (0, 1, … in the order of the names' bytes) and num_rows.
    """
    for column in ("user", "item"):
        select = f"""
            SELECT "{column}" AS name, count(*) AS num_rows
            FROM raw WHERE part <> {UNWANTED} GROUP BY "{column}" """
        engine.number(f"{column}_names", select, "name", "code")


def check_any_rows(engine: Engine, readers: Sequence[Reader], bad_rows: BadRows) -> None:
    """Checks that ``user_names`` is not empty.

    Raises:
      UserError: no row was read; the error names the files and the number of bad rows in them.
    """
    if not engine.count("user_names"):
        names = ", ".join(str(reader.path) for reader in readers)
        bad = f" ({bad_rows.total:,} rows are bad)" if bad_rows.total else ""
        raise UserError(f"{names}: there are no rows to use{bad}. Check that it is the right file.")


def megabytes(size: str) -> int:
    """Converts a size as DuckDB writes it to units of 2^20 bytes, rounded down.

    >>> megabytes("2GiB"), megabytes("2GB"), megabytes("800 mb")
    (2048, 1907, 762)

    Raises:
      UserError: ``size`` is not a size.
    """
    match = _SIZE.fullmatch(size)
    if match is None:
        raise memory_error(size)
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** _UNITS[unit.upper()]) >> 20


def memory_error(size: str) -> UserError:
    """The error for a --memory-limit that is not a size."""
    return UserError(f"--memory-limit should be a size such as 2GB or 800MB. Received: {size!r}.")
