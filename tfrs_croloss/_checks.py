"""Checks and conversions of arguments.

Errors name the argument, what was required, what arrived and the remedy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

_MAX_ROWS_IN_MESSAGE = 10
# Fits an int64, with room for sums.
_MAX_BYTES = 2**62


def positive_number(name: str, value: Any, *, remedy: str) -> float:
    """Returns ``value`` as a float if it is a finite number above zero, else raises."""
    number = _finite_number(name, value, "a finite number above 0", remedy)
    if number <= 0.0:
        raise ValueError(
            f"`{name}` should be a finite number above 0. Received: {value!r}. {remedy}"
        )
    if number < float(np.finfo(np.float32).tiny):
        raise ValueError(
            f"`{name}` should be a finite number above 0. Received: {value!r}, which is 0 in "
            f"float32. {remedy}"
        )
    return number


def non_negative_number(name: str, value: Any, *, remedy: str) -> float:
    """Returns ``value`` as a float if it is a finite number of at least zero, else raises."""
    number = _finite_number(name, value, "a finite number of at least 0", remedy)
    if number < 0.0:
        raise ValueError(
            f"`{name}` should be a finite number of at least 0. Received: {value!r}. {remedy}"
        )
    return number


def _finite_number(name: str, value: Any, required: str, remedy: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, (bool, str)) or not math.isfinite(number):
        raise ValueError(f"`{name}` should be {required}. Received: {value!r:.80}. {remedy}")
    if abs(number) > float(tf.float32.max):
        raise ValueError(
            f"`{name}` should be {required}. Received: {value!r:.80}, which is infinite in "
            f"float32. {remedy}"
        )
    return number


def whole_number(name: str, value: Any, *, remedy: str) -> int:
    """Returns ``value`` as an int if it is a whole number of at least one, else raises."""
    number = _finite_number(name, value, "a whole number of at least 1", remedy)
    if number < 1 or number != int(number):
        raise ValueError(
            f"`{name}` should be a whole number of at least 1. Received: {value!r}. {remedy}"
        )
    return int(number)


def catalogue_size(name: str, value: Any) -> int | None:
    """Returns ``value`` as an int if it is ``None`` or a whole number of at least one."""
    if value is None:
        return None
    number = positive_number(
        name,
        value,
        remedy="Pass the number of items in the catalogue, or None to take the candidates at hand "
        "as the catalogue.",
    )
    if number != int(number):
        raise ValueError(
            f"`{name}` should be a whole number. Received: {value!r}. Pass the number of items in "
            "the catalogue."
        )
    return int(number)


def bytes_or_none(name: str, value: Any) -> int | None:
    """Returns ``value`` as a number of bytes if it is ``None`` or above zero, else raises."""
    if value is None:
        return None
    remedy = "Give the number of bytes, or None for the default."
    return min(max(int(positive_number(name, value, remedy=remedy)), 1), _MAX_BYTES)


def one_of(name: str, value: Any, choices: Sequence[str]) -> str:
    """Returns ``value`` if it is one of ``choices``, else raises."""
    if value not in choices:
        raise ValueError(f"`{name}` should be one of {sorted(choices)}. Received: {value!r}.")
    return str(value)


def matrix(name: str, value: tf.Tensor, shape: str) -> None:
    """Raises unless ``value`` has rank two, as far as its static shape tells."""
    if value.shape.rank not in (None, 2):
        raise ValueError(
            f"`{name}` should have shape {shape}. Received shape: {value.shape}. Flatten leading "
            "dimensions into one row per query."
        )


def same_shape(name: str, value: tf.Tensor, other_name: str, other: tf.Tensor) -> tf.Tensor:
    """Returns ``value``, checked to have the shape of ``other`` (at run time if necessary)."""
    message = (
        f"`{name}` should have the shape of `{other_name}`: one row per query and one column per "
        "candidate."
    )
    if not value.shape.is_compatible_with(other.shape):
        raise ValueError(
            f"{message} Received: `{name}` of shape {value.shape} and `{other_name}` of shape "
            f"{other.shape}."
        )
    if value.shape.is_fully_defined() and other.shape.is_fully_defined():
        return value
    arrived, required = tf.shape(value), tf.shape(other)
    check = tf.debugging.Assert(
        tf.reduce_all(tf.equal(arrived, required)),
        [f"{message} Received: `{name}` of shape", arrived, f"and `{other_name}` of", required],
    )
    with tf.control_dependencies([check] if check is not None else []):
        return _identity_of_shape(name, value, required)


def with_shape(
    name: str,
    value: tf.Tensor,
    static: list[int | None],
    dynamic: list[tf.Tensor],
    dimensions: Sequence[str] = ("num_queries", "num_candidates"),
) -> tf.Tensor:
    """Returns ``value``, checked to have a shape (at run time if it is not known statically)."""
    required = ", ".join(dimensions[: len(static)])
    message = f"`{name}` should have the shape [{required}]."
    if not value.shape.is_compatible_with(static):
        raise ValueError(f"{message} Received: {value.shape}, where {static} was required.")
    if value.shape.is_fully_defined() and None not in static:
        return value
    arrived = tf.shape(value)
    if value.shape.rank is None:
        right = tf.cond(
            tf.equal(tf.rank(value), len(static)),
            lambda: tf.reduce_all(tf.equal(tf.ensure_shape(arrived, [len(static)]), dynamic)),
            lambda: False,
        )
    else:
        right = tf.reduce_all(tf.equal(arrived, dynamic))
    check = tf.debugging.Assert(right, [message, "Received:", arrived, "Required:", dynamic])
    with tf.control_dependencies([check] if check is not None else []):
        return tf.ensure_shape(_identity_of_shape(name, value, tf.stack(dynamic)), static)


def _identity_of_shape(name: str, value: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """``value``; XLA, which drops assertions, cannot compile a wrong number of elements.

    Otherwise it would repeat a single element for all queries or candidates.
    """
    if not tf.executing_eagerly() and is_compiled_with_xla():
        return tf.reshape(value, shape, name=name)
    return tf.identity(value)


def per_row(name: str, value: tf.Tensor, rows: tf.Tensor, dimension: str) -> tf.Tensor:
    """Returns ``value``, checked to be a vector with one entry for each row of ``rows``.

    Args:
      name: the argument, for the message.
      value: any tensor.
      rows: a tensor whose first dimension is the length that is required.
      dimension: what the rows are, for the message: ``"num_candidates"``.
    """
    return with_shape(name, value, [rows.shape[0]], [tf.shape(rows)[0]], [dimension])


def one_row_each(name: str, value: Any, num_queries: tf.Tensor) -> Any:
    """Returns a matrix or ragged tensor, checked to have one row for each query."""
    is_ragged = isinstance(value, tf.RaggedTensor)
    value = value if is_ragged else tf.convert_to_tensor(value)
    if value.shape.rank not in (None, 2):
        raise ValueError(
            f"`{name}` should have the shape [num_queries, (ids)]. Received shape: {value.shape}."
        )
    checked = with_shape(
        name,
        value.row_lengths() if is_ragged else tf.reduce_any(tf.zeros_like(value, tf.bool), axis=1),
        [tf.get_static_value(num_queries)],
        [num_queries],
        ["num_queries, (ids)"],
    )
    with tf.control_dependencies([checked]):
        if is_ragged:
            return value.with_values(tf.identity(value.values))
        return tf.identity(value)


def sample_weight(value: Any, rows: tf.Tensor) -> tf.Tensor | None:
    """Sample weights, checked to be one for each row; Keras' other forms stay as they are.

    Keras also takes a scalar, and a column ``[num_queries, 1]``.

    Args:
      value: the weights, or None.
      rows: a tensor with a row for each query.
    """
    if value is None:
        return None
    value = tf.convert_to_tensor(value)
    if value.shape.rank == 0:
        return value
    if value.shape.rank == 2 and value.shape[1] == 1:
        value = tf.squeeze(value, axis=1)
    return per_row("sample_weight", value, rows, "num_queries")


def rows(values: tf.Tensor, wrong: tf.Tensor, message: str) -> tf.Tensor:
    """Returns ``values``, or raises an error that lists the rows that are wrong.

    Eager code raises a ``ValueError``; inside a ``tf.function`` an assertion raises a
    ``tf.errors.InvalidArgumentError`` when it runs. XLA drops assertions, so compiled code
    cannot raise: there, floats in wrong rows become NaN, so that they do not look like good ones.

    Args:
      values: a vector or a matrix with a row for each query; it is returned.
      wrong: ``[num_queries]`` booleans.
      message: says what was required, and the remedy.
    """
    if tf.executing_eagerly():
        if bool(tf.reduce_any(wrong)):
            numbers = [int(row) for row in tf.where(wrong)[:, 0]]
            not_listed = len(numbers) - _MAX_ROWS_IN_MESSAGE
            more = f" and {not_listed} more" if not_listed > 0 else ""
            raise ValueError(f"{message} Rows: {numbers[:_MAX_ROWS_IN_MESSAGE]}{more}.")
        return values
    check = tf.debugging.Assert(
        tf.logical_not(tf.reduce_any(wrong)),
        [message, "Rows:", tf.where(wrong)[:, 0]],
        summarize=_MAX_ROWS_IN_MESSAGE,
    )
    if values.dtype.is_floating and is_compiled_with_xla():
        places = wrong[:, tf.newaxis] if values.shape.rank == 2 else wrong
        values = tf.where(places, tf.constant(math.nan, values.dtype), values)
    with tf.control_dependencies([check]):
        return tf.identity(values)


def is_compiled_with_xla() -> bool:
    """Whether the function that is being traced will be compiled with XLA."""
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def floating(name: str, values: tf.Tensor, dtype: tf.DType | None = None) -> tf.Tensor:
    """``values`` as a tensor, checked to be floating point; Python numbers become ``dtype``."""
    values = tf.convert_to_tensor(values, dtype_hint=dtype)
    if not values.dtype.is_floating:
        raise ValueError(
            f"`{name}` should be floating point. Received dtype: {values.dtype.name}. Cast it to "
            "tf.float32."
        )
    return values


def same_type(one: tf.Tensor, other: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Both tensors in the wider of their types."""
    dtype = one.dtype if one.dtype.size >= other.dtype.size else other.dtype
    return tf.cast(one, dtype), tf.cast(other, dtype)


def candidates(
    scores: tf.Tensor, labels: tf.Tensor, mask: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Scores, labels and mask as tensors of one shape, ``[num_queries, num_candidates]``."""
    scores = floating("scores", scores)
    matrix("scores", scores, "[num_queries, num_candidates]")
    labels = tf.convert_to_tensor(labels)
    matrix("labels", labels, "[num_queries, num_candidates]")
    labels = same_shape("labels", labels, "scores", scores)
    if mask is not None:
        mask = tf.cast(mask, tf.bool)
        matrix("mask", mask, "[num_queries, num_candidates]")
        mask = same_shape("mask", mask, "scores", scores)
    return scores, labels, mask
