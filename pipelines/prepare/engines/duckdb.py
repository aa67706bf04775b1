"""The engine for one machine: DuckDB, which keeps its tables in a file and spills to disk.

DuckDB alone reads a clean log. If it stops, or an id or a time looks wrong, all files are read
again row by row in Python, which finds out what is wrong where and passes on the good rows.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from ...errors import UserError
from ..rows.bad_rows import BadRows
from ..rows.careful import CleanLog, are_dates
from ..rows.readers import SQL_TYPES, Reader, extra_names
from ..rows.sql import sql_text
from ..rows.values import DATE
from .base import (
    DEFAULT_MEMORY,
    Note,
    check_any_rows,
    create_names,
    memory_error,
    scalar,
    sql_extra,
)

BATCH_ROWS = 1 << 20
# DuckDB starts all of them at once, and hangs for minutes over a hundred thousand.
MAX_THREADS = 1024

STOPPED = (duckdb.Error, UnicodeDecodeError)
"""What DuckDB raises when it stops at a row. Its messages quote the row and are cut off after some
bytes, which may be in the middle of a character: Python cannot decode such a message."""

# Ids are checked once per distinct id, not once per row.
_ODD_NAME = r"(name IS NULL OR trim(name) = '' OR regexp_matches(name, '[\x00-\x1f\x7f]'))"


class DuckDBEngine:
    """The tables of one DuckDB connection.

    Args:
      connection: an open database.
      folder: folder for temporary files.
    """

    row = "rowid"

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path):
        self.connection = connection
        self.folder = folder
        self._number_columns: dict[str, str] = {}

    def read(self, readers: Sequence[Reader], max_bad_rows: int, note: Note) -> BadRows:
        bad_rows = BadRows()
        # DuckDB does not notice all that is wrong with a compressed file; meanwhile, a thread does.
        with ThreadPoolExecutor(1) as thread:
            checked = [thread.submit(reader.check) for reader in readers]
            is_read = self.read_fast(readers)
            for check in checked:
                is_read = check.result() and is_read
        if not is_read:
            note("a closer look at every row")
            clean = self.folder / "clean.parquet"
            numbers = itertools.count()
            extras = extra_names(len(readers[0].extra_types))
            with CleanLog(clean, are_dates(readers), bad_rows, len(extras)) as log:
                for reader in readers:
                    log.add(zip(numbers, reader.rows(bad_rows)), reader.path.name)
            bad_rows.check(max_bad_rows)
            time = f"CAST(time AS {'BIGINT' if log.all_integers else 'DOUBLE'})"
            further = "".join(
                f", {sql_extra(name, held)}" for name, held in zip(extras, readers[0].extra_types)
            )
            select = f'SELECT "user", item, {time} AS time, part{further}'
            self._create_raw([f"{select} FROM read_parquet({sql_text(clean)})"], readers)
            create_names(self)
            clean.unlink()
        check_any_rows(self, readers, bad_rows)
        return bad_rows

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
        # All rows are fetched, though there is only one: a result that is not read to its end
        # blocks the connection.
        [(value,)] = self.connection.execute(select).fetchall()
        return value

    def batches(self, select: str) -> Iterator[pa.RecordBatch]:
        yield from self.connection.sql(select).to_arrow_reader(BATCH_ROWS)

    def numbered(self, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        order = self._number_columns[table]
        return self.batches(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order}")

    def progress(self) -> float:
        return float(self.connection.query_progress())

    def read_fast(self, readers: Sequence[Reader]) -> bool:
        """Lets DuckDB read the log; returns False if the rows need a closer look."""
        selects = [reader.select() for reader in readers]
        # If some files have dates and others numbers, one of the two is bad.
        mixed = len({reader.time_form == DATE for reader in readers}) > 1
        if mixed or any(select is None for select in selects):
            return False
        try:
            self._create_raw([select for select in selects if select is not None], readers)
        except (duckdb.OutOfMemoryException, duckdb.FatalException, duckdb.InternalException):
            raise
        except STOPPED:
            return False
        create_names(self)
        names = "(SELECT name FROM user_names UNION ALL SELECT name FROM item_names)"
        return scalar(self, f"SELECT count(*) FROM {names} WHERE {_ODD_NAME}") == 0

    def _create_raw(self, selects: Sequence[str], readers: Sequence[Reader]) -> None:
        """Fills ``raw`` with one statement per file, so that the rowid follows the files."""
        self.connection.execute("SET preserve_insertion_order = true")
        time_types = {
            str(self.connection.sql(f"SELECT time FROM ({select})").types[0]) for select in selects
        }
        time_type = "DOUBLE" if "DOUBLE" in time_types else "BIGINT"
        held = readers[0].extra_types
        if held:
            # This table stays until the end, and would be compressed at the next checkpoint.
            self.connection.execute("SET wal_autocheckpoint = '1TB'")
        extras = "".join(
            f", {name} {SQL_TYPES[kind]}" for name, kind in zip(extra_names(len(held)), held)
        )
        self.connection.execute(
            'CREATE OR REPLACE TABLE raw ("user" VARCHAR, item VARCHAR, '
            f"time {time_type}, part TINYINT{extras})"
        )
        for select in selects:
            self.connection.execute(f"INSERT INTO raw {select}")
        # From here on the rowid has the order, so DuckDB may process rows in any order.
        self.connection.execute("SET preserve_insertion_order = false")


@contextlib.contextmanager
def open_duckdb(
    folder: Path, memory_limit: str | None, threads: int | None
) -> Iterator[DuckDBEngine]:
    """Opens a database in ``folder`` and turns DuckDB's own errors into user errors.

    Args:
      folder: existing folder for the database and its temporary files.
      memory_limit: maximum memory of DuckDB, such as ``2GB``, or None for the default.
      threads: number of threads, or None for all cores.

    Raises:
      UserError: ``memory_limit`` is not a size or too small, or a file cannot be read or written.
    """
    limit = memory_limit or DEFAULT_MEMORY
    try:
        with contextlib.closing(_connect(folder, limit, threads)) as connection:
            yield DuckDBEngine(connection, folder)
    except duckdb.OutOfMemoryException as error:
        raise UserError(
            f"DuckDB needs more than --memory-limit {limit}, or more space on the disk of "
            f"--out ({_first_line(error)}). Raise the limit, or pass --threads 1."
        ) from error
    except duckdb.IOException as error:
        if os.strerror(errno.ENOSPC) in str(error):
            # Not in the words of DuckDB, which name a file that is temporary.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise UserError(
            f"reading or writing failed: {_first_line(error)}. Check the files of --input and the "
            "disk of --out."
        ) from error


def _connect(folder: Path, memory_limit: str, threads: int | None) -> duckdb.DuckDBPyConnection:
    if threads is not None and threads > MAX_THREADS:
        raise UserError(f"--threads should be at most {MAX_THREADS}. Received: {threads}.")
    sql_text(folder)  # a path that DuckDB can take
    connection = duckdb.connect(str(folder / "log.duckdb"))
    # Dates without a time zone are UTC, whatever the machine's time zone is.
    connection.execute("SET TimeZone = 'UTC'")
    # The database is removed in the end, so nothing is gained from tidying its file up.
    connection.execute("PRAGMA disable_checkpoint_on_shutdown")
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
