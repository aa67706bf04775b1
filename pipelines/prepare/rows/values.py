"""What makes a user, an item or a time valid, one value at a time.

These functions define a bad row. The fast path of an engine takes the values of the ``PLAIN_``
patterns, which every engine reads in the same way, and falls back to the functions for all others.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from . import bad_rows

INTEGER = "integer"
DECIMAL = "decimal"
DATE = "date"

# Regular expressions of the whole text, for Python, RE2 and Java.
PLAIN_INTEGER = r"(?:0|-?[1-9][0-9]{0,17})"
PLAIN_DECIMAL = r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,2})?"
PLAIN_DATE = (
    r"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-[0-9]{2}"
    r"(?:[ T](?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.(?:[0-9]{3}|[0-9]{6}))?)?"
    r"(?:Z|[+-](?:0[0-9]|1[0-3]):[0-5][0-9])?)?"
)

_INTEGER = re.compile(r"([+-]?)0*([0-9]+)")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# Python's own parser takes other forms in every version. The signs between may be left out.
_DATE = re.compile(
    r"([0-9]{4})(-?)([0-9]{2})\2([0-9]{2})"
    r"(?:[ Tt]([0-9]{2})(:?)([0-9]{2})(?:\6([0-9]{2})(?:[.,]([0-9]{1,9}))?)?"
    r"(?:[Zz]|([+-])([0-9]{2}):?([0-9]{2})?)?)?"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Half of a surrogate pair, which JSON can write as "\ud800" and UTF-8 cannot.
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_INT64 = 2**63
_INT64_DIGITS = 19


class BadValue(Exception):
    """A value that makes its row bad; the kind of bad row is the only argument."""

    @property
    def kind(self) -> str:
        """One of the kinds in ``bad_rows``."""
        return str(self.args[0])


def check_ids(user: str, item: str) -> None:
    """Raises BadValue unless both ids are non-blank text that fits on a line."""
    if user.isprintable() and item.isprintable() and user.strip(" ") and item.strip(" "):
        return  # The usual case, several times faster than the searches below.
    if not user.strip(" "):
        raise BadValue(bad_rows.MISSING_USER)
    if not item.strip(" "):
        raise BadValue(bad_rows.MISSING_ITEM)
    if _CONTROL.search(user) or _CONTROL.search(item):
        raise BadValue(bad_rows.CONTROL_CHARACTER)
    if _SURROGATE.search(user) or _SURROGATE.search(item):
        raise BadValue(bad_rows.NOT_UTF8)


def time_form(text: str) -> str | None:
    """The form of a time: INTEGER, DECIMAL or DATE, or None if it is none of them.

    >>> time_form("1318896000"), time_form("1.5e9"), time_form("2011-10-18T00:00:00Z")
    ('integer', 'decimal', 'date')
    >>> time_form("yesterday") is None
    True
    """
    text = text.strip(" ")
    if _INTEGER.fullmatch(text):
        return None if _integer(text) is None else INTEGER
    if _DECIMAL.fullmatch(text):
        return DECIMAL if abs(float(text)) < float("inf") else None
    return None if _parse_date(text) is None else DATE


def parse_time(text: str, dates: bool) -> int | float:
    """Converts a time to a number that sorts in time order.

    Args:
      text: the time as written in the log.
      dates: whether the times of this log are dates. A date among numbers, or a number among
        dates, is bad, since the two have no common unit.

    Returns:
      The number itself, or for a date the microseconds since 1970 (in UTC if it has no time zone).

    Raises:
      BadValue: ``text`` is empty or has another form.
    """
    if not dates and len(text) < 19 and text.isascii() and text.isdigit():
        return int(text)  # The usual case.
    text = text.strip(" ")
    if not text:
        raise BadValue(bad_rows.MISSING_TIME)
    form = time_form(text)
    if form is None or (form == DATE) != dates:
        raise BadValue(bad_rows.BAD_TIME)
    integer, date = _integer(text), _parse_date(text)
    if integer is not None:
        return integer
    if date is None:
        return float(text)
    since = date - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _integer(text: str) -> int | None:
    """A whole number of 64 bits, or None if the text is something else."""
    found = _INTEGER.fullmatch(text)
    # Python refuses to convert thousands of digits, so zeros in front are left out.
    if found is None or len(found[2]) > _INT64_DIGITS:
        return None
    number = int(found[1] + found[2])
    return number if -_INT64 <= number < _INT64 else None


def _parse_date(text: str) -> datetime | None:
    found = _DATE.fullmatch(text)
    if found is None:
        return None
    year, _, month, day, hour, _, minute, second, fraction, sign, offset_hours, offset_minutes = (
        found.groups()
    )
    offset = timedelta(hours=int(offset_hours or 0), minutes=int(offset_minutes or 0))
    try:
        return datetime(
            int(year),
            int(month),
            int(day),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            int((fraction or "").ljust(6, "0")[:6]),
            timezone(-offset if sign == "-" else offset),
        )
    except ValueError:
        return None
