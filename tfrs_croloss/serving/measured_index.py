"""An index that finds the promised share of the exact top N on held-out queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tfrs_croloss.indexes import Index
from tfrs_croloss.indexes.tuning import (
    Measurement,
    RecallNotReached,
    build_index,
    measure,
    tune,
)
from tfrs_croloss.serving.heads import recall_of_heads

# How often a query with several vectors may raise the target of each of them.
_HEAD_ROUNDS = 4

Report = Callable[[str], object]


class MeasuredIndex(NamedTuple):
    """An index, all measurements, the chosen one, its recall and the number of queries of it."""

    index: Index
    tried: list[Measurement]
    chosen: Measurement
    recall: float
    num_queries: int


def measured_index(
    kind: str,
    item_embeddings: Any,
    queries: np.ndarray,
    check_queries: np.ndarray,
    *,
    top_n: int,
    recall_target: float,
    report: Report,
    options: Mapping[str, Any],
) -> MeasuredIndex:
    """Builds an index and, unless it is exact, tunes it.

    Args:
      kind: kind of the index.
      item_embeddings: ``[num_items, dim]``, an array or `VectorFiles`.
      queries: ``[num_queries, dim]`` or ``[num_queries, heads, dim]`` queries to tune on.
      check_queries: other queries, on which the recall should reach the target too.
      top_n: number of items to find, at most all.
      recall_target: target recall in (0, 1].
      report: called with a line of text on each measurement.
      options: other arguments of the index.

    Raises:
      RecallNotReached: no settings reach the target.
    """
    report(f"building the {kind} index of {len(item_embeddings):,} items")
    index = build_index(kind, item_embeddings, **options)
    if kind == "brute_force":
        both = np.concatenate([_flat(queries), _flat(check_queries)])
        measured = measure(index, both, top_n)
        return MeasuredIndex(
            index, [measured], measured, measured.recall, len(queries) + len(check_queries)
        )
    report(f"searching for settings that find {recall_target:.0%} of the exact top {top_n}")
    target = recall_target
    for _ in range(_HEAD_ROUNDS):
        tuned = tune(
            index,
            _flat(queries),
            _flat(check_queries),
            top_n=top_n,
            recall_target=target,
            item_embeddings=item_embeddings,
            on_progress=lambda measured: report(_line(measured)),
        )
        # The recall on queries that played no part in choosing the settings is the one to report.
        checked = tuned.chosen.check_recall
        recall = tuned.chosen.recall if checked is None else checked
        if check_queries.ndim == 3:
            recall = recall_of_heads(tuned.index, check_queries, top_n)
        if recall >= recall_target:
            return MeasuredIndex(*tuned, recall, len(check_queries))
        # The items that matter to a query with several vectors may be the hard ones of each.
        target = (1.0 + target) / 2
        index = tuned.index
    raise RecallNotReached(recall_target, top_n, tuned.tried)


def _flat(queries: np.ndarray) -> np.ndarray:
    return queries.reshape(-1, queries.shape[-1])


def _line(measured: Measurement) -> str:
    settings = ", ".join(
        f"{name} {value}" for name, value in measured.settings.items() if name != "kind"
    )
    return (
        f"  recall {measured.recall:.4f}, {measured.single_ms:.2f} ms for 1 query, "
        f"{measured.batch_ms:.1f} ms for 256: {settings}"
    )
