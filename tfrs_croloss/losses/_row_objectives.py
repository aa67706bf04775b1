"""Losses and gradients of the rivals, from the scores of a row; the formulas are in ``rivals``."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tfrs_croloss.losses._objective import RowObjective
from tfrs_croloss.losses.ranks import RankEstimator, count_true


@dataclasses.dataclass(frozen=True)
class BinaryObjective(RowObjective):
    """Of ``tfrs_croloss.losses.baselines.BinaryCrossEntropy``."""

    calibration: float

    def losses_and_gradient(
        self,
        scores: tf.Tensor,
        positives: tf.Tensor,
        negatives: tf.Tensor,
        estimator: RankEstimator,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        count = count_true(negatives, scores.dtype)
        sampling_rate = tf.minimum(count / tf.maximum(estimator.num_items - 1.0, 1.0), 1.0)
        beta = (1.0 - self.calibration * (1.0 - sampling_rate))[:, tf.newaxis]
        num_positives = count_true(positives, scores.dtype)[:, tf.newaxis]
        # A negative counts once for each positive that it is compared with.
        pull = tf.where(positives, beta, 0.0)
        push = tf.where(negatives, num_positives * _relative_weights(scores, estimator), 0.0)
        scores = _considered(scores, positives, negatives)
        share = 1.0 / (count + 1.0)
        losses = pull * tf.math.softplus(-scores) + push * tf.math.softplus(scores)
        gradient = push * tf.sigmoid(scores) - pull * tf.sigmoid(-scores)
        return share * tf.reduce_sum(losses, axis=-1), share[:, tf.newaxis] * gradient


@dataclasses.dataclass(frozen=True)
class BilateralObjective(RowObjective):
    """Of ``tfrs_croloss.losses.baselines.BilateralSoftmax``."""

    negative_exponent: float

    def losses_and_gradient(
        self,
        scores: tf.Tensor,
        positives: tf.Tensor,
        negatives: tf.Tensor,
        estimator: RankEstimator,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        num_positives = count_true(positives, scores.dtype)[:, tf.newaxis]
        log_positives, pull = _log_sum_exp(scores, positives)
        log_negatives, push = _log_sum_exp(scores, negatives, _relative_weights(scores, estimator))
        log_average = log_positives - tf.math.log(tf.maximum(num_positives, 1.0))
        losses = num_positives * (self.negative_exponent * log_negatives - log_average)
        gradient = num_positives * (self.negative_exponent * push - pull)
        compared = tf.reduce_any(negatives, axis=-1, keepdims=True)
        # A NaN positive must not look like a loss of 0 where there is nothing to compare it with.
        alone = tf.where(tf.math.is_nan(log_average), log_average, tf.zeros_like(losses))
        losses = tf.where(compared, losses, alone)
        return losses[:, 0], tf.where(compared, gradient, tf.zeros_like(gradient))


@dataclasses.dataclass(frozen=True)
class AtKObjective(RowObjective):
    """Of ``tfrs_croloss.losses.baselines.SoftmaxAtK``."""

    retrieval_size: int
    weight_temperature: float

    def losses_and_gradient(
        self,
        scores: tf.Tensor,
        positives: tf.Tensor,
        negatives: tf.Tensor,
        estimator: RankEstimator,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        weights = _relative_weights(scores, estimator)
        log_negatives, shares = _log_sum_exp(scores, negatives, weights)
        threshold = self._threshold(scores, negatives, estimator)
        own = _considered(scores, positives, positives)
        weight = tf.sigmoid((own - threshold) / self.weight_temperature)
        weight = tf.where(positives, weight, tf.zeros_like(weight))
        losses = weight * tf.math.softplus(log_negatives - own)
        pull = weight * tf.sigmoid(log_negatives - own)
        return (
            tf.reduce_sum(losses, axis=-1),
            tf.reduce_sum(pull, axis=-1, keepdims=True) * shares - pull,
        )

    def _threshold(
        self, scores: tf.Tensor, negatives: tf.Tensor, estimator: RankEstimator
    ) -> tf.Tensor:
        """``[num_queries, 1]``: the score that negatives standing for K items reach."""
        lowest = scores.dtype.min
        competing = tf.where(negatives, scores, lowest)
        count = count_true(negatives, scores.dtype)
        others = tf.maximum(estimator.num_items - 1.0, 1.0)
        if estimator.candidate_weights is None:
            # So many of the sample stand for K items; a rounding error should not make it one more.
            needed = tf.math.ceil(self.retrieval_size * count / others - 1e-4)
            needed = tf.maximum(needed, 1.0)
            most = tf.cast(tf.reduce_max(tf.concat([needed, [1.0]], axis=0)), tf.int32)
            most = tf.minimum(most, tf.shape(scores)[1])
            highest, _ = tf.math.top_k(competing, most)
            place = tf.minimum(tf.cast(needed, tf.int32), most) - 1
            threshold = tf.gather(highest, place, batch_dims=1)
            reached = needed <= count
        else:
            highest, order = tf.math.top_k(competing, tf.shape(scores)[1])
            stands_for = tf.where(negatives, estimator.weights, 0.0)
            total = tf.cumsum(tf.gather(stands_for, order, batch_dims=1), axis=-1)
            short = tf.cast(total < self.retrieval_size * (1.0 - 1e-4), tf.int32)
            place = tf.reduce_sum(short, axis=-1)
            reached = place < tf.shape(scores)[1]
            threshold = tf.gather(highest, tf.minimum(place, tf.shape(scores)[1] - 1), batch_dims=1)
        enough = tf.logical_and(reached, self.retrieval_size <= others)
        return tf.where(enough, threshold, lowest / 4)[:, tf.newaxis]


def _relative_weights(scores: tf.Tensor, estimator: RankEstimator) -> tf.Tensor:
    """By how much each candidate counts, 1 where it was drawn uniformly; broadcastable."""
    if estimator.candidate_weights is None:
        return tf.ones_like(scores[:1, :1])
    return estimator.candidate_weights / tf.maximum(estimator.num_items - 1.0, 1.0)[:, tf.newaxis]


def _considered(scores: tf.Tensor, *considered: tf.Tensor) -> tf.Tensor:
    """The scores, 0 where not considered: what is there may be NaN."""
    some = tf.logical_or(considered[0], considered[-1])
    return tf.where(some, scores, tf.zeros_like(scores))


def _log_sum_exp(
    scores: tf.Tensor, valid: tf.Tensor, weights: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """``[num_queries, 1]`` the log of the sum of ``weights * exp(scores)``, and its gradient.

    Where nothing is valid the one is far below any score and the other zero.
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
