"""SL@K."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.losses.base import DEFAULT_REDUCTION, RowLoss
from tfrs_croloss.losses.baselines._rows import (
    considered,
    log_sum_exp,
    relative_weights,
    retrieval_threshold,
)
from tfrs_croloss.losses.ranks import RankEstimator


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class SoftmaxAtK(RowLoss):
    r"""SL@K: softmax cross-entropy, weighted by the chance of being among the K items retrieved.

    .. math::

      L = \sigma\bigl((s - \beta_K) / \tau_w\bigr) \log\Bigl(1 + \sum_j v_j e^{s_j - s}\Bigr)

    where :math:`\beta_K` is the K-th highest score of the negatives, so that a positive above it is
    retrieved. With sampled negatives, it is the score reached by negatives that stand for K items.
    It has no gradient. If there are fewer than K items, every positive is retrieved, and the loss
    is softmax cross-entropy.

    The authors differentiate the weight: the worse a positive ranks, the less it is pulled, and a
    positive with a large loss may even be pushed away. With ``differentiate_weight=False``, which
    is ours and not theirs, the weight has no gradient.

    What differs from the authors' code: they refresh the thresholds every 5 or 20 epochs, from the
    user's training items and samples together, whereas here they are those of the row, without
    known positives. Their sum leaves out the positive (the 1), which their paper has.

    Args:
      retrieval_size: K, the number of items that are retrieved.
      weight_temperature: :math:`\tau_w`, in the unit of the scores that the loss receives: the
        paper's value divided by the temperature that divides the scores.
      num_items: size of the catalogue; without it the candidates at hand are the catalogue.
      differentiate_weight: whether the weight takes part in the gradient.
      name: name of the loss.

    The other arguments are as in ``CROLoss``.

    The positive ties with the highest negative, so the loss is half of ``log(1 + 2)``:

    >>> loss = SoftmaxAtK(retrieval_size=1)
    >>> print(f"{loss([[1.0, 0.0, 0.0]], [[2.0, 2.0, 2.0]]):.4f}")
    0.5493

    References:
      Yang et al., *Breaking the Top-K Barrier: Advancing Top-K Ranking Metrics Optimization in
      Recommender Systems*, KDD 2025.
    """

    def __init__(
        self,
        retrieval_size: int,
        weight_temperature: float = 10.0,
        num_items: int | None = None,
        *,
        differentiate_weight: bool = True,
        mask_rows_without_positive: bool = False,
        check_scores: bool = False,
        reduction: str = DEFAULT_REDUCTION,
        name: str | None = "softmax_at_k",
    ) -> None:
        super().__init__(
            num_items,
            mask_rows_without_positive=mask_rows_without_positive,
            check_scores=check_scores,
            reduction=reduction,
            name=name,
        )
        self.retrieval_size = _checks.whole_number(
            "retrieval_size", retrieval_size, remedy="Pass the number of items to retrieve."
        )
        self.weight_temperature = _checks.positive_number(
            "weight_temperature", weight_temperature, remedy="Smaller values cut off more sharply."
        )
        self.differentiate_weight = bool(differentiate_weight)

    def losses_and_gradient(
        self,
        scores: tf.Tensor,
        positives: tf.Tensor,
        negatives: tf.Tensor,
        estimator: RankEstimator,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        weights = relative_weights(scores, estimator)
        log_negatives, shares = log_sum_exp(scores, negatives, weights)
        threshold, enough = retrieval_threshold(scores, negatives, estimator, self.retrieval_size)
        # Where every positive is retrieved, the weight is 1.
        threshold = tf.where(enough, threshold, scores.dtype.min / 4)
        own = considered(scores, positives, positives)
        weight = tf.sigmoid((own - threshold) / self.weight_temperature)
        weight = tf.where(positives, weight, tf.zeros_like(weight))
        softmax = tf.math.softplus(log_negatives - own)
        push = weight * tf.sigmoid(log_negatives - own)
        pull = push
        if self.differentiate_weight:
            below = tf.sigmoid((threshold - own) / self.weight_temperature)
            pull -= weight * below / self.weight_temperature * softmax
        return (
            tf.reduce_sum(weight * softmax, axis=-1),
            tf.reduce_sum(push, axis=-1, keepdims=True) * shares - pull,
        )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "retrieval_size": self.retrieval_size,
            "weight_temperature": self.weight_temperature,
            "differentiate_weight": self.differentiate_weight,
        }
