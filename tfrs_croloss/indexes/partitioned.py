"""An approximate index in plain TensorFlow operations, in which a query visits a few leaves.

Any TensorFlow can load it, including stock TF Serving. It pays off from about ten thousand items.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.indexes.base import (
    NO_SCORE,
    Found,
    LeafIndex,
    as_rows,
    empty_table,
    gather_rows,
    search_in_blocks,
    search_table,
    taken_over,
    whole_setting,
)
from tfrs_croloss.indexes.vectors import VectorFiles, row_blocks

# Number of scores held at a time by search and by the training of leaves: 32 and 16 MiB.
_SCORES_AT_ONCE = 2**23
_DISTANCES_AT_ONCE = 2**22
_SAMPLE_PER_LEAF = 128
_ITERATIONS = 10
# A leaf larger than this multiple of the mean size is halved.
_LARGEST_LEAF = 1.5
_POWER_ITERATIONS = 5
# With fewer items, one product with all of them takes less time than choosing leaves.
_ITEMS_FOR_LEAVES = 10_000
# The default number of leaves to search finds this share of this many items, for this many queries
# of each sort. It is a little more than the 95 % that is promised for other queries.
_DEFAULT_RECALL = 0.96
_DEFAULT_TOP_N = 100
_DEFAULT_QUERIES = 128


class PartitionedIndex(LeafIndex):
    """Items partitioned by k-means; a query scores the items in the leaves with the best centres.

    The embeddings are held once, ordered by leaf, so that a leaf is a slice: the queries of a batch
    that visit a leaf are multiplied with the slice, and no rows are gathered. No leaf is much
    larger than the mean, which bounds the work of a query.

    >>> index = PartitionedIndex([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], num_leaves=2)
    >>> numbers, scores = index.search([[0.0, 1.0]], 2)
    >>> print(numbers.numpy(), scores.numpy())
    [[1 2]] [[1.  0.8]]

    Args:
      item_embeddings: ``[num_items, dim]`` finite floats, an array or `VectorFiles`.
      num_leaves: number of leaves to train; by default the square root of the number of items. The
        index may have more, if large leaves are halved, or fewer, if some stay empty.
      leaves_to_search: number of leaves that a query visits; it can be changed later. By default,
        as many as find 95 % of the top 100 for queries like the items and like means of two items.
        If that would take more than a quarter of the leaves, or there are fewer than 10,000 items,
        it is all of them: search is then exact, and as fast as `BruteForceIndex`.
      seed: seed of the training of leaves.
      name: name of the module.
    """

    kind = "partitioned"

    def __init__(
        self,
        item_embeddings: Any,
        *,
        num_leaves: int | None = None,
        leaves_to_search: int | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        rows = as_rows(item_embeddings)
        super().__init__(rows, name)
        wanted = whole_setting("num_leaves", num_leaves, round(math.sqrt(self.num_items)))
        table, order, ends = _partition(
            rows, min(wanted, self.num_items), np.random.default_rng(seed)
        )
        starts = np.concatenate([[0], ends[:-1]])
        centres = np.add.reduceat(table, starts, axis=0) / (ends - starts)[:, np.newaxis]
        positions = np.empty(self.num_items + 1, np.int32)
        positions[order] = np.arange(self.num_items)
        positions[-1] = self.num_items

        def constant(value: Any, dtype: tf.DType, name: str) -> tf.Variable:
            return tf.Variable(value, trainable=False, dtype=dtype, name=name)

        self.num_leaves = len(ends)
        self._seed = seed
        self._largest_leaf = int(np.max(ends - starts))
        self._table = constant(taken_over(table), tf.float32, "item_embeddings")
        self._centres = constant(centres, tf.float32, "centres")
        self._bounds = constant(np.append(starts, self.num_items), tf.int32, "bounds")
        # Both end with an entry for "no item", which maps to itself.
        self._numbers = constant(np.append(order, self.num_items), tf.int32, "numbers")
        self._positions = constant(positions, tf.int32, "positions")
        self._leaves_to_search = constant(1, tf.int32, "leaves_to_search")
        if leaves_to_search is None:
            leaves_to_search = self._enough_leaves(np.random.default_rng(seed))
        self.leaves_to_search = leaves_to_search

    def settings(self) -> dict[str, Any]:
        """Implements `Index.settings`."""
        return {
            "kind": self.kind,
            "num_leaves": self.num_leaves,
            "leaves_to_search": self.leaves_to_search,
            **self.build_options(),
        }

    def build_options(self) -> dict[str, Any]:
        """Implements `LeafIndex.build_options`."""
        return {"seed": self._seed}

    @tf.function(
        input_signature=[tf.TensorSpec([None, None], tf.float32), tf.TensorSpec([], tf.int32)]
    )
    def _search(self, queries: tf.Tensor, num: tf.Tensor) -> Found:
        """Implements `Index.search`."""
        queries = tf.ensure_shape(queries, [None, self.dim])
        leaves_to_search = tf.convert_to_tensor(self._leaves_to_search)
        num_queries = tf.shape(queries)[0]
        rows_at_once = tf.maximum(_SCORES_AT_ONCE // (leaves_to_search * self._largest_leaf), 1)
        # Visiting every leaf one by one would be slower than one product with the whole table.
        return tf.cond(
            leaves_to_search >= self.num_leaves,
            lambda: self.exact_search(queries, num, tf.zeros([num_queries, 0], tf.int32)),
            lambda: search_in_blocks(
                lambda first, last: self._search_rows(queries[first:last], num, leaves_to_search),
                num_queries,
                num,
                rows_at_once,
            ),
        )

    def vectors(self, numbers: tf.Tensor) -> tf.Tensor:
        """Implements `Index.vectors`."""
        return gather_rows(self._table, tf.gather(self._positions, numbers))

    def exact_search(self, queries: tf.Tensor, num: tf.Tensor, excluded: tf.Tensor) -> Found:
        """Implements `Index.exact_search`."""
        table = tf.convert_to_tensor(self._table)
        positions, scores = search_table(table, queries, num, tf.gather(self._positions, excluded))
        return tf.gather(self._numbers, positions), scores

    def _enough_leaves(self, random: np.random.Generator) -> int:
        """The default of ``leaves_to_search``."""
        if self.num_items < _ITEMS_FOR_LEAVES:
            return self.num_leaves
        table, centres = tf.convert_to_tensor(self._table), tf.convert_to_tensor(self._centres)
        items = tf.gather(table, random.integers(0, self.num_items, [2, _DEFAULT_QUERIES]))
        nothing = tf.zeros([_DEFAULT_QUERIES, 0], tf.int32)
        needed = 1
        # Users are often between items, and then find their items in more leaves.
        for queries in (items[0], 0.5 * (items[0] + items[1])):
            top, _ = search_table(table, queries, _DEFAULT_TOP_N, nothing)
            leaves = np.searchsorted(self._bounds.numpy(), top.numpy(), side="right") - 1
            by_score = tf.argsort(
                tf.matmul(queries, centres, transpose_b=True), direction="DESCENDING"
            )
            visited_at = 1 + np.argsort(by_score.numpy(), axis=1)
            visits = np.sort(np.take_along_axis(visited_at, leaves, axis=1), axis=None)
            needed = max(needed, int(visits[math.ceil(_DEFAULT_RECALL * len(visits)) - 1]))
        return needed if needed <= self.num_leaves / 4 else self.num_leaves

    def _search_rows(
        self, queries: tf.Tensor, num: tf.Tensor, leaves_to_search: tf.Tensor
    ) -> Found:
        """Searches for at least one query, with all scores at once."""
        num_queries = tf.shape(queries)[0]
        bounds = tf.convert_to_tensor(self._bounds)
        _, leaves = tf.math.top_k(
            tf.matmul(queries, self._centres, transpose_b=True), k=leaves_to_search, sorted=False
        )
        scores = self._leaf_scores(queries, leaves, bounds)
        scores = tf.reshape(scores, [num_queries, leaves_to_search * self._largest_leaf])
        best, places = tf.math.top_k(scores, k=tf.minimum(num, tf.shape(scores)[1]))
        visited = tf.gather(leaves, places // self._largest_leaf, batch_dims=1)
        positions = tf.gather(bounds, visited) + places % self._largest_leaf
        positions = tf.where(best > NO_SCORE, positions, self.num_items)
        missing = [[0, 0], [0, num - tf.shape(best)[1]]]
        positions = tf.pad(positions, missing, constant_values=self.num_items)
        return (
            tf.gather(self._numbers, positions),
            tf.pad(best, missing, constant_values=NO_SCORE),
        )

    def _leaf_scores(self, queries: tf.Tensor, leaves: tf.Tensor, bounds: tf.Tensor) -> tf.Tensor:
        """Scores ``[num_queries * leaves_to_search, largest_leaf]`` of the items in the leaves."""
        table = tf.convert_to_tensor(self._table)
        visits = tf.reshape(leaves, [-1])
        by_leaf = tf.argsort(visits, stable=True)
        visitors = tf.gather(queries, by_leaf // tf.shape(leaves)[1])
        visited, _, counts = tf.unique_with_counts(tf.gather(visits, by_leaf))
        lasts = tf.cumsum(counts)
        firsts = lasts - counts
        starts, ends = tf.gather(bounds, visited), tf.gather(bounds, visited + 1)
        num_visited = tf.size(visited)

        def body(turn: tf.Tensor, blocks: tf.TensorArray) -> tuple:
            items = table[starts[turn] : ends[turn]]
            scores = tf.matmul(visitors[firsts[turn] : lasts[turn]], items, transpose_b=True)
            missing = self._largest_leaf - tf.shape(items)[0]
            scores = tf.pad(scores, [[0, 0], [0, missing]], constant_values=NO_SCORE)
            return turn + 1, blocks.write(turn, scores)

        blocks = tf.TensorArray(
            tf.float32, num_visited, infer_shape=False, element_shape=[None, self._largest_leaf]
        )
        _, blocks = tf.while_loop(
            lambda turn, _: turn < num_visited, body, [tf.constant(0), blocks]
        )
        return tf.gather(blocks.concat(), tf.math.invert_permutation(by_leaf))


def _partition(
    rows: np.ndarray | VectorFiles, num_leaves: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Orders rows by leaf: ``(table [num_rows, dim], order [num_rows], ends [num_leaves])``.

    The table has the rows in this order, and no leaf is empty.
    """
    leaves = _nearest(rows, _trained_centres(rows, num_leaves, random))
    order = np.argsort(leaves, kind="stable")
    starts = np.unique(leaves[order], return_index=True)[1]
    table = _in_order(rows, order)
    limit = max(math.ceil(_LARGEST_LEAF * len(rows) / num_leaves), 1)
    sizes = [
        size
        for start, end in zip(starts, [*starts[1:], len(rows)])
        for size in _halve(table[start:end], order[start:end], limit, random)
    ]
    return table, order, np.cumsum(sizes)


def _trained_centres(
    rows: np.ndarray | VectorFiles, num_leaves: int, random: np.random.Generator
) -> np.ndarray:
    """Trains centres ``[num_leaves, dim]`` by k-means on a sample."""
    sample_size = min(len(rows), _SAMPLE_PER_LEAF * num_leaves)
    sample = rows[np.sort(random.choice(len(rows), sample_size, replace=False))]
    centres = sample[random.choice(sample_size, num_leaves, replace=False)]
    for _ in range(_ITERATIONS):
        leaves = _nearest(sample, centres)
        order = np.argsort(leaves, kind="stable")
        occupied, starts, counts = np.unique(leaves[order], return_index=True, return_counts=True)
        # A centre without members keeps its place.
        centres[occupied] = np.add.reduceat(sample[order], starts, axis=0) / counts[:, np.newaxis]
    return centres


def _in_order(rows: np.ndarray | VectorFiles, order: np.ndarray) -> np.ndarray:
    """``rows[order]``, read once from the first row to the last, block by block."""
    places = np.empty(len(order), np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    table = empty_table(rows.shape)
    for first, block in row_blocks(rows):
        table[places[first : first + len(block)]] = block
    return table


def _nearest(rows: np.ndarray | VectorFiles, centres: np.ndarray) -> np.ndarray:
    """The number ``[num_rows]`` of the nearest centre of each row."""
    step = max(_DISTANCES_AT_ONCE // len(centres), 1)
    half_norms = 0.5 * tf.reduce_sum(tf.square(centres), axis=1)
    nearest = np.empty(len(rows), np.int32)
    for first in range(0, len(rows), step):
        closeness = tf.matmul(rows[first : first + step], centres, transpose_b=True) - half_norms
        nearest[first : first + step] = tf.argmax(closeness, axis=1, output_type=tf.int32)
    return nearest


def _halve(
    rows: np.ndarray, numbers: np.ndarray, limit: int, random: np.random.Generator
) -> list[int]:
    """Halves a leaf across its longest extent until no part is larger than the limit.

    The rows and their numbers are reordered in place, part by part.

    Returns:
      The sizes of the parts.
    """
    if len(rows) <= limit:
        return [len(rows)]
    centred = rows - rows.mean(axis=0)
    direction = np.asarray(random.normal(size=rows.shape[1]), np.float32)
    for _ in range(_POWER_ITERATIONS):
        direction = centred.T @ (centred @ direction)
        direction /= max(float(np.linalg.norm(direction)), float(np.finfo(np.float32).tiny))
    order = np.argsort(centred @ direction, kind="stable")
    rows[:], numbers[:] = rows[order], numbers[order]
    middle = len(rows) // 2
    return [
        size
        for half in (slice(None, middle), slice(middle, None))
        for size in _halve(rows[half], numbers[half], limit, random)
    ]
