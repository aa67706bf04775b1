"""Features of times, which are whole seconds since 1970, in UTC."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.models.features.base import MISSING_INTEGER, SideFeature

_DAY = 86_400


@dataclasses.dataclass(frozen=True)
class _Time(SideFeature):
    """A feature whose raw values are times; ``MISSING_INTEGER`` of `features` is a missing one."""

    @property
    def raw_dtype(self) -> tf.DType:
        return tf.int64

    @property
    def _expectation(self) -> str:
        return "seconds since 1970"


@dataclasses.dataclass(frozen=True)
class Cycle(_Time):
    """The place of a time in a cycle, from 1.

    Attributes:
      step: seconds from one place to the next.
      length: number of places.
      first: place of the first second of 1970, from 0.
    """

    step: ClassVar[int]
    length: ClassVar[int]
    first: ClassVar[int] = 0

    dim: int = 8

    @property
    def num_rows(self) -> int:
        return self.length + 1

    def encode(self, column: tf.Tensor, table: Any) -> tf.Tensor:
        places = tf.math.floormod(tf.math.floordiv(column, self.step) + self.first, self.length)
        return tf.where(column == MISSING_INTEGER, 0, tf.cast(places, tf.int32) + 1)

    def seconds(self, row: int) -> int:
        """A time that is encoded as this row, which is not 0."""
        return (row - 1 - self.first) % self.length * self.step


@dataclasses.dataclass(frozen=True)
class HourFeature(Cycle):
    """The hour of the day.

    >>> feature = HourFeature("hour")
    >>> print(feature.encode(tf.constant([0, 86_399, -1], tf.int64), None).numpy())
    [ 1 24 24]

    Attributes:
      name: name of the input column.
      dim: size of the embedding.
    """

    kind: ClassVar[str] = "hour"
    step: ClassVar[int] = 3600
    length: ClassVar[int] = 24


@dataclasses.dataclass(frozen=True)
class WeekdayFeature(Cycle):
    """The day of the week; Monday has row 1.

    >>> feature = WeekdayFeature("weekday")
    >>> print(feature.encode(tf.constant([0, 4 * 86_400], tf.int64), None).numpy())
    [4 1]
    >>> feature.seconds(4), feature.seconds(1) // 86_400
    (0, 4)

    Attributes:
      name: name of the input column.
      dim: size of the embedding.
    """

    kind: ClassVar[str] = "weekday"
    step: ClassVar[int] = _DAY
    length: ClassVar[int] = 7
    first: ClassVar[int] = 3  # a Thursday


@dataclasses.dataclass(frozen=True)
class AgeFeature(_Time):
    r"""How old something is: :math:`\log(1 + d)` for d days before ``until``, standardised.

    What is younger than ``until`` has the age 0.

    Attributes:
      name: name of the input column.
      until: seconds since 1970 that the age is counted to, such as the end of the training data.
      mean: mean of the logarithms.
      deviation: standard deviation of the logarithms.
      dim: size of the vector.
    """

    kind: ClassVar[str] = "age"

    until: int
    mean: float = 0.0
    deviation: float = 1.0
    dim: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.positive_number("deviation", self.deviation, remedy="Use 1 for a constant.")

    @property
    def num_rows(self) -> None:
        return None

    def encode(self, column: tf.Tensor, table: Any) -> tf.Tensor:
        # In floats, in which a missing value is far away and not an overflow.
        seconds = float(self.until) - tf.cast(column, tf.float64)
        logarithms = tf.math.log1p(tf.maximum(seconds, 0.0) / _DAY)
        ages = tf.cast((logarithms - self.mean) / self.deviation, tf.float32)
        return tf.where(column == MISSING_INTEGER, float("nan"), ages)
