"""What one client may ask for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from .errors import invalid

TOP_N = "top_n"


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds on requests.

    Attributes:
      max_body_bytes: Bytes in the body of a request, unpacked.
      max_rows: Size of the first dimension of any input.
      max_top_n: Largest value in an input named ``top_n``; None leaves it to the model.
      max_in_flight: Requests that are being read, run or answered, in each protocol.
      max_connections: Open HTTP connections.
      max_queue: Requests that wait for a turn of the model.
    """

    max_body_bytes: int = 8 << 20
    max_rows: int = 1024
    max_top_n: int | None = None
    max_in_flight: int = 1024
    max_connections: int = 2048
    max_queue: int = 1024

    def check_size(self, name: str, shape: tuple[int, ...]) -> None:
        """Checks a shape before memory is taken for it.

        Raises:
          RequestError: There are more rows or values than a request may have.
        """
        if shape and shape[0] > self.max_rows:
            raise invalid(
                f"input '{name}' should have at most {self.max_rows} rows. Received: {shape[0]}. "
                "Send several requests."
            )
        size = 1
        for dim in shape:
            size *= dim
        # A value takes a byte at least, so a request within the bound on bytes has no more.
        if size > self.max_body_bytes:
            raise invalid(
                f"input '{name}' should have at most {self.max_body_bytes} values. Received: "
                f"shape {list(shape)}."
            )

    def check(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Checks the inputs of a request.

        Raises:
          RequestError: There are too many rows, or ``top_n`` is too large.
        """
        for name, value in inputs.items():
            self.check_size(name, value.shape)
        top_n = largest_top_n(inputs)
        if self.max_top_n is not None and top_n is not None and top_n > self.max_top_n:
            raise invalid(f"'{TOP_N}' should be at most {self.max_top_n}. Received: {top_n}.")


def largest_top_n(inputs: Mapping[str, np.ndarray]) -> int | None:
    """The largest N asked for, or None where the inputs have none.

    >>> largest_top_n({"top_n": np.array([3, 8], np.int32)})
    8
    """
    value = inputs.get(TOP_N)
    if value is None or value.dtype.kind not in "iu" or not value.size:
        return None
    return int(value.max())
