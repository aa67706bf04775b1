"""Pieces of DuckDB's SQL that the readers share."""

from __future__ import annotations

from ...errors import UserError
from .values import DATE, DECIMAL, INTEGER, PLAIN_DATE, PLAIN_DECIMAL, PLAIN_INTEGER

LOOK = "'a time needs a closer look'"


def sql_text(value: object) -> str:
    """``value`` as a SQL string.

    >>> print(sql_text("it's"))
    'it''s'

    Raises:
      UserError: it is no Unicode text, such as a path with bytes that are not UTF-8.
    """
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{text!r} should be UTF-8, which DuckDB needs. Choose another name."
        ) from error
    return "'" + text.replace("'", "''") + "'"


def sql_name(column: str) -> str:
    """The name of a column as a SQL identifier."""
    return '"' + column.replace('"', '""') + '"'


def sql_required(condition: str, value: str) -> str:
    """SQL for ``value`` that fails where ``condition`` does not hold."""
    return f"CASE WHEN {condition} THEN {value} ELSE error({LOOK}) END"


def sql_time(text: str, form: str) -> str:
    """SQL that turns a time as text into a number, and fails where ``values`` has to decide."""
    pattern, value = {
        INTEGER: (PLAIN_INTEGER, f"CAST({text} AS BIGINT)"),
        DECIMAL: (PLAIN_DECIMAL, f"CAST({text} AS DOUBLE)"),
        DATE: (PLAIN_DATE, f"epoch_us(CAST({text} AS TIMESTAMPTZ))"),
    }[form]
    return sql_required(f"regexp_full_match({text}, {sql_text(pattern)})", value)
