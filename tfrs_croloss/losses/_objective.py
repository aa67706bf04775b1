r"""From gaps and ranks to losses and their gradients, row by row.

A loss is a function of the gaps between the negatives' scores and the positive's. With the rank
weighting :math:`w` and its integral :math:`W`, CROLoss is :math:`W(R_\phi)` and the Lambda method
:math:`\mathrm{SG}[w(R_{\phi_1})] \, R_{\phi_2}`. Both have the same gradient with respect to a gap,
:math:`\lambda \, \omega \, \phi'(g)` with :math:`\lambda = s \, w(R)`: the rank decides how much a
pair matters, the kernel how a gap is closed. The log form of the Lambda method,
:math:`\mathrm{SG}[w(R_{\phi_1}) R_{\phi_1}] \log R_{\phi_2}`, has
:math:`\lambda = s \, w(R_{\phi_1}) R_{\phi_1} / R_{\phi_2}`, so that the gradients of a row have a
bounded sum. The gradient is written down here rather than differentiated, so that it stays finite
where the loss saturates. A ``Pull`` is the share of the negatives' gradients that the positive
receives.

This module is separate because ``_chunk_sums`` needs it as well, and ``_dense`` builds on both.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tfrs_croloss.losses import _numeric, kernels, pulls, weightings
from tfrs_croloss.losses.ranks import RankEstimator

DESCENTS = ("rank", "log_rank")
"""What the Lambda method lowers: the soft rank, as in the paper, or its logarithm."""


class FromRanks(NamedTuple):
    """What follows from the ranks of a row's positive; all are ``[num_queries]``.

    Attributes:
      losses: the losses.
      log_factor: logarithm of the factor of the kernel's slopes, without the estimator's weights.
      pull: the share of the slopes that pulls the positive; None if it is all of them.
    """

    losses: tf.Tensor
    log_factor: tf.Tensor
    pull: tf.Tensor | None


@dataclasses.dataclass(frozen=True)
class RankObjective:
    """How a loss follows from the ranks of the positives.

    Attributes:
      weighting: which ranks matter.
      kernel: the kernel that closes the gaps.
      rank_kernel: the kernel that estimates the rank for the Lambda method; None for CROLoss, whose
        kernel does both.
      pull: how strongly the positive is pulled.
      descent: what the Lambda method lowers, one of ``DESCENTS``; of no effect in CROLoss.
    """

    weighting: weightings.RankWeighting
    kernel: kernels.ComparisonKernel
    rank_kernel: kernels.ComparisonKernel | None = None
    pull: pulls.Pull = pulls.Pull()
    descent: str = "rank"

    def from_ranks(
        self, log_gap_rank: tf.Tensor, log_rank: tf.Tensor, estimator: RankEstimator
    ) -> FromRanks:
        """Losses and factors from the logarithms of the ranks by the two kernels.

        Args:
          log_gap_rank: ``[num_queries]``, by the kernel that closes the gaps.
          log_rank: ``[num_queries]``, by the kernel that estimates the rank; the same in CROLoss.
          estimator: how the candidates represent the catalogue.
        """
        weighting, num_items = self.weighting, estimator.num_items
        log_density = weighting.log_density(log_rank, num_items)
        log_factor = log_density
        if self.rank_kernel is None:
            losses = weighting.integral_at_log(log_rank, num_items)
        elif self.descent == "rank":
            losses = _numeric.saturating_exp(log_density + log_gap_rank)
        else:
            log_weight = log_density + log_rank
            losses = _numeric.saturating_exp(log_weight) * log_gap_rank
            log_factor = log_weight - log_gap_rank
        pull = None if self.pull.is_whole else self.pull(log_gap_rank)
        return FromRanks(losses, log_factor + estimator.log_scale, pull)

    def losses_and_slopes(
        self, gaps: tf.Tensor, negatives: tf.Tensor, estimator: RankEstimator
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """The loss of each row, its derivative with respect to each gap, and the pull.

        Returns:
          ``[num_queries]`` losses, ``[num_queries, num_candidates]`` slopes, and the share of the
          slopes' sum that pulls the positive, ``[num_queries]``, or None for all of it.
        """
        kernel, rank_kernel = self.kernel, self.rank_kernel
        derivative = None
        if isinstance(kernel, kernels.LogKernel):
            log_gap_rank = estimator.log_rank(gaps, negatives, kernel)
        else:
            counts, derivative = kernel.value_and_derivative(gaps)
            log_gap_rank = estimator.log_rank_of(counts, negatives)
        if rank_kernel is None or rank_kernel == kernel:
            log_rank = log_gap_rank
        elif rank_kernel == kernel.derivative_kernel:
            log_rank = estimator.log_rank_of(derivative, negatives)
        else:
            log_rank = estimator.log_rank(gaps, negatives, rank_kernel)
        found = self.from_ranks(log_gap_rank, log_rank, estimator)
        log_scale = found.log_factor[:, tf.newaxis]
        if isinstance(kernel, kernels.LogKernel):
            slopes = kernel.scaled_derivative(gaps, estimator.weights, log_scale)
        else:
            slopes = _numeric.saturating_exp(log_scale) * estimator.weights * derivative
        return found.losses, tf.where(negatives, slopes, tf.zeros_like(slopes)), found.pull


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
