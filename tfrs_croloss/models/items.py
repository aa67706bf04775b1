"""Items: the table that both towers share, and the tower of an item with its side features.

Items are numbered 0 to ``num_items - 1``. The padding id is ``num_items``: the table has one row
more than there are items, which nothing reads or trains. Any other id that is not an item, such
as an unknown one, counts as padding in a history.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss import _checks, _keras, _replicas
from tfrs_croloss.models import _tower_parts as parts
from tfrs_croloss.models._tower_parts import TowerInputs
from tfrs_croloss.models.features import FeatureEmbedding, FeatureEncoder, SideFeature

# Names of what is looked up by item besides the features, whose names are identifiers.
_SPLITS, _TRAINED = ".splits", ".trained"


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

    def build(self, input_shape: Any) -> None:
        """Creates the table."""
        self._table.build(input_shape)
        super().build(input_shape)

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

    def in_history(self, ids: tf.Tensor) -> tf.Tensor:
        """What a call gives; ``ItemTower`` has a method of this name, too."""
        return self(ids)

    def get_config(self) -> dict[str, Any]:
        config = {name: getattr(self, name) for name in ("num_items", "dim", "stddev", "seed")}
        return {**config, "name": self.name}


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class ItemTower(parts.Tower):
    """An item as its row of the table, to which side features add what they say of it.

    The item is the sum of the row and of the features' vectors that have its size; the others go
    through a dense layer first, which has no activation. Hidden layers, if there are any, take the
    row and all the features, and what a last dense layer makes of theirs is added to the row; only
    without features it is the item. So features refine an item that
    was seen often, and are all there is of one that was never trained on, which can be embedded as
    well (``from_features``), if ``id_dropout`` has trained the tower to do without the row.

    Pass the tower to ``HistoryTower`` in place of the table, for the items of a history to have
    their features, too.

    Args:
      embedding: the table shared with the history.
      features: side features of the item.
      item_values: ``[num_items]`` values of some of the features, which the tower looks up by id.
        Columns of the other features come with the ids in a mapping.
      id_column: name of the ids in that mapping.
      name: name of the tower.
      hidden: sizes of dense layers with relu before the last dense layer, which then take the row
        and the features.
      encoded: whether values and columns of the features are encoded already, by a
        ``FeatureEncoder``; lists of tags or words are then ragged tensors.
      id_dropout: share of the items in a training batch that are embedded from their features
        alone, as if they had no row.
      trained_items: ``[num_items]`` booleans: which items have a row that is worth using. The
        others are embedded from their features alone, always. By default all have one.
      seed: seed of the dropout.
    """

    def __init__(
        self,
        embedding: ItemEmbedding,
        features: Sequence[SideFeature] = (),
        item_values: Mapping[str, Any] | None = None,
        id_column: str = "item_id",
        name: str | None = "item_tower",
        *,
        hidden: Sequence[int] = (),
        encoded: bool = False,
        id_dropout: float = 0.0,
        trained_items: Any = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(name=name, autocast=False)
        self.embedding = embedding
        self.id_column = id_column
        self.features = tuple(features)
        self.hidden, self.encoded, self.seed = tuple(hidden), bool(encoded), seed
        without_rows = id_dropout > 0.0 or trained_items is not None
        if not 0.0 <= id_dropout < 1.0 or (without_rows and not features):
            raise ValueError(
                "`id_dropout` should be at least 0 and below 1, and come with `features`, as "
                f"`trained_items` should. Received: {id_dropout} with {len(features)} features."
            )
        self.id_dropout = float(id_dropout)
        values = dict(item_values or {})
        unknown = set(values) - {feature.name for feature in features}
        if unknown:
            raise ValueError(
                f"`item_values` should be values of `features`. Received also: {sorted(unknown)}."
            )
        given = [feature for feature in features if feature.name in values]
        columns = [feature for feature in features if feature.name not in values]
        self._given = self._columns = self._id_dropout = self._encoder = None
        if given and not encoded:
            self._encoder = FeatureEncoder(given)
        if given:
            self._given = FeatureEmbedding(
                given, encoded=True, name="item_values", stddev=embedding.stddev
            )
        if columns:
            self._columns = FeatureEmbedding(
                columns, encoded, name="item_features", stddev=embedding.stddev
            )
        self._hidden = parts.hidden_layers(hidden)
        self._dense: tf.keras.layers.Layer | None = None
        if hidden or any(feature.width != embedding.dim for feature in features):
            self._dense = tf.keras.layers.Dense(embedding.dim, name="dense")
        if id_dropout:
            self._id_dropout = RowDropout(id_dropout, seed, name="id_dropout")
        if trained_items is not None:
            trained_items = np.asarray(trained_items, bool)
        # A function, since Keras would track a mapping and all that is in it.
        self._item_config = lambda: {
            "item_values": {name: _as_list(column) for name, column in values.items()},
            "trained_items": None if trained_items is None else trained_items.tolist(),
        }
        # Filled later on, since Keras would take what it holds now for weights.
        self._lookups: dict[str, tf.Variable] = {}
        self._lookups.update(
            _lookups(embedding.num_items, given, values, self._encoder, trained_items)
        )
        _keras.create_variables(self, self._example())

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the features whose columns come with the ids."""
        return () if self._columns is None else tuple(one.name for one in self._columns.features)

    @property
    def dim(self) -> int:
        """Size of the vectors."""
        return self.embedding.dim

    @property
    def padding_id(self) -> int:
        """The id that stands for no item."""
        return self.embedding.padding_id

    def are_items(self, ids: tf.Tensor) -> tf.Tensor:
        """Booleans of the shape of ``ids``: which of them are items of the catalogue."""
        return self.embedding.are_items(ids)

    def call(self, inputs: TowerInputs, training: bool | None = None) -> tf.Tensor:
        """Item vectors.

        Args:
          inputs: ``[batch]`` integer ids, or a mapping with them and the ``[batch]`` columns of
            the features.
          training: whether to drop rows of the table.

        Returns:
          ``[batch, dim]``.
        """
        ids = parts.ids_of(inputs, self.id_column, rank=1)
        ids = _checks.rows(
            ids,
            tf.logical_not(self.embedding.are_items(ids)),
            f"`{self.id_column}` should be ids of items, 0 to {self.embedding.num_items - 1}. "
            "Only histories may have other ids, which count as padding.",
        )
        rows = self._rows(ids)
        if self._id_dropout is not None:
            rows = self._id_dropout(rows, training=training)
        vectors = self._of_given(ids)
        if self._columns is not None:
            columns = self._columns.encode(parts.columns_of(inputs))
            vectors += self._columns.embed_each(columns)
        return self._joined(rows, vectors)

    def in_history(self, ids: tf.Tensor) -> tf.Tensor:
        """Vectors of items in a history, from their rows and all features looked up by id.

        No row is dropped in training.

        Args:
          ids: integer ids of any shape; those of no item give the zero vector.

        Returns:
          ``[..., dim]``.
        """
        shape = tf.concat([tf.shape(ids), [self.dim]], axis=0)
        # The others are left out, since a gradient of zero is one to optimizers.
        places = tf.where(self.embedding.are_items(ids))
        items = tf.gather_nd(ids, places)
        rows = self._rows(items)
        if self._id_dropout is not None:
            # Drops nothing, and has its variable wherever the tower has been used.
            rows = self._id_dropout(rows, training=False)
        vectors = self._joined(rows, self._of_given(items))
        found = tf.scatter_nd(places, vectors, tf.cast(shape, places.dtype))
        return tf.ensure_shape(found, [*ids.shape, self.dim])

    def from_features(self, columns: Mapping[str, Any]) -> tf.Tensor:
        """Vectors ``[batch, dim]`` of items that have no row in the table.

        Args:
          columns: ``[batch]`` values of every feature, encoded if the tower takes them so.
        """
        if not self.features:
            raise ValueError(
                "The tower should have `features`, without which an item is its row of the table "
                "and nothing else. Received: none."
            )
        vectors: list[tf.Tensor] = []
        if self._given is not None:
            given = columns if self._encoder is None else self._encoder(columns)
            vectors += self._given.embed_each(self._given.encode(given))
        if self._columns is not None:
            vectors += self._columns.embed_each(self._columns.encode(columns))
        rows = tf.zeros([tf.shape(vectors[0])[0], self.dim], vectors[0].dtype)
        return self._joined(rows, vectors)

    def _rows(self, ids: tf.Tensor) -> tf.Tensor:
        """The rows of items, which are zero for those that were not trained."""
        rows = self.embedding(ids)
        if _TRAINED not in self._lookups:
            return rows
        is_trained = tf.gather(self._lookups[_TRAINED], ids)
        return tf.where(is_trained[:, tf.newaxis], rows, tf.zeros_like(rows))

    def _of_given(self, ids: tf.Tensor) -> list[tf.Tensor]:
        """The vectors of each feature that is looked up by id."""
        if self._given is None:
            return []
        values = {
            feature.name: _looked_up(self._lookups, feature, ids)
            for feature in self._given.features
        }
        return self._given.embed_each(values)

    def _joined(self, rows: tf.Tensor, vectors: list[tf.Tensor]) -> tf.Tensor:
        """The output of the tower, from the rows of the table and the vectors of each feature."""
        if self._hidden:
            assert self._dense is not None
            together = parts.through(self._hidden, tf.concat([rows, *vectors], axis=-1))
            return rows + self._dense(together) if vectors else self._dense(together)
        added = [rows, *(one for one in vectors if one.shape[-1] == self.dim)]
        others = [one for one in vectors if one.shape[-1] != self.dim]
        if others:
            assert self._dense is not None
            added.append(self._dense(tf.concat(others, axis=-1)))
        return tf.add_n(added)

    def _trackable_children(self, save_type: str = "checkpoint", **options: Any) -> Any:
        """All that is saved. The values of items are no weights, so checkpoints do without them."""
        children = super()._trackable_children(save_type, **options)
        if save_type == "checkpoint":
            children.pop("_lookups", None)
        return children

    def get_config(self) -> dict[str, Any]:
        names = ("id_column", "id_dropout", "seed")
        return {
            **parts.base_config(self),
            **{name: getattr(self, name) for name in names},
            **self._item_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> ItemTower:
        """A tower of the same configuration, with a table of its own."""
        return cls(**parts.from_config(config))

    def save_own_variables(self, store: Any) -> None:
        """Adds nothing to a file: the numbers of the values follow from ``item_values``."""

    def load_own_variables(self, store: Any) -> None:
        """The inverse of ``save_own_variables``."""

    def _example(self) -> TowerInputs:
        columns = () if self._columns is None else self._columns.features
        return parts.example(self.id_column, tf.zeros([1], tf.int32), columns, self.encoded)


class RowDropout(tf.keras.layers.Layer):
    """Sets a share of the rows to zero in training, and leaves the others as they are.

    As in ``SelfAttentionEncoder``, what is dropped depends on the seed and on the number of
    training passes so far, which is saved with the weights.

    Args:
      rate: share of the rows.
      seed: seed of the draws.
      name: name of the layer.
    """

    def __init__(self, rate: float, seed: int | None = None, name: str | None = None) -> None:
        super().__init__(name=name)
        self._rate = rate
        self._seed = random.randrange(2**31) if seed is None else seed

    def build(self, input_shape: Any) -> None:
        """Creates the counter of passes."""
        self._passes = _replicas.pass_counter(self)
        super().build(input_shape)

    def call(self, rows: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """The rows of ``[batch, dim]`` that are kept, and zeros."""
        if not training:
            return rows
        seed = _replicas.next_keys(self._seed, self._passes)
        draws = tf.random.stateless_uniform([tf.shape(rows)[0], 1], seed)
        return tf.where(draws >= self._rate, rows, tf.zeros_like(rows))


def _lookups(
    num_items: int,
    features: Sequence[SideFeature],
    values: Mapping[str, Any],
    encoder: FeatureEncoder | None,
    trained: np.ndarray | None,
) -> dict[str, tf.Variable]:
    """The encoded values of all items, and which items were trained, as variables to gather from.

    Variables reach every device of a strategy; other tensors do not.
    """
    columns: Mapping[str, Any] = {
        feature.name: _one_each(feature, values[feature.name], num_items, encoder is None)
        for feature in features
    }
    if encoder is not None:
        columns = encoder(columns)
    found = {}
    for name, column in columns.items():
        if isinstance(column, tf.RaggedTensor):
            found[name] = tf.Variable(column.values, trainable=False, name=f"{name}_numbers")
            found[name + _SPLITS] = tf.Variable(column.row_splits, trainable=False)
        else:
            found[name] = tf.Variable(column, trainable=False, name=f"{name}_numbers")
    if trained is not None:
        if trained.shape != (num_items,):
            raise ValueError(
                f"`trained_items` should have one boolean for each of the {num_items} items. "
                f"Received: shape {trained.shape}."
            )
        found[_TRAINED] = tf.Variable(trained, trainable=False, name="trained")
    return found


def _one_each(feature: SideFeature, column: Any, num_items: int, encoded: bool) -> Any:
    if encoded and feature.is_ragged:
        if not isinstance(column, tf.RaggedTensor):
            column = tf.ragged.constant(column, tf.int32, ragged_rank=1)
        shape: Any = tuple(column.shape[:1])
    else:
        column = np.asarray(column, feature.encoded_dtype.as_numpy_dtype if encoded else None)
        shape = column.shape
    if shape != (num_items,):
        raise ValueError(
            f"`item_values` should have one value of {feature.name!r} for each of the "
            f"{num_items} items. Received: shape {shape}."
        )
    return column


def _looked_up(
    lookups: Mapping[str, tf.Variable], feature: SideFeature, ids: tf.Tensor
) -> tf.Tensor | tf.RaggedTensor:
    """The encoded values of some items."""
    values = lookups[feature.name]
    if not feature.is_ragged:
        return tf.gather(values, ids)
    splits = tf.convert_to_tensor(lookups[feature.name + _SPLITS])
    rows = tf.RaggedTensor.from_row_splits(tf.convert_to_tensor(values), splits, validate=False)
    return tf.gather(rows, ids)


def _as_list(column: Any) -> list[Any]:
    is_ragged = isinstance(column, tf.RaggedTensor)
    listed: list[Any] = column.to_list() if is_ragged else np.asarray(column).tolist()
    return listed
