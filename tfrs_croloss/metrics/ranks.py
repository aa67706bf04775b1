"""Exact ranks of a test set's positives over a whole catalogue: by a model, and by popularity."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.metrics._counting import LARGEST_BLOCK, RESCORED_AT_ONCE
from tfrs_croloss.metrics.catalogues import Catalogue, as_catalogue, check_embeddings, longest

_LARGEST_SCORE = 1e38
_MODES = ("error", "keep", "miss")


def exact_ranks(
    query_embeddings: Any,
    candidate_embeddings: Any,
    positive_ids: Any,
    *,
    query_rows: Any = None,
    excluded: Any = None,
    excluded_positives: str = "error",
    candidate_block_size: int = 512,
    query_block_size: int = 2048,
) -> np.ndarray:
    """Ranks of positives among all candidates, 1 the best, ties against the positive.

    >>> exact_ranks([[1.0, 0.0]], [[3.0, 1.0], [2.0, 1.0], [2.0, 7.0], [1.0, 9.0]], [1])
    array([3])

    Args:
      query_embeddings: ``[num_queries, dim]`` floats. Computed in float32.
      candidate_embeddings: ``[num_items, dim]`` floats, row ``i`` the item with id ``i``; or a
        `Catalogue` that keeps them elsewhere.
      positive_ids: ``[num_pairs]`` integer ids. Without ``query_rows`` either one for each query,
        or ragged: a `tf.RaggedTensor` or a list of one list of ids for each query.
      query_rows: ``[num_pairs]`` integers, the query that each of the flat ``positive_ids`` belongs
        to. A query with several positives costs one row of the matrix product, not several.
      excluded: optional items that do not compete, for example the user's history: a
        `tf.RaggedTensor`, or a list of one list of ids for each query. Repeated ids count once.
      excluded_positives: what to do with a positive that is excluded for its own query: "error";
        "keep" it and rank it among the items that are left; or "miss": rank ``num_items + 1``, as
        a system that never shows excluded items would.
      candidate_block_size: candidates scored at a time.
      query_block_size: pairs ranked at a time. Memory beyond the inputs is about 40 bytes times the
        product of both block sizes, up to five times that where nearly all scores are ties, and 32
        blocks of candidates.

    Returns:
      ``[num_pairs]`` int64 ranks, in the order of the (flattened) positives. They do not depend on
      the block sizes or on how the device rounds.

    Raises:
      ValueError: for shapes, ids or rows that do not fit each other, and for embeddings that are
        not finite, naming the first such row.
    """
    queries = check_embeddings(query_embeddings, "query_embeddings")
    catalogue = as_catalogue(candidate_embeddings)
    _check_scores(queries, catalogue)
    for name, size in (
        ("candidate_block_size", candidate_block_size),
        ("query_block_size", query_block_size),
    ):
        if not 1 <= size <= LARGEST_BLOCK:
            raise ValueError(f"`{name}` should be between 1 and {LARGEST_BLOCK}. Received: {size}.")
    num_queries, num_items = queries.shape[0], catalogue.num_items
    ids, rows = flatten_positives(positive_ids, query_rows, num_queries, num_items)
    left_out = Exclusions.build(excluded, ids, rows, num_queries, num_items)
    left_out.check_mode(excluded_positives)

    ranks = np.zeros(len(ids), np.int64)
    by_row = np.argsort(rows, kind="stable")
    for first in range(0, len(ids), query_block_size):
        pairs = by_row[first : first + query_block_size]
        block_rows, local_rows = np.unique(rows[pairs], return_inverse=True)
        block_queries = tf.gather(queries, block_rows)
        bars = catalogue.scores(tf.gather(queries, rows[pairs]), ids[pairs])
        one_each = len(block_rows) == len(pairs)
        ahead, level = catalogue.count_ahead(
            block_queries,
            None if one_each else local_rows.reshape(-1),
            bars,
            candidate_block_size,
        )
        ranks[pairs] = np.minimum(ahead + np.maximum(level, 1), num_items)
        for among, items in left_out.competitors(pairs, RESCORED_AT_ONCE):
            scores = catalogue.scores(tf.gather(queries, rows[pairs[among]]), items)
            counted = scores >= bars[among]
            ranks[pairs] -= np.bincount(among[counted], minlength=len(pairs))
    return left_out.settle(ranks, excluded_positives)


def popularity_ranks(
    item_scores: Any,
    positive_ids: Any,
    *,
    query_rows: Any = None,
    excluded: Any = None,
    excluded_positives: str = "error",
    num_queries: int | None = None,
) -> np.ndarray:
    """Ranks under one score for each item, the same for every query: the popularity baseline.

    >>> popularity_ranks([5, 9, 5], [1, 0])
    array([1, 3])

    Args:
      item_scores: ``[num_items]`` numbers, for example interaction counts of the training set.
      positive_ids, query_rows, excluded, excluded_positives: as for `exact_ranks`.
      num_queries: needed only if ``query_rows`` is given and the last queries have no positives.

    Returns:
      ``[num_pairs]`` int64 ranks.
    """
    scores = np.asarray(item_scores)
    if scores.ndim != 1 or not len(scores) or not np.all(np.isfinite(scores)):
        raise ValueError(
            "`item_scores` should be one finite number for each item. "
            f"Received: shape {scores.shape}, {np.sum(~np.isfinite(scores))} of them not finite."
        )
    if num_queries is None:
        num_queries = count_queries(positive_ids, query_rows, excluded)
    ids, rows = flatten_positives(positive_ids, query_rows, num_queries, len(scores))
    left_out = Exclusions.build(excluded, ids, rows, num_queries, len(scores))
    left_out.check_mode(excluded_positives)
    ranks = len(scores) - np.searchsorted(np.sort(scores), scores[ids], side="left")
    for among, items in left_out.competitors(np.arange(len(ids)), 2**22):
        counted = scores[items] >= scores[ids[among]]
        ranks -= np.bincount(among[counted], minlength=len(ids))
    return left_out.settle(ranks.astype(np.int64), excluded_positives)


def _check_scores(queries: tf.Tensor, catalogue: Catalogue) -> None:
    if queries.shape[1] != catalogue.dim:
        raise ValueError(
            "`query_embeddings` and `candidate_embeddings` should have the same dim. "
            f"Received: {queries.shape[1]} and {catalogue.dim}."
        )
    query_norm, query_row = longest(queries)
    if query_norm * catalogue.largest_norm > _LARGEST_SCORE:
        raise ValueError(
            "Scores should fit into float32. Received: embeddings of norm up to "
            f"{query_norm:.3g} (query row {query_row}) and {catalogue.largest_norm:.3g} (item "
            f"{catalogue.longest_item}). Normalize the embeddings or scale them down."
        )


def _is_ragged(values: Any) -> bool:
    if isinstance(values, tf.RaggedTensor):
        return True
    if isinstance(values, (list, tuple)):
        return any(np.ndim(row) == 1 for row in values)
    return False


def _flatten_ragged(values: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Ids ``[total]`` and the query of each ``[total]``, from one list of ids for each query."""
    if isinstance(values, tf.RaggedTensor):
        if values.shape.rank != 2:
            raise ValueError(
                f"`{name}` should be a ragged tensor [num_queries, (ids)]. "
                f"Received: shape {values.shape}."
            )
        flat, lengths = values.values.numpy(), values.row_lengths().numpy()
    else:
        rows = [np.asarray(row) for row in values]
        if any(row.ndim != 1 for row in rows):
            raise ValueError(f"`{name}` should be one list of ids for each query.")
        lengths = np.array([len(row) for row in rows], np.int64)
        filled = [row for row in rows if len(row)]
        flat = np.concatenate(filled) if filled else np.zeros(0, np.int64)
    return _integers(flat, name), np.repeat(np.arange(len(lengths)), lengths)


def _integers(values: Any, name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise ValueError(
            f"`{name}` should be a flat list of integers. "
            f"Received: {array.dtype} of shape {array.shape}."
        )
    return array.astype(np.int64)


def _check_range(values: np.ndarray, name: str, limit: int, of_what: str) -> None:
    outside = (values < 0) | (values >= limit)
    if outside.any():
        first = int(np.argmax(outside))
        raise ValueError(
            f"`{name}` should be between 0 and {limit - 1}, the {of_what}. Received: "
            f"{outside.sum()} of {len(values)} outside, the first of them {values[first]} at "
            f"position {first}."
        )


def _num_rows(ragged: Any) -> int:
    return int(ragged.nrows()) if isinstance(ragged, tf.RaggedTensor) else len(ragged)


def count_queries(positive_ids: Any, query_rows: Any, excluded: Any) -> int:
    """The number of queries, where no embeddings say it."""
    if excluded is not None:
        return _num_rows(excluded)
    if query_rows is not None:
        return int(np.max(query_rows, initial=-1)) + 1
    return _num_rows(positive_ids)


def flatten_positives(
    positive_ids: Any, query_rows: Any, num_queries: int, num_items: int
) -> tuple[np.ndarray, np.ndarray]:
    """Checked ids and query rows, ``[num_pairs]`` int64 each."""
    if _is_ragged(positive_ids):
        if query_rows is not None:
            raise ValueError("`query_rows` goes with flat `positive_ids`, not with ragged ones.")
        if _num_rows(positive_ids) != num_queries:
            raise ValueError(
                f"Ragged `positive_ids` should have one row for each of the {num_queries} queries. "
                f"Received: {_num_rows(positive_ids)} rows."
            )
        ids, rows = _flatten_ragged(positive_ids, "positive_ids")
    else:
        ids = _integers(positive_ids, "positive_ids")
        if query_rows is None:
            rows = np.arange(num_queries)
            remedy = " If a query has several, or none, give `query_rows` too."
        else:
            rows = _integers(query_rows, "query_rows")
            remedy = ""
        if len(ids) != len(rows):
            raise ValueError(
                f"`positive_ids` should have one id for each of the {len(rows)} "
                f"{'queries' if query_rows is None else '`query_rows`'}. "
                f"Received: {len(ids)} ids.{remedy}"
            )
    if not len(ids):
        raise ValueError("`positive_ids` should have at least one id. Received: none.")
    _check_range(ids, "positive_ids", num_items, "item ids")
    _check_range(rows, "query_rows", num_queries, "rows of the queries")
    return ids, rows


@dataclasses.dataclass(frozen=True)
class Exclusions:
    """Distinct excluded items of each query, with the positives taken out.

    Attributes:
      items: ``[total]`` item ids, those of one query together.
      starts: ``[num_queries + 1]``, where each query's items start.
      rows: ``[num_pairs]``, the query of each pair.
      ids: ``[num_pairs]``, the positive of each pair.
      hidden: ``[num_pairs]`` bool, pairs whose positive is itself excluded.
      num_items: size of the catalogue.
    """

    items: np.ndarray
    starts: np.ndarray
    rows: np.ndarray
    ids: np.ndarray
    hidden: np.ndarray
    num_items: int

    @classmethod
    def build(
        cls, excluded: Any, ids: np.ndarray, rows: np.ndarray, num_queries: int, num_items: int
    ) -> Exclusions:
        """From ragged ids; ``None`` excludes nothing."""
        keys = np.zeros(0, np.int64)
        if excluded is not None:
            if _num_rows(excluded) != num_queries:
                raise ValueError(
                    f"`excluded` should have one row for each of the {num_queries} queries. "
                    f"Received: {_num_rows(excluded)} rows."
                )
            items, owners = _flatten_ragged(excluded, "excluded")
            _check_range(items, "excluded", num_items, "item ids")
            keys = np.unique(owners * num_items + items)
        starts = np.searchsorted(keys, np.arange(num_queries + 1) * num_items)
        hidden = np.isin(rows * num_items + ids, keys)
        return cls(keys % num_items, starts, rows, ids, hidden, num_items)

    def check_mode(self, mode: str) -> None:
        """Refuses an unknown mode, and excluded positives if the mode is "error"."""
        if mode not in _MODES:
            raise ValueError(f"`excluded_positives` should be one of {_MODES}. Received: {mode!r}.")
        if mode == "error" and self.hidden.any():
            first = int(np.argmax(self.hidden))
            raise ValueError(
                f"{self.hidden.sum()} of {len(self.hidden)} positives are among the items "
                f"`excluded` for their own query; the first is item {self.ids[first]} of query "
                f"{self.rows[first]}. Give excluded_positives='keep' to rank them among the "
                "remaining items or 'miss' to count them as never retrieved."
            )

    def competitors(
        self, pairs: np.ndarray, at_most: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Excluded items that compete with the given pairs, a bounded number at a time.

        Args:
          pairs: ``[n]`` indices of pairs.
          at_most: size limit of what is yielded.

        Yields:
          Indices into ``pairs`` and item ids, of equal length.
        """
        if not len(self.items):
            return
        begins = self.starts[self.rows[pairs]]
        lengths = self.starts[self.rows[pairs] + 1] - begins
        ends = np.cumsum(lengths)
        for first in range(0, int(ends[-1]), at_most):
            flat = np.arange(first, min(first + at_most, int(ends[-1])))
            among = np.searchsorted(ends, flat, side="right")
            items = self.items[begins[among] + flat - (ends - lengths)[among]]
            others = items != self.ids[pairs[among]]
            yield among[others], items[others]

    def settle(self, ranks: np.ndarray, mode: str) -> np.ndarray:
        """The ranks, with excluded positives behind the whole catalogue if the mode is "miss"."""
        if mode == "miss" and self.hidden.any():
            return np.where(self.hidden, self.num_items + 1, ranks)
        return ranks
