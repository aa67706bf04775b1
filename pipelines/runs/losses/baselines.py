"""Losses of other papers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...common.options import Flag, OneOf, Option, Real
from ..spaces import Choice, Range
from .family import RETRIEVAL_SIZE
from .registry import LOSSES, REDUCTION, Loss

if TYPE_CHECKING:
    from tfrs_croloss.losses import RetrievalLoss

    from ..settings import TrainSettings


def _activations() -> Sequence[str]:
    from tfrs_croloss.losses import kernels

    return kernels.PairwiseSoftmax.ACTIVATIONS


def _build_bce(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    from tfrs_croloss.losses import BinaryCrossEntropy

    return BinaryCrossEntropy(0.0, num_items, reduction=REDUCTION, name="bce")


def _build_gbce(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    from tfrs_croloss.losses import BinaryCrossEntropy

    calibration = settings.calibration
    return BinaryCrossEntropy(calibration, num_items, reduction=REDUCTION, name="gbce")


def _build_psl(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    from tfrs_croloss.losses import PairwiseSoftmaxLoss

    # Half of it brings differences of cosines into the range that the activations are for.
    temperature = settings.temperature / 2.0
    return PairwiseSoftmaxLoss(settings.activation, temperature, num_items, reduction=REDUCTION)


def _build_bsl(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    from tfrs_croloss.losses import BilateralSoftmax

    return BilateralSoftmax(settings.negative_exponent, num_items, reduction=REDUCTION)


def _build_sl_at_k(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    from tfrs_croloss.losses import SoftmaxAtK

    # The loss sees scores that the task has divided by the temperature.
    weight_temperature = settings.weight_temperature / settings.temperature
    return SoftmaxAtK(
        settings.retrieval_size,
        weight_temperature,
        num_items,
        differentiate_weight=settings.differentiate_weight,
        reduction=REDUCTION,
    )


def _sl_at_k_title(settings: TrainSettings) -> str:
    form = "" if settings.differentiate_weight else ", without their gradient"
    return f"SL@{settings.retrieval_size} (weights of {settings.weight_temperature:g}{form})"


def _build_talos(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    from tfrs_croloss.losses import Talos

    return Talos(settings.retrieval_size, settings.temperature, num_items, reduction=REDUCTION)


def _build_llpauc(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    from tfrs_croloss.losses import LowerLeftPartialAUC

    # An example has one positive, so a share of the positives would have no effect.
    share = settings.negative_share
    return LowerLeftPartialAUC(1.0, share, num_items, reduction=REDUCTION)


LOSSES.update(
    {
        "bce": Loss("binary cross-entropy", _build_bce),
        "gbce": Loss(
            "gBCE of gSASRec",
            _build_gbce,
            lambda settings: f"gBCE (calibration {settings.calibration:g})",
            {
                "calibration": Option(
                    Real(least=0.0, most=1.0), 0.75, "calibration t of gBCE, from 0 (bce) to 1"
                )
            },
            space={"calibration": Range(0.0, 1.0)},
        ),
        "psl": Loss(
            "pairwise softmax loss",
            _build_psl,
            lambda settings: f"PSL ({settings.activation})",
            {"activation": Option(OneOf(_activations), "tanh", "activation function of PSL")},
            space={"activation": Choice(_activations)},
        ),
        "bsl": Loss(
            "bilateral softmax loss",
            _build_bsl,
            lambda settings: f"BSL (exponent {settings.negative_exponent:g})",
            {
                "negative_exponent": Option(
                    Real(above=0.0), 1.1, "exponent of the negatives in BSL; 1 is softmax"
                )
            },
            space={"negative_exponent": Range(0.8, 1.35)},
        ),
        "sl_at_k": Loss(
            "SL@K, softmax of the top K, which is --retrieval-size",
            _build_sl_at_k,
            _sl_at_k_title,
            {
                "retrieval_size": RETRIEVAL_SIZE,
                "weight_temperature": Option(
                    Real(above=0.0),
                    1.0,
                    "temperature of the weights, in the unit of the similarity",
                ),
                "differentiate_weight": Option(
                    Flag(),
                    True,
                    "whether the weights take part in the gradient, as in the authors' code",
                ),
            },
            required=("retrieval_size",),
            space={"weight_temperature": Range(0.3, 3.0, logarithmic=True)},
            first={"weight_temperature": 2.5},  # its authors' choice on Amazon Health
        ),
        "talos": Loss(
            "Talos, softmax above the threshold of the top K, which is --retrieval-size",
            _build_talos,
            lambda settings: f"Talos@{settings.retrieval_size}",
            {"retrieval_size": RETRIEVAL_SIZE},
            required=("retrieval_size",),
        ),
        "llpauc": Loss(
            "LLPAUC, squared AUC loss of the highest negatives",
            _build_llpauc,
            lambda settings: f"LLPAUC (the highest {settings.negative_share:.3g} of the negatives)",
            {
                "negative_share": Option(
                    Real(above=0.0, most=1.0), 0.1, "share of the negatives that LLPAUC looks at"
                )
            },
            space={"negative_share": Range(0.01, 0.2, logarithmic=True)},
        ),
    }
)
