r"""Ranks of positives among candidates: soft, exact, and estimated from a sample.

Every rank here has one form, :math:`R = s \, (1 + \sum_i \omega_i \, \phi(g_i))`, where the gap
:math:`g_i` is the score of negative i minus that of the positive. What differs is the scale s and
the weights:

================  ===================  ======================  ===================================
estimate          s                    weight of a negative    when it is right
================  ===================  ======================  ===================================
no ``num_items``  1                    1                       the candidates are the catalogue
``"paper"``       num_items / (n + 1)  1                       the n negatives are all there are;
                                                               else a perfect positive ranks s.
                                                               With n above num_items - 1, this is
                                                               ``"unbiased"``
``"unbiased"``    1                    (num_items - 1) / n     uniform negatives
probabilities     1                    1 / (n q_i)             negatives drawn with probability q_i
================  ===================  ======================  ===================================

Candidates that are masked, and positives, add exactly zero and are not counted in n.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tfrs_croloss import _checks, _keras
from tfrs_croloss.losses import _numeric, kernels

RANK_ESTIMATES = ("paper", "unbiased")
# Sampling probabilities below it count as this much: sums of their inverses fit float32.
_LEAST = 1e-30


@dataclasses.dataclass(frozen=True)
class RankEstimator:
    """How a row of candidates represents the catalogue.

    Attributes:
      num_items: ``[num_queries]`` size of the catalogue.
      log_scale: ``[num_queries]`` logarithm of s.
      row_weights: ``[num_queries]`` factor of the weights that a row's candidates share.
      candidate_weights: ``[1 or num_queries, num_candidates]`` factor of the weights that they do
        not share; None if there is none.
    """

    num_items: tf.Tensor
    log_scale: tf.Tensor
    row_weights: tf.Tensor
    candidate_weights: tf.Tensor | None = None

    @property
    def weights(self) -> tf.Tensor:
        """The weights, broadcastable to ``[num_queries, num_candidates]``."""
        row_weights = self.row_weights[:, tf.newaxis]
        if self.candidate_weights is None:
            return row_weights
        return row_weights * self.candidate_weights

    def log_rank(
        self, gaps: tf.Tensor, negatives: tf.Tensor, kernel: kernels.ComparisonKernel
    ) -> tf.Tensor:
        """The logarithm of the rank, ``[num_queries]``."""
        return self.log_scale + kernel.log1p_sum(gaps, negatives, self.weights)

    def log_rank_of(self, counts: tf.Tensor, negatives: tf.Tensor) -> tf.Tensor:
        """The logarithm of the rank from the values of a kernel at the gaps."""
        counts = tf.where(negatives, self.weights * counts, tf.zeros_like(counts))
        total = _numeric.saturated(tf.reduce_sum(counts, axis=-1))
        return self.log_scale + tf.math.log1p(total)


def rank_estimator(
    count: tf.Tensor,
    *,
    num_items: int | None = None,
    rank_estimate: str = "paper",
    candidate_weights: tf.Tensor | None = None,
) -> RankEstimator:
    """The estimator for rows with a given number of negatives.

    Args:
      count: ``[num_queries]`` number of negatives in each row, in the computing type.
      num_items: size of the catalogue; without it the candidates at hand are the catalogue.
      rank_estimate: ``"paper"`` or ``"unbiased"``; ignored if there are weights.
      candidate_weights: the result of ``importance_weights``, or None.
    """
    dtype = count.dtype
    if num_items is None:
        catalogue = count + 1.0
    else:
        catalogue = tf.fill(tf.shape(count), _constant(num_items, dtype))
    no_scale = tf.zeros_like(count)
    # A row without negatives has nothing to weigh; 1 keeps its arithmetic finite.
    draws = tf.maximum(count, 1.0)
    if candidate_weights is not None:
        return RankEstimator(catalogue, no_scale, 1.0 / draws, candidate_weights)
    if num_items is None:
        return RankEstimator(catalogue, no_scale, tf.ones_like(count))
    others = max(num_items - 1, 1)
    if rank_estimate == "unbiased":
        return RankEstimator(catalogue, no_scale, _constant(others, dtype) / draws)
    # More candidates than items: some are repeated. The paper's rank would fall below 1 there, and
    # the unbiased one does not; the two are the same where there are as many candidates as items.
    weights = tf.minimum(_constant(others, dtype) / draws, 1.0)
    scale = tf.maximum(tf.math.log(catalogue) - tf.math.log1p(count), 0.0)
    return RankEstimator(catalogue, scale, weights)


def count_true(negatives: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The number of True in each row."""
    return tf.reduce_sum(tf.cast(negatives, dtype), axis=-1)


def soft_rank(
    scores: tf.Tensor,
    labels: tf.Tensor,
    *,
    kernel: kernels.KernelLike = "sigmoid",
    mask: tf.Tensor | None = None,
    num_items: int | None = None,
    rank_estimate: str = "paper",
    sampling_probability: tf.Tensor | None = None,
) -> tf.Tensor:
    r"""The rank of each row's positive: :math:`R_\phi = s \, (1 + \sum_i \omega_i \phi(g_i))`.

    Args:
      scores: ``[num_queries, num_candidates]``.
      labels: the same shape; 1 at the one positive of each row, 0 elsewhere.
      kernel: how a gap counts; ``"unit_step"`` gives the exact rank, ties against the positive.
      mask: the same shape, booleans; candidates at False are ignored.
      num_items: size of the catalogue that the candidates were drawn from; without it they are the
        catalogue.
      rank_estimate: ``"paper"`` or ``"unbiased"``.
      sampling_probability: ``[num_candidates]`` or the shape of ``scores``; the probability with
        which each candidate is drawn. Replaces ``rank_estimate``.

    Returns:
      ``[num_queries]`` ranks, at least 1.

    Two of three negatives score at least as high as the positive:

    >>> print(soft_rank([[2.0, 3.0, 2.0, 1.0]], [[1, 0, 0, 0]], kernel="unit_step").numpy())
    [3.]
    """
    _keras.require_tensorflow("soft_rank")
    comparison_kernel = kernels.get(kernel, gradient=False)
    checked = _checks.candidates(scores, labels, mask)
    scores, positives, negatives = positives_and_negatives(*checked)
    count = tf.reduce_sum(tf.cast(positives, tf.int32), axis=-1)
    scores = _checks.rows(
        scores,
        tf.not_equal(count, 1),
        "`labels` should have exactly one positive that `mask` does not hide in each row. Repeat "
        "the row once per positive, masking the others.",
    )
    scores = _numeric.bounded(tf.cast(scores, _numeric.compute_dtype(scores.dtype)))
    estimator = rank_estimator(
        count_true(negatives, scores.dtype),
        num_items=_checks.catalogue_size("num_items", num_items),
        rank_estimate=_checks.one_of("rank_estimate", rank_estimate, RANK_ESTIMATES),
        candidate_weights=importance_weights(sampling_probability, scores),
    )
    positive = tf.reduce_sum(tf.where(positives, scores, 0.0), axis=-1, keepdims=True)
    gaps = tf.where(negatives, scores - positive, 0.0)
    counts = tf.where(negatives, estimator.weights * comparison_kernel(gaps), 0.0)
    ranks = tf.exp(estimator.log_scale) * (1.0 + tf.reduce_sum(counts, axis=-1))
    return _numeric.saturated(ranks)


def positives_and_negatives(
    scores: tf.Tensor, labels: tf.Tensor, mask: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Which candidates are positives and which are negatives, after a check of the labels.

    Args:
      scores: ``[num_queries, num_candidates]``; these arguments come from ``_checks.candidates``.
      labels: the same shape; 1 or True at the positives, 0 or False elsewhere.
      mask: the same shape, booleans, or None; candidates at False are neither.

    Returns:
      The scores, the positives (booleans) and the negatives (booleans), in the shape of ``scores``.
    """
    if labels.dtype == tf.bool:
        positives = labels
    else:
        positives = tf.not_equal(labels, tf.zeros([], labels.dtype))
        neither = tf.logical_and(positives, tf.not_equal(labels, tf.ones([], labels.dtype)))
        scores = _checks.rows(
            scores,
            tf.reduce_any(neither, axis=-1),
            "`labels` should be 1 at the positives and 0 elsewhere, without label smoothing. Keras "
            "passes labels first: give compile() a loss object such as LambdaCROLoss(), not the "
            "function.",
        )
    negatives = tf.logical_not(positives)
    if mask is not None:
        positives, negatives = tf.logical_and(positives, mask), tf.logical_and(negatives, mask)
    return scores, positives, negatives


def importance_weights(values: tf.Tensor | None, scores: tf.Tensor) -> tf.Tensor | None:
    """``[1 or num_queries, num_candidates]``: one over the checked sampling probabilities.

    Args:
      values: ``[num_candidates]`` or the shape of ``scores``, or None.
      scores: ``[num_queries, num_candidates]``.
    """
    if values is None:
        return None
    name, dtype = "sampling_probability", _numeric.compute_dtype(scores.dtype)
    values = _checks.floating(name, values, dtype)
    if values.shape.rank not in (None, 1, 2):
        raise ValueError(
            f"`{name}` should have the shape [num_candidates] or that of `scores`. Received shape: "
            f"{values.shape}."
        )
    if values.shape.rank == 1:
        values = _checks.with_shape(
            name, values, [scores.shape[1]], [tf.shape(scores)[1]], ["num_candidates"]
        )
    else:
        values = _checks.same_shape(name, values, "scores", scores)
    weights = inverse_probability(values, dtype, name)
    return weights[tf.newaxis, :] if values.shape.rank == 1 else weights


def inverse_probability(values: tf.Tensor, dtype: tf.DType, name: str) -> tf.Tensor:
    """One over probabilities of any shape, which are checked to be above 0 and at most 1."""
    values = tf.cast(values, dtype)
    flat = tf.reshape(values, [-1])
    wrong = tf.logical_not(tf.logical_and(flat > 0.0, flat <= 1.0))
    message = (
        f"`{name}` should be above 0 and at most 1: the probability with which the "
        "sampler draws a candidate. Count an item at least once."
    )
    checked = _checks.rows(flat, wrong, message)
    # XLA drops the check above; a wrong probability must not look like a good one.
    inverse = tf.where(wrong, tf.constant(float("nan"), dtype), 1.0 / tf.maximum(checked, _LEAST))
    return tf.ensure_shape(tf.reshape(inverse, tf.shape(values)), values.shape)


def _constant(value: int, dtype: tf.DType) -> tf.Tensor:
    return tf.constant(float(value), dtype)
