"""The memory that all requests in flight share. It is asked for before it is used.

A request takes out a lease, whose size is an estimate from above of the memory that the request
needs: first its body, then what is parsed from it, then its tensors and its answer. If the memory
is used up, clients that are slow to send lose theirs; if that is not enough, the request is
refused.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from .counters import Counters
from .errors import Code, RequestError

# A client that has been sending for longer than this gives way to others.
PATIENCE = 2.0


class Lease:
    """The memory of one request, in bytes."""

    def __init__(self, budget: Budget):
        self.held = 0
        self._budget = budget

    def resize(self, size: int) -> None:
        """Asks for ``size`` bytes in place of what is held.

        Raises:
          RequestError: there is not enough memory, now or at all.
        """
        self._budget.resize(self, size)

    def add(self, size: int) -> None:
        """Asks for ``size`` more bytes.

        Raises:
          RequestError: there is not enough memory, now or at all.
        """
        self._budget.resize(self, self.held + size)

    def add_in_any_case(self, size: int) -> None:
        """Counts memory that is in use already, such as an answer; others may be refused for it."""
        self._budget.count(self, size)


class Budget:
    """Hands out leases, from one event loop.

    Args:
      total: number of bytes that all leases together may have.
      counters: where the bytes in use are shown.
    """

    def __init__(self, total: int, counters: Counters):
        self.total = total
        self.used = 0
        self._gauge = counters.memory
        # Leases of clients that are sending, the first to start at the front.
        self._slow: dict[Lease, tuple[float, Callable[[], None]]] = {}

    @contextlib.contextmanager
    def lease(self) -> Iterator[Lease]:
        """A lease that ends with the context."""
        lease = Lease(self)
        try:
            yield lease
        finally:
            self.count(lease, -lease.held)

    @contextlib.contextmanager
    def waiting_for_client(self, lease: Lease, drop: Callable[[], None]) -> Iterator[None]:
        """Within the context, the lease may be ended for the sake of others.

        Args:
          lease: a lease.
          drop: is called then; it stops what uses the memory.
        """
        self._slow[lease] = (time.monotonic(), drop)
        try:
            yield
        finally:
            self._slow.pop(lease, None)

    def resize(self, lease: Lease, size: int) -> None:
        """See `Lease.resize`."""
        if size > self.total:
            raise RequestError(
                Code.INVALID_ARGUMENT,
                f"the request would take up to {_mib(size)} MiB of memory, and all requests "
                f"together have {_mib(self.total)} MiB. Send fewer rows or values at a time.",
                http_status=413,
            )
        more = size - lease.held
        while self.used + more > self.total:
            if not self._drop_a_slow_one(lease):
                raise RequestError(
                    Code.RESOURCE_EXHAUSTED,
                    "the memory for requests is used up. Try again later.",
                )
        self.count(lease, more)

    def count(self, lease: Lease, more: int) -> None:
        """Changes the size of a lease, whatever the total is."""
        lease.held += more
        self.used += more
        self._gauge.set(self.used)

    def _drop_a_slow_one(self, but: Lease) -> bool:
        latest = time.monotonic() - PATIENCE
        for lease, (since, drop) in self._slow.items():
            if since > latest:
                return False
            if lease is not but and lease.held:
                del self._slow[lease]
                self.count(lease, -lease.held)
                drop()
                return True
        return False


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f}"
