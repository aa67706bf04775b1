"""Features that are numbers: standardised, or in buckets of equal share."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.models.features.base import SideFeature

_LARGEST = float(tf.float32.max)


@dataclasses.dataclass(frozen=True)
class NumberFeature(SideFeature):
    """A number, less the mean and divided by the standard deviation.

    Its vector is the encoded number times a learned vector; a missing number has another one.

    >>> NumberFeature.from_values("price", [1.0, 3.0, float("nan")])
    NumberFeature(name='price', mean=2.0, deviation=1.0, dim=8)

    Attributes:
      name: name of the input column.
      mean: what is subtracted.
      deviation: what the difference is divided by.
      dim: size of the vector.
    """

    kind: ClassVar[str] = "number"

    mean: float = 0.0
    deviation: float = 1.0
    dim: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.positive_number("deviation", self.deviation, remedy="Use 1 for a constant.")

    @classmethod
    def from_values(cls, name: str, values: Any, dim: int = 8) -> NumberFeature:
        """The feature with the mean and the deviation of ``values``, without those that are NaN."""
        known = _known(name, values)
        return cls(name, float(known.mean()), float(known.std()) or 1.0, dim)

    @property
    def raw_dtype(self) -> tf.DType:
        return tf.float64

    @property
    def num_rows(self) -> None:
        return None

    def encode(self, column: tf.Tensor, table: Any) -> tf.Tensor:
        scaled = (_readable(column) - self.mean) / self.deviation
        return tf.cast(tf.clip_by_value(scaled, -_LARGEST, _LARGEST), tf.float32)

    @property
    def _expectation(self) -> str:
        return "which are standardised"


@dataclasses.dataclass(frozen=True)
class QuantileFeature(SideFeature):
    """A number as the bucket that it falls into.

    Bucket 1 is below the first boundary, and a boundary belongs to the bucket above it.

    >>> feature = QuantileFeature("price", (1.0, 5.0))
    >>> print(feature.encode(tf.constant([0.5, 1.0, 9.0, float("nan")], tf.float64), None).numpy())
    [1 2 3 0]

    Attributes:
      name: name of the input column.
      boundaries: ascending numbers.
      dim: size of the embedding.
    """

    kind: ClassVar[str] = "quantiles"

    boundaries: tuple[float, ...]
    dim: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        steps = np.diff(np.asarray(self.boundaries, np.float64))
        if not np.isfinite(self.boundaries).all() or not (steps > 0).all():
            raise ValueError(
                f"`boundaries` of feature {self.name!r} should be finite numbers in ascending "
                f"order. Received: {list(self.boundaries)}. QuantileFeature.from_values makes them "
                "from a column."
            )

    @classmethod
    def from_values(
        cls, name: str, values: Any, buckets: int = 32, dim: int = 8
    ) -> QuantileFeature:
        """The feature with buckets that hold about equally many of ``values``."""
        shares = np.arange(1, buckets) / buckets
        boundaries = np.unique(np.quantile(_known(name, values), shares))
        return cls(name, tuple(boundaries.tolist()), dim)

    @property
    def raw_dtype(self) -> tf.DType:
        return tf.float64

    @property
    def num_rows(self) -> int:
        return len(self.boundaries) + 2

    def encode(self, column: tf.Tensor, table: Any) -> tf.Tensor:
        boundaries = tf.constant(self.boundaries, tf.float64, [len(self.boundaries)])
        numbers = _readable(column)
        rows = 1 + tf.searchsorted(boundaries, numbers, side="right")
        return tf.where(tf.math.is_nan(numbers), 0, rows)

    @property
    def _expectation(self) -> str:
        return "which fall into buckets"


def _readable(column: tf.Tensor) -> tf.Tensor:
    """Numbers; those that no float32 can hold are missing."""
    return tf.where(tf.abs(column) <= _LARGEST, column, tf.constant(math.nan, column.dtype))


def _known(name: str, values: Any) -> np.ndarray:
    numbers = np.asarray(values, np.float64)
    known: np.ndarray = numbers[~np.isnan(numbers)]
    if not len(known):
        raise ValueError(
            f"`values` of feature {name!r} should have at least one number. Received: none."
        )
    return known
