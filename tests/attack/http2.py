"""Frames of HTTP/2 by hand, for what no library would send. See RFC 9113 and RFC 7541."""

from __future__ import annotations

import contextlib
import socket
import struct

DATA, HEADERS, PRIORITY, RESET, SETTINGS, _, PING, _, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW = 4
# The largest frame that a server takes unless it says otherwise.
LARGEST = 1 << 14
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def setting(number: int, value: int) -> bytes:
    return struct.pack(">HI", number, value)


def field(name: bytes, value: bytes, remembered: bool = False) -> bytes:
    """A field of a header, as literals; a remembered one is ``LATEST`` from then on."""
    return (b"\x40" if remembered else b"\x00") + _text(name) + _text(value)


# The field that was remembered last.
LATEST = b"\xbe"


def call(method: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """The header of a gRPC call."""
    fields = {b":method": b"POST", b":scheme": b"http", b":path": method, b":authority": b"x"}
    fields |= {b"content-type": b"application/grpc", b"te": b"trailers"}
    return b"".join(field(*one) for one in (*fields.items(), *more))


def message(content: bytes, is_packed: bool = False, length: int | None = None) -> bytes:
    """A message of gRPC, whose length may be another than it says."""
    return struct.pack(">?I", is_packed, len(content) if length is None else length) + content


def split(kind: int, last_flag: int, stream: int, payload: bytes) -> bytes:
    """A payload in as many frames as it takes; a header goes on in others than it begins with."""
    parts = [payload[n : n + LARGEST] for n in range(0, len(payload), LARGEST)] or [b""]
    kinds = [kind] + [CONTINUATION if kind == HEADERS else kind] * (len(parts) - 1)
    flags = [0] * (len(parts) - 1) + [last_flag]
    return b"".join(map(frame, kinds, flags, [stream] * len(parts), parts))


class Http2:
    """A connection that sends what it is told to, and reads nothing by itself."""

    def __init__(self, port: int, settings: bytes = b""):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self._socket.settimeout(1)
        self.send(_PREFACE + frame(SETTINGS, payload=settings))

    def send(self, data: bytes) -> bool:
        """Whether the server took it in a second."""
        try:
            self._socket.sendall(data)
        except OSError:
            return False
        return True

    def received(self) -> bytes:
        """What has arrived until nothing more does."""
        answer = b""
        with contextlib.suppress(OSError):
            while part := self._socket.recv(1 << 16):
                answer += part
        return answer

    def close(self) -> None:
        self._socket.close()


def _text(content: bytes) -> bytes:
    size = len(content)
    if size < 127:
        return bytes([size]) + content
    digits = [127]
    size -= 127
    while size >= 128:
        digits.append(size & 127 | 128)
        size >>= 7
    return bytes([*digits, size]) + content
