"""Which candidates compete with a query's positive, decided by their ids."""

from __future__ import annotations

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
