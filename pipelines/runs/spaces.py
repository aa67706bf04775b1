"""Search spaces of settings: numbers in a range, or values to choose among."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers to search, spaced evenly or evenly in the logarithm.

    >>> Range(1.0, 100.0, logarithmic=True).at(0.5)
    10.0
    """

    low: float
    high: float
    logarithmic: bool = False

    def at(self, share: float) -> float:
        """The number at ``share`` of the way, to three digits."""
        if self.logarithmic:
            value = self.low * math.exp(share * math.log(self.high / self.low))
        else:
            value = self.low + share * (self.high - self.low)
        return float(f"{value:.3g}")


@dataclasses.dataclass(frozen=True)
class Choice:
    """Values to choose among.

    Attributes:
      values: the values, or a function that returns them where loading them takes long.
    """

    values: Sequence[Any] | Callable[[], Sequence[Any]]

    @property
    def choices(self) -> Sequence[Any]:
        """The values."""
        return self.values() if callable(self.values) else self.values

    def at(self, share: float) -> Any:
        """The value at ``share`` of the way."""
        choices = self.choices
        return choices[min(int(share * len(choices)), len(choices) - 1)]


Space = Range | Choice

Draw = Callable[[str, Space], Any]
"""Draws a value from a space, for the setting of the given name."""
