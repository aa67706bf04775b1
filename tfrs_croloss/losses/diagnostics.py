"""What to watch while a loss trains: ranks among the candidates, and rows without a gradient."""

from __future__ import annotations

import tensorflow as tf

from tfrs_croloss.losses import kernels
from tfrs_croloss.losses._objective import RankObjective
from tfrs_croloss.losses.base import RetrievalLoss
from tfrs_croloss.losses.ranks import soft_rank


def rank_diagnostics(
    scores: tf.Tensor, labels: tf.Tensor, loss: RetrievalLoss, mask: tf.Tensor | None = None
) -> dict[str, tf.Tensor]:
    """Diagnostics of a batch, each a mean over its queries.

    - ``mean_soft_rank``: the rank among the candidates at hand, by the kernel that estimates the
      loss's ranks, or by the sigmoid if the loss has none.
    - ``mean_hard_rank``: the true rank; ties count against the positive.
    - ``zero_gradient_share``: the share of queries whose loss has a gradient of exactly zero. With
      the hinge, these are the queries whose positive is ahead by the margin.

    >>> from tfrs_croloss.losses import CROLoss
    >>> scores, labels = [[9.0, 1.0], [2.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]
    >>> values = rank_diagnostics(scores, labels, CROLoss.triplet(margin=5.0))
    >>> print({name: float(value) for name, value in values.items()})
    {'mean_soft_rank': 3.0, 'mean_hard_rank': 1.0, 'zero_gradient_share': 0.5}

    Args:
      scores: ``[num_queries, num_candidates]``.
      labels: the same shape; 1 at the one positive of each row, 0 elsewhere.
      loss: the loss that the scores are trained with.
      mask: the same shape, booleans; candidates at False are ignored.

    Returns:
      Float32 scalars by name.
    """
    scores = tf.convert_to_tensor(scores)
    with tf.GradientTape() as tape:
        tape.watch(scores)
        losses = loss.per_query(scores, labels, mask=mask)
    gradient = tape.gradient(losses, scores)
    is_zero = tf.reduce_all(tf.equal(gradient, 0.0), axis=-1)
    objective = loss.objective
    kernel: kernels.KernelLike = "sigmoid"
    if isinstance(objective, RankObjective):
        kernel = objective.rank_kernel or objective.kernel
    ranks = {
        "mean_soft_rank": soft_rank(scores, labels, kernel=kernel, mask=mask),
        "mean_hard_rank": soft_rank(scores, labels, kernel="unit_step", mask=mask),
        "zero_gradient_share": tf.cast(is_zero, tf.float32),
    }
    return {name: tf.cast(tf.reduce_mean(values), tf.float32) for name, values in ranks.items()}
