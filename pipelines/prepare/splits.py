"""Cuts every user's sequence into train, valid and test, as published comparisons do.

With ``leave-one-out`` the last interaction of a user is the test target and the one before it the
validation target. With ``time`` two points in time, which are the same for all users, divide the
log. Either way the part of a row is set in table ``log``: a split's histories are all earlier
parts, and its targets are its own part.
"""

from __future__ import annotations

import argparse
import fractions
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from .. import cli
from ..errors import UserError
from .engines.base import Engine
from .rows.careful import are_dates
from .rows.parquet import ParquetReader
from .rows.readers import Reader
from .rows.values import BadValue, parse_time
from .sources.base import LEAVE_ONE_OUT, TIME

# Fewer interactions leave no history, or no target, for one of the three splits.
FEWEST_TO_LEAVE_ONE_OUT = 3

DEFAULT_POINTS = ("80%", "90%")

_MICROSECONDS_PER_DAY = 86_400_000_000
# A timestamp of seconds is read in milliseconds.
_PER_SECOND = {"s": 10**3, "ms": 10**3, "us": 10**6, "ns": 10**9}

Point = int | float | fractions.Fraction
"""A time as table ``log`` has it, or the share of the interactions that are earlier."""


def split_option(text: str) -> tuple[int, int, int] | str:
    """The value of ``--split``: a way to cut sequences, or the shares of the users."""
    if text in (LEAVE_ONE_OUT, TIME):
        return text
    try:
        return cli.shares(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"should be {LEAVE_ONE_OUT}, {TIME}, or three whole numbers above 0 such as 8:1:1. "
            f"Received: {text!r}"
        ) from None


@dataclass(frozen=True)
class Cut:
    """How sequences are cut.

    Attributes:
      kind: ``leave-one-out`` or ``time``.
      points: where valid and test begin, for ``time``.
    """

    kind: str
    points: tuple[Point, Point] | None = None


def time_points(texts: Sequence[str], readers: Sequence[Reader]) -> tuple[Point, Point]:
    """The points that ``--split-at`` gives: times as they are written in the log, or shares.

    Args:
      texts: the two values of the option, such as ``80%`` and ``90%``.
      readers: readers of the log, which know how its times are written.

    Raises:
      UserError: the log has no times, or a value is not one of its times, or they are not in order.
    """
    if not readers[0].has_time:
        raise UserError(
            "--split time requires a log with times. Received: one whose rows are in order, "
            "without times. Set --time-column, or use --split leave-one-out."
        )
    first, second = (_point(text, readers) for text in texts)
    are_shares = [isinstance(point, fractions.Fraction) for point in (first, second)]
    if are_shares[0] != are_shares[1] or not first < second:
        raise UserError(
            "--split-at should be two times, or two percentages, and the first should be less than "
            f"the second. Received: {' '.join(texts)}."
        )
    return first, second


def _point(text: str, readers: Sequence[Reader]) -> Point:
    if text.endswith("%"):
        try:
            share = fractions.Fraction(text[:-1]) / 100
        except (ValueError, ZeroDivisionError):
            share = fractions.Fraction(0)
        if not 0 < share < 1:
            raise UserError(
                f"--split-at should have percentages between 0% and 100%. Received: {text}."
            )
        return share
    unit = _date_unit(readers[0])
    dates = unit is not None or are_dates(readers)
    try:
        time = parse_time(text, dates)
    except BadValue:
        form = "dates such as 2011-10-18 or 2011-10-18T09:30" if dates else "numbers"
        raise UserError(
            f"--split-at should be times as the log has them, which are {form}, or percentages "
            f"such as 80%. Received: {text!r}."
        ) from None
    if unit is None:
        return time
    per_day, is_whole = unit
    scaled = fractions.Fraction(int(time) * per_day, _MICROSECONDS_PER_DAY)
    # A point within a day begins with the next day of a column that has days only.
    return -(-scaled.numerator // scaled.denominator) if is_whole else int(scaled)


def in_seconds(time: int | float, readers: Sequence[Reader]) -> int:
    """A time of table ``log`` in seconds since 1970, rounded down; numbers are seconds already."""
    unit = _date_unit(readers[0])
    if unit is not None:
        return int(time) * 86_400 // unit[0]
    return int(time) // 10**6 if are_dates(readers) else math.floor(time)


def _date_unit(reader: Reader) -> tuple[int, bool] | None:
    """What a Parquet column of dates counts per day, and whether that is days; None for others."""
    if not isinstance(reader, ParquetReader) or reader.time is None:
        return None
    kind = reader.type_of(reader.time)
    if pa.types.is_timestamp(kind):
        return 86_400 * _PER_SECOND[kind.unit], False
    return (1, True) if pa.types.is_date(kind) else None


def cut_sequences(engine: Engine, cut: Cut) -> list[int | float]:
    """Sets the part of every row of ``log``.

    Returns:
      The times at which valid and test begin; empty for ``leave-one-out``.
    """
    if cut.kind == LEAVE_ONE_OUT:
        engine.create(
            "log",
            f"""
            SELECT "user", item, time, place, CASE
                WHEN total < {FEWEST_TO_LEAVE_ONE_OUT} THEN 0
                WHEN from_end = 1 THEN 2 WHEN from_end = 2 THEN 1 ELSE 0 END AS part
            FROM (
                SELECT "user", item, time, place,
                    count(*) OVER (PARTITION BY "user") AS total,
                    row_number() OVER (
                        PARTITION BY "user" ORDER BY time DESC, place DESC
                    ) AS from_end
                FROM log
            ) AS counted""",
        )
        return []
    assert cut.points is not None
    valid, test = times = _times(engine, cut.points)
    engine.create(
        "log",
        f"""
        SELECT "user", item, time, place, CASE
            WHEN time < {_sql_number(valid)} THEN 0
            WHEN time < {_sql_number(test)} THEN 1 ELSE 2 END AS part
        FROM log""",
    )
    return times


def _times(engine: Engine, points: tuple[Point, Point]) -> list[int | float]:
    """The points as times. A share is the time of the first interaction that it leaves out."""
    shares = [point for point in points if isinstance(point, fractions.Fraction)]
    if not shares:
        return [point for point in points if not isinstance(point, fractions.Fraction)]
    num_rows = engine.count("log")
    wanted = [num_rows * share.numerator // share.denominator for share in shares]
    found: list[int | float] = []
    before = 0
    moments = "SELECT time, count(*) AS num_rows FROM log GROUP BY time ORDER BY time"
    for batch in engine.batches(moments):
        times = batch.column(0).to_numpy()
        ends = before + np.cumsum(batch.column(1).to_numpy())
        while len(found) < len(wanted) and len(ends) and wanted[len(found)] < ends[-1]:
            place = int(np.searchsorted(ends, wanted[len(found)], side="right"))
            found.append(times[place].item())
        before = int(ends[-1]) if len(ends) else before
    return found


def _sql_number(number: int | float) -> str:
    # Without the cast, an engine may take a fraction for a decimal number.
    return str(number) if isinstance(number, int) else f"CAST('{number!r}' AS DOUBLE)"
