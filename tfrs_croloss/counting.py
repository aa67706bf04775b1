r"""Exact ranks over a whole catalogue, by counting.

The rank of a positive is :math:`R = 1 + |\{i \ne v : S(u, v_i) \ge S(u, v)\}|`: ties count against
it. Counting needs one matrix product and a comparison, no sort and no top-k, and works block by
block, so that memory does not grow with the catalogue or with the number of queries.

Matrix products round differently with their shape, their device and a column's place in them, so
that two copies of one vector may get different scores. Ranks here do not depend on any of that. The
score of a pair is by definition the float32 nearest to the dot product computed in float64; the
fast product decides every comparison outside its own error bound, and the few pairs inside it are
scored again by the definition.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tfrs_croloss import _pairs

_RESCORED_AT_ONCE = 16_384
_LARGEST_SCORE = 1e38
# Sums of as many squares of 6 are exact in float32.
LARGEST_BLOCK = 2**18


def _unit_roundoff() -> float:
    """Relative error of one multiplication inside the matrix products of this machine."""
    tensor_float_32 = tf.config.experimental.tensor_float_32_execution_enabled()
    if tensor_float_32 and tf.config.list_physical_devices("GPU"):
        return 2.0**-10
    return 2.0**-24


def pair_scores(queries: tf.Tensor, candidates: tf.Tensor) -> tf.Tensor:
    """The score that ranks are defined by, for aligned rows.

    Args:
      queries: ``[num_pairs, dim]`` floats.
      candidates: ``[num_pairs, dim]`` floats.

    Returns:
      ``[num_pairs]`` float32: dot products computed in float64, rounded once.
    """
    products = tf.cast(queries, tf.float64) * tf.cast(candidates, tf.float64)
    return tf.cast(tf.reduce_sum(products, axis=-1), tf.float32)


def _count_by_pair(counts: tf.Tensor, pairs: tf.Tensor, all_pairs: tf.Tensor) -> tf.Tensor:
    return tf.math.unsorted_segment_sum(tf.cast(counts, tf.int64), pairs, tf.size(all_pairs))


def _norms(rows: tf.Tensor) -> tf.Tensor:
    return tf.norm(tf.cast(rows, tf.float64), axis=1)


@tf.function(
    input_signature=[
        tf.TensorSpec([None, None], tf.float32),
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([None], tf.float32),
        tf.TensorSpec([None, None], tf.float32),
        tf.TensorSpec([], tf.int64),
        tf.TensorSpec([], tf.bool),
    ]
)
def count_ahead(
    queries: tf.Tensor,
    query_rows: tf.Tensor,
    positive_scores: tf.Tensor,
    candidates: tf.Tensor,
    block_size: tf.Tensor,
    rescore: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """How many candidates score above each positive, and how many level with it.

    Everything counts as above where numbers are not finite, so that a broken model never looks
    good; and if the query or all candidates are zero vectors, so that all scores are ties.

    Args:
      queries: ``[num_queries, dim]`` float32.
      query_rows: ``[num_pairs]`` int64, the row of ``queries`` that each pair belongs to: in
        ascending order, and every row at least once.
      positive_scores: ``[num_pairs]`` float32, from `pair_scores`.
      candidates: ``[num_items, dim]`` float32.
      block_size: scalar int64, candidates in one matrix product, at most `LARGEST_BLOCK`.
      rescore: scalar bool. If true, pairs too close to call are scored again by `pair_scores`; if
        false, they all count as level.

    Returns:
      Two ``[num_pairs]`` int64 tensors. A positive that is itself among the candidates is one of
      those level with it.
    """
    num_items = tf.shape(candidates, out_type=tf.int64)[0]
    dim = tf.cast(tf.shape(queries)[1], tf.float64)
    largest = tf.maximum(tf.reduce_max(candidates), -tf.reduce_min(candidates))
    one_row_each = tf.equal(tf.size(query_rows), tf.shape(queries)[0])
    # Gaps to the positive's score are scaled and shifted so that a tie is at 3, and 0 and 6 are
    # twice the error bound of the product away, whatever the order of its sums: a comparison is
    # certain beyond them.
    unit = 4.0 * (dim + 8.0) * _unit_roundoff() * tf.sqrt(dim) / 3.0
    query_norms = _norms(queries)
    pair_norms = tf.gather(query_norms, query_rows)
    all_ahead = tf.logical_not(
        tf.math.is_finite(positive_scores) & tf.math.is_finite(pair_norms) & (pair_norms > 0.0)
    )
    bars = tf.cast(positive_scores, tf.float64) / (unit * pair_norms * tf.cast(largest, tf.float64))
    shifts = tf.where(all_ahead, 1e30, 3.0 - tf.cast(bars, tf.float32))
    directions = tf.cast(
        tf.cast(queries, tf.float64) / (unit * query_norms[:, tf.newaxis]), tf.float32
    )
    directions = tf.where(tf.math.is_finite(directions), directions, 0.0)
    # In the product, a column of ones in the candidates adds the shift.
    if one_row_each:
        directions = tf.concat([directions, shifts[:, tf.newaxis]], axis=1)
    else:
        directions = tf.pad(directions, [[0, 0], [0, 1]])
    ahead = tf.zeros_like(query_rows)
    level = tf.zeros_like(query_rows)
    if largest <= 0.0 or not tf.reduce_all(tf.math.is_finite(candidates)):
        ahead += num_items
        num_items = tf.zeros_like(num_items)

    # Pairs and items too close to call, of the blocks since these were last settled.
    close_pairs = tf.zeros([0], tf.int64)
    close_items = tf.zeros([0], tf.int64)
    for start in tf.range(tf.constant(0, tf.int64), num_items, block_size):
        tf.autograph.experimental.set_loop_options(
            parallel_iterations=4,
            shape_invariants=[
                (close_pairs, tf.TensorShape([None])),
                (close_items, tf.TensorShape([None])),
            ],
        )
        block = candidates[start : start + block_size] / largest
        gaps = tf.matmul(
            directions, tf.pad(block, [[0, 0], [0, 1]], constant_values=1.0), transpose_b=True
        )
        if not one_row_each:
            gaps = tf.gather(gaps, query_rows) + shifts[:, tf.newaxis]

        # Certain gaps become 0 or 6, whose sums are exact, and faster than comparing and counting.
        # 6 x - x^2 is 0 for those and positive in between; it is over 6 where x is not certain.
        steps = tf.nn.relu6(gaps)
        total = tf.reduce_sum(steps, axis=1)
        norm = tf.math.reduce_euclidean_norm(steps, axis=1)
        unsure = 6.0 * total - tf.square(norm) > 4.0
        num_above = tf.cast(tf.round(total / 6.0), tf.int64)
        ahead += tf.where(unsure, tf.constant(0, tf.int64), num_above)

        # Few pairs have a candidate this close: their steps are looked at one by one.
        unsure_pairs = tf.where(unsure)
        steps = tf.gather_nd(steps, unsure_pairs)
        ahead = tf.tensor_scatter_nd_add(
            ahead, unsure_pairs, tf.math.count_nonzero(steps >= 6.0, axis=1)
        )
        close = tf.where((steps > 0.0) & (steps < 6.0))
        close_pairs = tf.concat([close_pairs, tf.gather(unsure_pairs[:, 0], close[:, 0])], axis=0)
        close_items = tf.concat([close_items, close[:, 1] + start], axis=0)
        if tf.size(close_pairs) >= _RESCORED_AT_ONCE or start + block_size >= num_items:
            if rescore:
                more_ahead, more_level = _settle(
                    close_pairs, close_items, queries, query_rows, positive_scores, candidates
                )
                ahead += more_ahead
                level += more_level
            else:
                level += _count_by_pair(
                    tf.ones_like(close_pairs, tf.bool), close_pairs, query_rows
                )
            close_pairs = close_pairs[:0]
            close_items = close_items[:0]
    return ahead, level


def _settle(
    close_pairs: tf.Tensor,
    close_items: tf.Tensor,
    queries: tf.Tensor,
    query_rows: tf.Tensor,
    positive_scores: tf.Tensor,
    candidates: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Counts as `count_ahead` does, over given pairs and items, by the definition."""
    ahead = tf.zeros_like(query_rows)
    level = tf.zeros_like(query_rows)
    for first in tf.range(0, tf.size(close_pairs), _RESCORED_AT_ONCE):
        pairs = close_pairs[first : first + _RESCORED_AT_ONCE]
        items = close_items[first : first + _RESCORED_AT_ONCE]
        rows = tf.gather(query_rows, pairs)
        again = pair_scores(tf.gather(queries, rows), tf.gather(candidates, items))
        bar = tf.gather(positive_scores, pairs)
        ahead += _count_by_pair(again > bar, pairs, query_rows)
        level += _count_by_pair(tf.equal(again, bar), pairs, query_rows)
    return ahead, level


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
      candidate_embeddings: ``[num_items, dim]`` floats, row ``i`` the item with id ``i``.
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
      query_block_size: pairs ranked at a time. Memory beyond the inputs is about 16 bytes times the
        product of both block sizes.

    Returns:
      ``[num_pairs]`` int64 ranks, in the order of the (flattened) positives. They do not depend on
      the block sizes or on how the device rounds.

    Raises:
      ValueError: for shapes, ids or rows that do not fit each other, and for embeddings that are
        not finite, naming the first such row.
    """
    queries = check_embeddings(query_embeddings, "query_embeddings")
    candidates = check_embeddings(candidate_embeddings, "candidate_embeddings")
    _check_scores(queries, candidates)
    for name, size in (
        ("candidate_block_size", candidate_block_size),
        ("query_block_size", query_block_size),
    ):
        if not 1 <= size <= LARGEST_BLOCK:
            raise ValueError(f"`{name}` should be between 1 and {LARGEST_BLOCK}. Received: {size}.")
    num_queries, num_items = queries.shape[0], candidates.shape[0]
    ids, rows = _pairs.flatten_positives(positive_ids, query_rows, num_queries, num_items)
    left_out = _pairs.Exclusions.build(excluded, ids, rows, num_queries, num_items)
    left_out.check_mode(excluded_positives)

    ranks = np.zeros(len(ids), np.int64)
    by_row = np.argsort(rows, kind="stable")
    for first in range(0, len(ids), query_block_size):
        pairs = by_row[first : first + query_block_size]
        block_rows, local_rows = np.unique(rows[pairs], return_inverse=True)
        block_queries = tf.gather(queries, block_rows)
        bars = pair_scores(tf.gather(queries, rows[pairs]), tf.gather(candidates, ids[pairs]))
        ahead, level = count_ahead(
            block_queries,
            tf.constant(local_rows.reshape(-1), tf.int64),
            bars,
            candidates,
            tf.constant(candidate_block_size, tf.int64),
            tf.constant(True),
        )
        ranks[pairs] = np.minimum(ahead.numpy() + np.maximum(level.numpy(), 1), num_items)
        for among, items in left_out.competitors(pairs, _RESCORED_AT_ONCE):
            scores = pair_scores(
                tf.gather(queries, rows[pairs[among]]), tf.gather(candidates, items)
            )
            counted = scores.numpy() >= bars.numpy()[among]
            ranks[pairs] -= np.bincount(among[counted], minlength=len(pairs))
    return left_out.settle(ranks, excluded_positives)


def popularity_ranks(
    item_scores: Any,
    positive_ids: Any,
    *,
    query_rows: Any = None,
    excluded: Any = None,
    excluded_positives: str = "error",
    num_queries: Optional[int] = None,
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


def check_embeddings(values: Any, name: str) -> tf.Tensor:
    """``values`` as float32 ``[rows, dim]``, all finite, or an error that says what is wrong."""
    tensor = tf.convert_to_tensor(values)
    if not tensor.dtype.is_floating or tensor.shape.rank != 2 or 0 in tensor.shape:
        raise ValueError(
            f"`{name}` should be floats of shape [rows, dim], neither of them 0. "
            f"Received: {tensor.dtype.name} of shape {tuple(tensor.shape)}."
        )
    tensor = tf.cast(tensor, tf.float32)
    finite = tf.reduce_all(tf.math.is_finite(tensor), axis=1).numpy()
    if not finite.all():
        raise ValueError(
            f"`{name}` should be finite float32 numbers. Received: {np.sum(~finite)} of "
            f"{len(finite)} rows with NaN or infinity, the first of them row {np.argmin(finite)}. "
            "Did training diverge?"
        )
    return tensor


def _check_scores(queries: tf.Tensor, candidates: tf.Tensor) -> None:
    if queries.shape[1] != candidates.shape[1]:
        raise ValueError(
            "`query_embeddings` and `candidate_embeddings` should have the same dim. "
            f"Received: {queries.shape[1]} and {candidates.shape[1]}."
        )
    query_norms = tf.math.reduce_euclidean_norm(queries, axis=1).numpy()
    candidate_norms = tf.math.reduce_euclidean_norm(candidates, axis=1).numpy()
    if float(query_norms.max()) * float(candidate_norms.max()) <= _LARGEST_SCORE:
        return
    # Squares that overflow float32 need not mean scores that do.
    query_norms, candidate_norms = _norms(queries).numpy(), _norms(candidates).numpy()
    if query_norms.max() * candidate_norms.max() > _LARGEST_SCORE:
        raise ValueError(
            "Scores should fit into float32. Received: embeddings of norm up to "
            f"{query_norms.max():.3g} (query row {query_norms.argmax()}) and "
            f"{candidate_norms.max():.3g} (candidate row {candidate_norms.argmax()}). "
            "Normalize the embeddings or scale them down."
        )
