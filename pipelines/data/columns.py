"""Encoded columns of side features as tensors, and rows gathered from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from .features import Column

Encoded: TypeAlias = tf.Tensor | tf.RaggedTensor
Tensors: TypeAlias = dict[str, tuple[tf.Tensor, ...]]
"""The values of each column and, if a row has any number of them, where each row begins."""


def as_tensors(columns: Mapping[str, Column]) -> Tensors:
    """The columns, copied into TensorFlow."""
    return {
        name: tuple(
            tf.constant(np.asarray(array))
            for array in (column.values, column.offsets)
            if array is not None
        )
        for name, column in columns.items()
    }


def gathered(tensors: Mapping[str, tuple[tf.Tensor, ...]], rows: tf.Tensor) -> dict[str, Encoded]:
    """Some rows of each column, in the order of ``rows``."""
    found = {}
    for name, (values, *splits) in tensors.items():
        column = values
        if splits:
            column = tf.RaggedTensor.from_row_splits(values, splits[0], validate=False)
        found[name] = tf.gather(column, rows)
    return found
