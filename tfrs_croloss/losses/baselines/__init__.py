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
``Talos``                  Talos     :math:`\log(1 + \sum_j v_j e^{z_j - z})`, with a link z of s
``LowerLeftPartialAUC``    LLPAUC    :math:`\sum_j q_j (1 - \sigma(s) + \sigma(s_j))^2`
=========================  ========  ==============================================================

with the softplus :math:`\zeta(x) = \log(1 + e^x)`. PSL is a rank loss with a kernel of its own;
the others are functions of a row's scores.
"""

from __future__ import annotations

from tfrs_croloss.losses.baselines.bilateral_softmax import BilateralSoftmax
from tfrs_croloss.losses.baselines.binary_cross_entropy import BinaryCrossEntropy
from tfrs_croloss.losses.baselines.pairwise_softmax import PairwiseSoftmaxLoss
from tfrs_croloss.losses.baselines.partial_auc import LowerLeftPartialAUC
from tfrs_croloss.losses.baselines.softmax_at_k import SoftmaxAtK
from tfrs_croloss.losses.baselines.talos import Talos

__all__ = [
    "BilateralSoftmax",
    "BinaryCrossEntropy",
    "LowerLeftPartialAUC",
    "PairwiseSoftmaxLoss",
    "SoftmaxAtK",
    "Talos",
]
