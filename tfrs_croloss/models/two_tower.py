"""Models that join two towers with a retrieval task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks, _replicas
from tfrs_croloss._keras import require_keras_2
from tfrs_croloss._replicas import BLOCK_SIZE as BLOCK_SIZE
from tfrs_croloss.losses import _numeric
from tfrs_croloss.memory import CandidateMemory, mixture_probability
from tfrs_croloss.tasks._candidates import CandidateFilter, ragged_ids
from tfrs_croloss.tasks.catalogue import CatalogueRetrieval
from tfrs_croloss.tasks.retrieval import Retrieval

require_keras_2("tfrs_croloss.models")

import tensorflow_recommenders as tfrs  # noqa: E402

SIMILARITIES = ("cosine", "dot")
NEGATIVE_PREFIX = "negative_"
_INSPECTED_QUERIES = 64

Features = Mapping[str, tf.Tensor]


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


class TwoTowerModel(tfrs.Model):
    """Any two Keras models as towers, trained with a retrieval task.

    A batch of features is a mapping with the inputs of both towers:

    - ``query_inputs``: ``[batch, ...]``, the inputs of the query tower;
    - ``candidate_inputs``: ``[batch]``, the inputs of the candidate tower for the positive of each
      query, and the positives' ids (``id_column``);
    - optionally the columns of the candidates with the prefix ``negative_``: ``[num_negatives]``,
      negatives that all queries of the batch share;
    - optionally ``known_column``: ``[batch, (ids)]``, ragged or padded with an id of no item, items
      that the query's user chose and that are not used as negatives.

    Candidates with the id of the query's own positive never count as negatives. The temperature
    belongs to the task; the paper's scale of 10 on cosines is ``temperature=0.1``.

    Args:
      query_tower: maps the query inputs to ``[batch, dim]``.
      candidate_tower: maps the candidate inputs to ``[batch, dim]``.
      task: turns the vectors into a loss.
      similarity: similarity function used for scoring: ``"cosine"`` or ``"dot"``.
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
        return self.embed_queries(features, training=training)

    def embed_queries(self, features: Features, training: bool = False) -> tf.Tensor:
        """The query vectors that are scored, ``[batch, dim]``, from the query inputs."""
        inputs = _select(features, self._query_inputs)
        return self._as_scored(self.query_tower(inputs, training=training))

    def embed_query_block(self, features: Features) -> tf.Tensor:
        """As ``embed_queries``, for inference: compiled, and on one device under any strategy."""
        return self._embed_query_block(features)

    def embed_candidates(self, features: Features, training: bool = False) -> tf.Tensor:
        """The candidate vectors that are scored, ``[batch, dim]``, from the candidate inputs."""
        inputs = _select(features, self._candidate_inputs)
        return self._as_scored(self.candidate_tower(inputs, training=training))

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
            column: _with_negatives(features, column)
            for column in {self._id_column, *_names(self._candidate_inputs)}
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
            scales = isinstance(self.optimizer, tf.keras.mixed_precision.LossScaleOptimizer)
            objective = self.optimizer.get_scaled_loss(total) if scales else total
        gradients = tape.gradient(objective, self.trainable_variables)
        if scales:
            gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return self._update_metrics(total)

    def test_step(self, features: Features) -> dict[str, tf.Tensor]:
        """The loss and the metrics of a batch."""
        loss = self.compute_loss(features, training=False)
        return self._update_metrics(self._with_penalties(loss))

    def _with_penalties(self, loss: tf.Tensor) -> tf.Tensor:
        """The loss and the towers' own penalties, of which each replica adds its share."""
        penalties = tf.add_n([tf.cast(0.0, loss.dtype), *self.losses])
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
        uniform = total(tf.size(features.get(NEGATIVE_PREFIX + self._id_column, [])))
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


class CatalogueModel(TwoTowerModel):
    """Two towers whose loss ranks each positive against every item, not against a sample.

    A batch of features has the inputs of the query tower, the number of each query's positive item,
    ``[batch]`` (``id_column``), and optionally known positives (``known_column``). The candidate
    tower takes ids alone and embeds the whole catalogue in every step.

    Args:
      num_items: size of the catalogue; ids are 0 to ``num_items - 1``.
      query_tower: maps the query inputs to ``[batch, dim]``.
      candidate_tower: maps ``[batch]`` ids to ``[batch, dim]``.
      task: turns query vectors and the catalogue into a loss.
      similarity: similarity function used for scoring: ``"cosine"`` or ``"dot"``.
      query_inputs: as in ``TwoTowerModel``.
      id_column: name of the positives' ids.
      known_column: name of the ids of known positives.
      name: name of the model.
    """

    def __init__(
        self,
        num_items: int,
        query_tower: tf.keras.Model,
        candidate_tower: tf.keras.Model,
        task: CatalogueRetrieval,
        *,
        similarity: str = "cosine",
        query_inputs: str | Sequence[str] = "history",
        id_column: str = "item_id",
        known_column: str = "known_item_ids",
        name: str | None = "catalogue_model",
    ) -> None:
        super().__init__(
            query_tower,
            candidate_tower,
            task,
            similarity=similarity,
            query_inputs=query_inputs,
            candidate_inputs=id_column,
            id_column=id_column,
            known_column=known_column,
            name=name,
        )
        self.num_items = _checks.whole_number(
            "num_items", num_items, remedy="Pass the size of the catalogue."
        )

    def compute_loss(self, features: Features, training: bool = False) -> tf.Tensor:
        """The task's loss on a batch of features."""
        return self.task(
            self.embed_queries(features, training=training),
            self._catalogue(training),
            _select(features, self._id_column),
            known_positive_items=self._known(features),
            compute_metrics=not training,
        )

    def scored_batch(
        self, features: Features, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """As in ``TwoTowerModel``, for the first queries of the batch: positives, then all items.

        A part of the batch is enough to inspect, and its scores fit into memory.
        """
        features = {name: column[:_INSPECTED_QUERIES] for name, column in features.items()}
        positives = _select(features, self._id_column)
        catalogue = self._catalogue(training)
        ids = tf.concat([positives, tf.range(self.num_items, dtype=positives.dtype)], axis=0)
        num_queries, num_candidates = tf.shape(positives)[0], tf.size(ids)
        allowed = CandidateFilter.build(
            num_queries,
            num_candidates,
            shared_negatives=tf.range(num_candidates) >= num_queries,
            candidate_ids=ids,
            drop_accidental_hits=True,
            known_positive_ids=ragged_ids(self._known(features), ids),
        )
        candidates = tf.concat([tf.gather(catalogue, positives), catalogue], axis=0)
        queries = self.embed_queries(features, training=training)
        return queries, candidates, ids, allowed.considered(0, num_queries)

    def _known(self, features: Features) -> tf.RaggedTensor | None:
        """The known positives that are items: others pad a dense matrix."""
        known = features.get(self._known_column)
        if known is None or isinstance(known, tf.RaggedTensor):
            return known
        return tf.ragged.boolean_mask(known, tf.logical_and(known >= 0, known < self.num_items))

    def _catalogue(self, training: bool) -> tf.Tensor:
        ids = tf.range(self.num_items)
        return self.embed_candidates({self._id_column: ids}, training=training)


def _names(inputs: str | Sequence[str]) -> tuple[str, ...]:
    return (inputs,) if isinstance(inputs, str) else tuple(inputs)


def _select(features: Features, inputs: str | Sequence[str]) -> Any:
    missing = [name for name in _names(inputs) if name not in features]
    if missing:
        raise ValueError(
            f"The features should have the inputs {list(_names(inputs))}. Missing: {missing}. "
            f"Received: {sorted(features)}."
        )
    if isinstance(inputs, str):
        return features[inputs]
    return {name: features[name] for name in inputs}


def _with_negatives(features: Features, column: str) -> tf.Tensor:
    positives = _select(features, column)
    negatives = features.get(NEGATIVE_PREFIX + column)
    return positives if negatives is None else tf.concat([positives, negatives], axis=0)
