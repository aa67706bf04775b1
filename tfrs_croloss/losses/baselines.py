r"""Baselines: other losses for top-N recommendation, to be compared with CROLoss on equal terms.

All expect scores that are already divided by the temperature, as the tasks do, and work wherever
``CROLoss`` does: masks, several positives in a row (the losses are summed), sample weights,
sampling probabilities, half precision. A negative that is drawn with probability q has the weight
:math:`v = 1 / (q \, (|I| - 1))`, which is 1 for uniform draws; without probabilities v = 1.

=========================  ========  ==============================================================
class                      known as  loss of a positive with score s among negatives :math:`s_j`
=========================  ========  ==============================================================
``BinaryCrossEntropy``     gBCE      :math:`(\beta \, \zeta(-s) + \sum_j v_j \zeta(s_j)) / (n + 1)`
``PairwiseSoftmaxLoss``    PSL       :math:`\log(1 + \sum_j v_j f(t (s_j - s))^{1/t})`
``BilateralSoftmax``       BSL       :math:`-s + \kappa \log \sum_j v_j e^{s_j}`
``SoftmaxAtK``             SL@K      :math:`w \log(1 + \sum_j v_j e^{s_j - s})`
=========================  ========  ==============================================================

with the softplus :math:`\zeta(x) = \log(1 + e^x)`. PSL is a rank loss with a kernel of its own;
the others are functions of a row's scores.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.losses import kernels, weightings
from tfrs_croloss.losses._objective import RankObjective
from tfrs_croloss.losses.base import DEFAULT_REDUCTION, RankLoss, RowLoss
from tfrs_croloss.losses.ranks import RankEstimator, count_true

__all__ = ["BilateralSoftmax", "BinaryCrossEntropy", "PairwiseSoftmaxLoss", "SoftmaxAtK"]

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
        push = tf.where(negatives, num_positives * _relative_weights(scores, estimator), 0.0)
        scores = _considered(scores, positives, negatives)
        share = 1.0 / (count + 1.0)
        losses = pull * tf.math.softplus(-scores) + push * tf.math.softplus(scores)
        gradient = push * tf.sigmoid(scores) - pull * tf.sigmoid(-scores)
        return share * tf.reduce_sum(losses, axis=-1), share[:, tf.newaxis] * gradient

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "calibration": self.calibration}


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class PairwiseSoftmaxLoss(RankLoss):
    r"""PSL: softmax cross-entropy with another function instead of the exponential.

    .. math:: L = \log\Bigl(1 + \sum_j v_j f\bigl(t \, (s_j - s)\bigr)^{1/t}\Bigr)

    It is ``CROLoss`` with ``alpha=1`` and the kernel
    ``tfrs_croloss.losses.kernels.PairwiseSoftmax``, which also works with any other alpha and in
    ``LambdaCROLoss``.

    Args:
      activation: ``"tanh"``, ``"atan"`` or ``"relu"``.
      temperature: half the temperature that divides the cosines.
      num_items: size of the catalogue; without it the candidates at hand are the catalogue.
      name: name of the loss.

    The other arguments are as in ``CROLoss``.

    References:
      Yang et al., *PSL: Rethinking and Improving Softmax Loss from Pairwise Perspective for
      Recommendation*, NeurIPS 2024.
    """

    def __init__(
        self,
        activation: str = "tanh",
        temperature: float = 0.05,
        num_items: int | None = None,
        *,
        rank_estimate: str = "paper",
        mask_rows_without_positive: bool = False,
        check_scores: bool = False,
        reduction: str = DEFAULT_REDUCTION,
        name: str | None = "pairwise_softmax",
    ) -> None:
        super().__init__(
            num_items,
            rank_estimate=rank_estimate,
            mask_rows_without_positive=mask_rows_without_positive,
            check_scores=check_scores,
            reduction=reduction,
            name=name,
        )
        self.kernel = kernels.PairwiseSoftmax(activation, temperature)

    @property
    def objective(self) -> RankObjective:
        return RankObjective(weightings.PowerWeighting(1.0), self.kernel)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.kernel.get_config()}


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
        log_positives, pull = _log_sum_exp(scores, positives)
        log_negatives, push = _log_sum_exp(scores, negatives, _relative_weights(scores, estimator))
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


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class SoftmaxAtK(RowLoss):
    r"""SL@K: softmax cross-entropy, weighted by the chance of being among the K items retrieved.

    .. math::

      L = \mathrm{SG}\bigl[\sigma\bigl((s - \beta_K) / \tau_w\bigr)\bigr]
      \log\Bigl(1 + \sum_j v_j e^{s_j - s}\Bigr)

    where :math:`\beta_K` is the K-th highest score of the negatives, so that a positive above it is
    retrieved. With sampled negatives, it is the score reached by negatives that stand for K items.
    If there are fewer than K items, every positive is retrieved, and the loss is softmax
    cross-entropy.

    Args:
      retrieval_size: K, the number of items that are retrieved.
      weight_temperature: :math:`\tau_w`, in the unit of the scores that the loss receives: the
        paper's value divided by the temperature that divides the scores.
      num_items: size of the catalogue; without it the candidates at hand are the catalogue.
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

    def losses_and_gradient(
        self,
        scores: tf.Tensor,
        positives: tf.Tensor,
        negatives: tf.Tensor,
        estimator: RankEstimator,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        weights = _relative_weights(scores, estimator)
        log_negatives, shares = _log_sum_exp(scores, negatives, weights)
        threshold = self._threshold(scores, negatives, estimator)
        own = _considered(scores, positives, positives)
        weight = tf.sigmoid((own - threshold) / self.weight_temperature)
        weight = tf.where(positives, weight, tf.zeros_like(weight))
        losses = weight * tf.math.softplus(log_negatives - own)
        pull = weight * tf.sigmoid(log_negatives - own)
        return (
            tf.reduce_sum(losses, axis=-1),
            tf.reduce_sum(pull, axis=-1, keepdims=True) * shares - pull,
        )

    def _threshold(
        self, scores: tf.Tensor, negatives: tf.Tensor, estimator: RankEstimator
    ) -> tf.Tensor:
        """``[num_queries, 1]``: the score that negatives standing for K items reach."""
        lowest = scores.dtype.min
        competing = tf.where(negatives, scores, lowest)
        count = count_true(negatives, scores.dtype)
        others = tf.maximum(estimator.num_items - 1.0, 1.0)
        if estimator.candidate_weights is None:
            # The negatives that stand for K items; a rounding error should not make it one more.
            needed = tf.math.ceil(self.retrieval_size * count / others - 1e-4)
            needed = tf.maximum(needed, 1.0)
            most = tf.cast(tf.reduce_max(tf.concat([needed, [1.0]], axis=0)), tf.int32)
            most = tf.minimum(most, tf.shape(scores)[1])
            highest, _ = tf.math.top_k(competing, most)
            place = tf.minimum(tf.cast(needed, tf.int32), most) - 1
            threshold = tf.gather(highest, place, batch_dims=1)
            reached = needed <= count
        else:
            highest, order = tf.math.top_k(competing, tf.shape(scores)[1])
            stands_for = tf.where(negatives, estimator.weights, 0.0)
            total = tf.cumsum(tf.gather(stands_for, order, batch_dims=1), axis=-1)
            short = tf.cast(total < self.retrieval_size * (1.0 - 1e-4), tf.int32)
            place = tf.reduce_sum(short, axis=-1)
            reached = place < tf.shape(scores)[1]
            threshold = tf.gather(highest, tf.minimum(place, tf.shape(scores)[1] - 1), batch_dims=1)
        enough = tf.logical_and(reached, self.retrieval_size <= others)
        return tf.where(enough, threshold, lowest / 4)[:, tf.newaxis]

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "retrieval_size": self.retrieval_size,
            "weight_temperature": self.weight_temperature,
        }


def _relative_weights(scores: tf.Tensor, estimator: RankEstimator) -> tf.Tensor:
    """The weight v of each candidate, broadcastable to the scores."""
    if estimator.candidate_weights is None:
        return tf.ones_like(scores[:1, :1])
    return estimator.candidate_weights / tf.maximum(estimator.num_items - 1.0, 1.0)[:, tf.newaxis]


def _considered(scores: tf.Tensor, *considered: tf.Tensor) -> tf.Tensor:
    """The scores, with 0 where they are not considered and may be NaN."""
    some = tf.logical_or(considered[0], considered[-1])
    return tf.where(some, scores, tf.zeros_like(scores))


def _log_sum_exp(
    scores: tf.Tensor, valid: tf.Tensor, weights: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """The log of the sum of ``weights * exp(scores)``, ``[num_queries, 1]``, and its gradient.

    In rows without a valid candidate, the logarithm is far below any score and the gradient is 0.
    """
    lowest = scores.dtype.min / 4
    exponents = scores if weights is None else scores + tf.math.log(weights)
    exponents = tf.where(valid, exponents, lowest)
    largest = tf.reduce_max(exponents, axis=-1, keepdims=True)
    summands = tf.where(valid, tf.exp(exponents - largest), tf.zeros_like(exponents))
    total = tf.reduce_sum(summands, axis=-1, keepdims=True)
    some = tf.reduce_any(valid, axis=-1, keepdims=True)
    divisor = tf.where(some, total, tf.ones_like(total))
    return largest + tf.math.log(divisor), summands / divisor
