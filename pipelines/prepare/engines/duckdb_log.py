"""The log inside DuckDB: table ``raw`` of user, item, time and part, in file order.

A clean log is read by DuckDB alone. When DuckDB stops, or an id or a time looks wrong, all files
are read again row by row to say what is wrong where, and the good rows are taken from there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import duckdb

from ...errors import UserError
from .. import tables
from ..rows.bad_rows import BadRows
from ..rows.careful import CleanLog, are_dates
from ..rows.readers import Reader, sql_text
from ..rows.values import DATE
from .base import Note, check_any_rows, scalar

if TYPE_CHECKING:
    from .duckdb import DuckDBEngine

# Ids are checked once per distinct id, not once per row.
_ODD_NAME = r"(name IS NULL OR trim(name) = '' OR regexp_matches(name, '[\x00-\x1f\x7f]'))"


def read_log(
    engine: DuckDBEngine, readers: Sequence[Reader], max_bad_rows: int, note: Note
) -> BadRows:
    """Fills the tables, see ``engine.Engine.read``; the rowid of ``raw`` follows the files."""
    bad_rows = BadRows()
    if not _read_fast(engine, readers):
        note("a closer look at every row")
        clean = engine.folder / "clean.parquet"
        numbers = itertools.count()
        with CleanLog(clean, are_dates(readers), bad_rows) as log:
            for reader in readers:
                log.add(zip(numbers, reader.rows(bad_rows)), reader.path.name)
        bad_rows.check(max_bad_rows)
        time = f"CAST(time AS {'BIGINT' if log.all_integers else 'DOUBLE'})"
        _create_raw(
            engine.connection,
            [f'SELECT "user", item, {time} AS time, part FROM read_parquet({sql_text(clean)})'],
        )
        tables.create_names(engine)
        clean.unlink()
    check_any_rows(engine, readers, bad_rows)
    return bad_rows


def _read_fast(engine: DuckDBEngine, readers: Sequence[Reader]) -> bool:
    """Reads the log with the engine alone; False if that takes a closer look."""
    selects = [reader.select() for reader in readers]
    # Files of dates among files of numbers: one of the two is bad.
    mixed = len({reader.time_form == DATE for reader in readers}) > 1
    if mixed or any(select is None for select in selects):
        return False
    try:
        _create_raw(engine.connection, [select for select in selects if select is not None])
    except (duckdb.InvalidInputException, duckdb.ConversionException, duckdb.OutOfRangeException):
        return False
    except duckdb.IOException as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"the input cannot be read: {reason}. Check the file.") from error
    tables.create_names(engine)
    names = "(SELECT name FROM user_names UNION ALL SELECT name FROM item_names)"
    return scalar(engine, f"SELECT count(*) FROM {names} WHERE {_ODD_NAME}") == 0


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
