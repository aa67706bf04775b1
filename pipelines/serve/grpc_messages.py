"""Receives the messages of gRPC calls, with bounds on how many at a time and on their time.

gRPC keeps a message in memory while it arrives, up to the largest size. So a message is asked for
only when it is its turn; until then, its client can send a few kilobytes.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from .errors import Code, RequestError, invalid
from .limits import Limits

SWEEP_SECONDS = 0.25
# How long a message may take while others wait for their turn.
PATIENCE = 0.5


class Messages:
    """Hands out turns, from one event loop.

    Args:
      limits: bounds on requests.
    """

    def __init__(self, limits: Limits):
        self._limits = limits
        self._turns = asyncio.Semaphore(limits.messages_at_once)
        self._num_waiting = 0
        # When each reading began.
        self._reading: dict[asyncio.Future[Any], float] = {}

    async def receive(self, context: Any) -> bytes:
        """The only message of a call.

        Raises:
          RequestError: there is none, it takes too long, or too many others are waiting.
        """
        if self._num_waiting >= self._limits.max_in_flight:
            raise RequestError(
                Code.RESOURCE_EXHAUSTED, f"{self._num_waiting} messages are waiting. Try again."
            )
        self._num_waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._num_waiting -= 1
        reading = asyncio.ensure_future(context.read())
        self._reading[reading] = asyncio.get_running_loop().time()
        try:
            # Unlike await, this can tell a reading that was ended from a call that was.
            await asyncio.wait({reading})
            if reading.cancelled():
                raise RequestError(
                    Code.DEADLINE_EXCEEDED,
                    f"the message should arrive within {self._limits.body_seconds:g} s, or "
                    f"{PATIENCE:g} s while others wait.",
                )
            message = reading.result()
        finally:
            reading.cancel()
            del self._reading[reading]
            self._turns.release()
        if message is grpc.aio.EOF:
            raise invalid("the call should have a message. Received: none.")
        return bytes(message)

    async def sweep(self) -> None:
        """Ends readings whose time is up, until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            seconds = PATIENCE if self._num_waiting else self._limits.body_seconds
            for reading, since in list(self._reading.items()):
                if loop.time() - since > seconds:
                    reading.cancel()
