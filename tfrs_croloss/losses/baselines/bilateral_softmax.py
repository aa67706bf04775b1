"""BSL."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.losses.base import DEFAULT_REDUCTION, RowLoss
from tfrs_croloss.losses.baselines._rows import log_sum_exp, relative_weights
from tfrs_croloss.losses.ranks import RankEstimator, count_true


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class BilateralSoftmax(RowLoss):
    r"""BSL: softmax that averages over positives as over negatives, with a power of the latter.

    .. math:: L = P \, \Bigl(-\log \frac{1}{P} \sum_i e^{s_i} + \kappa \log \sum_j v_j e^{s_j}\Bigr)

    for the P positives :math:`s_i` of a row: noisy positives, which have low scores, count less.
    This is the form of the authors' code; :math:`\kappa` is the ratio of the temperatures of
    positives and negatives in the paper. A row without negatives has a loss of 0.

    Args:
      negative_exponent: :math:`\kappa`. At 1, with one positive per row, this is softmax without
        the positive in the denominator; the authors use 0.8 to 1.35.
      num_items: size of the catalogue; without it the candidates at hand are the catalogue.
      name: name of the loss.

    The other arguments are as in ``CROLoss``.

    Here the loss is ``-2 + 1.5 * log(exp(1) + exp(1))``:

    >>> print(f"{BilateralSoftmax(1.5)([[1.0, 0.0, 0.0]], [[2.0, 1.0, 1.0]]):.4f}")
    0.5397

    References:
      Wu et al., *BSL: Understanding and Improving Softmax Loss for Recommendation*, ICDE 2024.
    """

    def __init__(
        self,
        negative_exponent: float = 1.1,
        num_items: int | None = None,
        *,
        mask_rows_without_positive: bool = False,
        check_scores: bool = False,
        reduction: str = DEFAULT_REDUCTION,
        name: str | None = "bilateral_softmax",
    ) -> None:
        super().__init__(
            num_items,
            mask_rows_without_positive=mask_rows_without_positive,
            check_scores=check_scores,
            reduction=reduction,
            name=name,
        )
        self.negative_exponent = _checks.positive_number(
            "negative_exponent", negative_exponent, remedy="The authors use 0.8 to 1.35."
        )

    def losses_and_gradient(
        self,
        scores: tf.Tensor,
        positives: tf.Tensor,
        negatives: tf.Tensor,
        estimator: RankEstimator,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        num_positives = count_true(positives, scores.dtype)[:, tf.newaxis]
        log_positives, pull = log_sum_exp(scores, positives)
        log_negatives, push = log_sum_exp(scores, negatives, relative_weights(scores, estimator))
        log_average = log_positives - tf.math.log(tf.maximum(num_positives, 1.0))
        losses = num_positives * (self.negative_exponent * log_negatives - log_average)
        gradient = num_positives * (self.negative_exponent * push - pull)
        compared = tf.reduce_any(negatives, axis=-1, keepdims=True)
        # A NaN positive must not look like a loss of 0 where there is nothing to compare it with.
        alone = tf.where(tf.math.is_nan(log_average), log_average, tf.zeros_like(losses))
        losses = tf.where(compared, losses, alone)
        return losses[:, 0], tf.where(compared, gradient, tf.zeros_like(gradient))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "negative_exponent": self.negative_exponent}
