"""The losses, and their parts: comparison kernels, rank weightings and soft ranks.

``CROLoss`` and ``LambdaCROLoss`` are the losses of the paper, and ``baselines`` has the losses to
compare them with. ``kernels``, ``weightings``, ``ranks`` and the base classes ``RankLoss`` and
``RowLoss`` are the parts for a loss of your own.
"""

from __future__ import annotations

from tfrs_croloss.losses import baselines, diagnostics, kernels, pulls, ranks, weightings
from tfrs_croloss.losses._objective import RankObjective
from tfrs_croloss.losses._score_range import ScoreRangeWarning
from tfrs_croloss.losses.base import RankLoss, RetrievalLoss, RowLoss
from tfrs_croloss.losses.baselines import (
    BilateralSoftmax,
    BinaryCrossEntropy,
    LowerLeftPartialAUC,
    PairwiseSoftmaxLoss,
    SoftmaxAtK,
    Talos,
)
from tfrs_croloss.losses.croloss import CROLoss, LambdaCROLoss, cro_loss, lambda_cro_loss
from tfrs_croloss.losses.diagnostics import rank_diagnostics
from tfrs_croloss.losses.kernels import ComparisonKernel
from tfrs_croloss.losses.naming import get
from tfrs_croloss.losses.pulls import Pull
from tfrs_croloss.losses.ranks import soft_rank
from tfrs_croloss.losses.weightings import PowerWeighting, RankWeighting, RetrievalSizeWeighting

__all__ = [
    "BilateralSoftmax",
    "BinaryCrossEntropy",
    "CROLoss",
    "ComparisonKernel",
    "LambdaCROLoss",
    "LowerLeftPartialAUC",
    "PairwiseSoftmaxLoss",
    "PowerWeighting",
    "Pull",
    "RankLoss",
    "RankObjective",
    "RankWeighting",
    "RetrievalLoss",
    "RetrievalSizeWeighting",
    "RowLoss",
    "ScoreRangeWarning",
    "SoftmaxAtK",
    "Talos",
    "baselines",
    "cro_loss",
    "diagnostics",
    "get",
    "kernels",
    "lambda_cro_loss",
    "pulls",
    "rank_diagnostics",
    "ranks",
    "soft_rank",
    "weightings",
]
