"""What the steps of ``prepare`` ask of an engine: tables by name, filled by SQL.

Filters, ids and splits (``logtable``) and the writer (``prepared_writer``) are written once, in
SQL that both engines understand. An engine brings what they cannot share: how a log is read, how
a table is kept, and how rows are numbered in an order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from ...errors import UserError
from ..rows.bad_rows import BadRows
from ..rows.readers import Reader

Note = Callable[[str], None]

DEFAULT_MEMORY = "2GB"

_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)


class Engine(Protocol):
    """Where the log is worked on.

    Attributes:
      row: The column of table ``raw`` that follows the order of the files.
    """

    row: str

    def read(self, readers: Sequence[Reader], max_bad_rows: int, note: Note) -> BadRows:
        """Fills ``raw``, ``user_names`` and ``item_names``, see ``logtable``.

        Args:
          readers: The files, in order.
          max_bad_rows: How many bad rows may be left out.
          note: Told about extra work that takes a while.

        Returns:
          The bad rows that were left out.

        Raises:
          UserError: Too many bad rows, or files that cannot be read.
        """

    def create(self, table: str, select: str) -> None:
        """Keeps the rows of a SELECT as a table, which may replace one that it reads."""

    def number(self, table: str, select: str, order: str, column: str) -> None:
        """The same with one more integer column that counts the rows from 0 in an order."""

    def drop(self, table: str) -> None:
        """Removes a table."""

    def count(self, table: str) -> int:
        """Number of rows of a table that ``create`` or ``number`` has made."""

    def value(self, select: str) -> Any:
        """The one value that a SELECT gives."""

    def batches(self, select: str) -> Iterator[pa.RecordBatch]:
        """The rows of a SELECT with ORDER BY, in this order, some at a time."""

    def numbered(self, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Columns of a table that ``number`` has made, in the order of its numbers."""

    def progress(self) -> float:
        """Percentage of the running query that is done; negative if unknown."""


def scalar(engine: Engine, select: str) -> int:
    """The one whole number that a SELECT gives, 0 for NULL."""
    return int(engine.value(select) or 0)


def check_any_rows(engine: Engine, readers: Sequence[Reader], bad_rows: BadRows) -> None:
    """Raises if nothing was read.

    Raises:
      UserError: With the files and the bad rows in them.
    """
    if not engine.count("user_names"):
        names = ", ".join(str(reader.path) for reader in readers)
        left = f" but {bad_rows.total:,} bad ones" if bad_rows.total else ""
        raise UserError(f"{names}: no rows to use{left}. Check that it is the right file.")


def megabytes(size: str) -> int:
    """A size as DuckDB writes it, in units of 2^20 bytes, rounded down.

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
    """The error about a --memory-limit that is none."""
    return UserError(f"--memory-limit should be a size such as 2GB or 800MB. Received: {size!r}.")
