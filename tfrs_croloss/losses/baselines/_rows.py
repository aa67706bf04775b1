"""What several baselines compute from the scores of a row."""

from __future__ import annotations

import tensorflow as tf

from tfrs_croloss.losses.ranks import RankEstimator, count_true


def relative_weights(scores: tf.Tensor, estimator: RankEstimator) -> tf.Tensor:
    """The weight v of each candidate, broadcastable to the scores."""
    if estimator.candidate_weights is None:
        return tf.ones_like(scores[:1, :1])
    return estimator.candidate_weights / tf.maximum(estimator.num_items - 1.0, 1.0)[:, tf.newaxis]


def considered(scores: tf.Tensor, *considered: tf.Tensor) -> tf.Tensor:
    """The scores, with 0 where they are not considered and may be NaN."""
    some = tf.logical_or(considered[0], considered[-1])
    return tf.where(some, scores, tf.zeros_like(scores))


def log_sum_exp(
    scores: tf.Tensor, valid: tf.Tensor, weights: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """The log of the sum of ``weights * exp(scores)``, ``[num_queries, 1]``, and its gradient.

    In rows without a valid candidate, the logarithm is far below any score and the gradient is 0.
    """
    lowest = scores.dtype.min / 4
    exponents = scores if weights is None else scores + tf.math.log(weights)
    exponents = tf.where(valid, exponents, lowest)
    largest = tf.reduce_max(exponents, axis=-1, keepdims=True)
    summands = tf.where(valid, tf.exp(exponents - largest), tf.zeros_like(exponents))
    total = tf.reduce_sum(summands, axis=-1, keepdims=True)
    some = tf.reduce_any(valid, axis=-1, keepdims=True)
    divisor = tf.where(some, total, tf.ones_like(total))
    return largest + tf.math.log(divisor), summands / divisor


def score_reached(
    scores: tf.Tensor, negatives: tf.Tensor, weights: tf.Tensor | None, needed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The score at which the highest negatives of each row add up to a total weight.

    Args:
      scores: ``[num_queries, num_candidates]``.
      negatives: the same shape, booleans.
      weights: weights of the candidates, broadcastable to the scores; None if each has weight 1.
      needed: ``[num_queries]`` total weight.

    Returns:
      ``[num_queries]`` scores, and whether the negatives of the row add up to the total at all. If
      they do not, the score is the lowest one of the type.
    """
    lowest = scores.dtype.min
    competing = tf.where(negatives, scores, lowest)
    width = tf.shape(scores)[1]
    # A rounding error should not make it one more.
    if weights is None:
        count = count_true(negatives, scores.dtype)
        places = tf.maximum(tf.math.ceil(needed - 1e-4), 1.0)
        most = tf.cast(tf.reduce_max(tf.concat([places, [1.0]], axis=0)), tf.int32)
        most = tf.minimum(most, width)
        highest, _ = tf.math.top_k(competing, most)
        place = tf.minimum(tf.cast(places, tf.int32), most) - 1
        reached = places <= count
    else:
        highest, order = tf.math.top_k(competing, width)
        counted = tf.where(negatives, weights, tf.zeros_like(scores))
        total = tf.cumsum(tf.gather(counted, order, batch_dims=1), axis=-1)
        short = tf.cast(total < needed[:, tf.newaxis] * (1.0 - 1e-4), tf.int32)
        place = tf.reduce_sum(short, axis=-1)
        reached = place < width
        place = tf.minimum(place, width - 1)
    threshold = tf.gather(highest, place, batch_dims=1)
    return tf.where(reached, threshold, lowest), reached


def retrieval_threshold(
    scores: tf.Tensor, negatives: tf.Tensor, estimator: RankEstimator, retrieval_size: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """The score that a positive should have to be among the K items retrieved.

    It is the K-th highest score of the negatives; with sampled negatives, the score reached by
    negatives that stand for K items.

    Returns:
      ``[num_queries, 1]`` scores, and whether there are as many items. If there are not, the score
      has no meaning.
    """
    others = tf.maximum(estimator.num_items - 1.0, 1.0)
    if estimator.candidate_weights is None:
        needed = retrieval_size * count_true(negatives, scores.dtype) / others
        threshold, reached = score_reached(scores, negatives, None, needed)
    else:
        needed = tf.cast(retrieval_size, scores.dtype) * tf.ones_like(others)
        threshold, reached = score_reached(scores, negatives, estimator.weights, needed)
    enough = tf.logical_and(reached, retrieval_size <= others)
    return threshold[:, tf.newaxis], enough[:, tf.newaxis]
