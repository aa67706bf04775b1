"""The retrieval task of TensorFlow Recommenders, with ranks that are right for these losses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks, _numeric
from tfrs_croloss._keras import require_keras_2
from tfrs_croloss.batch import CandidateBatch
from tfrs_croloss.losses import RetrievalLoss
from tfrs_croloss.negatives import accidental_hits, members
from tfrs_croloss.objective import check_finite, pair_losses
from tfrs_croloss.rank import floating, probabilities, rank_estimator

require_keras_2("tfrs_croloss.tasks")

import tensorflow_recommenders as tfrs  # noqa: E402


class Retrieval(tf.keras.layers.Layer, tfrs.tasks.Task):
    """A factorized retrieval task: every query against the candidates of the batch.

    Takes the arguments of ``tfrs.tasks.Retrieval``, and means the same by them. With a loss of this
    package it also does what a rank needs: candidates that are masked or hit by accident add
    exactly nothing to it, and sampling probabilities weigh the candidates instead of shifting
    scores, which is right for every kernel. With any other Keras loss it does what TFRS does.

    Args:
      loss: ``CROLoss``, ``LambdaCROLoss`` or any Keras loss of one-hot labels and scores. Defaults
        to softmax cross-entropy summed over the batch, as in TFRS.
      metrics: one or several ``tfrs.metrics.Factorized`` over the whole catalogue.
      batch_metrics: Keras metrics of labels and scores within the batch.
      loss_metrics: Keras metrics that summarise the loss.
      temperature: scores are divided by it; above 0. The paper's scale of 10 is 0.1 here.
      num_hard_negatives: how many negatives of the highest score to keep for each query; all, if
        None or not above 0.
      remove_accidental_hits: whether to drop negatives that have the id of the positive; needs
        ``candidate_ids``.
      name: of the task.
      num_items: size of the catalogue, for losses of this package that were not given it.
    """

    def __init__(
        self,
        loss: tf.keras.losses.Loss | None = None,
        metrics: Sequence[tfrs.metrics.Factorized] | tfrs.metrics.Factorized | None = None,
        batch_metrics: list[tf.keras.metrics.Metric] | None = None,
        loss_metrics: list[tf.keras.metrics.Metric] | None = None,
        temperature: float | None = None,
        num_hard_negatives: int | None = None,
        remove_accidental_hits: bool = False,
        name: str | None = None,
        *,
        num_items: int | None = None,
    ) -> None:
        super().__init__(name=name)
        self._loss = loss if loss is not None else tf.keras.losses.CategoricalCrossentropy(
            from_logits=True, reduction=tf.keras.losses.Reduction.SUM
        )
        self._num_items = _num_items(self._loss, _checks.catalogue_size("num_items", num_items))
        if temperature is not None:
            temperature = _checks.positive_number(
                "temperature", temperature, remedy="Use 1 / tau: 0.1 for the paper's tau of 10."
            )
        self._temperature = temperature
        self._num_hard_negatives = num_hard_negatives
        self._remove_accidental_hits = remove_accidental_hits
        self._batch_metrics = batch_metrics or []
        self._loss_metrics = loss_metrics or []
        self.factorized_metrics = metrics

    @property
    def factorized_metrics(self) -> Sequence[tfrs.metrics.Factorized]:
        """The metrics over the whole catalogue."""
        return self._factorized_metrics

    @factorized_metrics.setter
    def factorized_metrics(
        self, value: Sequence[tfrs.metrics.Factorized] | tfrs.metrics.Factorized | None
    ) -> None:
        if value is None:
            value = []
        self._factorized_metrics = list(value) if isinstance(value, Sequence) else [value]

    def call(
        self,
        query_embeddings: tf.Tensor,
        candidate_embeddings: tf.Tensor,
        sample_weight: tf.Tensor | None = None,
        candidate_sampling_probability: tf.Tensor | None = None,
        candidate_ids: tf.Tensor | None = None,
        compute_metrics: bool = True,
        compute_batch_metrics: bool = True,
        score_mask: tf.Tensor | None = None,
        known_positive_ids: tf.RaggedTensor | tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Computes the loss and updates the metrics.

        Args:
          query_embeddings: ``[num_queries, embedding_dim]``, or ``[num_queries, num_heads,
            embedding_dim]``, of which the best head scores each candidate.
          candidate_embeddings: ``[num_candidates, embedding_dim]``. Row i is the positive of query
            i; rows past ``num_queries`` are further negatives for all.
          sample_weight: ``[num_queries]``.
          candidate_sampling_probability: ``[num_candidates]``: the probability with which the
            sampler draws each candidate, for in-batch negatives its share of the log.
          candidate_ids: ``[num_candidates]``.
          compute_metrics: whether to update the metrics over the whole catalogue.
          compute_batch_metrics: whether to update the metrics within the batch.
          score_mask: ``[num_queries, num_candidates]`` booleans; candidates at False are not
            considered.
          known_positive_ids: ``[num_queries, (ids)]`` ragged: other items that the query's user
            chose, which are not to be taken for negatives. A dense matrix is taken as it is,
            padding included: pad with an id of no candidate. Needs ``candidate_ids``.

        Returns:
          The loss, reduced as the loss says.
        """
        query_embeddings = floating("query_embeddings", query_embeddings)
        candidate_embeddings = floating("candidate_embeddings", candidate_embeddings)
        scores = _scores(query_embeddings, candidate_embeddings)
        if self._temperature is not None:
            scores = scores / self._temperature
        batch = CandidateBatch.of(
            scores, self._considered(scores, candidate_ids, score_mask, known_positive_ids)
        )
        if isinstance(self._loss, RetrievalLoss):
            losses, batch = self._rank_losses(batch, self._loss, candidate_sampling_probability)
            loss = self._loss.reduce(losses, sample_weight)
        else:
            batch = batch.shifted(candidate_sampling_probability)
            batch, _ = batch.hardest(self._num_hard_negatives)
            loss = self._loss(
                y_true=batch.labels, y_pred=batch.masked_scores, sample_weight=sample_weight
            )
        updates = [metric.update_state(loss) for metric in self._loss_metrics]
        if compute_metrics and query_embeddings.shape.rank == 2:
            num_queries = tf.shape(query_embeddings)[0]
            positive_ids = None if candidate_ids is None else candidate_ids[:num_queries]
            updates += [
                metric.update_state(
                    query_embeddings,
                    candidate_embeddings[:num_queries],
                    true_candidate_ids=positive_ids,
                    sample_weight=sample_weight,
                )
                for metric in self._factorized_metrics
            ]
        if compute_batch_metrics and self._batch_metrics:
            labels, masked_scores = batch.labels, batch.masked_scores
            updates += [
                metric.update_state(labels, masked_scores, sample_weight=sample_weight)
                for metric in self._batch_metrics
            ]
        with tf.control_dependencies([update for update in updates if update is not None]):
            return tf.identity(loss)

    def _considered(
        self,
        scores: tf.Tensor,
        candidate_ids: tf.Tensor | None,
        score_mask: tf.Tensor | None,
        known_positive_ids: tf.RaggedTensor | tf.Tensor | None,
    ) -> tf.Tensor | None:
        """Which candidates count for which query, or None where all do."""
        considered = None
        if score_mask is not None:
            considered = tf.cast(score_mask, tf.bool)
            _checks.matrix("score_mask", considered, "[num_queries, num_candidates]")
            considered = _checks.same_shape("score_mask", considered, "scores", scores)
        if not self._remove_accidental_hits and known_positive_ids is None:
            return considered
        if candidate_ids is None:
            raise ValueError(
                "`candidate_ids` should be given where `remove_accidental_hits` is set or "
                "`known_positive_ids` is given. Received: None. Pass the id of every candidate."
            )
        candidate_ids = tf.reshape(tf.convert_to_tensor(candidate_ids), [-1])
        num_queries = tf.shape(scores)[0]
        dropped = tf.zeros_like(scores, tf.bool)
        if self._remove_accidental_hits:
            dropped = accidental_hits(candidate_ids[:num_queries], candidate_ids)
        if known_positive_ids is not None:
            known = _ragged(known_positive_ids, candidate_ids.dtype)
            dropped = tf.logical_or(dropped, members(known, candidate_ids))
        is_positive = tf.eye(num_queries, tf.shape(scores)[1], dtype=tf.bool)
        kept = tf.logical_or(is_positive, tf.logical_not(dropped))
        return kept if considered is None else tf.logical_and(considered, kept)

    def _rank_losses(
        self,
        batch: CandidateBatch,
        loss: RetrievalLoss,
        candidate_sampling_probability: tf.Tensor | None,
    ) -> tuple[tf.Tensor, CandidateBatch]:
        """The loss of each query, and the batch that is left after mining hard negatives."""
        present = batch.positive_considered
        if present is not None and not loss.mask_rows_without_positive:
            batch = dataclasses.replace(
                batch,
                scores=_checks.rows(
                    batch.scores,
                    tf.logical_not(present),
                    "`score_mask` should not hide a query's own candidate. Give such a query a "
                    "sample_weight of 0, or build the loss with mask_rows_without_positive=True.",
                ),
            )
        if loss.check_scores:
            batch = dataclasses.replace(batch, scores=check_finite(batch.scores, batch.considered))
        dtype = _numeric.compute_dtype(batch.scores.dtype)
        estimator = rank_estimator(
            batch.negatives,
            dtype,
            num_items=self._num_items,
            rank_estimate=loss.rank_estimate,
            sampling_probability=probabilities(
                candidate_sampling_probability, dtype, "candidate_sampling_probability"
            ),
        )
        shape = tf.shape(batch.scores)
        batch, kept = batch.hardest(self._num_hard_negatives)
        if kept is not None:
            # The ones that are left out still count in the estimate: their share of the rank is
            # what mining neglects.
            weights = tf.gather(tf.broadcast_to(estimator.weights, shape), kept, batch_dims=1)
            estimator = dataclasses.replace(estimator, weights=weights)
        losses = pair_losses(
            batch.scores, batch.positive_columns, batch.negatives, estimator, loss.objective
        )
        if present is not None:
            losses = tf.where(present, losses, tf.zeros_like(losses))
        return losses, batch


def _scores(query_embeddings: tf.Tensor, candidate_embeddings: tf.Tensor) -> tf.Tensor:
    """``[num_queries, num_candidates]`` inner products, of the best head where there are many."""
    if candidate_embeddings.shape.rank not in (None, 2):
        raise ValueError(
            "`candidate_embeddings` should have shape [num_candidates, embedding_dim]. Received "
            f"shape: {candidate_embeddings.shape}."
        )
    if query_embeddings.shape.rank == 3:
        heads = tf.einsum("qhd,cd->qhc", query_embeddings, candidate_embeddings)
        return tf.reduce_max(heads, axis=1)
    if query_embeddings.shape.rank not in (None, 2):
        raise ValueError(
            "`query_embeddings` should have shape [num_queries, embedding_dim] or [num_queries, "
            f"num_heads, embedding_dim]. Received shape: {query_embeddings.shape}."
        )
    return tf.matmul(query_embeddings, candidate_embeddings, transpose_b=True)


def _ragged(known_positive_ids: Any, dtype: tf.DType) -> tf.RaggedTensor:
    if not isinstance(known_positive_ids, tf.RaggedTensor):
        known_positive_ids = tf.RaggedTensor.from_tensor(known_positive_ids)
    if known_positive_ids.dtype != dtype and tf.string in (known_positive_ids.dtype, dtype):
        raise ValueError(
            "`known_positive_ids` should have the type of `candidate_ids`. Received: "
            f"{known_positive_ids.dtype.name} and {dtype.name}."
        )
    return tf.cast(known_positive_ids, dtype)


def _num_items(loss: tf.keras.losses.Loss, num_items: int | None) -> int | None:
    """The catalogue size, from the task or from its loss."""
    if not isinstance(loss, RetrievalLoss):
        if num_items is not None:
            raise ValueError(
                "`num_items` should be given with a loss that ranks. Received: "
                f"num_items={num_items} and {type(loss).__name__}. Use CROLoss or LambdaCROLoss."
            )
        return None
    if None not in (num_items, loss.num_items) and num_items != loss.num_items:
        raise ValueError(
            f"`num_items` should be that of the loss. Received: {num_items} for the task and "
            f"{loss.num_items} for the loss. Give it to one of them."
        )
    return loss.num_items if num_items is None else num_items
