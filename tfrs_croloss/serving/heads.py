"""Search for queries with several vectors each, of which the best one scores an item."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfrs_croloss.indexes.base import NO_SCORE, Found, Index

_QUERIES_AT_ONCE = 256
# Scores that differ by less than this, relative to the largest, are ties.
_TIE = 2e-6


def search_heads(
    search: Callable[..., Found], queries: tf.Tensor, num: tf.Tensor, excluded: tf.Tensor, none: int
) -> Found:
    """Finds items for each vector of a query, and keeps the best.

    An item of the exact top N is in the top N of the vector that scores it best, so nothing is lost
    if ``search`` is exact.

    Args:
      search: an index' search for ``[rows, dim]`` queries, a number and excluded items.
      queries: ``[batch, heads, dim]`` or ``[batch, dim]`` float32.
      num: scalar int32, the number of items to find.
      excluded: ``[batch, width]`` int32 item numbers, padded with ``none``.
      none: number that stands for no item.

    Returns:
      Item numbers ``[batch, num]`` and scores ``[batch, num]``, as `Index.search` has them.
    """
    if queries.shape.rank == 2:
        return search(queries, num, excluded)
    batch, heads = tf.shape(queries)[0], tf.shape(queries)[1]
    flat = tf.reshape(queries, [batch * heads, queries.shape[2]])
    numbers, scores = search(flat, num, tf.repeat(excluded, heads, axis=0))
    shape = tf.stack([batch, heads * num])
    return best_distinct(tf.reshape(numbers, shape), tf.reshape(scores, shape), num, none)


def best_distinct(numbers: tf.Tensor, scores: tf.Tensor, num: tf.Tensor, none: int) -> Found:
    """The best items of each row, each once, with its best score.

    >>> scores = tf.constant([[1.0, 2.0, 4.0, 8.0]])
    >>> found = best_distinct(tf.constant([[5, 3, 5, 9]]), scores, num=3, none=9)
    >>> print(found[0].numpy(), found[1].numpy()[:, :2])
    [[5 3 9]] [[4. 2.]]

    Args:
      numbers: ``[batch, width]`` int32 item numbers, of which some may be repeated.
      scores: ``[batch, width]`` float32.
      num: scalar int32, the number of items to keep.
      none: number that stands for no item.

    Returns:
      Item numbers and scores ``[batch, num]``, best first, then ``none`` and `NO_SCORE`.
    """
    missing = [[0, 0], [0, tf.maximum(num - tf.shape(numbers)[1], 0)]]
    numbers = tf.pad(numbers, missing, constant_values=none)
    scores = tf.pad(scores, missing, constant_values=NO_SCORE)
    # Sorted by score and then, stably, by number, so that the best of equal numbers is the first.
    by_score = tf.argsort(scores, axis=1, direction="DESCENDING", stable=True)
    numbers, scores = (tf.gather(one, by_score, batch_dims=1) for one in (numbers, scores))
    by_number = tf.argsort(numbers, axis=1, stable=True)
    numbers, scores = (tf.gather(one, by_number, batch_dims=1) for one in (numbers, scores))
    repeated = tf.pad(tf.equal(numbers[:, 1:], numbers[:, :-1]), [[0, 0], [1, 0]])
    dropped = tf.logical_or(repeated, numbers >= none)
    best, places = tf.math.top_k(tf.where(dropped, NO_SCORE, scores), k=num)
    numbers = tf.gather(numbers, places, batch_dims=1)
    return tf.where(best > NO_SCORE, numbers, none), best


def recall_of_heads(index: Index, queries: np.ndarray, top_n: int) -> float:
    """The mean share of the exact top N that an index finds for queries with several vectors.

    Args:
      index: index of any kind.
      queries: ``[num_queries, heads, dim]`` float32.
      top_n: number of items to find, at most all.
    """

    @tf.function(reduce_retracing=True)
    def both(block: tf.Tensor) -> tuple[Found, Found]:
        num, none = tf.constant(top_n), tf.zeros([tf.shape(block)[0], 0], tf.int32)
        searches = (index.search_excluding, index.exact_search)
        found, exact = (search_heads(one, block, num, none, index.num_items) for one in searches)
        return found, exact

    shares = []
    for first in range(0, len(queries), _QUERIES_AT_ONCE):
        found, exact = both(tf.constant(queries[first : first + _QUERIES_AT_ONCE]))
        last = exact[1].numpy()[:, -1:]
        tolerance = _TIE * np.maximum(np.abs(exact[1].numpy()).max(axis=1, keepdims=True), 1e-30)
        shares.append(np.mean(found[1].numpy() >= last - 4 * tolerance, axis=1))
    return float(np.concatenate(shares).mean())
