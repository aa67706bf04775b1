"""Losses and tasks that train retrieval models for the Recall@N that is served.

The losses need TensorFlow alone, with Keras 2 or Keras 3. ``tasks`` and the other parts that build
on TensorFlow Recommenders need Keras 2 and are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tfrs_croloss import comparison, losses, memory, negatives, rank, rivals, weighting
from tfrs_croloss._version import __version__
from tfrs_croloss.comparison import ComparisonKernel
from tfrs_croloss.losses import CROLoss, LambdaCROLoss, cro_loss, lambda_cro_loss
from tfrs_croloss.rank import soft_rank
from tfrs_croloss.rivals import (
    BilateralSoftmax,
    BinaryCrossEntropy,
    PairwiseSoftmaxLoss,
    SoftmaxAtK,
)
from tfrs_croloss.weighting import PowerWeighting, RankWeighting, RetrievalSizeWeighting

if TYPE_CHECKING:
    from tfrs_croloss import metrics, models, optimizers, serving, tasks

_KERAS_2_MODULES = ("metrics", "models", "optimizers", "serving", "tasks")

__all__ = [
    "BilateralSoftmax",
    "BinaryCrossEntropy",
    "CROLoss",
    "ComparisonKernel",
    "LambdaCROLoss",
    "PairwiseSoftmaxLoss",
    "PowerWeighting",
    "RankWeighting",
    "RetrievalSizeWeighting",
    "SoftmaxAtK",
    "__version__",
    "comparison",
    "cro_loss",
    "lambda_cro_loss",
    "losses",
    "memory",
    "metrics",
    "models",
    "negatives",
    "optimizers",
    "rank",
    "rivals",
    "serving",
    "soft_rank",
    "tasks",
    "weighting",
]


def __getattr__(name: str) -> Any:
    if name in _KERAS_2_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
