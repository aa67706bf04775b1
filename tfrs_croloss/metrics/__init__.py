"""Exact Recall@N over the whole catalogue: of a test set, during ``fit``, and inside TFRS tasks.

``evaluate`` reports on a test set from embeddings, and needs TensorFlow alone. ``RecallCallback``
evaluates a validation set after every epoch, and ``FactorizedRecall`` replaces
``tfrs.metrics.FactorizedTopK``; these two are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfrs_croloss.metrics.catalogues import Catalogue, ShardedCatalogue
from tfrs_croloss.metrics.ranks import exact_ranks, popularity_ranks
from tfrs_croloss.metrics.report import Averages, RankingReport, evaluate, summarize_ranks

if TYPE_CHECKING:
    from tfrs_croloss.metrics.callback import RecallCallback
    from tfrs_croloss.metrics.factorized import FactorizedRecall

__all__ = [
    "Averages",
    "Catalogue",
    "FactorizedRecall",
    "RankingReport",
    "RecallCallback",
    "ShardedCatalogue",
    "evaluate",
    "exact_ranks",
    "popularity_ranks",
    "summarize_ranks",
]


def __getattr__(name: str) -> Any:
    if name == "FactorizedRecall":
        from tfrs_croloss.metrics.factorized import FactorizedRecall

        return FactorizedRecall
    if name == "RecallCallback":
        from tfrs_croloss.metrics.callback import RecallCallback

        return RecallCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
