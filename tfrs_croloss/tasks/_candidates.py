"""The candidates of a batch: which of them compete for which query, and their scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks, _replicas
from tfrs_croloss.losses.ranks import inverse_probability


@dataclasses.dataclass(frozen=True)
class KnownColumns:
    """The columns of each query's known positives, expanded for some queries at a time.

    Attributes:
      numbers: ``[num_queries, (ids)]`` ragged: the numbers of the known ids that are candidates.
      columns: ``[num_distinct, (columns)]`` ragged: the columns of the candidates with each number.
    """

    numbers: tf.RaggedTensor
    columns: tf.RaggedTensor

    def places(self, rows: tf.Tensor) -> tf.Tensor:
        """``[num_hits, 2]`` pairs of a position in ``rows`` and a column of a known positive."""
        numbers = tf.gather(self.numbers, rows)
        columns = tf.gather(self.columns, numbers.values)
        positions = tf.gather(numbers.value_rowids(), columns.value_rowids())
        return tf.stack([tf.cast(positions, tf.int32), columns.values], axis=-1)


@dataclasses.dataclass(frozen=True)
class CandidateFilter:
    """Decides which candidates count for which query, for some queries at a time.

    Candidate i is the positive of query i, and counts whatever its id. ``build`` numbers the ids
    once, so that blocks of queries compare integers, whatever the type of the ids.

    Attributes:
      num_queries: number of queries.
      num_candidates: number of candidates.
      score_mask: ``[num_queries, num_candidates]`` booleans, or None.
      shared_negatives: ``[num_candidates]`` booleans, which candidates are negatives of every
        query; None for all.
      numbers: ``[num_candidates]`` integers, equal where ids are equal, if negatives with the id of
        the positive are dropped; else None.
      known: the known positives to drop from the negatives, or None.
    """

    num_queries: tf.Tensor
    num_candidates: tf.Tensor
    score_mask: tf.Tensor | None = None
    shared_negatives: tf.Tensor | None = None
    numbers: tf.Tensor | None = None
    known: KnownColumns | None = None

    @classmethod
    def build(
        cls,
        num_queries: tf.Tensor,
        num_candidates: tf.Tensor,
        *,
        score_mask: tf.Tensor | None = None,
        shared_negatives: tf.Tensor | None = None,
        candidate_ids: tf.Tensor | None = None,
        drop_accidental_hits: bool = False,
        known_positive_ids: tf.RaggedTensor | None = None,
    ) -> CandidateFilter:
        """A filter by ids.

        Args:
          num_queries: number of queries.
          num_candidates: number of candidates.
          score_mask: ``[num_queries, num_candidates]`` booleans.
          shared_negatives: ``[num_candidates]`` booleans.
          candidate_ids: ``[num_candidates]``; needed by the following two.
          drop_accidental_hits: whether negatives with the id of the positive are dropped.
          known_positive_ids: ``[num_queries, (ids)]`` ragged, of the type of ``candidate_ids``:
            negatives to drop. Repeated ids and ids of no candidate are fine.

        >>> allowed = CandidateFilter.build(
        ...     2,
        ...     4,
        ...     candidate_ids=tf.constant(["a", "b", "c", "a"]),
        ...     drop_accidental_hits=True,
        ...     known_positive_ids=tf.ragged.constant([["c", "x"], []], dtype=tf.string),
        ... )
        >>> print(allowed.considered(0, 2).numpy())
        [[ True  True False False]
         [ True  True  True  True]]
        """
        numbers, known = candidate_ids, None
        if known_positive_ids is not None:
            numbers, known = _numbered(candidate_ids, known_positive_ids)
        elif drop_accidental_hits and numbers is not None and numbers.dtype == tf.string:
            _, numbers = tf.unique(numbers)
        return cls(
            num_queries,
            num_candidates,
            score_mask,
            shared_negatives,
            numbers if drop_accidental_hits else None,
            known,
        )

    @property
    def lets_all_pass(self) -> bool:
        """Whether there is nothing to filter."""
        parts = (self.score_mask, self.shared_negatives, self.numbers, self.known)
        return all(part is None for part in parts)

    def considered(self, start: tf.Tensor | int, size: tf.Tensor | int) -> tf.Tensor:
        """Which candidates count for the queries from ``start`` on.

        Args:
          start: first query.
          size: number of queries; the last query stands for any past the end.

        Returns:
          ``[size, num_candidates]`` booleans.
        """
        rows = tf.minimum(start + tf.range(size), self.num_queries - 1)
        shape = tf.stack([size, self.num_candidates])
        if self.shared_negatives is None:
            considered = tf.ones(shape, tf.bool)
        else:
            considered = tf.broadcast_to(self.shared_negatives[tf.newaxis, :], shape)
        if self.numbers is not None:
            own = tf.gather(self.numbers, rows)
            different = tf.not_equal(own[:, tf.newaxis], self.numbers[tf.newaxis, :])
            considered = tf.logical_and(considered, different)
        if self.known is not None:
            considered = _filled(considered, self.known.places(rows), False)
        positives = tf.stack([tf.range(size), rows], axis=-1)
        considered = _filled(considered, positives, True)
        if self.score_mask is not None:
            considered = tf.logical_and(considered, tf.gather(self.score_mask, rows))
        return considered


def _numbered(
    candidate_ids: Any, known_positive_ids: tf.RaggedTensor
) -> tuple[tf.Tensor, KnownColumns]:
    """The number of each candidate's id, and the known positives by these numbers."""
    num_candidates = tf.size(candidate_ids)
    # Numbered by first occurrence, so that the candidates' ids come before all others.
    _, numbers = tf.unique(tf.concat([candidate_ids, known_positive_ids.values], axis=0))
    of_candidates, of_known = numbers[:num_candidates], numbers[num_candidates:]
    num_distinct = tf.reduce_max(tf.concat([of_candidates, [-1]], axis=0)) + 1
    counts = tf.math.unsorted_segment_sum(tf.ones_like(of_candidates), of_candidates, num_distinct)
    columns = tf.RaggedTensor.from_row_lengths(tf.argsort(of_candidates), counts)
    known = tf.ragged.boolean_mask(
        known_positive_ids.with_values(of_known),
        known_positive_ids.with_values(of_known < num_distinct),
    )
    return of_candidates, KnownColumns(known, columns)


def _filled(matrix: tf.Tensor, places: tf.Tensor, value: bool) -> tf.Tensor:
    """``matrix`` with ``value`` at ``[num_places, 2]`` pairs of row and column."""
    values = tf.fill([tf.shape(places)[0]], value)
    return tf.tensor_scatter_nd_update(matrix, places, values)


@dataclasses.dataclass(frozen=True)
class CandidatePool:
    """The candidates of a batch, on all replicas.

    Attributes:
      embeddings: ``[num_candidates, embedding_dim]``.
      ids: ``[num_candidates]``, or None.
      sampling_probability: ``[num_candidates]``, or None.
      allowed: which candidates count for which query of this replica.
      remember: updates the estimate of the sampling probabilities, or None.
      copy_weights: ``[1, num_candidates]``, how much each counts if copies count once;
        or None.
    """

    embeddings: tf.Tensor
    ids: tf.Tensor | None
    sampling_probability: tf.Tensor | None
    allowed: CandidateFilter
    remember: Callable[[], list[tf.Operation]] | None = None
    copy_weights: tf.Tensor | None = None


def exchangeable_ids(known_positive_ids: Any) -> Any:
    """The ids in the form that the candidates' ids have after an exchange between replicas."""
    if known_positive_ids is None:
        return None
    if isinstance(known_positive_ids, tf.RaggedTensor):
        return known_positive_ids.with_values(_replicas.exchangeable(known_positive_ids.values))
    return _replicas.exchangeable(tf.convert_to_tensor(known_positive_ids))


def ragged_ids(known_positive_ids: Any, candidate_ids: Any) -> tf.RaggedTensor | None:
    """``[num_queries, (ids)]`` ragged known positives, of the type of the candidates' ids."""
    if known_positive_ids is None:
        return None
    if not isinstance(known_positive_ids, tf.RaggedTensor):
        known_positive_ids = tf.RaggedTensor.from_tensor(known_positive_ids)
    dtypes = (known_positive_ids.dtype, candidate_ids.dtype)
    if dtypes[0] != dtypes[1] and tf.string in dtypes:
        raise ValueError(
            "`known_positive_ids` should have the type of `candidate_ids`. Received: "
            f"{dtypes[0].name} and {dtypes[1].name}."
        )
    return tf.cast(known_positive_ids, candidate_ids.dtype)


@dataclasses.dataclass(frozen=True)
class CandidateBatch:
    """Scores of candidates, one row per query.

    Attributes:
      scores: ``[num_queries, num_candidates]``.
      positive_columns: ``[num_queries]``: the column of each row's positive.
      mask: ``[num_queries, num_candidates]``: which candidates are considered; None for all.
    """

    scores: tf.Tensor
    positive_columns: tf.Tensor
    mask: tf.Tensor | None

    @property
    def labels(self) -> tf.Tensor:
        """1 at the positives, 0 elsewhere."""
        return tf.one_hot(self.positive_columns, tf.shape(self.scores)[1], dtype=self.scores.dtype)

    @property
    def considered(self) -> tf.Tensor:
        """Which candidates count, booleans of the shape of the scores."""
        return tf.ones_like(self.scores, tf.bool) if self.mask is None else self.mask

    @property
    def negatives(self) -> tf.Tensor:
        """Which candidates compete with the positive, booleans of the shape of the scores."""
        columns = tf.range(tf.shape(self.scores)[1])
        others = tf.not_equal(columns[tf.newaxis, :], self.positive_columns[:, tf.newaxis])
        return others if self.mask is None else tf.logical_and(others, self.mask)

    @property
    def positive_considered(self) -> tf.Tensor | None:
        """``[num_queries]`` whether the mask leaves the positive; None where there is no mask."""
        if self.mask is None:
            return None
        return tf.gather(self.mask, self.positive_columns, batch_dims=1)

    @property
    def masked_scores(self) -> tf.Tensor:
        """Scores for losses and metrics that take no mask: very low where not considered."""
        if self.mask is None:
            return self.scores
        # Far below any score, with room to subtract one from another without overflow.
        return tf.where(self.mask, self.scores, self.scores.dtype.min / 4)

    def shifted(self, sampling_probability: tf.Tensor | None) -> CandidateBatch:
        """Scores less the log of the sampling probability: right for softmax, and for it alone."""
        if sampling_probability is None:
            return self
        inverse = inverse_probability(
            sampling_probability, tf.float32, "candidate_sampling_probability"
        )
        shift = tf.cast(tf.math.log(inverse), self.scores.dtype)
        return dataclasses.replace(self, scores=self.scores + shift)

    def hardest(self, count: int | None) -> tuple[CandidateBatch, tf.Tensor | None]:
        """The batch with each row's positive first, then its ``count`` highest negatives.

        Returns:
          The batch, and the columns that were kept; the whole batch and None where ``count`` is
          None or not above 0.
        """
        if count is None or count <= 0:
            return self, None
        negatives = self.negatives
        count = tf.maximum(tf.minimum(count, tf.shape(self.scores)[1] - 1), 0)
        # NaN is kept, so that it is not lost among the negatives that are left out.
        highest = tf.constant(float("inf"), self.scores.dtype)
        competing = tf.where(tf.math.is_nan(self.scores), highest, self.scores)
        competing = tf.where(negatives, competing, self.scores.dtype.min)
        _, columns = tf.math.top_k(competing, k=count, sorted=False)
        kept = tf.concat([self.positive_columns[:, tf.newaxis], columns], axis=1)
        considered = tf.concat(
            [
                tf.gather(self.considered, kept[:, :1], batch_dims=1),
                tf.gather(negatives, columns, batch_dims=1),
            ],
            axis=1,
        )
        batch = CandidateBatch(
            tf.gather(self.scores, kept, batch_dims=1),
            tf.zeros_like(self.positive_columns),
            considered,
        )
        return batch, kept


def check_embeddings(query_embeddings: tf.Tensor, candidate_embeddings: tf.Tensor) -> tf.Tensor:
    """The candidates' embeddings, checked to suit the queries (at run time if necessary)."""
    if query_embeddings.shape.rank not in (None, 2, 3):
        raise ValueError(
            "`query_embeddings` should have shape [num_queries, embedding_dim] or [num_queries, "
            f"num_heads, embedding_dim]. Received shape: {query_embeddings.shape}."
        )
    if candidate_embeddings.shape.rank not in (None, 2):
        raise ValueError(
            "`candidate_embeddings` should have shape [num_candidates, embedding_dim]. Received "
            f"shape: {candidate_embeddings.shape}."
        )
    num_queries, num_candidates = query_embeddings.shape[0], candidate_embeddings.shape[0]
    if None not in (num_queries, num_candidates) and num_candidates < num_queries:
        raise ValueError(
            "`candidate_embeddings` should have a row for every query: row i is the positive of "
            f"query i. Received: {num_queries} queries and {num_candidates} candidates."
        )
    if not query_embeddings.shape[-1:].is_compatible_with(candidate_embeddings.shape[-1:]):
        raise ValueError(
            "`candidate_embeddings` should have the embedding_dim of `query_embeddings`. Received "
            f"shapes: {query_embeddings.shape} and {candidate_embeddings.shape}."
        )
    if None not in (num_queries, num_candidates):
        return candidate_embeddings
    numbers = tf.shape(query_embeddings)[0], tf.shape(candidate_embeddings)[0]
    check = tf.debugging.Assert(
        numbers[1] >= numbers[0],
        [
            "`candidate_embeddings` should have a row for every query: row i is the positive of "
            "query i. Received queries and candidates:",
            *numbers,
        ],
    )
    checks = [] if check is None else [check]
    if _checks.is_compiled_with_xla():
        # XLA drops the check above, and cannot compile this one if there are too few rows.
        size = tf.stack([numbers[0], tf.shape(candidate_embeddings)[1]])
        checks = [tf.slice(candidate_embeddings, [0, 0], size, name="candidate_embeddings")]
    with tf.control_dependencies(checks):
        return tf.identity(candidate_embeddings)


def inner_products(query_embeddings: tf.Tensor, candidate_embeddings: tf.Tensor) -> tf.Tensor:
    """``[num_queries, num_candidates]`` inner products, of the best head where there are many."""
    if query_embeddings.shape.rank == 3:
        heads = tf.einsum("qhd,cd->qhc", query_embeddings, candidate_embeddings)
        return tf.reduce_max(heads, axis=1)
    return tf.matmul(query_embeddings, candidate_embeddings, transpose_b=True)
