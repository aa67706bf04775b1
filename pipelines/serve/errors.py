"""Errors that a client is told about, in the codes that gRPC and TensorFlow share."""

from __future__ import annotations

import enum
import re

import tensorflow as tf


class Code(enum.IntEnum):
    """The canonical codes that are used here; values as in gRPC and TensorFlow."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


HTTP_STATUS = {
    Code.OK: 200,
    Code.INVALID_ARGUMENT: 400,
    Code.OUT_OF_RANGE: 400,
    Code.NOT_FOUND: 404,
    Code.FAILED_PRECONDITION: 412,
    Code.UNIMPLEMENTED: 501,
    Code.RESOURCE_EXHAUSTED: 503,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}

# What a graph may blame on its input. Anything else is a fault of the model or of the machine.
_BLAMES_INPUT = {Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE}


class RequestError(Exception):
    """A request that is answered with an error.

    Args:
      code: What kind of error.
      message: For the client.
      http_status: Where HTTP knows better than ``code``.
    """

    def __init__(self, code: Code, message: str, http_status: int | None = None):
        super().__init__(message)
        self.code = code
        self.message = message
        self.http_status = http_status or HTTP_STATUS.get(code, 500)


def invalid(message: str) -> RequestError:
    """An error of the request itself."""
    return RequestError(Code.INVALID_ARGUMENT, message)


def from_model(error: Exception) -> RequestError:
    """What a client is told of an error raised while a model ran."""
    code = Code.INTERNAL
    if isinstance(error, tf.errors.OpError) and error.error_code in _BLAMES_INPUT:
        code = Code(error.error_code)
    return RequestError(code, first_line(error))


def first_line(error: Exception) -> str:
    r"""The first line of a TensorFlow error that says something, without names of nodes.

    >>> first_line(ValueError("2 root error(s) found.\n  (0) INVALID_ARGUMENT: assertion failed: "
    ...                       "[top_n should be at most 5. Received:] [7]\n\t [[{{node a}}]]"))
    'top_n should be at most 5. Received: 7'
    """
    text = error.message if isinstance(error, tf.errors.OpError) else str(error)
    for line in text.splitlines():
        line = re.sub(r"^\s*(\(\d+\) )?([A-Z_]+: )?", "", line)
        line = re.sub(r"\s*\[\[\{\{.*|^Graph execution error:|^Detected at node.*", "", line)
        line = line.strip()
        if line and not re.fullmatch(r"\d+ root error\(s\) found\.", line):
            return _assertion(line)
    return type(error).__name__


def _assertion(line: str) -> str:
    """The message of ``tf.debugging.assert_…`` without the brackets around each part."""
    found = re.fullmatch(r"assertion failed: \[(.*)\]", line)
    if not found:
        return line
    parts = found[1].split("] [")
    if len(parts) > 1 and parts[0] and parts[1].startswith("Condition "):
        parts = parts[:1]
    return " ".join(part.strip() for part in parts if part.strip())
