"""Arithmetic that stays finite where the exact value does not fit the type."""

from __future__ import annotations

import math

import tensorflow as tf

# Saturated values leave room to be summed over a batch of this many rows without overflow.
_HEADROOM = 2.0**16

LARGEST_SCORE = 1e29
"""Scores are computed with as if they were at most this, below the gap that stands for a mask."""


def compute_dtype(dtype: tf.DType) -> tf.DType:
    """The type that losses are computed in: float64 stays, everything else is float32."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def largest_exponent(dtype: tf.DType) -> float:
    """The largest x whose exponential still leaves the headroom."""
    return math.log(float(dtype.max) / _HEADROOM)


def saturating_exp(exponents: tf.Tensor) -> tf.Tensor:
    """``exp`` that saturates at a large finite value instead of overflowing to infinity.

    >>> bool(tf.math.is_finite(saturating_exp(tf.constant(1e4))))
    True
    """
    return tf.exp(tf.minimum(exponents, largest_exponent(exponents.dtype)))


def saturated(values: tf.Tensor) -> tf.Tensor:
    """Sums above 0, at most the largest that leaves headroom; NaN stays NaN.

    >>> print(tf.math.is_finite(saturated(tf.constant([1.0, float("inf")]))).numpy())
    [ True  True]
    """
    largest = tf.constant(float(values.dtype.max) / _HEADROOM, values.dtype)
    # Minimum would turn NaN into a number under XLA.
    return tf.where(values > largest, largest, values)


def bounded(scores: tf.Tensor) -> tf.Tensor:
    """Scores within a range whose differences, and sums of these, fit the type; NaN stays NaN.

    Scores beyond it are as far apart as any loss can tell.

    >>> bool(tf.reduce_all(bounded(tf.constant([3e38, -3e38, 1.0])) == [1e29, -1e29, 1.0]))
    True
    """

    def clipped() -> tf.Tensor:
        # Minimum and maximum would turn NaN into a number under XLA.
        sizes = tf.minimum(tf.abs(scores), LARGEST_SCORE)
        return tf.where(tf.abs(scores) > LARGEST_SCORE, tf.sign(scores) * sizes, scores)

    # Reading the scores twice costs less than writing them anew.
    fit = tf.logical_and(
        tf.reduce_max(scores) <= LARGEST_SCORE, tf.reduce_min(scores) >= -LARGEST_SCORE
    )
    return tf.cond(fit, lambda: scores, clipped)


def clip_to_range(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Values that can be cast to ``dtype`` without overflow; NaN stays NaN."""
    limit = float(dtype.max)
    return tf.minimum(tf.maximum(values, -limit), limit)
