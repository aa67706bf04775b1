r"""Losses that compete with CROLoss for top-N recommendation, to be compared on equal terms.

All take scores that are divided by the temperature already, as the tasks do, and stand wherever
``CROLoss`` does: masks, several positives in a row (the sum over them), sample weights, sampling
probabilities, half precision. A negative that is drawn with probability q is weighed by
:math:`v = 1 / (q \, (|I| - 1))`, which is 1 for uniform draws; without probabilities v = 1.

=========================  ======  ==============================================================
class                      known   loss of a positive with score s among negatives :math:`s_j`
=========================  ======  ==============================================================
``BinaryCrossEntropy``     gBCE    :math:`(\beta \, \zeta(-s) + \sum_j v_j \zeta(s_j)) / (n + 1)`
``PairwiseSoftmaxLoss``    PSL     :math:`\log(1 + \sum_j v_j f(t (s_j - s))^{1/t})`
``BilateralSoftmax``       BSL     :math:`-s + \kappa \log \sum_j v_j e^{s_j}`
``SoftmaxAtK``             SL@K    :math:`w \log(1 + \sum_j v_j e^{s_j - s})`
=========================  ======  ==============================================================

with the softplus :math:`\zeta(x) = \log(1 + e^x)`. PSL is a kernel of our own family; the others
are functions of a row's scores.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.losses import kernels
from tfrs_croloss.losses._row_objectives import AtKObjective, BilateralObjective, BinaryObjective
from tfrs_croloss.losses.croloss import DEFAULT_REDUCTION, CROLoss, RetrievalLoss

__all__ = ["BilateralSoftmax", "BinaryCrossEntropy", "PairwiseSoftmaxLoss", "SoftmaxAtK"]

_OWN_OPTIONS = ("num_items", "mask_rows_without_positive", "check_scores")


class _Rival(RetrievalLoss):
    """A loss of rows, with what its constructor shares with the rank losses."""

    def __init__(
        self,
        num_items: int | None,
        mask_rows_without_positive: bool,
        check_scores: bool,
        reduction: str,
        name: str | None,
    ) -> None:
        super().__init__(
            1.0,
            "exponential",
            num_items,
            rank_estimate="paper",
            weighting=None,
            normalized=False,
            mask_rows_without_positive=mask_rows_without_positive,
            check_scores=check_scores,
            reduction=reduction,
            name=name,
        )

    def get_config(self) -> dict[str, Any]:
        config = tf.keras.losses.Loss.get_config(self)
        return {**config, **{name: getattr(self, name) for name in _OWN_OPTIONS}}


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class BinaryCrossEntropy(_Rival):
    r"""Binary cross-entropy over the row; with ``calibration`` gBCE, the loss of gSASRec.

    .. math::

      L = \frac{1}{n + 1} \Bigl(-\beta \log \sigma(s) - \sum_j v_j \log(1 - \sigma(s_j))\Bigr),
      \qquad \beta = 1 - t \, \bigl(1 - n / (|I| - 1)\bigr)

    for n negatives out of a catalogue of :math:`|I|`. Sampled negatives make a model believe too
    firmly in its positives; :math:`\beta` undoes that for ``calibration`` t = 1, and partly for
    smaller ones.

    Args:
      calibration: the paper's t, from 0, which is plain binary cross-entropy, to 1. The paper
        recommends 0.75.
      num_items: size of the catalogue; without it the candidates at hand are the catalogue, and
        there is nothing to calibrate.
      mask_rows_without_positive, check_scores: as in ``tfrs_croloss.cro_loss``.
      reduction: as in ``CROLoss``.
      name: of the loss.

    Two candidates at a score of 0, the mean of ``log(2)`` and ``log(2)``:

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
        super().__init__(num_items, mask_rows_without_positive, check_scores, reduction, name)
        self.calibration = _checks.non_negative_number(
            "calibration", calibration, remedy=_CALIBRATION_REMEDY
        )
        if self.calibration > 1.0:
            raise ValueError(
                f"`calibration` should be at most 1. Received: {calibration!r}. "
                f"{_CALIBRATION_REMEDY}"
            )

    @property
    def objective(self) -> BinaryObjective:
        return BinaryObjective(self.calibration)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "calibration": self.calibration}


_CALIBRATION_REMEDY = "Use 0 for binary cross-entropy, 0.75 as the paper recommends for gBCE."


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class PairwiseSoftmaxLoss(CROLoss):
    r"""PSL: softmax cross-entropy with another function in the place of the exponential.

    .. math:: L = \log\Bigl(1 + \sum_j v_j f\bigl(t \, (s_j - s)\bigr)^{1/t}\Bigr)

    It is ``CROLoss`` with ``alpha=1`` and the kernel
    ``tfrs_croloss.losses.kernels.PairwiseSoftmax``, which works with any other alpha, and in
    LambdaCROLoss, as well.

    Args:
      activation: ``"tanh"``, ``"atan"`` or ``"relu"``.
      temperature: half of what divides the cosines.
      num_items, and the others: as in ``CROLoss``.

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
            1.0,
            kernels.PairwiseSoftmax(activation, temperature),
            num_items,
            rank_estimate=rank_estimate,
            mask_rows_without_positive=mask_rows_without_positive,
            check_scores=check_scores,
            reduction=reduction,
            name=name,
        )

    def get_config(self) -> dict[str, Any]:
        config = tf.keras.losses.Loss.get_config(self)
        config.update({name: getattr(self, name) for name in _OWN_OPTIONS})
        return {**config, "rank_estimate": self.rank_estimate, **self.kernel.get_config()}


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class BilateralSoftmax(_Rival):
    r"""BSL: softmax whose positives are averaged like its negatives, with a power for the latter.

    .. math:: L = P \, \Bigl(-\log \frac{1}{P} \sum_i e^{s_i} + \kappa \log \sum_j v_j e^{s_j}\Bigr)

    for the P positives :math:`s_i` of a row: noisy ones, of low scores, count less. This is the
    form that the authors have released, :math:`\kappa` being the ratio of the temperatures of
    positives and negatives in the paper. A row without negatives has a loss of 0.

    Args:
      negative_exponent: :math:`\kappa`. At 1, with one positive in a row, this is softmax whose
        positive is not among those that it is compared with; the authors use 0.8 to 1.35.
      num_items: size of the catalogue; without it the candidates at hand are the catalogue.
      mask_rows_without_positive, check_scores: as in ``tfrs_croloss.cro_loss``.
      reduction: as in ``CROLoss``.
      name: of the loss.

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
        super().__init__(num_items, mask_rows_without_positive, check_scores, reduction, name)
        self.negative_exponent = _checks.positive_number(
            "negative_exponent", negative_exponent, remedy="Use 1 for softmax, else 0.8 to 1.35."
        )

    @property
    def objective(self) -> BilateralObjective:
        return BilateralObjective(self.negative_exponent)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "negative_exponent": self.negative_exponent}


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class SoftmaxAtK(_Rival):
    r"""SL@K: softmax cross-entropy of the positives that have a chance to be among K retrieved.

    .. math::

      L = \mathrm{SG}\bigl[\sigma\bigl((s - \beta_K) / \tau_w\bigr)\bigr]
      \log\Bigl(1 + \sum_j v_j e^{s_j - s}\Bigr)

    where :math:`\beta_K` is the K-th highest score of the negatives, so that a positive above it is
    retrieved. From a sample it is the score that negatives standing for K items reach. If there are
    no K items, every positive is retrieved, and the loss is softmax cross-entropy.

    Args:
      retrieval_size: K, how many items are retrieved.
      weight_temperature: :math:`\tau_w`, in the unit of the scores as the loss sees them: the
        paper's, over the temperature that divides the scores.
      num_items: size of the catalogue; without it the candidates at hand are the catalogue.
      mask_rows_without_positive, check_scores: as in ``tfrs_croloss.cro_loss``.
      reduction: as in ``CROLoss``.
      name: of the loss.

    The positive is level with the highest negative, so its weight is a half, of ``log(1 + 2)``:

    >>> loss = SoftmaxAtK(retrieval_size=1)
    >>> print(f"{loss([[1.0, 0.0, 0.0]], [[2.0, 2.0, 2.0]]):.4f}")
    0.5493

    References:
      Yang et al., *Breaking the Top-K Barrier: Advancing Top-K Ranking Metrics Optimization in
      Recommender Systems*, KDD 2025.
    """

    retrieval_size: int

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
        super().__init__(num_items, mask_rows_without_positive, check_scores, reduction, name)
        self.retrieval_size = _checks.whole_number(
            "retrieval_size", retrieval_size, remedy="Pass how many items will be retrieved."
        )
        self.weight_temperature = _checks.positive_number(
            "weight_temperature", weight_temperature, remedy="Smaller values cut off more sharply."
        )

    @property
    def objective(self) -> AtKObjective:
        return AtKObjective(self.retrieval_size, self.weight_temperature)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "retrieval_size": self.retrieval_size,
            "weight_temperature": self.weight_temperature,
        }
