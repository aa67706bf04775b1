"""The sums that a block of gaps contributes to ranks, with the transcendental functions shared.

The readable definitions are in ``tfrs_croloss.comparison``; what is here gives the same numbers from
fewer passes over the matrix. Candidates that do not compete are given a gap of ``NO_GAP`` instead of
a mask: every built-in kernel is exactly zero, and flat, that far below a tie.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tfrs_croloss import _numeric, comparison
from tfrs_croloss.objective import RankObjective
from tfrs_croloss.rank import RankEstimator

NO_GAP = -1e30
# Past this gap log(1 + exp(gap)) is the gap itself, and exp(gap) still fits float32.
_LARGE_GAP = 60.0


@dataclasses.dataclass(frozen=True)
class BlockLosses:
    """The losses of a block of rows and their slopes, ``row_factors[i] * slopes[i, j]``.

    The factors are left apart so that they can be multiplied into the thin side of a matrix
    product.
    """

    losses: tf.Tensor
    row_factors: tf.Tensor
    slopes: tf.Tensor
    slope_sums: tf.Tensor


def has_fast_form(objective: RankObjective) -> bool:
    """Whether both kernels are built in, and so vanish at ``NO_GAP``."""
    kernels = (objective.kernel, objective.rank_kernel or objective.kernel)
    return all(type(kernel) in comparison.BUILT_IN.values() for kernel in kernels)


def block_losses(
    gaps: tf.Tensor, objective: RankObjective, estimator: RankEstimator
) -> BlockLosses:
    """The losses of a block and their slopes.

    Args:
      gaps: ``[num_rows, num_candidates]``, ``NO_GAP`` where a candidate does not compete.
      objective: of built-in kernels.
      estimator: how the candidates stand for the catalogue.
    """
    kernel, rank_kernel, weighting = objective.kernel, objective.rank_kernel, objective.weighting
    row_weights, candidate_weights = estimator.row_weights, estimator.candidate_weights
    if isinstance(kernel, comparison.Exponential):
        log_sum, slopes, log_slope_scale = _exponential(gaps, row_weights, candidate_weights)
        slope_sums = tf.reduce_sum(slopes, axis=-1)
    else:
        counts, slopes = _counts_and_slopes(kernel, gaps)
        if candidate_weights is not None:
            counts, slopes = counts * candidate_weights, slopes * candidate_weights
        log_sum = tf.math.log1p(row_weights * tf.reduce_sum(counts, axis=-1))
        log_slope_scale = tf.math.log(row_weights)
        slope_sums = tf.reduce_sum(slopes, axis=-1)
    log_rank = estimator.log_scale + log_sum
    if rank_kernel is None:
        log_density = weighting.log_density(log_rank, estimator.num_items)
        losses = weighting.integral_at_log(log_rank, estimator.num_items)
    else:
        if isinstance(kernel, comparison.Softplus) and isinstance(rank_kernel, comparison.Sigmoid):
            log_rank_sum = tf.math.log1p(row_weights * slope_sums)
        elif rank_kernel == kernel:
            log_rank_sum = log_sum
        else:
            log_rank_sum = _log1p_sum(rank_kernel, gaps, row_weights, candidate_weights)
        log_density = weighting.log_density(
            estimator.log_scale + log_rank_sum, estimator.num_items
        )
        losses = _numeric.saturating_exp(log_density + log_rank)
    row_factors = _numeric.saturating_exp(log_density + estimator.log_scale + log_slope_scale)
    return BlockLosses(losses, row_factors, slopes, slope_sums)


def _counts_and_slopes(
    kernel: comparison.ComparisonKernel, gaps: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The kernel and its derivative at every gap, from one exponential where they need one."""
    if isinstance(kernel, comparison.Softplus):
        exponential = tf.exp(tf.minimum(gaps, _LARGE_GAP))
        counts = tf.maximum(tf.math.log1p(exponential), gaps)
        return counts, exponential / (1.0 + exponential)
    if isinstance(kernel, comparison.Sigmoid):
        counts = tf.sigmoid(gaps)
        return counts, counts * tf.sigmoid(-gaps)
    if isinstance(kernel, comparison.Hinge):
        counts = kernel(gaps)
        return counts, tf.sign(counts)
    return kernel(gaps), kernel.derivative(gaps)


def _exponential(
    gaps: tf.Tensor, row_weights: tf.Tensor, candidate_weights: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """``log(1 + sum)``, the summands over the largest of them, and the logarithm of that."""
    log_weights = tf.math.log(row_weights)
    if candidate_weights is not None:
        gaps = gaps + tf.math.log(candidate_weights)
    largest = tf.maximum(tf.reduce_max(gaps, axis=-1) + log_weights, 0.0)
    summands = tf.exp(gaps + (log_weights - largest)[:, tf.newaxis])
    total = tf.reduce_sum(summands, axis=-1)
    log_sum = largest + tf.math.log1p(total + tf.math.expm1(-largest))
    return log_sum, summands, largest


def _log1p_sum(
    kernel: comparison.ComparisonKernel,
    gaps: tf.Tensor,
    row_weights: tf.Tensor,
    candidate_weights: tf.Tensor | None,
) -> tf.Tensor:
    if isinstance(kernel, comparison.Exponential):
        return _exponential(gaps, row_weights, candidate_weights)[0]
    counts = kernel(gaps)
    if candidate_weights is not None:
        counts = counts * candidate_weights
    return tf.math.log1p(row_weights * tf.reduce_sum(counts, axis=-1))
