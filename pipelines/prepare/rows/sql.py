"""Pieces of DuckDB's SQL that the readers share."""

from __future__ import annotations

from .values import DATE, DECIMAL


def sql_text(value: object) -> str:
    """``value`` as a SQL string.

    >>> print(sql_text("it's"))
    'it''s'
    """
    return "'" + str(value).replace("'", "''") + "'"


def sql_name(column: str) -> str:
    """The name of a column as a SQL identifier."""
    return '"' + column.replace('"', '""') + '"'


def sql_required(condition: str, value: str) -> str:
    """SQL for ``value`` that fails where ``condition`` does not hold."""
    return f"CASE WHEN {condition} THEN {value} ELSE error('a time needs a closer look') END"


def sql_time(text: str, form: str) -> str:
    """SQL that turns a time as text into a number, and fails where ``values`` has to decide."""
    if form == DATE:
        return sql_required(f"{text} IS NOT NULL", f"epoch_us(CAST({text} AS TIMESTAMPTZ))")
    if form == DECIMAL:
        return sql_required(f"isfinite(CAST({text} AS DOUBLE))", f"CAST({text} AS DOUBLE)")
    # A cast alone would round 1.5 to 2; only an integer is converted back to the same text.
    value = f"CAST({text} AS BIGINT)"
    return sql_required(f"CAST({value} AS VARCHAR) = {text}", value)
