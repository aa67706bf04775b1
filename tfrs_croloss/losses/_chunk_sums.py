"""From the sums over chunks of candidates to losses and the factors of their gradients.

A chunk's sums come from the kernels (``ComparisonKernel.block_sums``). They give the numbers of the
readable form in ``_objective`` from fewer passes over the matrix, and for candidates that come in
several chunks. Candidates that do not compete have a gap of ``kernels.FAR_BELOW`` instead of a
mask, where the kernels are exactly zero, and flat.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeGuard

import tensorflow as tf

from tfrs_croloss.losses import _numeric, kernels
from tfrs_croloss.losses._objective import Objective, RankObjective
from tfrs_croloss.losses.ranks import RankEstimator


@dataclasses.dataclass(frozen=True)
class ChunkSums:
    """What one chunk of candidates adds to a block of rows.

    Attributes:
      gap_sums: the sums of the kernel that closes the gaps.
      rank_counts: the counts of the rank kernel; None where it is the same kernel.
    """

    gap_sums: kernels.BlockSums
    rank_counts: kernels.BlockCounts | None


def has_fast_form(objective: Objective) -> TypeGuard[RankObjective]:
    """Whether the loss depends on ranks alone, and all its kernels vanish far below a tie."""
    if not isinstance(objective, RankObjective):
        return False
    used = (objective.kernel, objective.rank_kernel or objective.kernel)
    return all(kernel.vanishes_far_below for kernel in used)


def chunk_sums(
    gaps: tf.Tensor,
    objective: RankObjective,
    candidate_weights: tf.Tensor | None,
    bound: tf.Tensor | None = None,
) -> ChunkSums:
    """The sums over one chunk.

    Args:
      gaps: ``[num_rows, chunk_size]``, ``FAR_BELOW`` where a candidate does not compete.
      objective: an objective that has a fast form.
      candidate_weights: broadcastable to ``gaps``, or None.
      bound: a scalar that no gap is above, if one is known.
    """
    kernel, rank_kernel = objective.kernel, objective.rank_kernel
    if rank_kernel is None or rank_kernel == kernel:
        return ChunkSums(kernel.block_sums(gaps, candidate_weights, bound), None)
    if rank_kernel.counts_first:
        rank_counts = rank_kernel.block_counts(gaps, candidate_weights)
        # First, so that the gaps are no longer needed when the other kernel takes their place.
        with tf.control_dependencies([rank_counts.total]):
            gaps = tf.identity(gaps)
        return ChunkSums(kernel.block_sums(gaps, candidate_weights, bound), rank_counts)
    gap_sums = kernel.block_sums(gaps, candidate_weights, bound)
    if rank_kernel == kernel.derivative_kernel:
        rank_counts = kernels.BlockCounts(gap_sums.slope_sums, gap_sums.counts.log_scale)
    else:
        rank_counts = rank_kernel.block_counts(gaps, candidate_weights)
    return ChunkSums(gap_sums, rank_counts)


def losses_and_factors(
    chunks: Sequence[ChunkSums], objective: RankObjective, estimator: RankEstimator
) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor | None]:
    """The losses of a block, the factor of each chunk's slopes, and the pull of the positives.

    The factors, ``[num_rows]`` each, are kept apart from the slopes so that they can be multiplied
    into the thin side of a matrix product. The pull, ``[num_rows]``, is the share of all slopes
    that the positive receives; None if it is all of them.

    Args:
      chunks: the sums over all candidates.
      objective: how the loss follows from the ranks.
      estimator: how the candidates represent the catalogue.
    """
    counts = [chunk.gap_sums.counts for chunk in chunks]
    log_gap_rank = _log_rank(counts, estimator)
    rank_counts = [chunk.rank_counts for chunk in chunks if chunk.rank_counts is not None]
    log_rank = _log_rank(rank_counts, estimator) if rank_counts else log_gap_rank
    found = objective.from_ranks(log_gap_rank, log_rank, estimator)
    log_factor = found.log_factor + tf.math.log(estimator.row_weights)
    log_scales = _log_scales(counts)
    if log_scales:
        factors = [_numeric.saturating_exp(log_factor + scale) for scale in log_scales]
    else:
        factors = [_numeric.saturating_exp(log_factor)] * len(chunks)
    return found.losses, factors, found.pull


def _log_rank(chunks: Sequence[kernels.BlockCounts], estimator: RankEstimator) -> tf.Tensor:
    """The logarithm of the rank, ``[num_rows]``, from the counts of all chunks."""
    log_scales = _log_scales(chunks)
    if not log_scales:
        total = tf.add_n([counts.total for counts in chunks])
        total = _numeric.saturated(estimator.row_weights * total)
        return estimator.log_scale + tf.math.log1p(total)
    log_weights = tf.math.log(estimator.row_weights)
    largest = tf.reduce_max(tf.stack(log_scales), axis=0) + log_weights
    # The sum is divided by the exponential of this: by 1, unless it might not fit the type.
    overall = tf.where(largest > kernels.LARGE_GAP, largest, tf.zeros_like(largest))
    total = tf.add_n(
        [
            counts.total * tf.exp(log_scale + log_weights - overall)
            for counts, log_scale in zip(chunks, log_scales)
        ]
    )
    log_sum = overall + tf.math.log1p(total + tf.math.expm1(-overall))
    return estimator.log_scale + log_sum


def _log_scales(chunks: Sequence[kernels.BlockCounts]) -> list[tf.Tensor]:
    """The log scale of each chunk; an empty list if the kernel does not scale its sums."""
    return [counts.log_scale for counts in chunks if counts.log_scale is not None]
