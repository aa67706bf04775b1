"""Features with a known set of values, and the tables that number the values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfrs_croloss.models.features.base import MISSING_INTEGER, SideFeature


@dataclasses.dataclass(frozen=True)
class Feature(SideFeature):
    """A category: one of a known set of values, all strings or all integers.

    Values outside the vocabulary share one embedding of their own, with those that are missing:
    ``""``, or ``MISSING_INTEGER`` of `features`.

    >>> Feature.from_values("brand", ["b", "a", "b"], dim=4)
    Feature(name='brand', vocabulary=('a', 'b'), dim=4)

    Attributes:
      name: name of the input column.
      vocabulary: the distinct values.
      dim: size of the embedding.
    """

    kind: ClassVar[str] = "category"

    vocabulary: tuple[str, ...] | tuple[int, ...]
    dim: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_vocabulary(self.name, self.vocabulary, "Feature")

    @classmethod
    def from_values(cls, name: str, values: Any, dim: int = 8) -> Feature:
        """The feature whose vocabulary is what occurs in ``values``."""
        return cls(name, tuple(np.unique(np.asarray(values)).tolist()), dim)

    @property
    def is_string(self) -> bool:
        """Whether values are strings rather than integers."""
        return isinstance(self.vocabulary[0], str)

    @property
    def raw_dtype(self) -> tf.DType:
        return tf.string if self.is_string else tf.int64

    @property
    def num_rows(self) -> int:
        return len(self.vocabulary) + 1

    def table(self) -> tf.lookup.StaticHashTable:
        return value_table(self.vocabulary)

    def encode(self, column: tf.Tensor, table: Any) -> tf.Tensor:
        return table.lookup(column)

    @property
    def _expectation(self) -> str:
        return "like its vocabulary"


def check_vocabulary(name: str, vocabulary: Sequence[Any], kind: str) -> None:
    """Checks that a vocabulary is distinct strings, or distinct integers, at least one."""
    kinds = {str if isinstance(value, str) else _kind(value) for value in vocabulary}
    if kinds not in ({str}, {int}) or len(set(vocabulary)) != len(vocabulary):
        raise ValueError(
            f"`vocabulary` of feature {name!r} should be distinct strings, or distinct "
            f"integers, at least one. Received: {list(vocabulary)[:5]!r}…, "
            f"{len(vocabulary)} values. {kind}.from_values makes it from a column."
        )
    if MISSING_INTEGER in vocabulary or "" in vocabulary:
        raise ValueError(
            f"`vocabulary` of feature {name!r} should not have the value that stands for a missing "
            f"one, {'empty text' if '' in vocabulary else MISSING_INTEGER}. Leave it out."
        )


def value_table(vocabulary: Sequence[Any]) -> tf.lookup.StaticHashTable:
    """From values to int32 rows: 1 for the first, and 0 for all values that are not there."""
    if isinstance(vocabulary[0], str):
        # Bytes that are no UTF-8 come from files as surrogates.
        keys = tf.constant([value.encode("utf-8", "surrogateescape") for value in vocabulary])
    else:
        keys = tf.constant(list(vocabulary), tf.int64)
    rows = tf.range(1, len(vocabulary) + 1, dtype=tf.int32)
    initializer = tf.lookup.KeyValueTensorInitializer(keys, rows)
    return tf.lookup.StaticHashTable(initializer, default_value=0)


def _kind(value: Any) -> type:
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return int if is_integer else type(value)
