"""The losses, and what they are made of: comparison kernels, rank weightings and soft ranks.

``CROLoss`` and ``LambdaCROLoss`` are the family of the paper; ``baselines`` has the losses to
compare them with. ``kernels``, ``weightings`` and ``ranks`` are the parts that a loss of your
own is built from, and ``diagnostics`` says what to watch while it trains.
"""

from __future__ import annotations

from tfrs_croloss.losses import baselines, diagnostics, kernels, ranks, weightings
from tfrs_croloss.losses.baselines import (
    BilateralSoftmax,
    BinaryCrossEntropy,
    PairwiseSoftmaxLoss,
    SoftmaxAtK,
)
from tfrs_croloss.losses.croloss import (
    CROLoss,
    LambdaCROLoss,
    RetrievalLoss,
    cro_loss,
    lambda_cro_loss,
)
from tfrs_croloss.losses.diagnostics import rank_diagnostics
from tfrs_croloss.losses.kernels import ComparisonKernel
from tfrs_croloss.losses.ranks import soft_rank
from tfrs_croloss.losses.weightings import PowerWeighting, RankWeighting, RetrievalSizeWeighting

__all__ = [
    "BilateralSoftmax",
    "BinaryCrossEntropy",
    "CROLoss",
    "ComparisonKernel",
    "LambdaCROLoss",
    "PairwiseSoftmaxLoss",
    "PowerWeighting",
    "RankWeighting",
    "RetrievalLoss",
    "RetrievalSizeWeighting",
    "SoftmaxAtK",
    "baselines",
    "cro_loss",
    "diagnostics",
    "kernels",
    "lambda_cro_loss",
    "rank_diagnostics",
    "ranks",
    "soft_rank",
    "weightings",
]
