"""Errors that a client receives, with the status codes that gRPC and TensorFlow share."""

from __future__ import annotations

import enum


class Code(enum.IntEnum):
    """The canonical status codes that are used here, with their values in gRPC and TensorFlow."""

    OK = 0
    CANCELLED = 1
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
    DATA_LOSS = 15


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

MAX_MESSAGE = 1000


class RequestError(Exception):
    """A request that is answered with an error.

    Args:
      code: status code.
      message: what the client reads.
      http_status: status over HTTP; follows from ``code`` by default.
    """

    def __init__(self, code: Code, message: str, http_status: int | None = None):
        super().__init__(message)
        self.code = code
        # What a client has sent may be part of it, and headers of gRPC have little room.
        self.message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"
        self.http_status = http_status or HTTP_STATUS.get(code, 500)


class LoadError(Exception):
    """A version of a model that cannot be served.

    Args:
      code: status code.
      message: why not.
    """

    def __init__(self, code: Code, message: str):
        super().__init__(message)
        self.code = code
        self.message = message


def invalid(message: str) -> RequestError:
    """The error of a request that has to be changed before it is sent again."""
    return RequestError(Code.INVALID_ARGUMENT, message)
