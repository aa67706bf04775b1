r"""From gaps and ranks to losses and their gradients, row by row.

A loss is a function of the gaps between the negatives' scores and the positive's. With the rank
weighting :math:`w` and its integral :math:`W`, CROLoss is :math:`W(R_\phi)` and the Lambda method
:math:`\mathrm{SG}[w(R_{\phi_1})] \, R_{\phi_2}`. Both have the same gradient with respect to a gap,
:math:`\lambda \, \omega \, \phi'(g)` with :math:`\lambda = s \, w(R)`: the rank decides how much a
pair matters, the kernel how a gap is closed. That gradient is written down here rather than
differentiated, so that it stays finite where the loss saturates.

This module is separate because ``_chunk_sums`` needs it as well, and ``_dense`` builds on both.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tfrs_croloss.losses import _numeric, kernels, weightings
from tfrs_croloss.losses.ranks import RankEstimator


@dataclasses.dataclass(frozen=True)
class RankObjective:
    """How a loss follows from the ranks of the positives.

    Attributes:
      weighting: which ranks matter.
      kernel: the kernel that closes the gaps.
      rank_kernel: the kernel that estimates the rank for the Lambda method; None for CROLoss, whose
        kernel does both.
    """

    weighting: weightings.RankWeighting
    kernel: kernels.ComparisonKernel
    rank_kernel: kernels.ComparisonKernel | None = None

    def losses_and_slopes(
        self, gaps: tf.Tensor, negatives: tf.Tensor, estimator: RankEstimator
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The loss of each row, ``[num_queries]``, and its derivative with respect to each gap."""
        kernel, rank_kernel = self.kernel, self.rank_kernel
        derivative = None
        if isinstance(kernel, kernels.LogKernel):
            log_rank = estimator.log_rank(gaps, negatives, kernel)
        else:
            counts, derivative = kernel.value_and_derivative(gaps)
            log_rank = estimator.log_rank_of(counts, negatives)
        if rank_kernel is None:
            log_density = self.weighting.log_density(log_rank, estimator.num_items)
            losses = self.weighting.integral_at_log(log_rank, estimator.num_items)
        else:
            if rank_kernel == kernel:
                log_true_rank = log_rank
            elif rank_kernel == kernel.derivative_kernel:
                log_true_rank = estimator.log_rank_of(derivative, negatives)
            else:
                log_true_rank = estimator.log_rank(gaps, negatives, rank_kernel)
            log_density = self.weighting.log_density(log_true_rank, estimator.num_items)
            losses = _numeric.saturating_exp(log_density + log_rank)
        log_scale = (log_density + estimator.log_scale)[:, tf.newaxis]
        if isinstance(kernel, kernels.LogKernel):
            slopes = kernel.scaled_derivative(gaps, estimator.weights, log_scale)
        else:
            slopes = _numeric.saturating_exp(log_scale) * estimator.weights * derivative
        return losses, tf.where(negatives, slopes, tf.zeros_like(slopes))


class RowObjective:
    """How a loss follows from the scores of a row, for losses that are not functions of ranks."""

    def losses_and_gradient(
        self,
        scores: tf.Tensor,
        positives: tf.Tensor,
        negatives: tf.Tensor,
        estimator: RankEstimator,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The loss of each row and its gradient.

        Args:
          scores: ``[num_queries, num_candidates]``; may be anything, NaN included, at candidates
            that are neither positive nor negative.
          positives: the same shape, booleans.
          negatives: the same shape, booleans.
          estimator: how the candidates represent the catalogue.

        Returns:
          ``[num_queries]`` losses and their ``[num_queries, num_candidates]`` gradient, which is
          zero at candidates that are neither positive nor negative.
        """
        raise NotImplementedError(
            f"{type(self).__name__} should define `losses_and_gradient(scores, positives, "
            "negatives, estimator)`."
        )


Objective = RankObjective | RowObjective
