"""A model that joins two towers with a retrieval task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks, _keras, _replicas, _saving
from tfrs_croloss._replicas import BLOCK_SIZE as BLOCK_SIZE
from tfrs_croloss.losses import _numeric
from tfrs_croloss.memory import CandidateMemory, mixture_probability
from tfrs_croloss.models import _columns
from tfrs_croloss.models._columns import Features
from tfrs_croloss.models.base import RetrievalModel
from tfrs_croloss.tasks.retrieval import Retrieval

SIMILARITIES = ("cosine", "dot")
POSITIONS_COLUMN = "query_positions"


def unit_vectors(vectors: tf.Tensor) -> tf.Tensor:
    """Vectors of length one in the same directions; the zero vector stays zero.

    Computed, and returned, in float32 (float64 stays). Neither large nor tiny vectors overflow on
    the way, and the gradient at zero is finite.

    >>> print(unit_vectors(tf.constant([[3.0, 4.0], [0.0, 0.0], [0.0, 5e30]])).numpy())
    [[0.6 0.8]
     [0.  0. ]
     [0.  1. ]]

    Args:
      vectors: ``[..., dim]`` floats.
    """
    vectors = tf.cast(vectors, _numeric.compute_dtype(vectors.dtype))
    largest = tf.reduce_max(tf.abs(vectors), axis=-1, keepdims=True)
    # The result does not depend on this scale, so nothing is lost by not differentiating it.
    scale = tf.stop_gradient(tf.where(largest > 0.0, largest, tf.ones_like(largest)))
    scaled = vectors / scale
    squares = tf.reduce_sum(tf.square(scaled), axis=-1, keepdims=True)
    return scaled * tf.math.rsqrt(tf.where(squares > 0.0, squares, tf.ones_like(squares)))


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class TwoTowerModel(_saving.ModuleState, RetrievalModel):
    """Any two Keras models as towers, trained with a retrieval task.

    A batch of features is a mapping with the inputs of both towers:

    - ``query_inputs``: ``[batch, ...]``, the inputs of the query tower;
    - ``candidate_inputs``: ``[batch]``, the inputs of the candidate tower for the positive of each
      query, and the positives' ids (``id_column``);
    - optionally the columns of the candidates with the prefix ``negative_``: ``[num_negatives]``,
      negatives that all queries of the batch share;
    - optionally ``known_column``: ``[batch, (ids)]``, ragged or padded with an id of no item, items
      that the query's user chose and that are not used as negatives;
    - optionally ``query_positions``: ``[num_positions, 2]``, row and column of positions in the
      query inputs, for a query tower with ``at_positions`` such as ``HistoryTower``. Each position
      is then a query, with a positive (and known positives) of its own, and one pass embeds all.

    Candidates with the id of the query's own positive never count as negatives. The temperature
    belongs to the task; the paper's scale of 10 on cosines is ``temperature=0.1``.

    Args:
      query_tower: maps the query inputs to ``[batch, dim]``.
      candidate_tower: maps the candidate inputs to ``[batch, dim]``.
      task: turns the vectors into a loss.
      similarity: similarity function used for scoring: ``"cosine"`` or ``"dot"``.
      item_bias: biases that are added to the similarities, ``[batch, 1]`` from the candidates' ids,
        such as ``ItemBias``. They are one more dimension of the candidate vectors, in which every
        query vector is 1, so that the inner products of the vectors are the scores everywhere.
      weight_decay: what is added to the gradient, in multiples of the weights: the loss has half of
        it times the sum of all squared weights as a penalty (coupled L2, unlike AdamW).
      in_batch_negatives: whether the positives of the other queries are negatives too. They are
        drawn by popularity, so pass ``candidate_probabilities`` as well.
      candidate_probabilities: ``[num_items]``, the share of each item in the log that the positives
        are drawn from, for integer ids. A candidate is then weighted by the probability of being
        drawn from the mixture of in-batch, remembered and uniform negatives of the batch.
      memory: positives of earlier batches, which are negatives too in training. They are drawn by
        popularity as well.
      query_inputs: name of the one input that the query tower takes as a tensor, or names of the
        inputs that it takes as a mapping.
      candidate_inputs: name or names of the candidate tower's inputs, in the same way.
      id_column: name of the candidates' ids.
      known_column: name of the ids of known positives.
      name: name of the model.
    """

    def __init__(
        self,
        query_tower: tf.keras.Model,
        candidate_tower: tf.keras.Model,
        task: Retrieval,
        *,
        similarity: str = "cosine",
        item_bias: tf.keras.layers.Layer | None = None,
        weight_decay: float = 0.0,
        in_batch_negatives: bool = False,
        candidate_probabilities: Any = None,
        memory: CandidateMemory | None = None,
        query_inputs: str | Sequence[str] = "history",
        candidate_inputs: str | Sequence[str] = "item_id",
        id_column: str = "item_id",
        known_column: str = "known_item_ids",
        name: str | None = "two_tower_model",
    ) -> None:
        super().__init__(name=name)
        self.query_tower = query_tower
        self.candidate_tower = candidate_tower
        self.task = task
        self.similarity = _checks.one_of("similarity", similarity, SIMILARITIES)
        self.item_bias = item_bias
        self.weight_decay = _checks.non_negative_number(
            "weight_decay", weight_decay, remedy="Use 0 for none; 1e-6 is usual."
        )
        self.in_batch_negatives = bool(in_batch_negatives)
        self._query_inputs = query_inputs
        self._candidate_inputs = candidate_inputs
        self._id_column = id_column
        self._known_column = known_column
        self.memory = memory
        self._probabilities = None
        if candidate_probabilities is not None:
            self._probabilities = tf.constant(candidate_probabilities, tf.float32)
        self._embed_block = tf.function(self.embed_candidates, reduce_retracing=True)
        self._embed_query_block = tf.function(self.embed_queries, reduce_retracing=True)
        self.loss_tracker = tf.keras.metrics.Mean(name="loss", dtype=tf.float32)

    def call(self, features: Features, training: bool = False) -> tf.Tensor:
        """The query vectors, ``[batch, dim]``: what ``predict`` returns."""
        if _keras.IS_KERAS_3 and not getattr(self.candidate_tower, "built", True):
            # Before the first step, Keras 3 calls the model to create all variables.
            if set(_columns.names(self._candidate_inputs)) <= set(features):
                self.embed_candidates(features)
        return self.embed_queries(features, training=training)

    def embed_queries(self, features: Features, training: bool = False) -> tf.Tensor:
        """The query vectors that are scored, ``[batch, dim]``, from the query inputs."""
        inputs = _columns.select(features, self._query_inputs)
        positions = features.get(POSITIONS_COLUMN)
        if positions is None:
            vectors = self.query_tower(inputs, training=training)
        elif hasattr(self.query_tower, "at_positions"):
            vectors = self.query_tower.at_positions(inputs, positions, training=training)
        else:
            raise ValueError(
                f"`query_tower` should have a method `at_positions` for the column "
                f"{POSITIONS_COLUMN!r}, as HistoryTower has. Received: {self.query_tower!r}. "
                "Leave the column out, or use such a tower."
            )
        vectors = self._as_scored(vectors)
        if self.item_bias is None:
            return vectors
        return tf.concat([vectors, tf.ones_like(vectors[:, :1])], axis=1)

    def embed_query_block(self, features: Features) -> tf.Tensor:
        """As ``embed_queries``, for inference: compiled, and on one device under any strategy."""
        return self._embed_query_block(features)

    def embed_candidates(self, features: Features, training: bool = False) -> tf.Tensor:
        """The candidate vectors that are scored, ``[batch, dim]``, from the candidate inputs."""
        inputs = _columns.select(features, self._candidate_inputs)
        vectors = self._as_scored(self.candidate_tower(inputs, training=training))
        if self.item_bias is None:
            return vectors
        biases = self.item_bias(_columns.select(features, self._id_column))
        return tf.concat([vectors, tf.cast(biases, vectors.dtype)], axis=1)

    def embed_new_candidates(self, columns: Mapping[str, Any]) -> tf.Tensor:
        """Vectors ``[batch, dim]`` of items that were not trained on, from their features alone.

        Args:
          columns: the arguments of ``from_features`` of the candidate tower, as in ``ItemTower``.
        """
        if not hasattr(self.candidate_tower, "from_features"):
            raise ValueError(
                "`candidate_tower` should have a method `from_features`, as ItemTower has. "
                f"Received: {self.candidate_tower!r}."
            )
        vectors = self._as_scored(self.candidate_tower.from_features(columns))
        if self.item_bias is None:
            return vectors
        return tf.concat([vectors, tf.zeros_like(vectors[:, :1])], axis=1)

    def embed_catalogue(self, num_items: int, block_size: int = BLOCK_SIZE) -> tf.Tensor:
        """Vectors ``[num_items, dim]`` of all items, for a tower that takes ids alone."""
        blocks = [
            self.embed_item_block(first, min(first + block_size, num_items))
            for first in range(0, num_items, block_size)
        ]
        return tf.concat(blocks, axis=0)

    def embed_item_block(self, first: int, last: int) -> tf.Tensor:
        """Vectors ``[last - first, dim]`` of the items from ``first`` to ``last - 1``."""
        return self._embed_block({self._id_column: tf.range(first, last, dtype=tf.int64)})

    def compute_loss(self, features: Features, training: bool = False) -> tf.Tensor:
        """The task's loss on a batch of features."""
        queries = self.embed_queries(features, training=training)
        candidates = self._candidates(features, training)
        return self.task(queries, **candidates, compute_metrics=not training)

    def scored_batch(
        self, features: Features, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """The vectors that the task compares, with a dense mask: to inspect small batches.

        Args:
          features: a batch of features.
          training: whether the towers are in training, and remembered candidates take part.

        Returns:
          Query vectors ``[batch, dim]``; candidate vectors ``[num_candidates, dim]``, the positives
          first, in training the remembered ones last; candidate ids ``[num_candidates]``; and
          booleans ``[batch, num_candidates]``: which candidates count for which query. Under a
          strategy, the candidates are those of all replicas, this replica's first.
        """
        queries = self.embed_queries(features, training=training)
        num_queries = tf.shape(queries)[0]
        pool = self.task.candidate_pool(num_queries, **self._candidates(features, training))
        return queries, pool.embeddings, pool.ids, pool.allowed.considered(0, num_queries)

    def _candidates(self, features: Features, training: bool) -> dict[str, Any]:
        """This replica's candidates, as keyword arguments of the task."""
        # One pass through the tower for positives and negatives alike.
        candidate_features = {
            column: _columns.with_negatives(features, column)
            for column in {self._id_column, *_columns.names(self._candidate_inputs)}
        }
        candidates = self.embed_candidates(candidate_features, training=training)
        ids = candidate_features[self._id_column]
        num_positives = tf.shape(features[self._id_column])[0]
        if self.memory is not None:
            if _replicas.count() > 1:
                raise ValueError(
                    "`memory` should be None under a strategy with several replicas, whose "
                    "candidates are negatives already. Received: a CandidateMemory of "
                    f"{self.memory.capacity} items."
                )
            if training:
                # Probabilities are looked up by id, those of remembered items like the others'.
                extended = self.memory.extend(candidates[:num_positives], ids[:num_positives], 1.0)
                candidates = tf.concat([candidates, extended.embeddings[num_positives:]], axis=0)
                ids = tf.concat([ids, tf.cast(extended.ids[num_positives:], ids.dtype)], axis=0)
        shared = None
        if not self.in_batch_negatives:
            shared = tf.range(tf.size(ids)) >= num_positives
        return {
            "candidate_embeddings": candidates,
            "candidate_ids": ids,
            "candidate_sampling_probability": self._mixture(features, ids),
            "known_positive_ids": features.get(self._known_column),
            "shared_negatives": shared,
            "remove_accidental_hits": True,
        }

    def train_step(self, features: Features) -> dict[str, tf.Tensor]:
        """One training step; with a loss scale if the policy is ``mixed_float16``."""
        with tf.GradientTape() as tape:
            loss = self.compute_loss(features, training=True)
            total = self._with_penalties(loss)
            objective = _keras.scaled_loss(self.optimizer, total)
        gradients = tape.gradient(objective, self.trainable_variables)
        _keras.apply_gradients(self.optimizer, gradients, self.trainable_variables)
        return self._update_metrics(total)

    def test_step(self, features: Features) -> dict[str, tf.Tensor]:
        """The loss and the metrics of a batch."""
        loss = self.compute_loss(features, training=False)
        return self._update_metrics(self._with_penalties(loss))

    def _with_penalties(self, loss: tf.Tensor) -> tf.Tensor:
        """The loss and the penalties of weights, of which each replica adds its share."""
        penalties = tf.add_n([tf.cast(0.0, loss.dtype), *self.losses])
        if self.weight_decay:
            squares = [
                tf.reduce_sum(tf.square(tf.cast(variable, loss.dtype)))
                for variable in self.trainable_variables
            ]
            penalties += 0.5 * self.weight_decay * tf.add_n(squares)
        return loss + penalties / _replicas.count()

    def _update_metrics(self, loss: tf.Tensor) -> dict[str, tf.Tensor]:
        # The replicas' losses sum up to that of the batch, their weights to one step.
        num_replicas = _replicas.count()
        self.loss_tracker.update_state(loss * num_replicas, sample_weight=1.0 / num_replicas)
        return {metric.name: metric.result() for metric in self.metrics}

    def _as_scored(self, vectors: tf.Tensor) -> tf.Tensor:
        if self.similarity == "cosine":
            return unit_vectors(vectors)
        return tf.cast(vectors, _numeric.compute_dtype(vectors.dtype))

    def _mixture(self, features: Features, ids: tf.Tensor) -> tf.Tensor | None:
        """``[num_candidates]``: how likely a draw from the negatives is to give each candidate.

        Args:
          features: this replica's batch of features.
          ids: ``[num_candidates]``, of this replica's candidates.
        """
        by_popularity = self.in_batch_negatives or self.memory is not None
        if self._probabilities is None or not by_popularity:
            return None
        # The draws are those that the queries meet: of all replicas, if these exchange them.
        total = _replicas.total if self.task.exchanges_candidates else tf.identity
        uniform = total(tf.size(features.get(_columns.NEGATIVE_PREFIX + self._id_column, [])))
        popular = total(tf.size(ids)) - uniform
        if not self.in_batch_negatives:
            popular -= total(tf.size(features[self._id_column]))
        drawn = mixture_probability(
            [popular, uniform],
            [tf.gather(self._probabilities, ids), 1.0 / self._probabilities.shape[0]],
        )
        # An item that the log does not have can still be a candidate, and needs some probability;
        # so does everything in a first batch without negatives.
        least = tf.reduce_min(self._probabilities[self._probabilities > 0.0]) / 2
        return tf.where(drawn >= least, drawn, least)

    def get_config(self) -> dict[str, Any]:
        given = self._probabilities
        return {
            **self._shared_config(),
            "in_batch_negatives": self.in_batch_negatives,
            "candidate_probabilities": None if given is None else given.numpy().tolist(),
            "memory": _saving.to_config("memory", self.memory),
            "candidate_inputs": self._candidate_inputs,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> TwoTowerModel:
        """A model of the same configuration, with weights of its own."""
        query_tower, candidate_tower = _saving.pair_from_config(
            config["query_tower"], config["candidate_tower"], "embedding"
        )
        loaded = {**config, "query_tower": query_tower, "candidate_tower": candidate_tower}
        for name in {"task", "item_bias", "memory"} & set(config):
            loaded[name] = _saving.from_config(config[name])
        return cls(**loaded)

    def saved_modules(self) -> Mapping[str, Any]:
        """What a file keeps beside the towers and the task: the remembered candidates."""
        return {"memory": self.memory}

    def _shared_config(self) -> dict[str, Any]:
        """The arguments that a model of the whole catalogue has, too."""
        parts = ("query_tower", "candidate_tower", "task", "item_bias")
        return {
            **{name: _saving.to_config(name, getattr(self, name)) for name in parts},
            "similarity": self.similarity,
            "weight_decay": self.weight_decay,
            "query_inputs": self._query_inputs,
            "id_column": self._id_column,
            "known_column": self._known_column,
            "name": self.name,
        }
