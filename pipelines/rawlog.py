"""The log inside the engine: table ``raw`` of user, item, time and part, in file order.

A clean log is read by DuckDB alone. When DuckDB stops, or an id or a time looks wrong, all files
are read again row by row to say what is wrong where, and the good rows are taken from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.badrows import BadRows
from pipelines.errors import UserError
from pipelines.fields import DATE, BadValue, check_ids, parse_time, time_form
from pipelines.readers import UNWANTED, Reader, Row, sql_text

BATCH_ROWS = 1 << 18

_SCHEMA = pa.schema(
    [("user", pa.string()), ("item", pa.string()), ("time", pa.string()), ("part", pa.int8())]
)

# Ids are checked once per distinct id, not once per row.
_ODD_NAME = r"(name IS NULL OR trim(name) = '' OR regexp_matches(name, '[\x00-\x1f\x7f]'))"


def connect(folder: Path, memory_limit: str, threads: int | None) -> duckdb.DuckDBPyConnection:
    """A database in ``folder`` that spills there too.

    Args:
      folder: An existing folder for the database and its temporary files.
      memory_limit: What the engine may hold in memory, such as ``2GB``.
      threads: Number of threads, or None for all cores.

    Raises:
      UserError: ``memory_limit`` is not a size.
    """
    connection = duckdb.connect(str(folder / "log.duckdb"))
    # Dates without a zone are UTC, whatever the machine's zone is.
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"SET temp_directory = {sql_text(folder / 'spill')}")
    try:
        connection.execute(f"SET memory_limit = {sql_text(memory_limit)}")
    except duckdb.Error as error:
        raise UserError(
            f"--memory-limit should be a size such as 2GB or 800MB. Received: {memory_limit!r}."
        ) from error
    if threads is not None:
        connection.execute(f"SET threads = {threads}")
    return connection


def read_log(
    connection: duckdb.DuckDBPyConnection,
    readers: Sequence[Reader],
    folder: Path,
    max_bad_rows: int,
    note: Callable[[str], None] = lambda text: None,
) -> BadRows:
    """Fills the tables ``raw``, ``user_names`` and ``item_names``.

    ``raw`` has the columns user, item, time (a number, or NULL without times) and part, and its
    rowid follows the order of the files. The two others have a line per id: name, code (0, 1, …
    in the order of the names) and rows.

    Args:
      connection: From ``connect``.
      readers: The files, in order.
      folder: For a temporary file.
      max_bad_rows: How many bad rows may be left out.
      note: Told when the files have to be read row by row, which takes a while.

    Returns:
      The bad rows that were left out.

    Raises:
      UserError: Too many bad rows, no rows at all, or files that cannot be read.
    """
    bad_rows = BadRows()
    if not _read_fast(connection, readers):
        note("a closer look at every row")
        clean = folder / "clean.parquet"
        is_integer = _write_clean(readers, clean, bad_rows)
        bad_rows.check(max_bad_rows)
        time = f"CAST(time AS {'BIGINT' if is_integer else 'DOUBLE'})"
        _create_raw(
            connection,
            [f'SELECT "user", item, {time} AS time, part FROM read_parquet({sql_text(clean)})'],
        )
        _create_names(connection)
        clean.unlink()
    if not scalar(connection, "SELECT count(*) FROM user_names"):
        names = ", ".join(str(reader.path) for reader in readers)
        left = f" but {bad_rows.total:,} bad ones" if bad_rows.total else ""
        raise UserError(f"{names}: no rows to use{left}. Check that it is the right file.")
    return bad_rows


def scalar(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    """The one whole number that a query gives."""
    # All rows, though there is one: a result that is not read to its end blocks the connection.
    [(number,)] = connection.execute(query).fetchall()
    return int(number or 0)


def _read_fast(connection: duckdb.DuckDBPyConnection, readers: Sequence[Reader]) -> bool:
    """Reads the log with the engine alone; False if that takes a closer look."""
    selects = [reader.select() for reader in readers]
    if any(select is None for select in selects):
        return False
    try:
        _create_raw(connection, [select for select in selects if select is not None])
    except (duckdb.InvalidInputException, duckdb.ConversionException, duckdb.OutOfRangeException):
        return False
    except duckdb.IOException as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"the input cannot be read: {reason}. Check the file.") from error
    _create_names(connection)
    odd = f"SELECT count(*) FROM (FROM user_names UNION ALL FROM item_names) WHERE {_ODD_NAME}"
    return scalar(connection, odd) == 0


def _create_raw(connection: duckdb.DuckDBPyConnection, selects: Sequence[str]) -> None:
    """One statement per file: rows then get their rowid in the order of the files."""
    connection.execute("SET preserve_insertion_order = true")
    time_types = {
        str(connection.sql(f"SELECT time FROM ({select})").types[0]) for select in selects
    }
    time_type = "DOUBLE" if "DOUBLE" in time_types else "BIGINT"
    connection.execute(
        'CREATE OR REPLACE TABLE raw ("user" VARCHAR, item VARCHAR, '
        f"time {time_type}, part TINYINT)"
    )
    for select in selects:
        connection.execute(f"INSERT INTO raw {select}")
    # From here on the order is in the rowid, and the engine may work in any order.
    connection.execute("SET preserve_insertion_order = false")


def _create_names(connection: duckdb.DuckDBPyConnection) -> None:
    for column in ("user", "item"):
        connection.execute(f"""
            CREATE OR REPLACE TABLE {column}_names AS
            SELECT name, CAST(row_number() OVER (ORDER BY name) - 1 AS INTEGER) AS code, rows
            FROM (
                SELECT "{column}" AS name, count(*) AS rows
                FROM raw WHERE part <> {UNWANTED} GROUP BY name
            )""")


def _write_clean(readers: Sequence[Reader], path: Path, bad_rows: BadRows) -> bool:
    """Writes the good rows of all files to ``path``; True if all times are integers."""
    is_integer = True
    dates: bool | None = None
    with pq.ParquetWriter(path, _SCHEMA) as writer:
        batch: list[tuple[str, str, str | None, int]] = []
        for reader, row in _all_rows(readers, bad_rows):
            time: int | float | None = None
            if row.part != UNWANTED:
                try:
                    check_ids(row.user, row.item)
                    if row.time is not None:
                        if dates is None:
                            dates = _are_dates(row.time)
                        time = parse_time(row.time, bool(dates))
                        is_integer = is_integer and isinstance(time, int)
                except BadValue as error:
                    bad_rows.add(error.kind, reader.path.name, row.line)
                    continue
            batch.append((row.user, row.item, None if time is None else repr(time), row.part))
            if len(batch) == BATCH_ROWS:
                writer.write_table(_table(batch))
                batch = []
        writer.write_table(_table(batch))
    return is_integer


def _all_rows(readers: Sequence[Reader], bad_rows: BadRows) -> Iterator[tuple[Reader, Row]]:
    for reader in readers:
        for row in reader.rows(bad_rows):
            yield reader, row


def _are_dates(text: str) -> bool | None:
    """Whether the first time that can be read is a date; None if this one cannot be read."""
    form = time_form(text)
    return None if form is None else form == DATE


def _table(batch: list[tuple[str, str, str | None, int]]) -> pa.Table:
    columns = list(zip(*batch)) if batch else [(), (), (), ()]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA)]
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)
