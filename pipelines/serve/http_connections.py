"""HTTP connections that clients cannot use up: silent ones are closed, first of all for new ones.

A connection waits for its client, to send a header or a body or to receive an answer, or it works
on a request. Only while it waits does it have a deadline, and can it be closed to make room.

What a connection holds outside the memory of its requests is bounded: its header, and what its
client sends ahead while a request is worked on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any, cast

from aiohttp import StreamReader, web

from .counters import Counters
from .limits import Limits

# How often deadlines are looked at.
SWEEP_SECONDS = 0.25
# How long a client that has closed its side may take to be found without a request.
_HALF_CLOSED_SECONDS = 0.05
# A new connection does not give way before this, when what its client sent with it has been read.
_FRESH_SECONDS = 0.05
# How long the rest of a body is read after its request was refused, so that the answer is seen.
_LINGERING_SECONDS = 5.0
# A connection reads this much at a time, and nothing more once a client has sent ahead.
_READ_BYTES = 1 << 14
# Bytes that a header may have, and in a body what is not part of it: the sizes of its chunks and
# its trailer. They are noticed after the next reading.
_MAX_HEADER_BYTES = 1 << 14


class IncompleteBody(asyncio.TimeoutError):
    """Ends a body whose client has stopped sending. The base class is one that aiohttp expects."""


class LongTrailer(asyncio.TimeoutError):
    """Ends a body with too much around it. The base class is one that aiohttp expects."""


class Connection(web.RequestHandler):
    """One connection.

    Attributes:
      deadline: when it is closed; None while it works.
      was_answered: whether it has had an answer.
      is_fresh: whether what its client sent with it may not have been read yet.
    """

    deadline: float | None

    def __init__(self, connections: Connections, **settings: Any):
        super().__init__(connections, **settings)
        self._connections = connections
        self._limits = connections.limits
        self._content: StreamReader | None = None
        self._in_request = False
        self._has_begun = False
        self._is_half_closed = False
        # The body of the latest request that has been parsed.
        self._body: Any = None
        # Bytes that have arrived since the parser last made progress.
        self._unparsed = 0
        self._is_refused = False
        self.is_fresh = True
        self.was_answered = False
        self._wait(self._limits.header_seconds)

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Within the context, a request is received, run and answered."""
        self._in_request = True
        self._work()
        try:
            yield
        finally:
            self._in_request = self._has_begun = False
            self.was_answered = True
            self._wait(self._limits.idle_seconds)
            self._read_on()
            if self._is_half_closed:
                self._close_soon()

    @contextlib.contextmanager
    def receiving(self, content: StreamReader, seconds: float) -> Iterator[None]:
        """Within the context, a body is received. It ends with a ``TimeoutError`` in time."""
        self._content = content
        self._wait(seconds)
        if self._is_half_closed:
            self._end_body()
        try:
            yield
        finally:
            self._content = None
            self._work()

    @contextlib.contextmanager
    def sending(self, seconds: float) -> Iterator[None]:
        """Within the context, an answer is sent."""
        self._wait(seconds)
        yield

    def end(self) -> None:
        """Ends what the client has not completed."""
        if self._content is not None:
            self._content.set_exception(asyncio.TimeoutError())
            self._work()
        elif self.transport is not None:
            # There may be an answer that nobody reads, so the connection cannot be closed in order.
            self._in_request = False
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast(Any, transport).max_size = _READ_BYTES
        asyncio.get_running_loop().call_later(_FRESH_SECONDS, self._grow_old)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.close(self)
        # An answer to somebody who has gone comes back as an error.
        if self._in_request or (self._is_half_closed and exc is not None):
            self._connections.counters.hang_ups.labels("rest").inc()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if not self._in_request and not self._has_begun:
            self._has_begun = True
            latest = asyncio.get_running_loop().time() + self._limits.header_seconds
            self.deadline = min(self.deadline or latest, latest)
        is_ahead = (self._in_request or bool(self._messages)) and self._body.is_eof()
        before = self._parsed()
        super().data_received(data)
        if self._messages:
            self._body = self._messages[-1][1]
        self._unparsed = 0 if self._parsed() != before else self._unparsed + len(data)
        if self._unparsed > _MAX_HEADER_BYTES:
            self._refuse()
        elif is_ahead and data and self.transport is not None:
            self.transport.pause_reading()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keeps the connection open, so that a client that has closed its side gets its answer."""
        self._is_half_closed = True
        self._end_body()
        self._close_soon()
        return True

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is not HTTP, and to what should not happen."""
        if status >= 500:
            self.log_exception("error in an HTTP request", exc_info=exc)
            text = "internal error. See the log of the server."
        else:
            reason = (message or "").strip().split("\n")[0]
            text = f"the request should be HTTP/1.1: {reason[:200]}"
        self._connections.counters.requests.labels("rest", "other", str(status)).inc()
        response = error_response(status, text)
        response.force_close()
        return response

    def _parsed(self) -> tuple[int, int]:
        """The progress of the parser: numbers that change with each header and with each body."""
        return len(self._messages), self._body.total_bytes if self._body is not None else 0

    def _refuse(self) -> None:
        """Ends a header, or what is around a body, that is too long."""
        if self._content is not None:
            self._content.set_exception(LongTrailer())
        if self._in_request or self._messages or not (self._body is None or self._body.is_eof()):
            self.close()  # after the answers to what has arrived
        elif self.transport is not None:
            self._connections.counters.requests.labels("rest", "other", "431").inc()
            text = f"the header should have at most {_MAX_HEADER_BYTES} bytes."
            self.transport.write(_closing_answer("431 Request Header Fields Too Large", text))
            # What else arrives is read for a while, so that the answer is seen.
            self.transport.write_eof()
            self._is_refused = True
            self._wait(_LINGERING_SECONDS)

    def _read_on(self) -> None:
        """Reads again after a pause, once there is no request left that was sent ahead."""
        held_back = self._messages or self._reading_paused
        if self.transport is not None and not held_back:
            self.transport.resume_reading()

    def _grow_old(self) -> None:
        self.is_fresh = False
        if self.deadline is not None:
            self._connections.waits(self)

    def _end_body(self) -> None:
        """Ends a body of which nothing more will arrive."""
        if self._content is not None and not self._content.is_eof():
            self._connections.counters.hang_ups.labels("rest").inc()
            self._content.set_exception(IncompleteBody())

    def _wait(self, seconds: float) -> None:
        self.deadline = asyncio.get_running_loop().time() + seconds
        self._connections.waits(self)

    def _work(self) -> None:
        self.deadline = None
        self._connections.works(self)

    def _close_soon(self) -> None:
        # A request that arrived together with the end of the stream has begun by then.
        loop = asyncio.get_running_loop()
        loop.call_later(_HALF_CLOSED_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        # Between two requests that were sent together, none is in progress. The rest of a body that
        # was refused does not count.
        is_over = self._waiter is not None or not (self._body is None or self._body.is_eof())
        is_idle = is_over and not self._in_request and not self._messages
        if is_idle and self.transport is not None:
            self.transport.close()


class Connections(web.Server):
    """The connections of one port.

    Args:
      handler: function that answers a request.
      limits: bounds on number and time.
      counters: where closed connections are counted.
    """

    def __init__(self, handler: Any, limits: Limits, counters: Counters):
        super().__init__(handler)
        self.limits = limits
        self.counters = counters
        self.open: set[Connection] = set()
        # Those that wait for their clients, longest first: without an answer yet, and with one.
        self._waiting: tuple[dict[Connection, None], dict[Connection, None]] = ({}, {})

    def accept(self) -> asyncio.BaseProtocol:
        """A new connection, or a refusal if all others are at work."""
        if len(self.open) >= self.limits.max_connections and not self._make_room():
            return _Refusal()
        connection = Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,
            # Connections have deadlines of their own.
            keepalive_timeout=self.limits.idle_seconds + self.limits.body_seconds,
            lingering_time=_LINGERING_SECONDS,
            # Bodies are unpacked within bounds, elsewhere.
            auto_decompress=False,
            read_bufsize=1 << 15,
        )
        # Not later: many connections are accepted before the first of them is made.
        self.open.add(connection)
        return connection

    async def sweep(self) -> None:
        """Closes connections whose time is up, until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(SWEEP_SECONDS)
            now = loop.time()
            if now - before > 2 * SWEEP_SECONDS:
                # The server itself was late, and has yet to read what clients sent in time.
                continue
            for one in list(self.open):
                if one.deadline is not None and one.deadline < now:
                    self.counters.closed.labels("time").inc()
                    one.end()
                    if one.transport is None:
                        self.close(one)

    def waits(self, connection: Connection) -> None:
        """Takes note that a connection begins to wait for its client."""
        self.works(connection)
        if connection in self.open and not connection.is_fresh:
            self._waiting[connection.was_answered][connection] = None

    def works(self, connection: Connection) -> None:
        """Takes note that a connection does not wait for its client."""
        for waiting in self._waiting:
            waiting.pop(connection, None)

    def close(self, connection: Connection) -> None:
        """Forgets a connection."""
        self.open.discard(connection)
        self.works(connection)

    def _make_room(self) -> bool:
        """Closes the connection that has waited for longest, those without an answer first."""
        for waiting in self._waiting:
            for longest in waiting:
                self.close(longest)
                self.counters.closed.labels("room").inc()
                longest.end()
                return True
        return False


class _Refusal(asyncio.Protocol):
    """Answers a connection for which there is no room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        status = "503 Service Unavailable\r\nRetry-After: 1"
        transport.write(_closing_answer(status, "too many connections."))
        transport.close()


def _closing_answer(status: str, message: str) -> bytes:
    """An error as bytes, before there is a request that aiohttp could answer."""
    body = json.dumps({"error": message})
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


def json_response(value: Any, status: int = 200) -> web.Response:
    """An answer in JSON. Half a surrogate pair, which UTF-8 cannot hold, becomes ``?``."""
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    return web.Response(
        body=text.encode(errors="replace"), status=status, content_type="application/json"
    )


def error_response(status: int, message: str) -> web.Response:
    """The answer to a request that failed."""
    response = json_response({"error": message}, status)
    if status == 503:
        response.headers["Retry-After"] = "1"
    return response
