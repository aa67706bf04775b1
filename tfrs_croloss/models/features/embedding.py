"""From columns of features to vectors: the encoder of raw values, and the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrs_croloss.models.features.base import SideFeature

# Standardised numbers further out than this are cut off, so that none drowns the other features.
_FARTHEST = 10.0

Encoded = Mapping[str, tf.Tensor | tf.RaggedTensor]


class FeatureEncoder(tf.Module):
    """Encodes raw columns, as a step of an input pipeline or in front of a served model.

    >>> from tfrs_croloss.models import Feature, HourFeature
    >>> encoder = FeatureEncoder([Feature("brand", ("a", "b")), HourFeature("hour")])
    >>> encoded = encoder({"brand": ["b", "?"], "hour": [7200, 0]})
    >>> print(encoded["brand"].numpy(), encoded["hour"].numpy())
    [2 0] [3 1]

    Args:
      features: features to encode.
      name: name of the module.
    """

    def __init__(self, features: Sequence[SideFeature], name: str = "feature_encoder") -> None:
        super().__init__(name=name)
        check_names(features)
        self._features = tuple(features)
        self._tables = {
            feature.name: table for feature in features if (table := feature.table()) is not None
        }

    def __call__(self, columns: Mapping[str, Any]) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """Encoded columns of the features.

        Args:
          columns: ``[batch]`` raw values of every feature; other columns are ignored.
        """
        return {
            feature.name: feature.encode(
                feature.checked(_column(columns, feature)), self._tables.get(feature.name)
            )
            for feature in self._features
        }


class FeatureEmbedding(tf.keras.layers.Layer):
    """Embeds the columns of several features and puts their vectors side by side.

    The vector of a field with several values is the sum of their rows divided by the root of their
    number, so that in the beginning all vectors are of one size, however many values there are.

    Args:
      features: features to embed.
      encoded: whether the columns are encoded already, by a ``FeatureEncoder``.
      name: name of the layer.
      stddev: standard deviation of the normal distribution that the tables start from.
    """

    def __init__(
        self,
        features: Sequence[SideFeature],
        encoded: bool = False,
        name: str | None = None,
        *,
        stddev: float = 0.05,
    ) -> None:
        # Raw numbers are float64; Keras would make them shorter.
        super().__init__(name=name, autocast=False)
        check_names(features)
        self.features = tuple(features)
        self.encoded = bool(encoded)
        self._encoder = None if encoded else FeatureEncoder(features)
        # Weights of the time when several values were averaged have another name.
        self._embeddings = {feature.name: _table(feature, stddev) for feature in self.features}
        # It has no variables of its own, and not all of its users call it.
        self.built = True

    def encode(self, columns: Mapping[str, Any]) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """The columns as the tables take them: encoded, unless they are so already.

        Args:
          columns: ``[batch]`` values for every feature.
        """
        if self._encoder is not None:
            return self._encoder(columns)
        return {feature.name: _encoded(columns, feature) for feature in self.features}

    def embed_each(self, encoded: Encoded) -> list[tf.Tensor]:
        """The ``[batch, dim]`` vectors of each feature, from encoded columns."""
        return [
            _vectors(feature, self._embeddings[feature.name], encoded[feature.name])
            for feature in self.features
        ]

    def embed(self, encoded: Encoded) -> tf.Tensor:
        """``[batch, sum of the features' dims]``, from encoded columns."""
        return tf.concat(self.embed_each(encoded), axis=-1)

    def call(self, columns: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """``[batch, sum of the features' dims]``, from ``[batch]`` columns."""
        return self.embed(self.encode(columns))


def check_names(features: Sequence[SideFeature]) -> None:
    """Checks that no two features have the same name."""
    names = [feature.name for feature in features]
    if len(set(names)) != len(names):
        raise ValueError(f"`features` should have distinct names. Received: {names}.")


def example_columns(
    features: Sequence[SideFeature], encoded: bool
) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    """Columns with one row, in which all values are missing."""
    columns: dict[str, tf.Tensor | tf.RaggedTensor] = {}
    for feature in features:
        if not encoded:
            columns[feature.name] = tf.constant([feature.missing], feature.raw_dtype)
        elif feature.is_ragged:
            columns[feature.name] = tf.RaggedTensor.from_row_splits(
                tf.zeros([1], tf.int32), tf.constant([0, 1], tf.int64)
            )
        else:
            columns[feature.name] = tf.zeros([1], feature.encoded_dtype)
    return columns


def _table(feature: SideFeature, stddev: float) -> tf.keras.layers.Layer:
    name, dim = f"{feature.name}_embedding", feature.width
    # One for each table: Keras 2 draws the same numbers again from an initializer without a seed.
    start = tf.keras.initializers.RandomNormal(stddev=stddev)
    if feature.num_rows is not None:
        return tf.keras.layers.Embedding(
            feature.num_rows, dim, embeddings_initializer=start, name=name
        )
    # Two rows like those of the tables: one for the number, one for its absence.
    return tf.keras.layers.Dense(dim, use_bias=False, kernel_initializer=start, name=name)


def _vectors(
    feature: SideFeature, table: tf.keras.layers.Layer, encoded: tf.Tensor | tf.RaggedTensor
) -> tf.Tensor:
    if feature.num_rows is None:
        is_missing = tf.math.is_nan(encoded)
        number = tf.clip_by_value(tf.where(is_missing, 0.0, encoded), -_FARTHEST, _FARTHEST)
        return table(tf.stack([number, tf.cast(is_missing, number.dtype)], axis=-1))
    if not feature.is_ragged:
        return table(encoded)
    vectors = table(encoded.values)
    num_rows = encoded.nrows()
    sums = tf.math.unsorted_segment_sum(vectors, encoded.value_rowids(), num_rows)
    counts = tf.cast(tf.maximum(encoded.row_lengths(), 1), sums.dtype)
    return tf.ensure_shape(sums * tf.math.rsqrt(counts)[:, tf.newaxis], [None, vectors.shape[-1]])


def _column(columns: Mapping[str, Any], feature: SideFeature) -> Any:
    if feature.name not in columns:
        raise ValueError(
            f"The inputs should have a column {feature.name!r}, which is one of the "
            f"features. Received: {sorted(columns)}."
        )
    return columns[feature.name]


def _encoded(columns: Mapping[str, Any], feature: SideFeature) -> tf.Tensor | tf.RaggedTensor:
    column = _column(columns, feature)
    if not isinstance(column, tf.RaggedTensor):
        column = tf.convert_to_tensor(column)
    wanted = feature.encoded_dtype
    is_ragged = isinstance(column, tf.RaggedTensor)
    fits = column.dtype.is_floating if wanted.is_floating else column.dtype.is_integer
    if not fits or is_ragged != feature.is_ragged:
        raise ValueError(
            f"Column {feature.name!r} should be encoded: {wanted.name}"
            f"{', ragged' if feature.is_ragged else ''}. Received: {column.dtype.name}"
            f"{', ragged' if is_ragged else ''}. FeatureEncoder encodes raw values."
        )
    return column if wanted.is_integer else tf.cast(column, wanted)
