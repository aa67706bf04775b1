"""Raw values of encoded features: examples of requests, and values on the command line."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.models import (
    Feature,
    NumberFeature,
    QuantileFeature,
    SideFeature,
    TagsFeature,
)
from tfrs_croloss.models.features import Cycle


def raw_column(feature: SideFeature, encoded: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
    """``[num_rows]`` raw values that are encoded like these, up to rounding.

    Words cannot be told from their hashes, so texts are empty.

    Args:
      feature: feature of a user or of a context.
      encoded: its encoded values.
    """
    rows = encoded.to_list() if isinstance(encoded, tf.RaggedTensor) else encoded.numpy().tolist()
    return tf.constant([_raw(feature, row) for row in rows], feature.raw_dtype, [len(rows)])


def _raw(feature: SideFeature, row: Any) -> Any:
    if isinstance(feature, TagsFeature):
        # An unknown tag has no name of its own, and any other unknown one has its number.
        return feature.separator.join(
            feature.vocabulary[number - 1] if number else _unknown(feature) for number in row
        )
    if isinstance(feature, NumberFeature):
        return row * feature.deviation + feature.mean
    if isinstance(row, float) or isinstance(row, list) or row == 0:
        return feature.missing
    if isinstance(feature, Feature):
        return feature.vocabulary[row - 1]
    if isinstance(feature, QuantileFeature):
        bounds = feature.boundaries or (0.0,)
        return bounds[row - 2] if row > 1 else np.nextafter(bounds[0], -np.inf)
    if isinstance(feature, Cycle):
        return feature.seconds(row)
    raise TypeError(f"no raw values of {feature!r}")


def _unknown(feature: TagsFeature) -> str:
    name = "?"
    while name in feature.vocabulary or feature.separator in name:
        name += "_"
    return name
