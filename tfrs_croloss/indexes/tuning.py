"""Measures the recall and speed of an index, and tunes its settings for a target recall."""

from __future__ import annotations

import dataclasses
import inspect
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.indexes.base import BruteForceIndex, Index, LeafIndex, whole_setting
from tfrs_croloss.indexes.partitioned import PartitionedIndex
from tfrs_croloss.indexes.scann import ScannIndex

KINDS: dict[str, type[Index]] = {
    one.kind: one for one in (BruteForceIndex, PartitionedIndex, ScannIndex)
}
# Exact scores that differ by less than this, relative to the norms of both vectors, are ties.
_TIE = 2e-6
_BATCH = 256
_SINGLE_CALLS = 24
_BATCH_CALLS = 3
# Number of standard errors by which the mean recall should exceed the target, for 95 % certainty.
_SURE = 1.645
# Values of `reorder` to try, as multiples of the number of items to find.
_REORDER = (1, 2, 4, 8)
# A slowdown by this factor is more than timing noise.
_CLEARLY = 1.2
# Up to this many items, other builds are tried even if the first reaches the target.
_CHEAP_TO_BUILD = 50_000

Progress = Callable[["Measurement"], object]


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Recall and speed of an index with one choice of settings.

    Attributes:
      settings: settings from `Index.settings`.
      recall: mean share of the exact top N that was found.
      single_ms: median time of a single query, in milliseconds.
      batch_ms: median time of a batch of 256 queries, or all if there are fewer, in milliseconds.
      margin: 1.645 standard errors of ``recall``. On other queries of the same distribution, recall
        is above ``recall - margin`` in 19 of 20 cases.
      check_recall: recall on the second held-out set, if it was measured.
    """

    settings: dict[str, Any]
    recall: float
    single_ms: float
    batch_ms: float
    margin: float = 0.0
    check_recall: float | None = None

    @property
    def cost(self) -> float:
        """The geometric mean of the two times, by which settings are compared."""
        return math.sqrt(self.single_ms * self.batch_ms)


class Tuned(NamedTuple):
    """An index with its chosen settings, all measurements in order, and the chosen one."""

    index: Index
    tried: list[Measurement]
    chosen: Measurement


class RecallNotReached(ValueError):
    """No settings reach the target recall.

    Args:
      recall_target: target recall.
      top_n: number of items to find.
      tried: all measurements, at least one.

    Attributes:
      best: measurement with the highest recall.
      tried: all measurements.
    """

    def __init__(self, recall_target: float, top_n: int, tried: list[Measurement]) -> None:
        self.tried = tried
        self.best = max(tried, key=lambda one: one.recall)
        checked = self.best.check_recall
        super().__init__(
            f"No settings reach Recall@{top_n} {recall_target:g} on both held-out sets. The best "
            f"reached {self.best.recall:.4f} with a margin of {self.best.margin:.4f}"
            + (f", and {checked:.4f} on the second set" if checked is not None else "")
            + f", with {self.best.settings}. Lower the target, pass more held-out queries, or use "
            "the kind 'brute_force', which is exact."
        )


def build_index(kind: str, item_embeddings: Any, *, seed: int = 0, **options: Any) -> Index:
    """Builds an index by the name of its kind.

    >>> build_index("brute_force", [[1.0, 0.0]]).num_items
    1

    Args:
      kind: ``"brute_force"``, ``"partitioned"`` or ``"scann"``.
      item_embeddings: ``[num_items, dim]`` finite floats, an array or `VectorFiles`.
      seed: seed of the training, for the kinds that are trained.
      **options: other arguments of the class of that kind.
    """
    made = KINDS[_checks.one_of("kind", kind, tuple(KINDS))]
    known = set(inspect.signature(made).parameters) - {"item_embeddings"}
    if unknown := sorted(set(options) - known):
        raise ValueError(
            f"An index of kind {kind!r} takes the options {sorted(known)}. Received: {unknown}."
        )
    if "seed" in known:
        options["seed"] = seed
    return made(item_embeddings, **options)


class _Exact:
    """The exact answers to some queries, and the recall of other searches against them."""

    def __init__(self, index: Index, queries: Any, top_n: int, name: str = "queries") -> None:
        self.queries = np.asarray(queries, np.float32)
        if self.queries.ndim != 2 or self.queries.shape[1] != index.dim or not len(self.queries):
            raise ValueError(
                f"`{name}` should have the shape [num_queries, {index.dim}] and at least one row. "
                f"Received: {self.queries.shape}."
            )
        self.num = min(int(top_n), index.num_items)
        if self.num < 1:
            raise ValueError(f"`top_n` should be at least 1. Received: {top_n}.")
        none = tf.zeros([len(self.queries), 0], tf.int32)
        numbers, _ = index.exact_search(tf.constant(self.queries), tf.constant(self.num), none)
        self._last_score = np.full(len(self.queries), -np.inf)
        self._num_above = np.zeros(len(self.queries), np.int64)
        for rows in self._blocks():
            scores, _ = self._scores(index, numbers.numpy()[rows], rows)
            self._last_score[rows] = scores.min(axis=1)
            self._num_above[rows] = self._above_and_tied(index, numbers.numpy()[rows], rows)[0]

    def recalls(
        self, index: Index, search: Callable[..., Any], batch_size: int = _BATCH
    ) -> np.ndarray:
        """The recall ``[num_queries]`` of a search."""
        recalls = np.empty(len(self.queries))
        for rows in self._blocks(batch_size):
            numbers = search(tf.constant(self.queries[rows]), tf.constant(self.num))[0].numpy()
            above, tied = self._above_and_tied(index, numbers, rows)
            # More items may tie for the last places than there are places.
            found = above + np.minimum(tied, self.num - self._num_above[rows])
            recalls[rows] = found / self.num
        return recalls

    def _above_and_tied(
        self, index: Index, numbers: np.ndarray, rows: slice
    ) -> tuple[np.ndarray, np.ndarray]:
        """Counts the items that score above the last of the exact top N, and that tie with it."""
        # Sorted by number, so that a repeated item counts once.
        numbers = np.sort(numbers, axis=1)
        counted = numbers < index.num_items
        counted[:, 1:] &= numbers[:, 1:] != numbers[:, :-1]
        scores, tolerance = self._scores(index, np.where(counted, numbers, 0), rows)
        gap = scores - self._last_score[rows, np.newaxis]
        above = np.sum(counted & (gap > tolerance), axis=1)
        return above, np.sum(counted & (gap >= -tolerance), axis=1) - above

    def _scores(
        self, index: Index, numbers: np.ndarray, rows: slice
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores computed from the embeddings, not by the index, and the tolerance for ties."""
        vectors = index.vectors(tf.constant(numbers)).numpy()
        queries = self.queries[rows].astype(np.float64)
        lengths = np.linalg.norm(vectors, axis=2) * np.linalg.norm(queries, axis=1)[:, np.newaxis]
        return np.einsum("qnd,qd->qn", vectors, queries), _TIE * lengths

    def _blocks(self, batch_size: int = _BATCH) -> Iterator[slice]:
        for first in range(0, len(self.queries), batch_size):
            yield slice(first, first + batch_size)


def measure(index: Index, queries: Any, top_n: int) -> Measurement:
    """Measures the recall and speed of an index with its current settings.

    The recall of a query is the share of the exact top N that was found. If more items tie for the
    last places than there are places, any of them counts as found.

    Args:
      index: index of any kind.
      queries: ``[num_queries, dim]``, a few hundred queries.
      top_n: number of items to find, at most all.
    """
    return _measure(index, _Exact(index, queries, top_n), _compiled(index))


def tune(
    index: Index,
    queries: Any,
    check_queries: Any,
    *,
    top_n: int,
    recall_target: float,
    max_leaves_to_search: int | None = None,
    rebuild: bool = True,
    item_embeddings: Any = None,
    on_progress: Progress | None = None,
) -> Tuned:
    """Finds the fastest settings that reach a target recall on two sets of queries.

    For a few values of `reorder`, if the index has it, bisection finds the smallest number of
    leaves to search. On ``queries`` the recall should exceed the target by the margin of
    `Measurement`; on ``check_queries``, which are not used otherwise, it should reach the target.

    If no settings reach it, or the catalogue is small enough to build indexes cheaply, indexes with
    other numbers of leaves and, for ScaNN, finer quantisation are built and tuned as well.

    Args:
      index: index of any kind; its settings are changed.
      queries: ``[num_queries, dim]``, a few hundred queries.
      check_queries: ``[num_check_queries, dim]`` other queries.
      top_n: number of items to find, at most all.
      recall_target: target recall in (0, 1].
      max_leaves_to_search: maximum number of leaves to search; by default all.
      rebuild: whether other indexes may be built.
      item_embeddings: embeddings to build other indexes from, by default a copy of those in the
        index. Pass the `VectorFiles` of the index to avoid the copy.
      on_progress: called with each measurement.

    Returns:
      The index that was passed or another one, with its settings, and all measurements.

    Raises:
      RecallNotReached: no settings reach the target.
    """
    remedy = "Pass a share, such as 0.95."
    target = _checks.positive_number("recall_target", recall_target, remedy=remedy)
    if target > 1.0:
        raise ValueError(
            f"`recall_target` should be in (0, 1]. Received: {recall_target!r}. {remedy}"
        )
    exact = _Exact(index, queries, top_n)
    check = _Exact(index, check_queries, top_n, "check_queries")
    tried: list[Measurement] = []
    reached: list[tuple[Index, _Reached]] = []
    for candidate in _builds(index, item_embeddings) if rebuild else [index]:
        leaves = candidate.num_leaves if isinstance(candidate, LeafIndex) else 1
        most = min(leaves, whole_setting("max_leaves_to_search", max_leaves_to_search, leaves))
        tuner = _Tuner(candidate, exact, check, target, tried, on_progress)
        reached += [(candidate, one) for one in tuner.reaching(most)]
        if reached and index.num_items > _CHEAP_TO_BUILD:
            break
    if not reached:
        raise RecallNotReached(target, exact.num, tried)
    best, (chosen, settings) = min(reached, key=lambda one: one[1].measurement.cost)
    _set(best, settings)
    return Tuned(best, tried, chosen)


class _Reached(NamedTuple):
    measurement: Measurement
    settings: dict[str, int]


class _Tuner:
    """Searches the settings of one index by bisection."""

    def __init__(
        self,
        index: Index,
        exact: _Exact,
        check: _Exact,
        target: float,
        tried: list[Measurement],
        on_progress: Progress | None,
    ) -> None:
        self._index = index
        self._exact = exact
        self._check = check
        self._target = target
        self._tried = tried
        self._on_progress = on_progress
        self._search = _compiled(index)

    def reaching(self, most_leaves: int) -> Iterator[_Reached]:
        """Yields the smallest number of leaves that reaches the target, for each `reorder`.

        If fewer items are scored exactly, at least as many leaves are needed, so the search
        continues from the leaves found so far, and ends when it gets slower.
        """
        fewest, fastest = 1, math.inf
        for reorder in _reorder_sizes(self._index, self._exact.num):
            reached = self._fewest_leaves(reorder, fewest, most_leaves, fastest)
            if reached is None:
                return
            yield reached
            fewest = reached.settings["leaves_to_search"]
            fastest = min(fastest, reached.measurement.cost)

    def _fewest_leaves(
        self, reorder: dict[str, int], least: int, most: int, fastest: float
    ) -> _Reached | None:
        """The smallest number of leaves, to within 5 %, by doubling and then by bisection."""
        too_few, leaves = least - 1, least
        while (reached := self._try({"leaves_to_search": leaves, **reorder})) is None:
            if leaves >= most or self._tried[-1].cost > _CLEARLY * fastest:
                return None
            too_few, leaves = leaves, min(2 * leaves, most)
        while leaves - too_few > max(1, leaves // 20):
            middle = (too_few + leaves) // 2
            fewer = self._try({"leaves_to_search": middle, **reorder})
            if fewer is None:
                too_few = middle
            else:
                leaves, reached = middle, fewer
        return reached

    def _try(self, settings: dict[str, int]) -> _Reached | None:
        _set(self._index, settings)
        measured = _measure(self._index, self._exact, self._search)
        sure = measured.recall - measured.margin >= self._target
        if sure:
            # ScaNN chooses leaves a little differently for single queries than for a batch, and the
            # target should be reached for both.
            batch_size = 1 if isinstance(self._index, ScannIndex) else _BATCH
            recalls = self._check.recalls(self._index, self._search, batch_size)
            check_recall = float(recalls.mean())
            measured = dataclasses.replace(measured, check_recall=check_recall)
            sure = check_recall >= self._target
        self._tried.append(measured)
        if self._on_progress is not None:
            self._on_progress(measured)
        return _Reached(measured, settings) if sure else None


def _builds(index: Index, item_embeddings: Any) -> Iterator[Index]:
    """Yields the index, then other indexes of its kind."""
    yield index
    if not isinstance(index, LeafIndex) or index.num_leaves < 2:
        return
    variants: list[dict[str, Any]] = [
        {"num_leaves": max(index.num_leaves // 2, 1)},
        {"num_leaves": min(2 * index.num_leaves, index.num_items)},
    ]
    if isinstance(index, ScannIndex):
        variants.append({"dimensions_per_block": 1})
    if item_embeddings is None:
        item_embeddings = index.vectors(tf.range(index.num_items)).numpy()
    for variant in variants:
        # The default number of leaves to search would be measured, and then replaced.
        options = {**index.build_options(), "leaves_to_search": 1, **variant}
        yield build_index(index.kind, item_embeddings, **options)


def _reorder_sizes(index: Index, num: int) -> list[dict[str, int]]:
    if not isinstance(index, ScannIndex) or index.exact:
        return [{}]
    sizes = sorted({min(factor * num, index.num_items) for factor in _REORDER}, reverse=True)
    return [{"reorder": size} for size in sizes]


def _set(index: Index, settings: dict[str, int]) -> None:
    """Applies settings to an index that has any."""
    if isinstance(index, LeafIndex):
        for name, value in settings.items():
            setattr(index, name, value)


def _compiled(index: Index) -> Callable[..., Any]:
    """The search of an index as a server runs it, traced once for batches of any size."""
    return tf.function(
        index.search,
        input_signature=[
            tf.TensorSpec([None, index.dim], tf.float32),
            tf.TensorSpec([], tf.int32),
        ],
    )


def _measure(index: Index, exact: _Exact, search: Callable[..., Any]) -> Measurement:
    recalls = exact.recalls(index, search)
    num = tf.constant(exact.num)

    def milliseconds(batch_size: int, calls: int) -> float:
        times = []
        for call in range(calls):
            first = call * batch_size % (len(exact.queries) - batch_size + 1)
            batch = tf.constant(exact.queries[first : first + batch_size])
            start = time.perf_counter()
            search(batch, num)[0].numpy()
            times.append(time.perf_counter() - start)
        return 1e3 * statistics.median(times)

    spread = float(recalls.std(ddof=1)) if len(recalls) > 1 else 0.0
    return Measurement(
        settings=index.settings(),
        recall=float(recalls.mean()),
        single_ms=milliseconds(1, _SINGLE_CALLS),
        batch_ms=milliseconds(min(_BATCH, len(exact.queries)), _BATCH_CALLS),
        margin=_SURE * spread / math.sqrt(len(recalls)),
    )
