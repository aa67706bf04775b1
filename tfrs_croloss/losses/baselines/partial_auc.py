"""LLPAUC."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.losses.base import DEFAULT_REDUCTION, RowLoss
from tfrs_croloss.losses.baselines._rows import considered, relative_weights, score_reached
from tfrs_croloss.losses.ranks import RankEstimator, count_true

_SHARE_REMEDY = "Use 1 for all of them; the authors use 0.1 to 0.9 of positives, 0.01 or 0.1 of "


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class LowerLeftPartialAUC(RowLoss):
    r"""LLPAUC: the squared AUC loss of the highest negatives and the highest positives of a row.

    .. math::

      L = P \sum_i p_i \sum_j q_j \, \bigl(1 - \sigma(s_i) + \sigma(s_j)\bigr)^2

    for the P positives of a row. :math:`q_j` averages over the share :math:`\beta` of the negatives
    with the highest scores (a false positive rate of up to :math:`\beta`), :math:`p_i` over the
    share :math:`\alpha` of the positives with the highest scores (a true positive rate of up to
    :math:`\alpha`): the lower left corner under the ROC curve. Where a share is no whole number of
    candidates, the last one counts in part. A row without negatives has a loss of 0.

    What differs from the authors' code: they reach the same averages by a minimum and a maximum
    over auxiliary variables, :math:`a, b, \gamma, s^+, s^-`, which all users share and which are
    trained by gradient descent and ascent, with a softplus of sharpness 5 in place of the hinge.
    Here, both are solved exactly for each row, as in the paper's definition for each user. So with
    one positive in each row, as in the tasks, ``positive_share`` has no effect. The authors apply
    the sigmoid to similarities that are not divided by a temperature.

    Args:
      positive_share: :math:`\alpha`, above 0 and at most 1.
      negative_share: :math:`\beta`, above 0 and at most 1.
      num_items: size of the catalogue; without it the candidates at hand are the catalogue.
      name: name of the loss.

    The other arguments are as in ``CROLoss``.

    Only the higher negative counts, which ties with the positive:

    >>> loss = LowerLeftPartialAUC(negative_share=0.5)
    >>> print(f"{loss([[1.0, 0.0, 0.0]], [[2.0, 2.0, 0.0]]):.4f}")
    1.0000

    References:
      Shi et al., *Lower-Left Partial AUC: An Effective and Efficient Optimization Metric for
      Recommendation*, WWW 2024.
    """

    def __init__(
        self,
        positive_share: float = 1.0,
        negative_share: float = 0.1,
        num_items: int | None = None,
        *,
        mask_rows_without_positive: bool = False,
        check_scores: bool = False,
        reduction: str = DEFAULT_REDUCTION,
        name: str | None = "lower_left_partial_auc",
    ) -> None:
        super().__init__(
            num_items,
            mask_rows_without_positive=mask_rows_without_positive,
            check_scores=check_scores,
            reduction=reduction,
            name=name,
        )
        self.positive_share = _share("positive_share", positive_share)
        self.negative_share = _share("negative_share", negative_share)

    def losses_and_gradient(
        self,
        scores: tf.Tensor,
        positives: tf.Tensor,
        negatives: tf.Tensor,
        estimator: RankEstimator,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        weights = None
        if estimator.candidate_weights is not None:
            weights = relative_weights(scores, estimator)
        num_positives = count_true(positives, scores.dtype)[:, tf.newaxis]
        chosen = num_positives * _average_of_highest(scores, positives, None, self.positive_share)
        compared = _average_of_highest(scores, negatives, weights, self.negative_share)
        scores = considered(scores, positives, negatives)
        values = tf.sigmoid(scores)

        def total(summands: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(summands, axis=-1, keepdims=True)

        # The averages of (1 - f_i + f_j)^2 need no pairs: they are polynomials of the moments.
        missing = 1.0 - values
        weighted = compared * values
        some, first, second = total(compared), total(weighted), total(weighted * values)
        own = chosen * (some * tf.square(missing) + 2.0 * missing * first + second)
        pull = chosen * (some * missing + first)
        push = compared * (total(chosen * missing) + total(chosen) * values)
        slopes = 2.0 * values * tf.sigmoid(-scores)
        return total(own)[:, 0], (push - pull) * slopes

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "positive_share": self.positive_share,
            "negative_share": self.negative_share,
        }


def _average_of_highest(
    scores: tf.Tensor, valid: tf.Tensor, weights: tf.Tensor | None, share: float
) -> tf.Tensor:
    """Weights that average over the highest share of the valid candidates of each row.

    They add up to 1, or to 0 in a row without valid candidates. Candidates with equal scores at the
    end of the share have equal parts in it.
    """
    counted = tf.cast(valid, scores.dtype)
    if weights is not None:
        counted = tf.where(valid, weights, tf.zeros_like(scores))
    total = share * tf.reduce_sum(counted, axis=-1)
    last, _ = score_reached(scores, valid, weights, total)
    last, total = last[:, tf.newaxis], total[:, tf.newaxis]
    zeros = tf.zeros_like(counted)
    above = tf.where(scores > last, counted, zeros)
    level = tf.where(tf.equal(scores, last), counted, zeros)
    left = tf.maximum(total - tf.reduce_sum(above, axis=-1, keepdims=True), 0.0)
    part = tf.math.divide_no_nan(left, tf.reduce_sum(level, axis=-1, keepdims=True))
    return tf.math.divide_no_nan(above + part * level, total)


def _share(name: str, value: float) -> float:
    kind = name.partition("_")[0]
    share = _checks.positive_number(name, value, remedy=f"{_SHARE_REMEDY}negatives.")
    if share > 1.0:
        raise ValueError(
            f"`{name}` should be at most 1, the share of {kind}s that count. Received: {value!r}. "
            f"{_SHARE_REMEDY}negatives."
        )
    return share
