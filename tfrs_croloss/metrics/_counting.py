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

import tensorflow as tf

RESCORED_AT_ONCE = 16_384
# Ties that blocks leave open are settled together for this many blocks.
_BLOCKS_AT_ONCE = 16
# Sums of up to this many squares of 6 are exact in float32.
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


def norms(rows: tf.Tensor) -> tf.Tensor:
    """Lengths ``[num_rows]`` of rows, float64."""
    return tf.norm(tf.cast(rows, tf.float64), axis=1)


def count_ahead(
    queries: tf.Tensor,
    query_rows: tf.Tensor | None,
    positive_scores: tf.Tensor,
    candidates: tf.Tensor,
    block_size: tf.Tensor,
    rescore: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """How many candidates score above each positive, and how many level with it.

    Everything counts as above where numbers are not finite, so that a broken model never looks
    good; and if the query is a zero vector, so that all scores are ties.

    Args:
      queries: ``[num_queries, dim]`` float32.
      query_rows: ``[num_pairs]`` int64, the row of ``queries`` that each pair belongs to: in
        ascending order, and every row at least once. None where there is one pair for each row,
        which is faster.
      positive_scores: ``[num_pairs]`` float32, from `pair_scores`.
      candidates: ``[num_items, dim]`` float32.
      block_size: scalar int64, candidates in one matrix product, at most `LARGEST_BLOCK`.
      rescore: scalar bool. If true, pairs too close to call are scored again by `pair_scores`; if
        false, they all count as level.

    Returns:
      Two ``[num_pairs]`` int64 tensors. A positive that is itself among the candidates is one of
      those level with it.
    """
    if query_rows is None:
        return _count_single(queries, positive_scores, candidates, block_size, rescore)
    return _count_grouped(queries, positive_scores, candidates, block_size, rescore, query_rows)


_ARGUMENTS = [
    tf.TensorSpec([None, None], tf.float32),
    tf.TensorSpec([None], tf.float32),
    tf.TensorSpec([None, None], tf.float32),
    tf.TensorSpec([], tf.int64),
    tf.TensorSpec([], tf.bool),
]


def _count(
    queries: tf.Tensor,
    positive_scores: tf.Tensor,
    candidates: tf.Tensor,
    block_size: tf.Tensor,
    rescore: tf.Tensor,
    query_rows: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    num_items = tf.shape(candidates, out_type=tf.int64)[0]
    num_pairs = tf.size(positive_scores, out_type=tf.int64)
    one_row_each = query_rows is None
    if one_row_each:
        query_rows = tf.range(num_pairs)
    dim = tf.cast(tf.shape(queries)[1], tf.float64)
    largest = tf.maximum(tf.reduce_max(candidates), -tf.reduce_min(candidates))
    # Gaps to the positive's score are scaled and shifted so that a tie is at 3, and 0 and 6 are
    # twice the error bound of the product away, whatever the order of its sums: a comparison is
    # certain beyond them.
    unit = 4.0 * (dim + 8.0) * _unit_roundoff() * tf.sqrt(dim) / 3.0
    query_norms = norms(queries)
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
    if not tf.reduce_all(tf.math.is_finite(candidates)):
        ahead += num_items
        num_items = tf.zeros_like(num_items)
    elif largest <= 0.0:
        # Every score is 0, and nothing can be scaled.
        ahead += tf.where(positive_scores >= 0.0, tf.zeros_like(num_items), num_items)
        level += tf.where(tf.equal(positive_scores, 0.0), num_items, tf.zeros_like(num_items))
        num_items = tf.zeros_like(num_items)

    for start in tf.range(tf.constant(0, tf.int64), num_items, _BLOCKS_AT_ONCE * block_size):
        # One after the other, since each may hold many rows that are left open.
        tf.autograph.experimental.set_loop_options(parallel_iterations=1)
        part = candidates[start : start + _BLOCKS_AT_ONCE * block_size] / largest
        part = tf.pad(part, [[0, 0], [0, 1]], constant_values=1.0)
        num_blocks = tf.cast(-(-tf.shape(part, out_type=tf.int64)[0] // block_size), tf.int32)
        # Rows that a block leaves open: where they come from, and their steps.
        places = tf.TensorArray(tf.int64, num_blocks, infer_shape=False, element_shape=[None])
        rows = tf.TensorArray(tf.float32, num_blocks, infer_shape=False, element_shape=[None, None])
        certain = tf.zeros_like(shifts)
        # Nothing else belongs into this loop: it takes nearly all of the time.
        for number in tf.range(num_blocks):
            first = tf.cast(number, tf.int64) * block_size
            gaps = tf.matmul(directions, part[first : first + block_size], transpose_b=True)
            if not one_row_each:
                gaps = tf.gather(gaps, query_rows) + shifts[:, tf.newaxis]
            # Certain gaps become 0 or 6, whose sums are exact, and faster than comparing and
            # counting; or come so near, less than 1 in all, that rounding a block's sum makes them.
            # 6 x - x^2 is 0 or small for those, and over 6 where x is not certain.
            steps = tf.nn.relu6(gaps)
            total = tf.reduce_sum(steps, axis=1)
            norm = tf.math.reduce_euclidean_norm(steps, axis=1)
            is_open = 6.0 * total - tf.square(norm) > 4.0
            certain += tf.where(is_open, 0.0, tf.round(total / 6.0))
            pairs = tf.where(is_open)[:, 0]
            places = places.write(number, first * num_pairs + pairs)
            missing = block_size - tf.shape(steps, out_type=tf.int64)[1]
            rows = rows.write(number, tf.pad(tf.gather(steps, pairs), [[0, 0], [0, missing]]))
        ahead += tf.cast(certain, tf.int64)
        place, steps = places.concat(), rows.concat()
        # As many rows at a time as a block has.
        for first_row in tf.range(0, tf.size(place, tf.int64), tf.maximum(num_pairs, 1)):
            some = place[first_row : first_row + num_pairs]
            pairs, first_items = some % num_pairs, start + some // num_pairs
            some_steps = steps[first_row : first_row + num_pairs]
            ahead += _count_by_pair(
                tf.math.count_nonzero(some_steps >= 6.0, axis=1), pairs, query_rows
            )
            close = tf.where((some_steps > 0.0) & (some_steps < 6.0))
            close_pairs = tf.gather(pairs, close[:, 0])
            if rescore:
                close_items = tf.gather(first_items, close[:, 0]) + close[:, 1]
                more_ahead, more_level = _settle(
                    close_pairs, close_items, queries, query_rows, positive_scores, candidates
                )
                ahead += more_ahead
                level += more_level
            else:
                level += _count_by_pair(tf.ones_like(close_pairs, tf.bool), close_pairs, query_rows)
    return ahead, level


_count_single = tf.function(_count, input_signature=_ARGUMENTS)
_count_grouped = tf.function(_count, input_signature=[*_ARGUMENTS, tf.TensorSpec([None], tf.int64)])


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
    for first in tf.range(0, tf.size(close_pairs), RESCORED_AT_ONCE):
        pairs = close_pairs[first : first + RESCORED_AT_ONCE]
        items = close_items[first : first + RESCORED_AT_ONCE]
        rows = tf.gather(query_rows, pairs)
        again = pair_scores(tf.gather(queries, rows), tf.gather(candidates, items))
        bar = tf.gather(positive_scores, pairs)
        ahead += _count_by_pair(again > bar, pairs, query_rows)
        level += _count_by_pair(tf.equal(again, bar), pairs, query_rows)
    return ahead, level
