"""Checks that a JSON file which a step has written still holds what the step reads from it.

A shape is a type (``float`` stands for any number), None, a tuple of shapes of which one has to
fit, a list with the shape of its elements, or a dict with shapes by key. The key ``"*"`` stands for
all that are not named. Keys may be missing: ``Record`` names those that are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError

# The first that fits names a value.
_TITLES: dict[Any, str] = {
    None: "null",
    bool: "true or false",
    dict: "an object",
    int: "an integer",
    float: "a number",
    list: "a list",
    str: "a text",
}
_MAX_INTEGER = 2**63


def check_shape(path: Path, value: Any, shape: Any, remedy: str = "Create it again.") -> None:
    """Checks what was read from a file.

    >>> check_shape(Path("a.json"), {"rows": [{"step": 1}]}, {"rows": [{"step": int}]})
    >>> check_shape(Path("a.json"), {"rows": [{"step": "x"}]}, {"rows": [{"step": int}]})
    Traceback (most recent call last):
        ...
    pipelines.errors.UserError: a.json should have an integer in rows[0].step. Received: a text...

    Args:
      path: the file, for the error.
      value: what was read.
      shape: what it should be.
      remedy: what to do otherwise.

    Raises:
      UserError: it has another shape; the message says where.
    """
    for place, wanted, received in _mismatches(value, shape, ""):
        where = f" in {place.lstrip('.')}" if place else ""
        raise UserError(
            f"{path} should have {_title(wanted)}{where}. Received: {_kind(received)}. {remedy}"
        )


def _mismatches(value: Any, shape: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    """What does not fit: where, the shape that should be there, and what is there."""
    if isinstance(shape, tuple):
        if all(any(_mismatches(value, one, place)) for one in shape):
            yield place, shape, value
    elif not _is(value, type(shape) if isinstance(shape, (dict, list)) else shape):
        yield place, shape, value
    elif isinstance(shape, list):
        for number, one in enumerate(value):
            yield from _mismatches(one, shape[0], f"{place}[{number}]")
    elif isinstance(shape, dict):
        for key, one in value.items():
            if key in shape or "*" in shape:
                yield from _mismatches(one, shape.get(key, shape.get("*")), f"{place}.{key}")


def _is(value: Any, kind: Any) -> bool:
    if kind is None:
        return value is None
    if type(value) is int and kind in (int, float):
        return abs(value) < _MAX_INTEGER
    if kind is float:
        return isinstance(value, float) and math.isfinite(value)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _title(shape: Any) -> str:
    if isinstance(shape, tuple):
        return " or ".join(map(_title, shape))
    return _TITLES[type(shape) if isinstance(shape, (dict, list)) else shape]


def _kind(value: Any) -> str:
    if type(value) is int and abs(value) >= _MAX_INTEGER:
        return "an integer of more than 64 bits"
    if isinstance(value, float) and not math.isfinite(value):
        return "a number that is not finite"
    return next(title for kind, title in _TITLES.items() if _is(value, kind))
