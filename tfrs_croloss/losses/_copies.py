"""Candidates that are in a batch several times, and how much each of the copies counts.

In-batch negatives are the positives of other queries, so popular items are among them many times.
A rank counts items, so each of c copies counts 1 / c. Copies are known by their vectors, or by
their scores where there are only scores, since ids need not be at hand.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfrs_croloss.losses import _numeric

# The scores for this many queries tell candidates apart.
_ROWS = 8


def weights_by_vector(embeddings: tf.Tensor) -> tf.Tensor:
    """How much each candidate counts: one over the number of its copies, itself included.

    Args:
      embeddings: ``[num_candidates, dim]``.

    Returns:
      ``[1, num_candidates]``, in the computing type of the embeddings.

    >>> weights_by_vector(tf.constant([[1.0, 0.0], [0.0, 2.0], [1.0, 0.0]])).numpy()
    array([[0.5, 1. , 0.5]], dtype=float32)
    """
    vectors = tf.cast(tf.stop_gradient(embeddings), tf.float64)
    keys = tf.reduce_sum(vectors * _directions(tf.shape(vectors)[1]), axis=1)
    return tf.cast(_weights(keys), _numeric.compute_dtype(embeddings.dtype))


@tf.autograph.experimental.do_not_convert
def weights_by_score(scores: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The same, from scores, if the candidates are those of a batch; else all ones.

    The candidates are those of a batch if the positive of row i is in column i, as in the tasks.

    Args:
      scores: ``[num_queries, num_candidates]``.
      labels: the same shape.
    """
    num_queries, num_candidates = tf.unstack(tf.shape(scores))
    rows = tf.range(0, num_queries, tf.maximum(num_queries // _ROWS, 1))
    some = tf.cast(tf.stop_gradient(tf.gather(scores, rows)), tf.float64)
    keys = tf.reduce_sum(some * _directions(tf.shape(some)[0])[:, tf.newaxis], axis=0)
    positives = tf.cast(tf.linalg.diag_part(labels), tf.bool)
    in_batch = tf.logical_and(
        tf.reduce_all(positives), tf.logical_and(num_queries > 1, num_queries <= num_candidates)
    )
    weights = tf.cast(_weights(keys), _numeric.compute_dtype(scores.dtype))
    return tf.where(in_batch, weights, tf.ones_like(weights))


def _directions(count: tf.Tensor) -> tf.Tensor:
    """``[count]`` factors without a pattern, so that different values have different sums."""
    golden_ratio = (np.sqrt(5.0) - 1.0) / 2.0
    return 0.5 + tf.math.floormod(golden_ratio * tf.cast(tf.range(1, count + 1), tf.float64), 1.0)


def _weights(keys: tf.Tensor) -> tf.Tensor:
    """``[1, num_candidates]``: one over how often each of ``[num_candidates]`` keys occurs."""
    ordered = tf.sort(keys)
    copies = tf.searchsorted(ordered, keys, side="right") - tf.searchsorted(ordered, keys)
    # A model that cannot tell any two candidates apart has to learn from all of them. Keys that are
    # no numbers are found nowhere.
    collapsed = tf.equal(ordered[:1], ordered[-1:])
    copies = tf.where(collapsed, tf.ones_like(copies), tf.maximum(copies, 1))
    return 1.0 / tf.cast(copies[tf.newaxis, :], tf.float64)
