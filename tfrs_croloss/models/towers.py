"""Towers of users: a history of items, or a row of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks, _keras
from tfrs_croloss.models import _tower_parts as parts
from tfrs_croloss.models._tower_parts import TowerInputs
from tfrs_croloss.models.features import (
    FeatureEmbedding,
    SideFeature,
    check_names,
    feature_from_config,
)
from tfrs_croloss.models.items import ItemEmbedding, ItemTower
from tfrs_croloss.models.self_attention import SelfAttentionEncoder, last_state

ENCODERS = ("mean", "gru", "transformer")


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class HistoryTower(parts.Tower):
    """A user as the items chosen so far, oldest first, padded at the end.

    Args:
      embedding: the table shared with the items; or the tower of the items, for those of a history
        to be embedded with their features. The tower looks these up by id (``item_values``).
      dim: size of the user vectors; that of the items by default.
      encoder: ``"mean"``, the average of the items (the authors' "DNN"), or ``"gru"``, the last
        state of a GRU over them, each followed by a dense layer without activation; or
        ``"transformer"`` or a ``SelfAttentionEncoder``, which a dense layer follows only if there
        are features or hidden layers, or ``dim`` is not that of the items.
      features: side features of the user; their columns come with the history in a mapping.
      history_column: name of the history in that mapping.
      name: name of the tower.
      context_features: side features of the moment in which the user is asked about, such as the
        device; their columns come with the others.
      hidden: sizes of dense layers with relu between the encoder, with the features, and the last
        dense layer.
      encoded: whether the columns of the features are encoded already, by a ``FeatureEncoder``.
    """

    def __init__(
        self,
        embedding: ItemEmbedding | ItemTower,
        dim: int | None = None,
        encoder: str | SelfAttentionEncoder = "mean",
        features: Sequence[SideFeature] = (),
        history_column: str = "history",
        name: str | None = "history_tower",
        *,
        context_features: Sequence[SideFeature] = (),
        hidden: Sequence[int] = (),
        encoded: bool = False,
    ) -> None:
        # Raw numbers among the features are float64; Keras would make them shorter.
        super().__init__(name=name, autocast=False)
        if isinstance(embedding, ItemTower) and embedding.columns:
            raise ValueError(
                "`embedding` should be a table of items, or a tower that looks all features up by "
                f"id. Received: an ItemTower with the columns {list(embedding.columns)}. Pass "
                "their values to it as `item_values`."
            )
        self.embedding = embedding
        self.self_attention: SelfAttentionEncoder | None = None
        if isinstance(encoder, SelfAttentionEncoder):
            self.self_attention, encoder = encoder, "transformer"
        elif encoder == "transformer":
            self.self_attention = SelfAttentionEncoder()
        self.encoder = _checks.one_of("encoder", encoder, ENCODERS)
        self.history_column = history_column
        self.dim = int(dim or embedding.dim)
        self.features, self.context_features = tuple(features), tuple(context_features)
        self.hidden, self.encoded = tuple(hidden), bool(encoded)
        every = (*self.features, *self.context_features)
        check_names(every)
        self._features = self._context = None
        if features:
            self._features = FeatureEmbedding(features, encoded, name="user_features")
        if context_features:
            self._context = FeatureEmbedding(context_features, encoded, name="context_features")
        self._gru: tf.keras.layers.Layer | None = None
        if encoder == "gru":
            self._gru = tf.keras.layers.GRU(embedding.dim, return_sequences=True, name="gru")
        self._hidden = parts.hidden_layers(hidden)
        self._dense: tf.keras.layers.Layer | None = None
        if self.self_attention is None or every or hidden or self.dim != embedding.dim:
            self._dense = tf.keras.layers.Dense(self.dim, name="dense")
        _keras.create_variables(self, self._example())

    def call(self, inputs: TowerInputs, training: bool | None = None) -> tf.Tensor:
        """User vectors.

        Args:
          inputs: ``[batch, length]`` integer ids, or a mapping with them and the ``[batch]``
            columns of the features and of the context.
          training: whether a self-attention encoder drops anything.

        Returns:
          ``[batch, dim]``. A user without history gets the bias of the dense layer, or the zero
          vector without that layer.
        """
        history = parts.ids_of(inputs, self.history_column, rank=2)
        if self._gru is None and self.self_attention is None:
            are_items = self.embedding.are_items(history)
            vectors = self.embedding.in_history(history)
            count = tf.reduce_sum(tf.cast(are_items, vectors.dtype), axis=1, keepdims=True)
            encoded = tf.reduce_sum(vectors, axis=1) / tf.maximum(count, 1)
        else:
            states, are_items = self._states(history, training)
            encoded = last_state(states, are_items)
        vectors = [encoded]
        if self._features is not None:
            vectors.append(self._features(parts.columns_of(inputs)))
        return self._joined(vectors, inputs)

    def at_positions(
        self, inputs: TowerInputs, positions: tf.Tensor, training: bool | None = None
    ) -> tf.Tensor:
        """User vectors at several positions of each history, all from one pass over it.

        The vector at a position is that of the items up to it, the item there included; at the last
        item it is what ``call`` returns. With self-attention, the position vectors count back from
        the last item of the whole history.

        Args:
          inputs: as for ``call``, but the columns of the context have one row for each position.
          positions: ``[num_positions, 2]`` integers: the row and the column of each position.
          training: whether a self-attention encoder drops anything.

        Returns:
          ``[num_positions, dim]``.
        """
        history = parts.ids_of(inputs, self.history_column, rank=2)
        states, _ = self._states(history, training)
        encoded = tf.gather_nd(states, positions)
        vectors = [encoded]
        if self._features is not None:
            of_users = self._features(parts.columns_of(inputs))
            vectors.append(tf.gather(of_users, positions[:, 0]))
        return self._joined(vectors, inputs)

    def _joined(self, vectors: list[tf.Tensor], inputs: TowerInputs) -> tf.Tensor:
        """The output of the tower, from the vectors of the history and of the user's features."""
        if self._context is not None:
            vectors = [*vectors, self._context(parts.columns_of(inputs))]
        joined = vectors[0] if len(vectors) == 1 else tf.concat(vectors, axis=-1)
        joined = parts.through(self._hidden, joined)
        return joined if self._dense is None else self._dense(joined)

    def _states(self, history: tf.Tensor, training: bool | None) -> tuple[tf.Tensor, tf.Tensor]:
        """``[batch, length, dim]`` after each item, and which columns are items.

        The columns end with the last item of the longest history: there is no work on the rest.
        """
        are_items = self.embedding.are_items(history)
        numbers = tf.range(1, tf.shape(history)[1] + 1)
        # One column stays, since a GRU needs one.
        length = tf.maximum(tf.reduce_max(tf.where(are_items, numbers, 0)), 1)
        history, are_items = history[:, :length], are_items[:, :length]
        vectors = self.embedding.in_history(history)
        if self._gru is not None:
            return self._gru(vectors, mask=are_items), are_items
        if self.self_attention is not None:
            return self.self_attention.states(vectors, are_items, training), are_items
        counts = tf.cumsum(tf.cast(are_items, vectors.dtype), axis=1)[..., tf.newaxis]
        return tf.cumsum(vectors, axis=1) / tf.maximum(counts, 1), are_items

    def get_config(self) -> dict[str, Any]:
        config = {name: getattr(self, name) for name in ("dim", "encoder", "history_column")}
        if self.self_attention is not None:
            config["encoder"] = self.self_attention.get_config()
        config["context_features"] = [one.get_config() for one in self.context_features]
        return {**parts.base_config(self), **config}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> HistoryTower:
        """A tower of the same configuration, with a table of its own."""
        config = parts.from_config(config)
        context = config.get("context_features", ())
        config["context_features"] = [feature_from_config(values) for values in context]
        if not isinstance(config["encoder"], str):
            config["encoder"] = SelfAttentionEncoder.from_config(config["encoder"])
        return cls(**config)

    def _example(self) -> TowerInputs:
        every = (*self.features, *self.context_features)
        ids = tf.zeros([1, 1], tf.int32)
        return parts.example(self.history_column, ids, every, self.encoded)


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class UserTower(parts.Tower):
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
        _keras.create_variables(self, self._example())

    def call(self, inputs: TowerInputs) -> tf.Tensor:
        """User vectors.

        Args:
          inputs: ``[batch]`` integer numbers of users, or a mapping with them.

        Returns:
          ``[batch, dim]``.
        """
        users = parts.ids_of(inputs, self.user_column, rank=1)
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

    def _example(self) -> TowerInputs:
        return tf.zeros([1], tf.int32)
