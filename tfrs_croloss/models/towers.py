"""Towers: a user as a history of items or as a row of a table, an item as its embedding.

Items are numbered 0 to ``num_items - 1``. The padding id is ``num_items``: the table has one row
more than there are items, which nothing reads or trains. Any other id that is not an item, such
as an unknown one, counts as padding in a history.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss._keras import require_keras_2
from tfrs_croloss.models.features import Feature, FeatureEmbedding

require_keras_2("tfrs_croloss.models.towers")

ENCODERS = ("mean", "gru")

TowerInputs: TypeAlias = tf.Tensor | Mapping[str, tf.Tensor]
"""Inputs of a tower: the column of ids alone, or a mapping with it and the features' columns."""


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class ItemEmbedding(tf.keras.layers.Layer):
    """The table that both towers share, one float32 row for each item.

    Ids that are no item give the zero vector, and no gradient.

    Args:
      num_items: size of the catalogue.
      dim: size of the vectors.
      stddev: standard deviation of the normal distribution that the table starts from.
      seed: seed of that distribution.
      name: name of the layer.
    """

    def __init__(
        self,
        num_items: int,
        dim: int = 32,
        stddev: float = 0.05,
        seed: int | None = None,
        name: str | None = "item_embedding",
    ) -> None:
        super().__init__(name=name)
        remedy = "Count the items of the catalogue."
        self.num_items = int(_checks.positive_number("num_items", num_items, remedy=remedy))
        self.dim = int(_checks.positive_number("dim", dim, remedy="The paper uses 32."))
        self.stddev, self.seed = stddev, seed
        self._table = tf.keras.layers.Embedding(
            self.num_items + 1,
            self.dim,
            embeddings_initializer=tf.keras.initializers.RandomNormal(stddev=stddev, seed=seed),
            name="table",
        )

    @property
    def padding_id(self) -> int:
        """The id that stands for no item."""
        return self.num_items

    def are_items(self, ids: tf.Tensor) -> tf.Tensor:
        """Booleans of the shape of ``ids``: which of them are items of the catalogue."""
        return tf.logical_and(ids >= 0, ids < tf.cast(self.num_items, ids.dtype))

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        """``[..., dim]`` vectors for integer ids of any shape."""
        are_items = self.are_items(ids)
        vectors = self._table(tf.where(are_items, ids, tf.cast(self.padding_id, ids.dtype)))
        return tf.where(are_items[..., tf.newaxis], vectors, tf.zeros_like(vectors))

    def get_config(self) -> dict[str, Any]:
        config = {name: getattr(self, name) for name in ("num_items", "dim", "stddev", "seed")}
        return {**config, "name": self.name}


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class HistoryTower(tf.keras.Model):
    """A user as the items chosen so far, oldest first, padded at the end.

    Args:
      embedding: the table shared with the items.
      dim: size of the user vectors; that of the table by default.
      encoder: ``"mean"``, the average of the items (the authors' "DNN"), or ``"gru"``, the last
        state of a GRU over them. A dense layer without activation follows either.
      features: side features of the user; their columns come with the history in a mapping.
      history_column: name of the history in that mapping.
      name: name of the tower.
    """

    def __init__(
        self,
        embedding: ItemEmbedding,
        dim: int | None = None,
        encoder: str = "mean",
        features: Sequence[Feature] = (),
        history_column: str = "history",
        name: str | None = "history_tower",
    ) -> None:
        super().__init__(name=name)
        self.embedding = embedding
        self.encoder = _checks.one_of("encoder", encoder, ENCODERS)
        self.history_column = history_column
        self.dim = int(dim or embedding.dim)
        self.features = tuple(features)
        self._features = FeatureEmbedding(features, name="user_features") if features else None
        self._gru = tf.keras.layers.GRU(embedding.dim, name="gru") if encoder == "gru" else None
        self._dense = tf.keras.layers.Dense(self.dim, name="dense")

    def call(self, inputs: TowerInputs) -> tf.Tensor:
        """User vectors.

        Args:
          inputs: ``[batch, length]`` integer ids, or a mapping with them and the ``[batch]``
            columns of the features.

        Returns:
          ``[batch, dim]``. A user without history gets the bias of the dense layer.
        """
        history = _ids(inputs, self.history_column, rank=2)
        vectors = self.embedding(history)
        are_items = self.embedding.are_items(history)
        if self._gru is not None:
            encoded = self._gru(vectors, mask=are_items)
        else:
            count = tf.reduce_sum(tf.cast(are_items, vectors.dtype), axis=1, keepdims=True)
            encoded = tf.reduce_sum(vectors, axis=1) / tf.maximum(count, 1)
        if self._features is not None:
            encoded = tf.concat([encoded, self._features(_columns(inputs))], axis=-1)
        return self._dense(encoded)

    def get_config(self) -> dict[str, Any]:
        config = {name: getattr(self, name) for name in ("dim", "encoder", "history_column")}
        return {**_base_config(self), **config}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> HistoryTower:
        """A tower of the same configuration, with a table of its own."""
        return cls(**_from_config(config))


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class ItemTower(tf.keras.Model):
    """An item as its row of the table, with side features where there are any.

    Args:
      embedding: the table shared with the history.
      features: side features of the item. The row of the table and the features together go through
        a dense layer without activation; without features there is no such layer.
      item_values: ``[num_items]`` values of some of the features, which the tower looks up by id.
        Columns of the other features come with the ids in a mapping.
      id_column: name of the ids in that mapping.
      name: name of the tower.
    """

    def __init__(
        self,
        embedding: ItemEmbedding,
        features: Sequence[Feature] = (),
        item_values: Mapping[str, Any] | None = None,
        id_column: str = "item_id",
        name: str | None = "item_tower",
    ) -> None:
        super().__init__(name=name)
        self.embedding = embedding
        self.id_column = id_column
        self.features = tuple(features)
        values = dict(item_values or {})
        unknown = set(values) - {feature.name for feature in features}
        if unknown:
            raise ValueError(
                f"`item_values` should be values of `features`. Received also: {sorted(unknown)}."
            )
        given = [feature for feature in features if feature.name in values]
        columns = [feature for feature in features if feature.name not in values]
        self._given = FeatureEmbedding(given, name="item_values") if given else None
        self._columns = FeatureEmbedding(columns, name="item_features") if columns else None
        self._dense = tf.keras.layers.Dense(embedding.dim, name="dense") if features else None
        self._values = {name: np.asarray(column).tolist() for name, column in values.items()}
        self._numbers: dict[str, tf.Variable] = {}
        if self._given is not None:
            for name, rows in self._given.numbers(_item_values(values, embedding)).items():
                self._numbers[name] = tf.Variable(rows, trainable=False, name=f"{name}_numbers")

    def call(self, inputs: TowerInputs) -> tf.Tensor:
        """Item vectors.

        Args:
          inputs: ``[batch]`` integer ids, or a mapping with them and the ``[batch]`` columns of
            the features.

        Returns:
          ``[batch, dim]``.
        """
        ids = _ids(inputs, self.id_column, rank=1)
        ids = _checks.rows(
            ids,
            tf.logical_not(self.embedding.are_items(ids)),
            f"`{self.id_column}` should be ids of items, 0 to {self.embedding.num_items - 1}. "
            "Only histories may have other ids, which count as padding.",
        )
        parts = [self.embedding(ids)]
        if self._given is not None:
            numbers = {name: tf.gather(rows, ids) for name, rows in self._numbers.items()}
            parts.append(self._given.embed(numbers))
        if self._columns is not None:
            parts.append(self._columns(_columns(inputs)))
        return parts[0] if self._dense is None else self._dense(tf.concat(parts, axis=-1))

    def get_config(self) -> dict[str, Any]:
        values = {name: list(column) for name, column in self._values.items()}
        return {**_base_config(self), "item_values": values, "id_column": self.id_column}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> ItemTower:
        """A tower of the same configuration, with a table of its own."""
        return cls(**_from_config(config))


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class UserTower(tf.keras.Model):
    """A user as a row of a table, as in matrix factorisation.

    The tower only knows the users it was trained on, numbered 0 to ``num_users - 1``. For users
    who are known by their histories, use ``HistoryTower``.

    Args:
      num_users: number of training users.
      dim: size of the vectors.
      stddev: standard deviation of the normal distribution that the table starts from.
      seed: seed of that distribution. It should not be the seed of the items' table: equal streams
        of random numbers would make user i the twin of item i.
      user_column: name of the numbers, if they come in a mapping.
      name: name of the tower.
    """

    def __init__(
        self,
        num_users: int,
        dim: int = 32,
        stddev: float = 0.05,
        seed: int | None = None,
        user_column: str = "user",
        name: str | None = "user_tower",
    ) -> None:
        super().__init__(name=name)
        remedy = "Count the users of the training split."
        self.num_users = int(_checks.positive_number("num_users", num_users, remedy=remedy))
        self.dim = int(_checks.positive_number("dim", dim, remedy="The paper uses 32."))
        self.stddev, self.seed, self.user_column = stddev, seed, user_column
        self._table = tf.keras.layers.Embedding(
            self.num_users,
            self.dim,
            embeddings_initializer=tf.keras.initializers.RandomNormal(stddev=stddev, seed=seed),
            name="table",
        )

    def call(self, inputs: TowerInputs) -> tf.Tensor:
        """User vectors.

        Args:
          inputs: ``[batch]`` integer numbers of users, or a mapping with them.

        Returns:
          ``[batch, dim]``.
        """
        users = _ids(inputs, self.user_column, rank=1)
        are_users = tf.logical_and(users >= 0, users < tf.cast(self.num_users, users.dtype))
        users = _checks.rows(
            users,
            tf.logical_not(are_users),
            f"`{self.user_column}` should be numbers of users, 0 to {self.num_users - 1}. Users "
            "who were not trained on have no vector; HistoryTower takes their histories.",
        )
        return self._table(users)

    def get_config(self) -> dict[str, Any]:
        names = ("num_users", "dim", "stddev", "seed", "user_column", "name")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> UserTower:
        """A tower of the same configuration, with a table of its own."""
        return cls(**config)


def _base_config(tower: HistoryTower | ItemTower) -> dict[str, Any]:
    return {
        "embedding": tower.embedding.get_config(),
        "features": [dataclasses.asdict(feature) for feature in tower.features],
        "name": tower.name,
    }


def _from_config(config: dict[str, Any]) -> dict[str, Any]:
    features = [
        Feature(**{**values, "vocabulary": tuple(values["vocabulary"])})
        for values in config["features"]
    ]
    return {**config, "embedding": ItemEmbedding(**config["embedding"]), "features": features}


def _ids(inputs: TowerInputs, column: str, rank: int) -> tf.Tensor:
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


def _columns(inputs: TowerInputs) -> Mapping[str, tf.Tensor]:
    if not isinstance(inputs, Mapping):
        raise ValueError(
            "The inputs should be a mapping of columns where a tower has features. Received: "
            f"{type(inputs).__name__}."
        )
    return inputs


def _item_values(values: Mapping[str, Any], embedding: ItemEmbedding) -> dict[str, np.ndarray]:
    arrays = {name: np.asarray(column) for name, column in values.items()}
    for name, column in arrays.items():
        if column.shape != (embedding.num_items,):
            raise ValueError(
                f"`item_values` should have one value of {name!r} for each of the "
                f"{embedding.num_items} items. Received: shape {column.shape}."
            )
    return arrays
