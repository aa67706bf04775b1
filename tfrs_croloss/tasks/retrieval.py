"""A retrieval task with the arguments of TFRS' own, and exact masks and ranks for these losses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks, _keras, _replicas, _saving
from tfrs_croloss.losses import _numeric, _score_range, naming
from tfrs_croloss.losses._blockwise import Competition, weighted_loss
from tfrs_croloss.losses._chunk_sums import has_fast_form
from tfrs_croloss.losses._copies import weights_by_vector
from tfrs_croloss.losses._dense import check_finite, pair_losses
from tfrs_croloss.losses.base import RankLoss, RetrievalLoss
from tfrs_croloss.losses.ranks import RankEstimator, count_true
from tfrs_croloss.tasks import _metrics, _probabilities, frequencies
from tfrs_croloss.tasks._candidates import (
    CandidateBatch,
    CandidateFilter,
    CandidatePool,
    check_embeddings,
    exchangeable_ids,
    inner_products,
    ragged_ids,
)
from tfrs_croloss.tasks.frequencies import (
    CandidateFrequencies,
    StreamingFrequencies,
    updated_when_differentiated,
)


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class Retrieval(_saving.ModuleState, _keras.TaskLayer):
    """A factorized retrieval task: every query against the candidates of the batch.

    The task takes the arguments of ``tfrs.tasks.Retrieval``, with the same meaning. With a loss of
    this package, candidates that are masked or are accidental hits add exactly nothing to the rank,
    and sampling probabilities weigh the candidates instead of shifting scores, which is right for
    every kernel. With any other Keras loss the task does what TFRS does.

    Args:
      loss: ``CROLoss``, ``LambdaCROLoss`` or any Keras loss of one-hot labels and scores, or the
        name of a loss of this package. Defaults to softmax cross-entropy summed over the batch, as
        in TFRS.
      metrics: one or several ``tfrs.metrics.Factorized`` over the whole catalogue.
      batch_metrics: Keras metrics of labels and scores within the batch.
      loss_metrics: Keras metrics that summarise the loss.
      temperature: scores are divided by it; above 0. The paper's scale of 10 is 0.1 here.
      num_hard_negatives: number of highest-scored negatives to keep for each query; all, if None
        or not above 0.
      remove_accidental_hits: whether to drop negatives that have the id of the positive; needs
        ``candidate_ids``.
      name: name of the task.
      num_items: size of the catalogue, for losses of this package that were not given it.
      memory_budget: bytes for the scores of one block of queries. It has no effect where all scores
        are needed at once: for batch metrics, hard negatives, several heads, losses that are not
        functions of ranks, kernels without ``vanishes_far_below``, the reduction ``"none"`` and
        ``check_scores``.
      global_negatives: whether, under a ``tf.distribute`` strategy with several replicas, queries
        meet the candidates of all of them. The sum of the replicas' losses is then the loss of the
        whole batch on one.
      sampling_probability: where the candidates' sampling probabilities come from in calls that are
        not given them: ``"streaming"`` or a ``StreamingFrequencies`` estimates them while training,
        and a ``CandidateFrequencies`` has counted them. Both need ``candidate_ids``.
    """

    def __init__(
        self,
        loss: tf.keras.losses.Loss | str | None = None,
        metrics: Any = None,
        batch_metrics: list[tf.keras.metrics.Metric] | None = None,
        loss_metrics: list[tf.keras.metrics.Metric] | None = None,
        temperature: float | None = None,
        num_hard_negatives: int | None = None,
        remove_accidental_hits: bool = False,
        name: str | None = None,
        *,
        num_items: int | None = None,
        memory_budget: int | None = None,
        global_negatives: bool = True,
        sampling_probability: CandidateFrequencies | StreamingFrequencies | str | None = None,
    ) -> None:
        # Keras would cast the queries, and the queries alone, to the layer's own type.
        super().__init__(name=name, autocast=False)
        self._memory_budget = _checks.bytes_or_none("memory_budget", memory_budget)
        self._global_negatives = bool(global_negatives)
        self._loss = (
            naming.get(loss)
            if loss is not None
            else tf.keras.losses.CategoricalCrossentropy(from_logits=True, reduction="sum")
        )
        self._frequencies = frequencies.get(sampling_probability)
        self._num_items = _num_items(self._loss, _checks.catalogue_size("num_items", num_items))
        if temperature is not None:
            temperature = _checks.positive_number(
                "temperature", temperature, remedy="Use 1 / tau: 0.1 for the paper's tau of 10."
            )
        self._temperature = temperature
        self._num_hard_negatives = num_hard_negatives
        self._remove_accidental_hits = remove_accidental_hits
        self._batch_metrics = _metrics.of_scores(batch_metrics, "batch_metrics")
        self._loss_metrics = _metrics.of_scores(loss_metrics, "loss_metrics")
        self.factorized_metrics = metrics

    @property
    def factorized_metrics(self) -> Sequence[Any]:
        """The metrics over the whole catalogue."""
        return self._factorized_metrics

    @factorized_metrics.setter
    def factorized_metrics(self, value: Any) -> None:
        self._factorized_metrics = _metrics.factorized(value)

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
        shared_negatives: tf.Tensor | None = None,
        remove_accidental_hits: bool | None = None,
    ) -> tf.Tensor:
        """Computes the loss and updates the metrics.

        Under a strategy with several replicas, arguments describe this replica's own queries and
        candidates; the task exchanges all that is listed per candidate.

        Args:
          query_embeddings: ``[num_queries, embedding_dim]``, or ``[num_queries, num_heads,
            embedding_dim]``, of which the best head scores each candidate.
          candidate_embeddings: ``[num_candidates, embedding_dim]``. Row i is the positive of query
            i; rows past ``num_queries`` are further negatives for all.
          sample_weight: ``[num_queries]`` weights of the queries' losses.
          candidate_sampling_probability: ``[num_candidates]``, or ``[num_queries, num_candidates]``
            on one replica: the probability with which the sampler draws each candidate; for
            in-batch negatives, its share of the log. It replaces the task's
            ``sampling_probability``.
          candidate_ids: ``[num_candidates]`` integers or strings.
          compute_metrics: whether to update the metrics over the whole catalogue.
          compute_batch_metrics: whether to update the metrics within the batch.
          score_mask: ``[num_queries, num_candidates]`` booleans; candidates at False are not
            considered. It takes as much memory as a score matrix: prefer ids and
            ``shared_negatives``, which are applied block by block.
          known_positive_ids: ``[num_queries, (ids)]`` ragged: other items that the query's user
            chose, which are not used as negatives. A dense matrix is taken as it is, padding
            included: pad with an id of no candidate. Needs ``candidate_ids``.
          shared_negatives: ``[num_candidates]`` booleans: True for a candidate that is a negative
            of every query, False for one that is only the positive of its own query. By default all
            are True, which gives in-batch negatives.
          remove_accidental_hits: overrides the task's setting for this call, unless None.

        Returns:
          The loss, reduced as the loss says.
        """
        query_embeddings, candidate_embeddings = _checks.same_type(
            _checks.floating("query_embeddings", query_embeddings),
            _checks.floating("candidate_embeddings", candidate_embeddings),
        )
        candidate_embeddings = check_embeddings(query_embeddings, candidate_embeddings)
        sample_weight = _checks.sample_weight(sample_weight, query_embeddings)
        candidates = self.candidate_pool(
            tf.shape(query_embeddings)[0],
            candidate_embeddings,
            candidate_ids,
            candidate_sampling_probability,
            score_mask=score_mask,
            known_positive_ids=known_positive_ids,
            shared_negatives=shared_negatives,
            remove_accidental_hits=remove_accidental_hits,
        )
        if isinstance(self._loss, RetrievalLoss) and query_embeddings.shape.rank == 2:
            _score_range.watch_vectors(
                query_embeddings,
                candidates.embeddings,
                candidates.embeddings,
                self._loss.objective,
                self._temperature,
            )
        batch = None
        needs_scores = compute_batch_metrics and bool(self._batch_metrics)
        if not needs_scores and self._can_be_fused(query_embeddings):
            loss = self._fused_loss(query_embeddings, candidates, sample_weight)
        else:
            batch = self._batch(query_embeddings, candidates)
            loss, batch = self._loss_of_scores(batch, candidates, sample_weight)
        if candidates.remember is not None:
            loss = updated_when_differentiated(loss, candidates.remember)
        updates = [metric.update_state(loss) for metric in self._loss_metrics]
        if compute_metrics and query_embeddings.shape.rank == 2:
            num_queries = tf.shape(query_embeddings)[0]
            positive_ids = None if candidates.ids is None else candidates.ids[:num_queries]
            updates += [
                metric.update_state(
                    query_embeddings,
                    candidates.embeddings[:num_queries],
                    true_candidate_ids=positive_ids,
                    sample_weight=sample_weight,
                )
                for metric in self._factorized_metrics
            ]
        if needs_scores and batch is not None:
            labels, masked_scores = batch.labels, batch.masked_scores
            updates += [
                metric.update_state(labels, masked_scores, sample_weight=sample_weight)
                for metric in self._batch_metrics
            ]
        with tf.control_dependencies([update for update in updates if update is not None]):
            return tf.identity(loss)

    @tf.autograph.experimental.do_not_convert
    def candidate_pool(
        self,
        num_queries: tf.Tensor,
        candidate_embeddings: tf.Tensor,
        candidate_ids: tf.Tensor | None = None,
        candidate_sampling_probability: tf.Tensor | None = None,
        *,
        score_mask: tf.Tensor | None = None,
        known_positive_ids: tf.RaggedTensor | tf.Tensor | None = None,
        shared_negatives: tf.Tensor | None = None,
        remove_accidental_hits: bool | None = None,
    ) -> CandidatePool:
        """The candidates that a call with these arguments ranks, and which count for which query.

        Args:
          num_queries: number of queries of this replica.

        The other arguments are as in ``call``.

        Returns:
          The candidates of all replicas, this replica's first, with the filter that decides for a
          block of queries which candidates count.
        """
        columns = {"embeddings": candidate_embeddings}
        num_own = tf.shape(candidate_embeddings)[0]
        of_each = None

        def column(name: str, values: tf.Tensor) -> tf.Tensor:
            return _checks.per_row(name, values, candidate_embeddings, "num_candidates")

        if candidate_ids is not None:
            ids = tf.reshape(tf.convert_to_tensor(candidate_ids), [-1])
            columns["ids"] = column("candidate_ids", ids)
        if candidate_sampling_probability is not None:
            name = "candidate_sampling_probability"
            probabilities = _checks.floating(name, candidate_sampling_probability, tf.float32)
            if probabilities.shape.rank == 2:
                of_each = _probabilities.of_each_query(
                    probabilities, [num_queries, num_own], self.exchanges_candidates
                )
            else:
                columns["probabilities"] = column(name, probabilities)
        elif isinstance(self._frequencies, CandidateFrequencies):
            columns["probabilities"] = self._frequencies.probabilities(
                _probabilities.needed_ids(columns)
            )
        if shared_negatives is not None:
            shared = tf.cast(shared_negatives, tf.bool)
            columns["shared"] = column("shared_negatives", shared)
        if self.exchanges_candidates:
            columns = _replicas.all_candidates(columns)
            known_positive_ids = exchangeable_ids(known_positive_ids)
        num_candidates = tf.shape(columns["embeddings"])[0]
        if score_mask is not None:
            score_mask = _checks.with_shape(
                "score_mask",
                tf.cast(score_mask, tf.bool),
                [tf.get_static_value(num_queries), candidate_embeddings.shape[0]],
                [num_queries, num_own],
            )
            if self.exchanges_candidates:
                others = num_candidates - num_own
                score_mask = tf.pad(score_mask, [[0, 0], [0, others]], constant_values=True)
        if remove_accidental_hits is None:
            remove_accidental_hits = self._remove_accidental_hits
        if known_positive_ids is not None:
            known_positive_ids = _checks.one_row_each(
                "known_positive_ids", known_positive_ids, num_queries
            )
        ids = columns.get("ids")
        if ids is None and (remove_accidental_hits or known_positive_ids is not None):
            raise ValueError(
                "`candidate_ids` should be given where `remove_accidental_hits` is set or "
                "`known_positive_ids` is given. Received: None. Pass the id of every candidate."
            )
        allowed = CandidateFilter.build(
            num_queries,
            num_candidates,
            score_mask=score_mask,
            shared_negatives=columns.get("shared"),
            candidate_ids=ids,
            drop_accidental_hits=remove_accidental_hits,
            known_positive_ids=ragged_ids(known_positive_ids, ids),
        )
        probabilities, remember = columns.get("probabilities", of_each), None
        if probabilities is None and isinstance(self._frequencies, StreamingFrequencies):
            probabilities, remember = _probabilities.observed(
                self._frequencies, columns, self.exchanges_candidates
            )
        copy_weights, loss = None, self._loss
        in_batch = probabilities is None and shared_negatives is None
        if in_batch and isinstance(loss, RankLoss) and loss.weighs_copies:
            copy_weights = weights_by_vector(columns["embeddings"])
        return CandidatePool(
            columns["embeddings"], ids, probabilities, allowed, remember, copy_weights
        )

    @property
    def exchanges_candidates(self) -> bool:
        """Whether queries meet the candidates of several replicas in the step that is running."""
        return self._global_negatives and _replicas.count() > 1

    def get_config(self) -> dict[str, Any]:
        _metrics.refuse_to_save(self._factorized_metrics)
        objects = {
            "loss": self._loss,
            "batch_metrics": list(self._batch_metrics),
            "loss_metrics": list(self._loss_metrics),
            "sampling_probability": self._frequencies,
        }
        return {
            **{name: _saving.to_config(name, value) for name, value in objects.items()},
            "temperature": self._temperature,
            "num_hard_negatives": self._num_hard_negatives,
            "remove_accidental_hits": self._remove_accidental_hits,
            "name": self.name,
            "num_items": self._num_items,
            "memory_budget": self._memory_budget,
            "global_negatives": self._global_negatives,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Retrieval:
        """A task of the same configuration."""
        return cls(**{name: _saving.from_config(value) for name, value in config.items()})

    def saved_modules(self) -> Mapping[str, Any]:
        """What a file keeps beside the metrics: the estimated sampling probabilities."""
        return {"sampling_probability": self._frequencies}

    def _batch(self, query_embeddings: tf.Tensor, candidates: CandidatePool) -> CandidateBatch:
        scores = inner_products(query_embeddings, candidates.embeddings)
        if self._temperature is not None:
            scores = scores / self._temperature
        allowed = candidates.allowed
        mask = None if allowed.lets_all_pass else allowed.considered(0, allowed.num_queries)
        return CandidateBatch(scores, tf.range(allowed.num_queries), mask)

    def _loss_of_scores(
        self,
        batch: CandidateBatch,
        candidates: CandidatePool,
        sample_weight: tf.Tensor | None,
    ) -> tuple[tf.Tensor, CandidateBatch]:
        """The loss, and the batch that is left after mining hard negatives."""
        if isinstance(self._loss, RetrievalLoss):
            losses, batch = self._rank_losses(batch, self._loss, candidates)
            return self._loss.reduce(losses, sample_weight), batch
        batch, _ = batch.shifted(candidates.sampling_probability).hardest(self._num_hard_negatives)
        loss = self._loss(
            y_true=batch.labels, y_pred=batch.masked_scores, sample_weight=sample_weight
        )
        return loss, batch

    @tf.autograph.experimental.do_not_convert
    def _rank_losses(
        self,
        batch: CandidateBatch,
        loss: RetrievalLoss,
        candidates: CandidatePool,
    ) -> tuple[tf.Tensor, CandidateBatch]:
        """The loss of each query, and the batch that is left after mining hard negatives."""
        present = batch.positive_considered
        if present is not None:
            batch = dataclasses.replace(batch, scores=_checked(batch.scores, present, loss))
        if loss.check_scores:
            batch = dataclasses.replace(batch, scores=check_finite(batch.scores, batch.considered))
        dtype = _numeric.compute_dtype(batch.scores.dtype)
        estimator = self._estimator(
            loss,
            count_true(batch.negatives, dtype),
            _probabilities.importance_weights(candidates.sampling_probability, dtype),
        )
        if candidates.copy_weights is not None:
            estimator = dataclasses.replace(estimator, candidate_weights=candidates.copy_weights)
        shape = tf.shape(batch.scores)
        batch, kept = batch.hardest(self._num_hard_negatives)
        if kept is not None and estimator.candidate_weights is not None:
            # The negatives that are left out still count in the estimate's n: their share of the
            # rank is what mining neglects.
            weights = tf.broadcast_to(estimator.candidate_weights, shape)
            estimator = dataclasses.replace(
                estimator, candidate_weights=tf.gather(weights, kept, batch_dims=1)
            )
        losses = pair_losses(
            batch.scores, batch.positive_columns, batch.negatives, estimator, loss.objective
        )
        if present is not None and loss.mask_rows_without_positive:
            losses = tf.where(present, losses, tf.zeros_like(losses))
        return losses, batch

    def _can_be_fused(self, query_embeddings: tf.Tensor) -> bool:
        """Whether the loss can be computed without holding all scores."""
        return (
            isinstance(self._loss, RetrievalLoss)
            and has_fast_form(self._loss.objective)
            and self._loss.reduction != "none"
            and not self._loss.check_scores
            and query_embeddings.shape.rank == 2
            and (self._num_hard_negatives is None or self._num_hard_negatives <= 0)
        )

    @tf.autograph.experimental.do_not_convert
    def _fused_loss(
        self,
        query_embeddings: tf.Tensor,
        candidates: CandidatePool,
        sample_weight: tf.Tensor | None,
    ) -> tf.Tensor:
        """The reduced loss, without the score matrix."""
        loss, allowed = self._loss, candidates.allowed
        dtype = _numeric.compute_dtype(query_embeddings.dtype)
        row_weights = loss.reduction_weights(allowed.num_queries, dtype, sample_weight)
        if allowed.score_mask is not None:
            present = tf.linalg.diag_part(allowed.score_mask)
            row_weights = _checked(row_weights, present, loss)
            if loss.mask_rows_without_positive:
                row_weights = tf.where(present, row_weights, tf.zeros_like(row_weights))
        if self._temperature is not None:
            query_embeddings = query_embeddings / self._temperature

        drawn = _probabilities.importance_weights(candidates.sampling_probability, dtype)
        weights = candidates.copy_weights if drawn is None else drawn

        return weighted_loss(
            query_embeddings,
            candidates.embeddings,
            tf.range(allowed.num_queries),
            row_weights,
            loss.objective,
            Competition(
                lambda count: self._estimator(loss, count, drawn),
                mask=None if allowed.lets_all_pass else allowed.considered,
                candidate_weights=_probabilities.by_block(weights),
            ),
            self._memory_budget,
        )

    def _estimator(
        self, loss: RetrievalLoss, count: tf.Tensor, candidate_weights: tf.Tensor | None
    ) -> RankEstimator:
        return loss.estimator(count, candidate_weights, num_items=self._num_items)


def _checked(values: tf.Tensor, present: tf.Tensor, loss: RetrievalLoss) -> tf.Tensor:
    """Returns ``values``; raises an error if a mask hides a query's own candidate."""
    if loss.mask_rows_without_positive:
        return values
    return _checks.rows(
        values,
        tf.logical_not(present),
        "`score_mask` should not hide a query's own candidate. Give such a query a sample_weight "
        "of 0, or build the loss with mask_rows_without_positive=True.",
    )


def _num_items(loss: tf.keras.losses.Loss, num_items: int | None) -> int | None:
    """The catalogue size, from the task or from its loss."""
    if not isinstance(loss, RetrievalLoss):
        if num_items is not None:
            raise ValueError(
                "`num_items` should only be given with a loss of tfrs_croloss. Received: "
                f"num_items={num_items} and {type(loss).__name__}. Use CROLoss or LambdaCROLoss."
            )
        return None
    if None not in (num_items, loss.num_items) and num_items != loss.num_items:
        raise ValueError(
            f"`num_items` should be that of the loss. Received: {num_items} for the task and "
            f"{loss.num_items} for the loss. Give it to one of them."
        )
    return loss.num_items if num_items is None else num_items
