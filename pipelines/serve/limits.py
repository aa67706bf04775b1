"""Bounds on requests, so that one client cannot use up the server."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..common.options import Kind, Option, Real, Whole
from ..errors import UserError
from .errors import invalid

TOP_N = "top_n"
_SECONDS = Real(above=0.0, most=1e6)

# NumPy has 64 dimensions at most, and models have a handful.
MAX_RANK = 32
# A message of gRPC takes up to this many times its size, once it is parsed; measured with messages
# made for the purpose.
PARSED = 96
# The share of the memory for gRPC messages that are being received, in front of the budget.
RECEIVING = 4


def _limit(kind: Kind, default: Any, text: str, **more: Any) -> Any:
    return Option(kind, default, text, "limits", **more).field


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds on requests; the help texts say what each field is."""

    max_body_mb: int = _limit(Whole(1), 8, "maximum size of a request in MiB, uncompressed")
    max_rows: int = _limit(Whole(1), 1024, "maximum number of rows in a request")
    max_values: int = _limit(Whole(1), 1 << 20, "maximum number of values in a request")
    max_top_n: int | None = _limit(
        Whole(1),
        None,
        "largest value of an input named top_n",
        shown_default="the model's own limit",
    )
    max_memory_mb: int = _limit(
        Whole(1), 1024, "memory in MiB that all requests in flight may take"
    )
    max_in_flight: int = _limit(
        Whole(1), 1024, "maximum number of concurrent requests per protocol"
    )
    max_connections: int = _limit(
        Whole(1),
        2048,
        "maximum number of open connections per protocol; above it, the one that "
        "has been silent for longest is closed",
    )
    header_seconds: float = _limit(
        _SECONDS, 10.0, "seconds that a client has to send the header of a request"
    )
    body_seconds: float = _limit(
        _SECONDS, 60.0, "seconds that a client has to send a body, and to receive an answer"
    )
    idle_seconds: float = _limit(
        _SECONDS, 75.0, "seconds that a connection may be open without a request"
    )

    @functools.cached_property
    def max_body_bytes(self) -> int:
        """Maximum size of a request in bytes, uncompressed."""
        return self.max_body_mb << 20

    @functools.cached_property
    def budget_bytes(self) -> int:
        """Memory in bytes of requests that are received."""
        return (self.max_memory_mb << 20) * (RECEIVING - 1) // RECEIVING

    @functools.cached_property
    def messages_at_once(self) -> int:
        """Number of gRPC messages that may be received at the same time."""
        return (self.max_memory_mb << 20) // RECEIVING // self.max_body_bytes

    def check_memory(self) -> None:
        """Checks that the largest request can be answered.

        Raises:
          UserError: there is too little memory for it.
        """
        least = -(-PARSED * self.max_body_mb * RECEIVING // (RECEIVING - 1))
        if self.max_memory_mb < least:
            raise UserError(
                f"--max-memory-mb should be at least {PARSED * RECEIVING // (RECEIVING - 1)} times "
                f"--max-body-mb, since a body can take that much memory once it is parsed: "
                f"{least}. Received: {self.max_memory_mb}."
            )

    def check_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Checks the shapes of inputs, before memory is allocated for them.

        Returns:
          The number of values.

        Raises:
          RequestError: there are more rows or values than a request may have.
        """
        total = 0
        for name, shape in shapes.items():
            if shape and shape[0] > self.max_rows:
                raise invalid(
                    f"input '{name}' should have at most {self.max_rows} rows. Received: "
                    f"{shape[0]}. Send several requests."
                )
            total += math.prod(shape)
            # A dimension of size 0 makes the product 0, whatever the others are.
            if total > self.max_values or max(shape, default=0) > self.max_values:
                raise invalid(
                    f"a request should have at most {self.max_values} values. Received: "
                    f"shape {list(shape)} for input '{name}'. Send several requests."
                )
        return total

    def check(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Checks the inputs of a request.

        Raises:
          RequestError: there are too many rows, or ``top_n`` is too large.
        """
        self.check_shapes({name: value.shape for name, value in inputs.items()})
        top_n = largest_top_n(inputs)
        if self.max_top_n is not None and top_n is not None and top_n > self.max_top_n:
            raise invalid(f"'{TOP_N}' should be at most {self.max_top_n}. Received: {top_n}.")


def largest_top_n(inputs: Mapping[str, np.ndarray]) -> int | None:
    """The largest N that is asked for, or None if the inputs have none.

    >>> largest_top_n({"top_n": np.array([3, 8], np.int32)})
    8
    """
    value = inputs.get(TOP_N)
    if value is None or value.dtype.kind not in "iu" or not value.size:
        return None
    return int(value.max())
