"""Exact Recall@N over the whole catalogue, inside TFRS tasks, during ``fit`` and on a test set.

``evaluate`` reports on a test set; ``FactorizedRecall`` goes where ``tfrs.metrics.FactorizedTopK``
does; ``RecallCallback`` evaluates a validation set after every epoch. All of them count ranks: no
sort, no top-k, and ties count against the positive.
"""

from __future__ import annotations

from tfrs_croloss._keras import require_keras_2

require_keras_2("tfrs_croloss.metrics")

from tfrs_croloss.metrics.catalogues import ShardedCatalogue  # noqa: E402
from tfrs_croloss.metrics.keras import FactorizedRecall, RecallCallback  # noqa: E402
from tfrs_croloss.metrics.ranks import exact_ranks, popularity_ranks  # noqa: E402
from tfrs_croloss.metrics.report import (  # noqa: E402
    Averages,
    RankingReport,
    evaluate,
    summarize_ranks,
)

__all__ = [
    "Averages",
    "FactorizedRecall",
    "RankingReport",
    "RecallCallback",
    "ShardedCatalogue",
    "evaluate",
    "exact_ranks",
    "popularity_ranks",
    "summarize_ranks",
]
