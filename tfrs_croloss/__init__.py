"""Losses and tasks that train retrieval models for the Recall@N that is served.

With Keras 2, tasks, metrics and models build on TensorFlow Recommenders; with Keras 3, nothing
needs it. Packages other than ``losses`` are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tfrs_croloss import losses
from tfrs_croloss._version import __version__
from tfrs_croloss.losses import (
    BilateralSoftmax,
    BinaryCrossEntropy,
    ComparisonKernel,
    CROLoss,
    LambdaCROLoss,
    LowerLeftPartialAUC,
    PairwiseSoftmaxLoss,
    PowerWeighting,
    RankWeighting,
    RetrievalLoss,
    RetrievalSizeWeighting,
    SoftmaxAtK,
    Talos,
    cro_loss,
    lambda_cro_loss,
    soft_rank,
)

if TYPE_CHECKING:
    from tfrs_croloss import indexes, memory, metrics, models, optimizers, serving, tasks

_LOADED_WHEN_USED = (
    "indexes",
    "memory",
    "metrics",
    "models",
    "optimizers",
    "serving",
    "tasks",
)

__all__ = [
    "BilateralSoftmax",
    "BinaryCrossEntropy",
    "CROLoss",
    "ComparisonKernel",
    "LambdaCROLoss",
    "LowerLeftPartialAUC",
    "PairwiseSoftmaxLoss",
    "PowerWeighting",
    "RankWeighting",
    "RetrievalLoss",
    "RetrievalSizeWeighting",
    "SoftmaxAtK",
    "Talos",
    "__version__",
    "cro_loss",
    "indexes",
    "lambda_cro_loss",
    "losses",
    "memory",
    "metrics",
    "models",
    "optimizers",
    "serving",
    "soft_rank",
    "tasks",
]


def __getattr__(name: str) -> Any:
    if name in _LOADED_WHEN_USED:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
