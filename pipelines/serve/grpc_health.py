"""The standard health service of gRPC. A client that watches and does not read holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from grpc_health.v1 import health_pb2

from .errors import Code, RequestError

SERVICE = "grpc.health.v1.Health"
# Each watch holds a call for as long as its client likes.
MAX_WATCHES = 64
_SERVICES = ("", "tensorflow.serving.PredictionService")
_Response = health_pb2.HealthCheckResponse


class Health:
    """Whether the server answers, for those who ask and for those who watch."""

    def __init__(self) -> None:
        self._is_healthy = False
        self._is_stopping = False
        self._num_watches = 0
        self._changed = asyncio.Event()

    def set(self, is_healthy: bool, is_stopping: bool = False) -> None:
        """Sets the state. When the server stops, watches end after a last answer."""
        self._is_healthy, self._is_stopping = is_healthy, is_stopping
        self._changed.set()
        self._changed = asyncio.Event()

    def check(self, request: Any) -> Any:
        """The state of a service.

        Raises:
          RequestError: the server has no such service.
        """
        if request.service not in _SERVICES:
            raise RequestError(Code.NOT_FOUND, f"there is no service '{request.service}'.")
        return _Response(status=self._status(request.service))

    async def watch(self, request: Any) -> AsyncIterator[Any]:
        """The state of a service, now and after each change.

        Raises:
          RequestError: too many others are watching.
        """
        if self._num_watches >= MAX_WATCHES:
            raise RequestError(
                Code.RESOURCE_EXHAUSTED, f"{MAX_WATCHES} clients are watching. Use Check."
            )
        self._num_watches += 1
        try:
            before = None
            while True:
                changed = self._changed
                if (status := self._status(request.service)) != before:
                    yield _Response(status=status)
                    before = status
                if self._is_stopping:
                    return
                await changed.wait()
        finally:
            self._num_watches -= 1

    def _status(self, service: str) -> Any:
        if service not in _SERVICES:
            return _Response.SERVICE_UNKNOWN
        return _Response.SERVING if self._is_healthy else _Response.NOT_SERVING
