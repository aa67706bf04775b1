"""Parses a line of JSON as DuckDB does, so that a row is good or bad whoever reads it.

Beyond the standard, DuckDB lets a comma before a closing bracket pass, takes NaN and Infinity for
numbers in any spelling, and sets no limit to the digits of a number or to the depth of lists.
Python's own parser, which is many times faster, reads what it can.
"""

from __future__ import annotations

import json
import re
from typing import Any

_SPACE = " \t\n\v\f\r"
_TOKEN = re.compile(
    r'[ \t\n\r]*(?:(?P<mark>[\[\]{},:])|(?P<string>"(?:[^"\\\x00-\x1f]|\\.)*")'
    r"|(?P<number>-?(?:0|[1-9][0-9]*)(?P<rest>\.[0-9]+)?(?P<power>[eE][+-]?[0-9]+)?(?![0-9.eE]))"
    r"|(?P<word>true|false|null|[+-]?(?i:nan|inf(?:inity)?))\b)",
)
_WORDS = {"true": True, "false": False, "null": None}


class Integer(str):
    """The digits of a whole number, however many."""


class Decimal(str):
    """A number with a fraction or an exponent, or none that is finite, as it is written."""


def parse_object(text: str) -> dict[str, Any] | None:
    """The object on a line, or None if the line is something else.

    Numbers are returned as they are written, as ``Integer`` or ``Decimal``. Lists and objects in
    the object may be returned without their content.

    >>> parse_object('{"asin": "B1", "time": 12, "votes": [1, 2],}')
    {'asin': 'B1', 'time': '12', 'votes': []}
    """
    text = text.strip(_SPACE)
    try:
        found = json.loads(text, parse_int=_integer, parse_float=Decimal, parse_constant=Decimal)
    except (ValueError, RecursionError):
        try:
            return _parse(text)
        except ValueError:
            return None
    return found if isinstance(found, dict) else None


def _integer(text: str) -> Integer:
    return Integer("0" if text == "-0" else text)


def _parse(text: str) -> dict[str, Any]:
    """Parses without recursion, so that no depth is too deep."""
    found: dict[str, Any] = {}
    key: str | None = None
    # What is open, and what may come next: a value, a key, a colon, or a comma.
    stack: list[str] = []
    expected = "value"
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError
        position = token.end()
        mark = token["mark"] or ""
        if expected == "key" and token["string"]:
            name = json.loads(token["string"])
            key = name if len(stack) == 1 else key
            expected = "colon"
        elif expected == "colon" and mark == ":":
            expected = "value"
        elif mark in ("}", "]") and expected != "colon" and stack and stack[-1] == mark:
            # After a comma or at the start, but not after a colon.
            if mark == "}" and expected == "value":
                raise ValueError
            stack.pop()
            expected = "comma"
        elif expected == "comma" and mark == "," and stack:
            expected = "key" if stack[-1] == "}" else "value"
        elif expected == "value" and (not mark or mark in "[{"):
            value = _value(token)
            if not stack and mark != "{":
                raise ValueError
            if len(stack) == 1:
                found[str(key)] = value
            if mark:
                stack.append("]" if mark == "[" else "}")
                expected = "value" if mark == "[" else "key"
            else:
                expected = "comma"
        else:
            raise ValueError
        if not stack:
            break
    if stack or expected != "comma" or position != len(text):
        raise ValueError
    return found


def _value(token: re.Match[str]) -> Any:
    if token["mark"]:
        return [] if token["mark"] == "[" else {}
    if token["string"]:
        return json.loads(token["string"])
    if token["number"]:
        is_whole = not token["rest"] and not token["power"]
        return _integer(token["number"]) if is_whole else Decimal(token["number"])
    return _WORDS.get(token["word"], Decimal(token["word"]))
