"""The engine of one machine: DuckDB, with its tables in a file and spilling beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from ...errors import UserError
from ..rows.bad_rows import BadRows
from ..rows.readers import Reader, sql_text
from . import duckdb_log
from .base import DEFAULT_MEMORY, Note, memory_error

BATCH_ROWS = 1 << 20


class DuckDBEngine:
    """Tables of one DuckDB connection.

    Args:
      connection: An open database.
      folder: For temporary files.
    """

    row = "rowid"

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path):
        self.connection = connection
        self.folder = folder
        self._number_columns: dict[str, str] = {}

    def read(self, readers: Sequence[Reader], max_bad_rows: int, note: Note) -> BadRows:
        return duckdb_log.read_log(self, readers, max_bad_rows, note)

    def create(self, table: str, select: str) -> None:
        self.connection.execute(f"CREATE OR REPLACE TABLE {table} AS {select}")

    def number(self, table: str, select: str, order: str, column: str) -> None:
        self.create(
            table,
            f"SELECT *, CAST(row_number() OVER (ORDER BY {order}) - 1 AS INTEGER) AS {column} "
            f"FROM ({select})",
        )
        self._number_columns[table] = column

    def drop(self, table: str) -> None:
        self.connection.execute(f"DROP TABLE {table}")

    def count(self, table: str) -> int:
        return int(self.value(f"SELECT count(*) FROM {table}"))

    def value(self, select: str) -> Any:
        # All rows, though there is one: a result that is not read to its end blocks the
        # connection.
        [(value,)] = self.connection.execute(select).fetchall()
        return value

    def batches(self, select: str) -> Iterator[pa.RecordBatch]:
        yield from self.connection.sql(select).to_arrow_reader(BATCH_ROWS)

    def numbered(self, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        order = self._number_columns[table]
        return self.batches(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order}")

    def progress(self) -> float:
        return float(self.connection.query_progress())


@contextlib.contextmanager
def open_duckdb(
    folder: Path, memory_limit: str | None, threads: int | None
) -> Iterator[DuckDBEngine]:
    """A database in ``folder``, with the engine's own errors made plain.

    Args:
      folder: An existing folder for the database and its temporary files.
      memory_limit: What the engine may hold in memory, such as ``2GB``.
      threads: Number of threads, or None for all cores.

    Raises:
      UserError: ``memory_limit`` is not a size or not enough, or files cannot be read or written.
    """
    limit = memory_limit or DEFAULT_MEMORY
    try:
        with contextlib.closing(_connect(folder, limit, threads)) as connection:
            yield DuckDBEngine(connection, folder)
    except duckdb.OutOfMemoryException as error:
        raise UserError(
            f"DuckDB needs more than --memory-limit {limit}, or more room on the disk of "
            f"--out ({_first_line(error)}). Raise the limit, or pass --threads 1."
        ) from error
    except RuntimeError as error:
        # How DuckDB says that Ctrl-C came while it was at work.
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from error
        raise
    except duckdb.IOException as error:
        raise UserError(f"reading or writing failed: {_first_line(error)}.") from error


def _connect(folder: Path, memory_limit: str, threads: int | None) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(str(folder / "log.duckdb"))
    # Dates without a zone are UTC, whatever the machine's zone is.
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"SET temp_directory = {sql_text(folder / 'spill')}")
    try:
        connection.execute(f"SET memory_limit = {sql_text(memory_limit)}")
    except duckdb.Error as error:
        raise memory_error(memory_limit) from error
    if threads is not None:
        connection.execute(f"SET threads = {threads}")
    return connection


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")
