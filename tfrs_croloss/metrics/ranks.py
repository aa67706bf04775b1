"""Exact ranks of a test set's positives over a whole catalogue: by a model, and by popularity."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.metrics import _pairs
from tfrs_croloss.metrics._counting import LARGEST_BLOCK, RESCORED_AT_ONCE
from tfrs_croloss.metrics.catalogues import Catalogue, as_catalogue, check_embeddings, longest

_LARGEST_SCORE = 1e38


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
    ids, rows = _pairs.flatten_positives(positive_ids, query_rows, num_queries, num_items)
    left_out = _pairs.Exclusions.build(excluded, ids, rows, num_queries, num_items)
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
        num_queries = _pairs.count_queries(positive_ids, query_rows, excluded)
    ids, rows = _pairs.flatten_positives(positive_ids, query_rows, num_queries, len(scores))
    left_out = _pairs.Exclusions.build(excluded, ids, rows, num_queries, len(scores))
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
