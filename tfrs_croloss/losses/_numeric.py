"""Arithmetic that stays finite where the exact value does not fit the type."""

from __future__ import annotations

import math

import tensorflow as tf

# Saturated values leave room to be summed over a batch of this many rows without overflow.
_HEADROOM = 2.0**16


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


def clip_to_range(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Values that can be cast to ``dtype`` without overflow; NaN stays NaN."""
    limit = float(dtype.max)
    # Two comparisons rather than clip_by_value, which turns NaN into a number under XLA.
    return tf.minimum(tf.maximum(values, -limit), limit)
