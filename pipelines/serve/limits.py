"""Bounds on requests, so that one client cannot use up the server."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..common.options import Option, Whole
from .errors import invalid

TOP_N = "top_n"


def _limit(default: int | None, text: str, **more: Any) -> Any:
    return Option(Whole(1), default, text, "limits", **more).field


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds on requests; the help texts say what each field is."""

    max_body_mb: int = _limit(8, "maximum size of a request in MiB, uncompressed")
    max_rows: int = _limit(1024, "maximum number of rows in a request")
    max_top_n: int | None = _limit(
        None, "largest value of an input named top_n", shown_default="the model's own limit"
    )
    max_in_flight: int = _limit(1024, "maximum number of concurrent requests per protocol")
    max_connections: int = _limit(2048, "maximum number of open HTTP connections")

    @functools.cached_property
    def max_body_bytes(self) -> int:
        """Maximum size of a request in bytes, uncompressed."""
        return self.max_body_mb << 20

    def check_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Checks the shapes of inputs, before memory is allocated for them.

        Raises:
          RequestError: an input has more rows or values than a request may have.
        """
        for name, shape in shapes.items():
            if shape and shape[0] > self.max_rows:
                raise invalid(
                    f"input '{name}' should have at most {self.max_rows} rows. Received: "
                    f"{shape[0]}. Send several requests."
                )
            # A value takes at least one byte, so there cannot be more values than bytes.
            if math.prod(shape) > self.max_body_bytes:
                raise invalid(
                    f"input '{name}' should have at most {self.max_body_bytes} values. Received: "
                    f"shape {list(shape)}."
                )

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
