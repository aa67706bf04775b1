"""Binary cross-entropy and gBCE."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.losses.base import DEFAULT_REDUCTION, RowLoss
from tfrs_croloss.losses.baselines._rows import considered, relative_weights
from tfrs_croloss.losses.ranks import RankEstimator, count_true

_CALIBRATION_REMEDY = "Use 0 for binary cross-entropy, 0.75 as the paper recommends for gBCE."


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class BinaryCrossEntropy(RowLoss):
    r"""Binary cross-entropy over the row; with a ``calibration``, gBCE, the loss of gSASRec.

    .. math::

      L = \frac{1}{n + 1} \Bigl(-\beta \log \sigma(s) - \sum_j v_j \log(1 - \sigma(s_j))\Bigr),
      \qquad \beta = 1 - t \, \bigl(1 - n / (|I| - 1)\bigr)

    for n negatives out of a catalogue of :math:`|I|` items. Models that are trained with sampled
    negatives are overconfident; :math:`\beta` corrects this fully with a ``calibration`` of t = 1,
    and partly with smaller values.

    Args:
      calibration: the paper's t, from 0, which is plain binary cross-entropy, to 1. The paper
        recommends 0.75.
      num_items: size of the catalogue; without it the candidates at hand are the catalogue, and
        there is nothing to calibrate.
      name: name of the loss.

    The other arguments are as in ``CROLoss``.

    With two candidates at a score of 0, the loss is the mean of ``log(2)`` and ``log(2)``:

    >>> print(f"{BinaryCrossEntropy()([[1.0, 0.0]], [[0.0, 0.0]]):.4f}")
    0.6931

    References:
      Petrov and Macdonald, *gSASRec: Reducing Overconfidence in Sequential Recommendation Trained
      with Negative Sampling*, RecSys 2023.
    """

    def __init__(
        self,
        calibration: float = 0.0,
        num_items: int | None = None,
        *,
        mask_rows_without_positive: bool = False,
        check_scores: bool = False,
        reduction: str = DEFAULT_REDUCTION,
        name: str | None = "binary_cross_entropy",
    ) -> None:
        super().__init__(
            num_items,
            mask_rows_without_positive=mask_rows_without_positive,
            check_scores=check_scores,
            reduction=reduction,
            name=name,
        )
        self.calibration = _checks.non_negative_number(
            "calibration", calibration, remedy=_CALIBRATION_REMEDY
        )
        if self.calibration > 1.0:
            raise ValueError(
                f"`calibration` should be at most 1. Received: {calibration!r}. "
                f"{_CALIBRATION_REMEDY}"
            )

    def losses_and_gradient(
        self,
        scores: tf.Tensor,
        positives: tf.Tensor,
        negatives: tf.Tensor,
        estimator: RankEstimator,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        count = count_true(negatives, scores.dtype)
        sampling_rate = tf.minimum(count / tf.maximum(estimator.num_items - 1.0, 1.0), 1.0)
        beta = (1.0 - self.calibration * (1.0 - sampling_rate))[:, tf.newaxis]
        num_positives = count_true(positives, scores.dtype)[:, tf.newaxis]
        # A negative counts once for each positive that it is compared with.
        pull = tf.where(positives, beta, 0.0)
        push = tf.where(negatives, num_positives * relative_weights(scores, estimator), 0.0)
        scores = considered(scores, positives, negatives)
        share = 1.0 / (count + 1.0)
        losses = pull * tf.math.softplus(-scores) + push * tf.math.softplus(scores)
        gradient = push * tf.sigmoid(scores) - pull * tf.sigmoid(-scores)
        return share * tf.reduce_sum(losses, axis=-1), share[:, tf.newaxis] * gradient

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "calibration": self.calibration}
