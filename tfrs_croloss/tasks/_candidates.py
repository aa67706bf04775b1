"""Which candidates compete with a query's positive, decided by their ids."""

from __future__ import annotations

import dataclasses

import tensorflow as tf


def accidental_hits(positive_ids: tf.Tensor, candidate_ids: tf.Tensor) -> tf.Tensor:
    """Where a candidate is the query's own positive.

    Args:
      positive_ids: ``[num_queries]``.
      candidate_ids: ``[num_candidates]``, of the same type.

    Returns:
      ``[num_queries, num_candidates]`` booleans.
    """
    return tf.equal(positive_ids[:, tf.newaxis], candidate_ids[tf.newaxis, :])


def members(known_ids: tf.RaggedTensor, candidate_ids: tf.Tensor) -> tf.Tensor:
    """Where a candidate is among the ids that are listed for a query.

    Takes time and memory in proportion to the ids and to the result, not to their product.

    Args:
      known_ids: ``[num_queries, (ids)]`` ragged, of the type of ``candidate_ids``. Repeated ids and
        ids of no candidate are fine.
      candidate_ids: ``[num_candidates]``.

    Returns:
      ``[num_queries, num_candidates]`` booleans.

    >>> known = tf.ragged.constant([["a", "c"], []], dtype=tf.string)
    >>> print(members(known, tf.constant(["a", "b", "c", "a"])).numpy())
    [[ True False  True  True]
     [False False False False]]
    """
    num_candidates = tf.size(candidate_ids)
    # Numbered by first occurrence, so that the candidates' ids come before all others.
    _, numbers = tf.unique(tf.concat([candidate_ids, known_ids.values], axis=0))
    candidate_numbers = numbers[:num_candidates]
    known_numbers = numbers[num_candidates:]
    num_distinct = tf.reduce_max(tf.concat([candidate_numbers, [-1]], axis=0)) + 1
    listed = known_numbers < num_distinct
    rows = tf.cast(tf.boolean_mask(known_ids.value_rowids(), listed), tf.int32)
    columns = tf.boolean_mask(known_numbers, listed)
    shape = tf.stack([tf.cast(known_ids.nrows(), tf.int32), num_distinct])
    hits = tf.scatter_nd(tf.stack([rows, columns], axis=-1), tf.ones_like(rows), shape)
    return tf.gather(hits > 0, candidate_numbers, axis=1)


@dataclasses.dataclass(frozen=True)
class CandidateFilter:
    """Which candidates count for which query, worked out for some rows at a time.

    Candidate i is the positive of query i, and counts whatever its id.

    Attributes:
      num_queries: how many there are.
      num_candidates: how many there are.
      score_mask: ``[num_queries, num_candidates]`` booleans, or None.
      candidate_ids: ``[num_candidates]``; needed for what follows.
      drop_accidental_hits: whether negatives with the id of the positive are dropped.
      known_positive_ids: ``[num_queries, (ids)]`` ragged, negatives to drop, or None.
    """

    num_queries: tf.Tensor
    num_candidates: tf.Tensor
    score_mask: tf.Tensor | None = None
    candidate_ids: tf.Tensor | None = None
    drop_accidental_hits: bool = False
    known_positive_ids: tf.RaggedTensor | None = None

    @property
    def lets_all_pass(self) -> bool:
        """Whether there is nothing to filter."""
        by_id = self.drop_accidental_hits or self.known_positive_ids is not None
        return self.score_mask is None and not by_id

    def considered(self, start: tf.Tensor | int, size: tf.Tensor) -> tf.Tensor:
        """``[size, num_candidates]`` booleans for queries from ``start`` on; the last, past it."""
        rows = tf.minimum(start + tf.range(size), self.num_queries - 1)
        shape = tf.stack([size, self.num_candidates])
        dropped = tf.zeros(shape, tf.bool)
        if self.drop_accidental_hits:
            dropped = accidental_hits(tf.gather(self.candidate_ids, rows), self.candidate_ids)
        if self.known_positive_ids is not None:
            known = tf.gather(self.known_positive_ids, rows)
            dropped = tf.logical_or(dropped, members(known, self.candidate_ids))
        is_positive = tf.equal(rows[:, tf.newaxis], tf.range(self.num_candidates)[tf.newaxis, :])
        considered = tf.logical_or(is_positive, tf.logical_not(dropped))
        if self.score_mask is not None:
            considered = tf.logical_and(considered, tf.gather(self.score_mask, rows))
        return considered
