"""The columns of a batch of features: which of them a tower takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

NEGATIVE_PREFIX = "negative_"

Features = Mapping[str, tf.Tensor]


def names(inputs: str | Sequence[str]) -> tuple[str, ...]:
    """The names of inputs: one, or several."""
    return (inputs,) if isinstance(inputs, str) else tuple(inputs)


def select(features: Features, inputs: str | Sequence[str]) -> Any:
    """The inputs of a tower: one tensor, or a mapping of several."""
    missing = [name for name in names(inputs) if name not in features]
    if missing:
        raise ValueError(
            f"The features should have the inputs {list(names(inputs))}. Missing: {missing}. "
            f"Received: {sorted(features)}."
        )
    if isinstance(inputs, str):
        return features[inputs]
    return {name: features[name] for name in inputs}


def with_negatives(features: Features, column: str) -> tf.Tensor:
    """A column of the positives, followed by that of the shared negatives."""
    positives = select(features, column)
    negatives = features.get(NEGATIVE_PREFIX + column)
    return positives if negatives is None else tf.concat([positives, negatives], axis=0)
