"""Indexes: the items of highest inner product with a query.

Every kind of index answers in the same form. Items are numbered as the rows of the embeddings are;
a place that could not be filled has the number ``num_items`` and the score `NO_SCORE`.
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

# Finite, because servers write what is not as something that is no JSON.
NO_SCORE = float(np.finfo(np.float32).min)
# Scores held at a time by exact search: 128 MiB.
_SCORES_AT_ONCE = 2**25
# TensorFlow's own memory begins at multiples of this, and its operations may rely on it.
_ALIGNMENT = 64

Found = tuple[tf.Tensor, tf.Tensor]


class Index(tf.Module, abc.ABC):
    """The interface of all indexes.

    Args:
      item_embeddings: ``[num_items, dim]`` finite floats: an array, or `VectorFiles`, which are
        read block by block and never held as a whole beside the index.
      name: of the module.
    """

    kind: ClassVar[str]

    def __init__(self, item_embeddings: Any, name: str | None = None) -> None:
        super().__init__(name=name)
        rows = as_rows(item_embeddings)
        if rows.ndim != 2 or 0 in rows.shape:
            raise ValueError(
                "`item_embeddings` should have the shape [num_items, dim], neither of them 0. "
                f"Received: {rows.shape}."
            )
        self.num_items, self.dim = (int(size) for size in rows.shape)

    @abc.abstractmethod
    def search(self, queries: tf.Tensor, num: tf.Tensor) -> Found:
        """The items of highest score, best first, each at most once.

        Args:
          queries: ``[batch, dim]`` float32, finite.
          num: scalar int32 from 1 to ``num_items``.

        Returns:
          Item numbers ``[batch, num]`` int32 and scores ``[batch, num]`` float32.
        """

    @abc.abstractmethod
    def vectors(self, numbers: tf.Tensor) -> tf.Tensor:
        """Embeddings ``[..., dim]`` of the items with these numbers ``[...]``."""

    @abc.abstractmethod
    def exact_search(self, queries: tf.Tensor, num: tf.Tensor, excluded: tf.Tensor) -> Found:
        """As `search`, over all items but the excluded.

        Args:
          queries: ``[batch, dim]``.
          num: scalar int32 from 1 to ``num_items``.
          excluded: ``[batch, width]`` int32 item numbers; ``num_items`` stands for none.
        """

    def search_excluding(self, queries: tf.Tensor, num: tf.Tensor, excluded: tf.Tensor) -> Found:
        """As `search`, without the excluded items, and with every place filled that can be.

        Searches for as many items more as may be excluded. Where that leaves places unfilled,
        exact search is the answer, so that what remains is found however little it is.

        Args:
          queries: ``[batch, dim]``.
          num: scalar int32 from 1 to ``num_items``.
          excluded: ``[batch, width]`` int32 item numbers; ``num_items`` stands for none.
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
        """What the index was made with and searches by, ready for JSON."""
        return {"kind": self.kind}


class LeafIndex(Index):
    """An index whose items lie in leaves, of which a query visits some.

    Attributes:
      num_leaves: how many there are.
    """

    num_leaves: int
    _leaves_to_search: tf.Variable

    @property
    def leaves_to_search(self) -> int:
        """Leaves that a query visits: a variable, so that functions traced before see a change."""
        return int(self._leaves_to_search.numpy())

    @leaves_to_search.setter
    def leaves_to_search(self, value: int) -> None:
        value = whole_setting("leaves_to_search", value, 1)
        self._leaves_to_search.assign(min(value, self.num_leaves))

    @abc.abstractmethod
    def build_options(self) -> dict[str, Any]:
        """Options that build this index again, but for its leaves."""


class BruteForceIndex(Index):
    """Scores every item for every query, some queries at a time.

    >>> index = BruteForceIndex([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    >>> numbers, scores = index.search(tf.constant([[0.0, 1.0]]), tf.constant(2))
    >>> print(numbers.numpy(), scores.numpy())
    [[1 2]] [[1.  0.8]]

    Args:
      item_embeddings: ``[num_items, dim]`` finite floats, an array or `VectorFiles`.
      name: of the module.
    """

    kind = "brute_force"

    def __init__(self, item_embeddings: Any, name: str | None = None) -> None:
        rows = as_rows(item_embeddings)
        super().__init__(rows, name)
        self._table = tf.Variable(table_of(rows), trainable=False, name="item_embeddings")

    def search(self, queries: tf.Tensor, num: tf.Tensor) -> Found:
        """See `Index.search`."""
        return self.exact_search(queries, num, tf.zeros([tf.shape(queries)[0], 0], tf.int32))

    def search_excluding(self, queries: tf.Tensor, num: tf.Tensor, excluded: tf.Tensor) -> Found:
        """See `Index.search_excluding`."""
        return self.exact_search(queries, num, excluded)

    def vectors(self, numbers: tf.Tensor) -> tf.Tensor:
        """See `Index.vectors`."""
        return gather_rows(self._table, numbers)

    def exact_search(self, queries: tf.Tensor, num: tf.Tensor, excluded: tf.Tensor) -> Found:
        """See `Index.exact_search`."""
        return search_table(self._table, queries, num, excluded)


def as_rows(item_embeddings: Any) -> np.ndarray | VectorFiles:
    """What slices are taken of: files stay where they are, all else becomes a float32 array."""
    if isinstance(item_embeddings, VectorFiles):
        return item_embeddings
    return np.asarray(item_embeddings, np.float32)


def table_of(rows: np.ndarray | VectorFiles) -> tf.Tensor:
    """A tensor ``[num_rows, dim]`` with a copy of the rows, the only one that is made."""
    table = empty_table(rows.shape)
    for first, block in row_blocks(rows):
        table[first : first + len(block)] = block
    return taken_over(table)


def empty_table(shape: tuple[int, ...]) -> np.ndarray:
    """A float32 array that is to be filled and then `taken_over`."""
    size = math.prod(shape) * np.dtype(np.float32).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(np.float32).reshape(shape)


def taken_over(table: np.ndarray) -> tf.Tensor:
    """The array from `empty_table` as a tensor in the same memory; it may not change any more.

    Made of an array in the usual way, a tensor is a copy, with another one on the way. A variable
    that is assigned slice by slice is copied as a whole whenever it is read from then on.
    """
    return tf.experimental.dlpack.from_dlpack(table.__dlpack__())


def gather_rows(table: tf.Variable, numbers: tf.Tensor) -> tf.Tensor:
    """Rows of a variable, without a sparse read: after one, every whole read copies the table."""
    return tf.gather(tf.convert_to_tensor(table), numbers)


def is_among(numbers: tf.Tensor, listed: tf.Tensor) -> tf.Tensor:
    """Which numbers are in the list of their row.

    >>> print(is_among(tf.constant([[3, 1, 2]]), tf.constant([[9, 2, 3]])).numpy())
    [[ True False  True]]

    Args:
      numbers: ``[batch, width]`` int32.
      listed: ``[batch, other_width]`` int32, in any order.

    Returns:
      ``[batch, width]`` booleans.
    """
    # A last entry that is larger than all: there is always one to look at.
    in_order = tf.pad(tf.sort(listed, axis=1), [[0, 0], [0, 1]], constant_values=tf.int32.max)
    places = tf.searchsorted(in_order, numbers)
    return tf.equal(tf.gather(in_order, places, batch_dims=1), numbers)


def search_table(
    table: tf.Tensor, queries: tf.Tensor, num: tf.Tensor, excluded: tf.Tensor
) -> Found:
    """Exact search over the rows of a table; see `Index.exact_search`."""
    table = tf.convert_to_tensor(table)
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
    """Searches for some queries at a time, so that memory is bounded.

    Args:
      search_rows: finds the ``num`` best of the queries from a first up to, not including, a last;
        is not called for none.
      num_queries: scalar int32, may be 0.
      num: scalar int32, items of an answer.
      rows_at_once: scalar int32 of at least 1.
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
    """``value`` if it is a whole number of at least 1; for None the default, at least 1."""
    if value is None:
        return max(default, 1)
    return _checks.whole_number(name, value, remedy="Leave it out for the default.")
