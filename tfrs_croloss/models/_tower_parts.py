"""What the towers share: their inputs, their dense layers and their configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfrs_croloss import _checks, _saving
from tfrs_croloss.models.features import SideFeature, example_columns, feature_from_config

TowerInputs: TypeAlias = tf.Tensor | Mapping[str, tf.Tensor]
"""Inputs of a tower: the column of ids alone, or a mapping with it and the features' columns."""


class Tower(tf.keras.Model):
    """A tower that creates its variables when it is loaded, for the weights of the file.

    Keras would call it with floats, whatever it takes.
    """

    def get_build_config(self) -> dict[str, Any]:
        """What ``build_from_config`` needs to know."""
        return {"has_variables": bool(self.weights)}

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Creates the variables that the tower had."""
        if config["has_variables"]:
            self.call(self._example())

    def _example(self) -> TowerInputs:
        """Inputs of one row."""
        raise NotImplementedError


def hidden_layers(sizes: Sequence[int]) -> list[tf.keras.layers.Layer]:
    """Dense layers with relu, of these sizes."""
    remedy = "Give the size of each layer, or () for none."
    return [
        tf.keras.layers.Dense(
            _checks.whole_number("hidden", size, remedy=remedy),
            activation="relu",
            name=f"hidden_{number}",
        )
        for number, size in enumerate(sizes)
    ]


def through(layers: Sequence[tf.keras.layers.Layer], vectors: tf.Tensor) -> tf.Tensor:
    """What the layers make of vectors, one after the other."""
    for layer in layers:
        vectors = layer(vectors)
    return vectors


def example(
    column: str, ids: tf.Tensor, features: Sequence[SideFeature], encoded: bool
) -> TowerInputs:
    """Inputs of a tower with one row."""
    return {column: ids, **example_columns(features, encoded)} if features else ids


def base_config(tower: Any) -> dict[str, Any]:
    """The part of the configuration that both towers have."""
    return {
        "embedding": _saving.shared_config(tower.embedding),
        "features": [feature.get_config() for feature in tower.features],
        "hidden": list(tower.hidden),
        "encoded": tower.encoded,
        "name": tower.name,
    }


def from_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a tower, from its configuration."""
    return {
        **config,
        "embedding": _saving.from_config(config["embedding"]),
        "features": [feature_from_config(values) for values in config["features"]],
    }


def ids_of(inputs: TowerInputs, column: str, rank: int) -> tf.Tensor:
    """The column of ids, as a tensor of this rank."""
    if isinstance(inputs, Mapping):
        if column not in inputs:
            raise ValueError(
                f"The inputs should have a column {column!r}. Received: {sorted(inputs)}."
            )
        inputs = inputs[column]
    ids = tf.convert_to_tensor(inputs)
    if not ids.dtype.is_integer or ids.shape.rank not in (None, rank):
        shape = "[batch, length]" if rank == 2 else "[batch]"
        raise ValueError(
            f"`{column}` should be integer ids of shape {shape}. Received: {ids.dtype.name} of "
            f"shape {ids.shape}."
        )
    return ids


def columns_of(inputs: TowerInputs) -> Mapping[str, tf.Tensor]:
    """The columns of the features."""
    if not isinstance(inputs, Mapping):
        raise ValueError(
            "The inputs should be a mapping of columns where a tower has features. Received: "
            f"{type(inputs).__name__}."
        )
    return inputs
