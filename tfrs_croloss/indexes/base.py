"""The interface of an index, which finds the items with the highest scores, and exact search.

Scores are inner products, and all indexes return answers in the same form. Items are numbered like
the rows of the embeddings; a place that could not be filled has the item number ``num_items`` and
the score `NO_SCORE`.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.indexes.vectors import VectorFiles, row_blocks

# Finite, since servers would write infinity as something that is not JSON.
NO_SCORE = float(np.finfo(np.float32).min)
# Number of scores that exact search holds at a time: 128 MiB.
_SCORES_AT_ONCE = 2**25
# TensorFlow aligns its memory to multiples of this, and its operations may rely on it.
_ALIGNMENT = 64

Found = tuple[tf.Tensor, tf.Tensor]


class Index(tf.Module, abc.ABC):
    """The interface of all indexes.

    Args:
      item_embeddings: ``[num_items, dim]`` finite floats, an array or `VectorFiles`. Files are
        read block by block, so that memory holds only the index.
      name: name of the module.
    """

    kind: ClassVar[str]

    def __init__(self, item_embeddings: Any, name: str | None = None) -> None:
        super().__init__(name=name)
        rows = as_rows(item_embeddings)
        if rows.ndim != 2 or 0 in rows.shape:
            raise ValueError(
                "`item_embeddings` should have the shape [num_items, dim], with neither of them 0. "
                f"Received: {rows.shape}."
            )
        self.num_items, self.dim = (int(size) for size in rows.shape)

    def search(self, queries: Any, num: Any) -> Found:
        """Finds the items with the highest scores, best first, each at most once.

        Args:
          queries: ``[batch, dim]`` finite floats, a tensor, an array or lists.
          num: whole number from 1 to ``num_items``, the number of items to find.

        Returns:
          Item numbers ``[batch, num]`` int32 and scores ``[batch, num]`` float32.
        """
        queries = tf.cast(queries, tf.float32)
        if not queries.shape.is_compatible_with([None, self.dim]):
            raise ValueError(
                f"`queries` should have the shape [batch, {self.dim}]. Received: {queries.shape}."
            )
        wanted = tf.get_static_value(num)
        if wanted is not None and not 1 <= wanted <= self.num_items:
            raise ValueError(
                f"`num` should be from 1 to {self.num_items}, the number of items. Received: "
                f"{wanted}."
            )
        return self._search(queries, tf.cast(num, tf.int32))

    @abc.abstractmethod
    def _search(self, queries: tf.Tensor, num: tf.Tensor) -> Found:
        """Implements `search`, for queries ``[batch, dim]`` float32 and a scalar int32.

        A subclass that decorates it with ``tf.function`` is fast outside of other functions too.
        """

    @abc.abstractmethod
    def vectors(self, numbers: tf.Tensor) -> tf.Tensor:
        """The embeddings ``[..., dim]`` of the items with the numbers ``[...]``."""

    @abc.abstractmethod
    def exact_search(self, queries: tf.Tensor, num: tf.Tensor, excluded: tf.Tensor) -> Found:
        """Scores all items that are not excluded; returns what `search` returns.

        Args:
          queries: ``[batch, dim]`` finite float32.
          num: scalar int32 from 1 to ``num_items``, the number of items to find.
          excluded: ``[batch, width]`` int32 item numbers, padded with ``num_items``.
        """

    def search_excluding(self, queries: tf.Tensor, num: tf.Tensor, excluded: tf.Tensor) -> Found:
        """Finds items that are not excluded, and fills every place that can be filled.

        It searches for ``width`` more items than asked for. If that leaves places unfilled, exact
        search answers, so that the remaining items are found however few they are.

        Args:
          queries: ``[batch, dim]`` finite float32.
          num: scalar int32 from 1 to ``num_items``, the number of items to find.
          excluded: ``[batch, width]`` int32 item numbers, padded with ``num_items``.
        """
        enough = tf.minimum(num + tf.shape(excluded)[1], self.num_items)
        numbers, scores = self.search(queries, enough)
        dropped = tf.logical_or(is_among(numbers, excluded), numbers >= self.num_items)
        scores, places = tf.math.top_k(tf.where(dropped, NO_SCORE, scores), k=num)
        numbers = tf.gather(numbers, places, batch_dims=1)
        unfilled = scores <= NO_SCORE
        return tf.cond(
            tf.reduce_any(unfilled),
            lambda: self.exact_search(queries, num, excluded),
            lambda: (numbers, scores),
        )

    def settings(self) -> dict[str, Any]:
        """The settings that the index was built with and searches with, as JSON values."""
        return {"kind": self.kind}


class LeafIndex(Index):
    """An index that divides the items into leaves, of which each query visits a few.

    Attributes:
      num_leaves: number of leaves.
    """

    num_leaves: int
    _leaves_to_search: tf.Variable

    @property
    def leaves_to_search(self) -> int:
        """Number of leaves that a query visits; already traced functions see a change too."""
        return int(self._leaves_to_search.numpy())

    @leaves_to_search.setter
    def leaves_to_search(self, value: int) -> None:
        value = whole_setting("leaves_to_search", value, 1)
        self._leaves_to_search.assign(min(value, self.num_leaves))

    @abc.abstractmethod
    def build_options(self) -> dict[str, Any]:
        """The options that rebuild this index, without its number of leaves."""


class BruteForceIndex(Index):
    """Exact search: scores every item for every query, a few queries at a time.

    >>> index = BruteForceIndex([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    >>> numbers, scores = index.search([[0.0, 1.0]], 2)
    >>> print(numbers.numpy(), scores.numpy())
    [[1 2]] [[1.  0.8]]

    Args:
      item_embeddings: ``[num_items, dim]`` finite floats, an array or `VectorFiles`.
      name: name of the module.
    """

    kind = "brute_force"

    def __init__(self, item_embeddings: Any, name: str | None = None) -> None:
        rows = as_rows(item_embeddings)
        super().__init__(rows, name)
        self._table = tf.Variable(table_of(rows), trainable=False, name="item_embeddings")

    @tf.function(
        input_signature=[tf.TensorSpec([None, None], tf.float32), tf.TensorSpec([], tf.int32)]
    )
    def _search(self, queries: tf.Tensor, num: tf.Tensor) -> Found:
        """Implements `Index.search`."""
        return self.exact_search(queries, num, tf.zeros([tf.shape(queries)[0], 0], tf.int32))

    def search_excluding(self, queries: tf.Tensor, num: tf.Tensor, excluded: tf.Tensor) -> Found:
        """Implements `Index.search_excluding`."""
        return self.exact_search(queries, num, excluded)

    def vectors(self, numbers: tf.Tensor) -> tf.Tensor:
        """Implements `Index.vectors`."""
        return gather_rows(self._table, numbers)

    def exact_search(self, queries: tf.Tensor, num: tf.Tensor, excluded: tf.Tensor) -> Found:
        """Implements `Index.exact_search`."""
        return search_table(tf.convert_to_tensor(self._table), queries, num, excluded)


def as_rows(item_embeddings: Any) -> np.ndarray | VectorFiles:
    """Returns `VectorFiles` unchanged, and anything else as a float32 array."""
    if isinstance(item_embeddings, VectorFiles):
        return item_embeddings
    return np.asarray(item_embeddings, np.float32)


def table_of(rows: np.ndarray | VectorFiles) -> tf.Tensor:
    """A tensor ``[num_rows, dim]`` with the rows, which are copied only once."""
    table = empty_table(rows.shape)
    for first, block in row_blocks(rows):
        table[first : first + len(block)] = block
    return taken_over(table)


def empty_table(shape: tuple[int, ...]) -> np.ndarray:
    """An aligned float32 array to fill and then pass to `taken_over`."""
    size = math.prod(shape) * np.dtype(np.float32).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(np.float32).reshape(shape)


def taken_over(table: np.ndarray) -> tf.Tensor:
    """The array from `empty_table` as a tensor in the same memory; it must not change afterwards.

    The usual conversion of an array to a tensor makes two copies, one of them temporary. A variable
    that is assigned slice by slice is copied as a whole at every later read.
    """
    return tf.experimental.dlpack.from_dlpack(table.__dlpack__())


def gather_rows(table: tf.Variable, numbers: tf.Tensor) -> tf.Tensor:
    """Rows of a variable. A sparse read would make every later read copy the whole table."""
    return tf.gather(tf.convert_to_tensor(table), numbers)


def is_among(numbers: tf.Tensor, listed: tf.Tensor) -> tf.Tensor:
    """Whether each number is in the list of its row.

    >>> print(is_among(tf.constant([[3, 1, 2]]), tf.constant([[9, 2, 3]])).numpy())
    [[ True False  True]]

    Args:
      numbers: ``[batch, width]`` int32.
      listed: ``[batch, other_width]`` int32, in any order.

    Returns:
      ``[batch, width]`` booleans.
    """
    # The padding is larger than all numbers, so that every search finds an entry.
    in_order = tf.pad(tf.sort(listed, axis=1), [[0, 0], [0, 1]], constant_values=tf.int32.max)
    places = tf.searchsorted(in_order, numbers)
    return tf.equal(tf.gather(in_order, places, batch_dims=1), numbers)


# Traced once, for tables of every index: operation by operation, it takes many times as long.
@tf.function(
    input_signature=[
        tf.TensorSpec([None, None], tf.float32),
        tf.TensorSpec([None, None], tf.float32),
        tf.TensorSpec([], tf.int32),
        tf.TensorSpec([None, None], tf.int32),
    ]
)
def search_table(
    table: tf.Tensor, queries: tf.Tensor, num: tf.Tensor, excluded: tf.Tensor
) -> Found:
    """Exact search over the rows of a table; see `Index.exact_search` for the arguments."""
    num_items = tf.shape(table)[0]
    rows_at_once = tf.maximum(_SCORES_AT_ONCE // num_items, 1)

    def search_rows(first: tf.Tensor, last: tf.Tensor) -> Found:
        scores = tf.matmul(queries[first:last], table, transpose_b=True)
        left_out = excluded[first:last]
        places = tf.cast(tf.where(left_out < num_items), tf.int32)
        columns = tf.gather_nd(left_out, places)
        scores = tf.tensor_scatter_nd_update(
            scores,
            tf.stack([places[:, 0], columns], axis=1),
            tf.fill(tf.shape(columns), NO_SCORE),
        )
        best, numbers = tf.math.top_k(scores, k=num)
        return tf.where(best > NO_SCORE, numbers, num_items), best

    return search_in_blocks(search_rows, tf.shape(queries)[0], num, rows_at_once)


def search_in_blocks(
    search_rows: Callable[[tf.Tensor, tf.Tensor], Found],
    num_queries: tf.Tensor,
    num: tf.Tensor,
    rows_at_once: tf.Tensor,
) -> Found:
    """Searches for a few queries at a time, so that memory is bounded.

    Args:
      search_rows: function that finds ``num`` items for the queries from a first up to, not
        including, a last; it is never called without queries.
      num_queries: scalar int32, may be 0.
      num: scalar int32, the number of items to find.
      rows_at_once: scalar int32 of at least 1, the number of queries at a time.
    """

    def body(first: tf.Tensor, numbers: tf.Tensor, scores: tf.Tensor) -> tuple:
        last = tf.minimum(first + rows_at_once, num_queries)
        more_numbers, more_scores = search_rows(first, last)
        return (
            last,
            tf.concat([numbers, more_numbers], axis=0),
            tf.concat([scores, more_scores], axis=0),
        )

    any_shape = tf.TensorShape([None, None])
    _, numbers, scores = tf.while_loop(
        lambda first, *_: first < num_queries,
        body,
        [tf.constant(0), tf.zeros([0, num], tf.int32), tf.zeros([0, num], tf.float32)],
        shape_invariants=[tf.TensorShape([]), any_shape, any_shape],
        parallel_iterations=1,
    )
    return numbers, scores


def whole_setting(name: str, value: Any, default: int) -> int:
    """Checks that ``value`` is a whole number of at least 1; None means the default."""
    if value is None:
        return max(default, 1)
    return _checks.whole_number(name, value, remedy="Leave it out for the default.")
