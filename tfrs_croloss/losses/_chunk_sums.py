"""The sums that a chunk of gaps contributes to ranks, with the transcendental functions shared.

The readable definitions are in ``tfrs_croloss.losses.kernels``; what is here gives the same numbers
from fewer passes over the matrix, for candidates that come in several chunks. Candidates that do
not compete are given a gap of ``NO_GAP`` instead of a mask: every built-in kernel is exactly zero,
and flat, that far below a tie.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeGuard

import tensorflow as tf

from tfrs_croloss.losses import _numeric, kernels
from tfrs_croloss.losses._objective import Objective, RankObjective
from tfrs_croloss.losses.ranks import RankEstimator

NO_GAP = -1e30


@dataclasses.dataclass(frozen=True)
class ChunkSums:
    """What one chunk of candidates adds to a block of rows.

    Attributes:
      largest: ``[num_rows]``: the logarithm of the chunk's largest exponential, at least 0. What
        comes from the exponential kernel is over that exponential, so that it fits the type.
      counts: ``[num_rows]`` sums of the kernel.
      rank_counts: the same for the rank kernel; None where it is the kernel.
      slopes: ``[num_rows, chunk_size]`` derivatives of the kernel.
      slope_sums: ``[num_rows]``.
    """

    largest: tf.Tensor
    counts: tf.Tensor
    rank_counts: tf.Tensor | None
    slopes: tf.Tensor
    slope_sums: tf.Tensor


def has_fast_form(objective: Objective) -> TypeGuard[RankObjective]:
    """Whether ranks are all it needs, and both kernels are built in and so vanish at ``NO_GAP``."""
    if not isinstance(objective, RankObjective):
        return False
    used = (objective.kernel, objective.rank_kernel or objective.kernel)
    return all(type(kernel) in kernels.BUILT_IN.values() for kernel in used)


def chunk_sums(
    gaps: tf.Tensor,
    objective: RankObjective,
    candidate_weights: tf.Tensor | None,
    bound: tf.Tensor | None = None,
) -> ChunkSums:
    """What one chunk adds.

    Args:
      gaps: ``[num_rows, chunk_size]``, ``NO_GAP`` where a candidate does not compete.
      objective: of built-in kernels.
      candidate_weights: broadcastable to ``gaps``, or None.
      bound: a scalar that no gap is above, if one is known.
    """
    kernel, rank_kernel = objective.kernel, objective.rank_kernel
    steps = None
    if isinstance(rank_kernel, kernels.UnitStep):
        # A NaN is found by the other kernel, which every loss has.
        steps = _weighed(tf.cast(gaps >= 0.0, gaps.dtype), candidate_weights)
        steps = tf.reduce_sum(steps, axis=-1)
        # First, so that the gaps are no longer needed when the other kernel takes their place.
        with tf.control_dependencies([steps]):
            gaps = tf.identity(gaps)
    summands = None
    largest = tf.zeros_like(gaps[:, 0])
    if any(isinstance(one, kernels.Exponential) for one in (kernel, rank_kernel)):
        exponents = gaps if candidate_weights is None else gaps + tf.math.log(candidate_weights)
        largest = tf.maximum(tf.reduce_max(exponents, axis=-1), 0.0)
        summands = tf.exp(exponents - largest[:, tf.newaxis])
    if isinstance(kernel, kernels.Exponential):
        counts = slopes = summands
    else:
        counts, slopes = (
            _weighed(values, candidate_weights)
            for values in _counts_and_slopes(kernel, gaps, bound)
        )
    slope_sums = tf.reduce_sum(slopes, axis=-1)
    totals = slope_sums if counts is slopes else tf.reduce_sum(counts, axis=-1)
    if rank_kernel is None or rank_kernel == kernel:
        rank_counts = None
    elif steps is not None:
        rank_counts = steps
    elif isinstance(rank_kernel, kernels.Exponential):
        rank_counts = tf.reduce_sum(summands, axis=-1)
    elif rank_kernel == kernel.derivative_kernel:
        rank_counts = slope_sums
    else:
        rank_counts = tf.reduce_sum(_weighed(rank_kernel(gaps), candidate_weights), axis=-1)
    return ChunkSums(largest, totals, rank_counts, slopes, slope_sums)


def losses_and_factors(
    chunks: Sequence[ChunkSums], objective: RankObjective, estimator: RankEstimator
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The losses of a block, ``[num_rows]``, and what each chunk's slopes are to be multiplied by.

    The factors, ``[num_rows]`` each, are left apart from the slopes so that they can be multiplied
    into the thin side of a matrix product.

    Args:
      chunks: the sums of all candidates.
      objective: what to make of the ranks.
      estimator: how the candidates stand for the catalogue.
    """
    weighting = objective.weighting
    log_weights = tf.math.log(estimator.row_weights)
    largest = tf.reduce_max(tf.stack([chunk.largest for chunk in chunks]), axis=0)
    # What the weighed exponentials are brought over: nothing, unless their sum might not fit.
    overall = tf.where(
        largest + log_weights > kernels.LARGE_GAP, largest + log_weights, tf.zeros_like(largest)
    )

    def log_rank(kernel: kernels.ComparisonKernel, counts: Sequence[tf.Tensor]) -> tf.Tensor:
        if isinstance(kernel, kernels.Exponential):
            total = tf.add_n(
                [
                    count * tf.exp(chunk.largest + log_weights - overall)
                    for count, chunk in zip(counts, chunks)
                ]
            )
            log_sum = overall + tf.math.log1p(total + tf.math.expm1(-overall))
        else:
            log_sum = tf.math.log1p(estimator.row_weights * tf.add_n(list(counts)))
        return estimator.log_scale + log_sum

    log_gap_rank = log_rank(objective.kernel, [chunk.counts for chunk in chunks])
    if objective.rank_kernel is None:
        log_density = weighting.log_density(log_gap_rank, estimator.num_items)
        losses = weighting.integral_at_log(log_gap_rank, estimator.num_items)
    else:
        if chunks[0].rank_counts is None:
            log_true_rank = log_gap_rank
        else:
            log_true_rank = log_rank(objective.rank_kernel, [chunk.rank_counts for chunk in chunks])
        log_density = weighting.log_density(log_true_rank, estimator.num_items)
        losses = _numeric.saturating_exp(log_density + log_gap_rank)
    log_factor = log_density + estimator.log_scale + log_weights
    if not isinstance(objective.kernel, kernels.Exponential):
        factor = _numeric.saturating_exp(log_factor)
        return losses, [factor] * len(chunks)
    return losses, [_numeric.saturating_exp(log_factor + chunk.largest) for chunk in chunks]


def _counts_and_slopes(
    kernel: kernels.ComparisonKernel, gaps: tf.Tensor, bound: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """The kernel and its derivative at every gap, from one exponential where they need one."""
    if isinstance(kernel, kernels.Hinge):
        counts = kernel(gaps)
        return counts, tf.sign(counts)
    if isinstance(kernel, (kernels.Sigmoid, kernels.Softplus)):
        return kernel.value_and_derivative(gaps, bound)
    return kernel.value_and_derivative(gaps)


def _weighed(values: tf.Tensor, candidate_weights: tf.Tensor | None) -> tf.Tensor:
    return values if candidate_weights is None else values * candidate_weights
