"""Talos."""

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
class Talos(RowLoss):
    r"""Talos: softmax cross-entropy of how far scores are above the threshold of the top K.

    .. math::

      L = -\log \frac{\sigma(c - \beta_K)^{1/\tau}}
      {\sigma(c - \beta_K)^{1/\tau} + \sum_j v_j \, \sigma(c_j - \beta_K)^{1/\tau}}

    for the similarities :math:`c = \tau s` before the division by the temperature :math:`\tau`.
    :math:`\beta_K` is the K-th highest similarity of the negatives, or the one reached by negatives
    that stand for K items if they are a sample, and has no gradient. Scores far above the threshold
    are retrieved anyway: the sigmoid flattens them. If there are fewer than K items, the lowest
    negative is the threshold.

    What differs from the authors' code: they learn the threshold of each user by quantile
    regression, from the user's training items and samples together, whereas here it is exact for
    the candidates of the row, without known positives. Their sum leaves out the positive, which
    their paper has.

    Args:
      retrieval_size: K, the number of items that are retrieved.
      temperature: :math:`\tau`, the temperature that the scores were divided by.
      num_items: size of the catalogue; without it the candidates at hand are the catalogue.
      name: name of the loss.

    The other arguments are as in ``CROLoss``.

    All are at the threshold, so the loss is ``log(1 + 2)``:

    >>> loss = Talos(retrieval_size=1)
    >>> print(f"{loss([[1.0, 0.0, 0.0]], [[2.0, 2.0, 2.0]]):.4f}")
    1.0986

    References:
      Zhang et al., *Talos: Optimizing Top-K Accuracy in Recommender Systems*, WWW 2026.
    """

    def __init__(
        self,
        retrieval_size: int,
        temperature: float = 0.1,
        num_items: int | None = None,
        *,
        mask_rows_without_positive: bool = False,
        check_scores: bool = False,
        reduction: str = DEFAULT_REDUCTION,
        name: str | None = "talos",
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
        self.temperature = _checks.positive_number(
            "temperature", temperature, remedy="Pass the temperature that divides the scores."
        )

    def losses_and_gradient(
        self,
        scores: tf.Tensor,
        positives: tf.Tensor,
        negatives: tf.Tensor,
        estimator: RankEstimator,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        threshold, enough = retrieval_threshold(scores, negatives, estimator, self.retrieval_size)
        last = tf.where(negatives, scores, scores.dtype.max)
        lowest = tf.reduce_min(last, axis=-1, keepdims=True)
        some = tf.reduce_any(negatives, axis=-1, keepdims=True)
        threshold = tf.where(enough, threshold, tf.where(some, lowest, tf.zeros_like(lowest)))
        above = self.temperature * (considered(scores, positives, negatives) - threshold)
        linked = tf.math.log_sigmoid(above) / self.temperature
        slopes = tf.sigmoid(-above)
        log_negatives, shares = log_sum_exp(linked, negatives, relative_weights(scores, estimator))
        gaps = log_negatives - considered(linked, positives, positives)
        zeros = tf.zeros_like(gaps)
        losses = tf.where(positives, tf.math.softplus(gaps), zeros)
        pull = tf.where(positives, tf.sigmoid(gaps), zeros)
        push = tf.reduce_sum(pull, axis=-1, keepdims=True) * shares
        return tf.reduce_sum(losses, axis=-1), (push - pull) * slopes

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "retrieval_size": self.retrieval_size,
            "temperature": self.temperature,
        }
