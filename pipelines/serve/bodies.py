"""Receives the body of an HTTP request, with bounds on its size, its memory and its time."""

from __future__ import annotations

import asyncio
import zlib

from aiohttp import web

from .budget import Budget, Lease
from .errors import Code, RequestError, invalid
from .http_connections import Connection, IncompleteBody, LongTrailer
from .limits import Limits

_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
# The size of the blocks that bodies are kept in.
_BLOCK = 1 << 16


async def receive_body(
    request: web.BaseRequest, limits: Limits, budget: Budget, lease: Lease
) -> bytes | bytearray:
    """The body of a request, unpacked.

    Raises:
      RequestError: it is too large, too slow, packed in a way that is not known, or not packed in
        the way that its header says.
      ConnectionError: the client has gone.
    """
    if (coding := _listed(request, "Transfer-Encoding")) not in ("", "chunked"):
        raise RequestError(
            Code.UNIMPLEMENTED,
            f"Transfer-Encoding should be chunked. Received: {coding}. Bodies may be packed with "
            "Content-Encoding.",
        )
    body = _Unpacked(_listed(request, "Content-Encoding"), limits.max_body_bytes, lease)
    if (request.content_length or 0) > limits.max_body_bytes:
        raise body.too_large()
    await _answer_expectation(request)
    connection, content = request.protocol, request.content
    assert isinstance(connection, Connection)
    with (
        connection.receiving(content, limits.body_seconds),
        budget.waiting_for_client(lease, lambda: content.set_exception(GiveWay())),
    ):
        try:
            while part := await content.readany():
                body.add(part)
        except GiveWay as error:
            raise RequestError(
                Code.UNAVAILABLE, "the body was slow, and its memory is needed. Try again later."
            ) from error
        except IncompleteBody as error:
            raise invalid("the body is shorter than its header says.") from error
        except LongTrailer as error:
            raise invalid(
                "the body has too long a trailer, or too much beside its chunks."
            ) from error
        except asyncio.TimeoutError as error:
            raise RequestError(
                Code.DEADLINE_EXCEEDED,
                f"the body should arrive within {limits.body_seconds:g} s.",
                http_status=408,
            ) from error
        except RuntimeError as error:
            # aiohttp's answer to reading from a connection that was lost before.
            if connection.transport is None:
                raise ConnectionResetError("the connection is lost") from error
            raise
        except web.RequestPayloadError as error:
            raise invalid("the body is not in the encoding that its header names.") from error
    return body.whole()


class GiveWay(asyncio.TimeoutError):
    """Ends a slow body, since others need its memory."""


class _Unpacked:
    """What has arrived of a body, unpacked, never more than the bound.

    It is kept in blocks of one size: what one body leaves behind then fits the next, and the memory
    of the process stays that of the leases. Bodies that grow in one piece leave gaps.
    """

    def __init__(self, encoding: str, most: int, lease: Lease):
        self._most = most
        self._lease = lease
        self._size = 0
        self._blocks: list[bytes] = []
        self._last = bytearray()
        self._unpack = None
        if encoding not in ("", "identity"):
            if encoding not in _WINDOW:
                raise RequestError(
                    Code.INVALID_ARGUMENT,
                    f"Content-Encoding should be gzip, deflate or identity. Received: {encoding}.",
                    http_status=415,
                )
            self._unpack = zlib.decompressobj(_WINDOW[encoding])

    def too_large(self) -> RequestError:
        return RequestError(
            Code.INVALID_ARGUMENT, f"the body should have at most {self._most} bytes.", 413
        )

    def add(self, part: bytes) -> None:
        if self._unpack is not None:
            try:
                # One byte above the bound is enough to know.
                part = self._unpack.decompress(part, self._most + 1 - self._size)
            except zlib.error as error:
                raise _wrongly_packed() from error
            if self._unpack.unused_data:
                raise _wrongly_packed()
        if self._size + len(part) > self._most:
            raise self.too_large()
        self._size += len(part)
        self._lease.resize(_allocated(self._size))
        for start in range(0, len(part), _BLOCK):
            self._last += part[start : start + _BLOCK]
            if len(self._last) >= _BLOCK:
                self._blocks.append(bytes(self._last[:_BLOCK]))
                self._last = self._last[_BLOCK:]

    def whole(self) -> bytes | bytearray:
        if self._unpack is not None and not self._unpack.eof:
            raise _wrongly_packed()
        if not self._blocks:
            return self._last
        self._lease.add(self._size)
        return b"".join([*self._blocks, self._last])


def _listed(request: web.BaseRequest, name: str) -> str:
    """The value of a header; those of several with the same name are one list."""
    return ", ".join(request.headers.getall(name, ())).strip().lower()


def _allocated(size: int) -> int:
    """Memory of a body of a size: Python adds an eighth to a ``bytearray``, for what follows.

    >>> body = bytearray()
    >>> for _ in range(50):
    ...     body += bytes(9_999)
    >>> len(body) < body.__sizeof__() <= _allocated(len(body))
    True
    """
    return size + size // 8 + 64


def _wrongly_packed() -> RequestError:
    return invalid("the body is not in the encoding that its header names.")


async def _answer_expectation(request: web.BaseRequest) -> None:
    """Tells a client that asks first that it may send the body."""
    expected = request.headers.get("Expect", "")
    if not expected:
        return
    if expected.strip().lower() != "100-continue":
        raise RequestError(
            Code.INVALID_ARGUMENT,
            f"Expect should be 100-continue. Received: {expected}.",
            http_status=417,
        )
    if request.version >= (1, 1):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # The answer itself has not begun.
        request.writer.output_size = 0
