"""Side features of users and items: strings and integers, embedded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss._keras import require_keras_2

require_keras_2("tfrs_croloss.models.features")


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature with a known set of values, all strings or all integers.

    Values outside the vocabulary share one embedding of their own.

    >>> Feature.from_values("brand", ["b", "a", "b"], dim=4)
    Feature(name='brand', vocabulary=('a', 'b'), dim=4)

    Attributes:
      name: name of the input column.
      vocabulary: the distinct values.
      dim: size of the embedding.
    """

    name: str
    vocabulary: tuple[str, ...] | tuple[int, ...]
    dim: int = 8

    def __post_init__(self) -> None:
        _checks.positive_number("dim", self.dim, remedy="Give the size of the embedding.")
        kinds = {str if isinstance(value, str) else _kind(value) for value in self.vocabulary}
        if kinds not in ({str}, {int}) or len(set(self.vocabulary)) != len(self.vocabulary):
            raise ValueError(
                f"`vocabulary` of feature {self.name!r} should be distinct strings, or distinct "
                f"integers, at least one. Received: {list(self.vocabulary)[:5]!r}…, "
                f"{len(self.vocabulary)} values. Feature.from_values makes it from a column."
            )

    @classmethod
    def from_values(cls, name: str, values: Any, dim: int = 8) -> Feature:
        """The feature whose vocabulary is what occurs in ``values``."""
        return cls(name, tuple(np.unique(np.asarray(values)).tolist()), dim)

    @property
    def is_string(self) -> bool:
        """Whether values are strings rather than integers."""
        return isinstance(self.vocabulary[0], str)


class FeatureEmbedding(tf.keras.layers.Layer):
    """Embeds the columns of several features and puts them side by side.

    Args:
      features: features to embed.
      name: name of the layer.
    """

    def __init__(self, features: Sequence[Feature], name: str | None = None) -> None:
        super().__init__(name=name)
        self.features = tuple(features)
        names = [feature.name for feature in self.features]
        if len(set(names)) != len(names):
            raise ValueError(f"`features` should have distinct names. Received: {names}.")
        self._lookups = {feature.name: _lookup(feature) for feature in self.features}
        self._tables = {
            feature.name: tf.keras.layers.Embedding(
                len(feature.vocabulary) + 1, feature.dim, name=f"{feature.name}_embedding"
            )
            for feature in self.features
        }

    def numbers(self, columns: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """The row of its table for each value, 0 for values outside the vocabulary.

        Args:
          columns: ``[batch]`` strings or integers for every feature.
        """
        numbers = {}
        for feature in self.features:
            if feature.name not in columns:
                raise ValueError(
                    f"The inputs should have a column {feature.name!r}, which is one of the "
                    f"features. Received: {sorted(columns)}."
                )
            column = tf.convert_to_tensor(columns[feature.name])
            if (column.dtype == tf.string) != feature.is_string:
                kind = "strings" if feature.is_string else "integers"
                raise ValueError(
                    f"Column {feature.name!r} should hold {kind}, like its vocabulary. Received: "
                    f"{column.dtype.name}."
                )
            if not feature.is_string:
                column = tf.cast(column, tf.int64)
            numbers[feature.name] = self._lookups[feature.name](column)
        return numbers

    def embed(self, numbers: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """``[batch, sum of the features' dims]``, from what ``numbers`` gives."""
        return tf.concat(
            [self._tables[feature.name](numbers[feature.name]) for feature in self.features],
            axis=-1,
        )

    def call(self, columns: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """``[batch, sum of the features' dims]``, from ``[batch]`` columns."""
        return self.embed(self.numbers(columns))


def _lookup(feature: Feature) -> tf.keras.layers.Layer:
    vocabulary = list(feature.vocabulary)
    if feature.is_string:
        return tf.keras.layers.StringLookup(vocabulary=vocabulary, dtype=tf.string)
    return tf.keras.layers.IntegerLookup(vocabulary=vocabulary, dtype=tf.int64)


def _kind(value: Any) -> type:
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return int if is_integer else type(value)
