"""The item vectors that test sets are ranked among: in one tensor, or in parts over replicas."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss import _checks, _replicas
from tfrs_croloss.metrics import _counting

_LARGEST_SQUARED = 1e18


class Catalogue(abc.ABC):
    """Item vectors that pairs are scored with and ranked among, wherever they are kept.

    Attributes:
      num_items: number of items.
      dim: size of a vector.
      largest_norm: the largest norm of a vector.
      longest_item: the first item whose vector has that norm.
    """

    num_items: int
    dim: int
    largest_norm: float
    longest_item: int

    @abc.abstractmethod
    def scores(self, queries: tf.Tensor, item_ids: np.ndarray) -> np.ndarray:
        """Scores ``[num_pairs]`` of query vectors ``[num_pairs, dim]`` with one item each."""

    @abc.abstractmethod
    def count_ahead(
        self,
        queries: tf.Tensor,
        query_rows: np.ndarray | None,
        scores: np.ndarray,
        block_size: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """How many items are ahead of each pair and level with it; see `_counting.count_ahead`."""


class HeldCatalogue(Catalogue):
    """All vectors in one tensor.

    Args:
      vectors: ``[num_items, dim]`` floats.

    Raises:
      ValueError: for another shape, and for numbers that are not finite.
    """

    def __init__(self, vectors: Any) -> None:
        self._vectors = check_embeddings(vectors, "candidate_embeddings")
        self.num_items, self.dim = (int(size) for size in self._vectors.shape)
        self.largest_norm, self.longest_item = longest(self._vectors)

    def scores(self, queries: tf.Tensor, item_ids: np.ndarray) -> np.ndarray:
        """See `Catalogue.scores`."""
        return np.asarray(_counting.pair_scores(queries, tf.gather(self._vectors, item_ids)))

    def count_ahead(
        self,
        queries: tf.Tensor,
        query_rows: np.ndarray | None,
        scores: np.ndarray,
        block_size: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `Catalogue.count_ahead`."""
        ahead, level = _counting.count_ahead(
            queries,
            None if query_rows is None else tf.constant(query_rows, tf.int64),
            tf.constant(scores, tf.float32),
            self._vectors,
            tf.constant(block_size, tf.int64),
            tf.constant(True),
        )
        return ahead.numpy(), level.numpy()


def as_catalogue(candidates: Any) -> Catalogue:
    """Returns a catalogue unchanged, and anything else as a checked ``HeldCatalogue``."""
    return candidates if isinstance(candidates, Catalogue) else HeldCatalogue(candidates)


class ShardedCatalogue(Catalogue):
    """Vectors in consecutive parts, one on each replica of a synchronous strategy.

    Each replica computes its own part, holds nothing else, and counts over it; the counts are
    added. The ranks are exactly those of the whole catalogue in one place. In a cluster of several
    processes, each process builds the catalogue, ranks the same pairs at the same time, and has all
    ranks in the end.

    >>> table = tf.constant([[3.0, 1.0], [2.0, 1.0], [2.0, 7.0], [1.0, 9.0]])
    >>> catalogue = ShardedCatalogue(
    ...     tf.distribute.get_strategy(), lambda item_ids: tf.gather(table, item_ids), num_items=4
    ... )
    >>> catalogue.num_items, catalogue.dim, catalogue.num_parts
    (4, 2, 1)

    Args:
      strategy: a synchronous strategy, such as `tf.distribute.MirroredStrategy` or
        `tf.distribute.MultiWorkerMirroredStrategy`.
      embed_items: maps ids ``[num]`` int64 to the vectors ``[num, dim]`` that are scored. It is
        called in the context of a replica, where it finds that replica's variables.
      num_items: size of the catalogue; ids are 0 to ``num_items - 1``.
      block_size: number of items to embed at a time.

    Attributes:
      num_parts: number of replicas that share the catalogue.

    Raises:
      ValueError: for vectors that are not finite, naming the first such item.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        embed_items: Callable[[tf.Tensor], tf.Tensor],
        num_items: int,
        block_size: int = _replicas.BLOCK_SIZE,
    ) -> None:
        self.num_items = _checks.whole_number(
            "num_items", num_items, remedy="Pass the size of the catalogue."
        )
        block_size = _checks.whole_number(
            "block_size", block_size, remedy="Leave it out for the default."
        )
        self._strategy = strategy
        self.num_parts = int(strategy.num_replicas_in_sync)

        def embed_part() -> tuple[tf.Tensor, tf.Tensor]:
            first, last = self._bounds()
            vectors = _in_blocks(embed_items, first, last, block_size)
            return vectors, _summary_of_all(vectors, first)

        self._embed_parts = tf.function(lambda: strategy.run(embed_part))
        self._scores = tf.function(
            lambda parts, *inputs: strategy.run(self._scores_of_part, (parts, *inputs)),
            reduce_retracing=True,
        )
        self._counts = tf.function(
            lambda parts, *inputs: strategy.run(self._counts_of_part, (parts, *inputs)),
            reduce_retracing=True,
        )
        self.refresh()

    def refresh(self) -> None:
        """Computes all vectors again, after the model has been trained further.

        Raises:
          ValueError: for vectors that are not finite.
        """
        self._parts, summaries = self._embed_parts()
        self.dim = int(self._strategy.experimental_local_results(self._parts)[0].shape[1])
        num_bad, first_bad, norms, longest_items = np.transpose(self._local(summaries))
        if num_bad.sum():
            raise ValueError(
                "`embed_items` should give finite float32 numbers. Received: "
                f"{num_bad.sum():.0f} of {self.num_items} vectors with NaN or infinity, the first "
                f"of them for item {first_bad[num_bad > 0].min():.0f}. Did training diverge?"
            )
        self.largest_norm = float(norms.max())
        self.longest_item = int(longest_items[norms.argmax()])

    def scores(self, queries: tf.Tensor, item_ids: np.ndarray) -> np.ndarray:
        """See `Catalogue.scores`."""
        return self._local(self._scores(self._parts, queries, tf.constant(item_ids, tf.int64)))

    def count_ahead(
        self,
        queries: tf.Tensor,
        query_rows: np.ndarray | None,
        scores: np.ndarray,
        block_size: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `Catalogue.count_ahead`."""
        counts = self._local(
            self._counts(
                self._parts,
                queries,
                None if query_rows is None else tf.constant(query_rows, tf.int64),
                tf.constant(scores, tf.float32),
                tf.constant(block_size, tf.int64),
            )
        )
        return counts[0], counts[1]

    def _scores_of_part(
        self, part: tf.Tensor, queries: tf.Tensor, item_ids: tf.Tensor
    ) -> tf.Tensor:
        first, last = self._bounds()
        own = tf.where((item_ids >= first) & (item_ids < last))
        rows = tf.gather(part, tf.gather_nd(item_ids, own) - first)
        scores = _counting.pair_scores(tf.gather_nd(queries, own), rows)
        # Zero on every replica but the one that has the item.
        return _replicas.total(tf.scatter_nd(own, scores, tf.shape(item_ids, tf.int64)))

    def _counts_of_part(
        self,
        part: tf.Tensor,
        queries: tf.Tensor,
        query_rows: tf.Tensor | None,
        scores: tf.Tensor,
        block_size: tf.Tensor,
    ) -> tf.Tensor:
        counts = _counting.count_ahead(
            queries, query_rows, scores, part, block_size, tf.constant(True)
        )
        return _replicas.total(tf.stack(counts))

    def _bounds(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The first item of this replica's part, and the one after its last."""
        context = tf.distribute.get_replica_context()
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        return _replicas.shard_rows(replica, _replicas.count(), self.num_items)

    def _local(self, values: Any) -> np.ndarray:
        """The value that all replicas share, from the first replica of this process."""
        return np.asarray(self._strategy.experimental_local_results(values)[0])


def _in_blocks(
    embed_items: Callable[[tf.Tensor], tf.Tensor],
    first: tf.Tensor,
    last: tf.Tensor,
    block_size: int,
) -> tf.Tensor:
    num_blocks = tf.cast((last - first + block_size - 1) // block_size, tf.int32)

    def embed(number: tf.Tensor) -> tf.Tensor:
        start = first + tf.cast(number, tf.int64) * block_size
        ids = tf.range(start, tf.minimum(start + block_size, last))
        return tf.cast(embed_items(ids), tf.float32)

    # `concat` takes the width from the blocks, and fails where there are none. So a replica without
    # items embeds one block of no rows.
    num_blocks = tf.maximum(num_blocks, 1)
    blocks = tf.TensorArray(tf.float32, num_blocks, infer_shape=False)
    _, blocks = tf.while_loop(
        lambda number, _: number < num_blocks,
        lambda number, blocks: (number + 1, blocks.write(number, embed(number))),
        [0, blocks],
        parallel_iterations=1,
    )
    width = embed_items(tf.zeros([0], tf.int64)).shape[1]
    return tf.ensure_shape(blocks.concat(), [None, width])


def _summary_of_all(vectors: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
    """A summary of each replica's vectors, ``[num_replicas, 4]`` float64.

    The columns are the number of rows that are not finite, the first such item, the largest length
    and the first item of that length.
    """
    bad = tf.logical_not(tf.reduce_all(tf.math.is_finite(vectors), axis=1))
    lengths = tf.where(bad, tf.constant(0.0, tf.float64), _counting.norms(vectors))
    # One row more, for a replica that has none.
    flags, lengths = tf.pad(tf.cast(bad, tf.float64), [[0, 1]]), tf.pad(lengths, [[0, 1]])
    own = [
        tf.reduce_sum(flags),
        tf.cast(first + tf.argmax(flags), tf.float64),
        tf.reduce_max(lengths),
        tf.cast(first + tf.argmax(lengths), tf.float64),
    ]
    if _replicas.count() == 1:
        return tf.stack([own])
    return tf.distribute.get_replica_context().all_gather(tf.stack([own]), axis=0)


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


def longest(rows: tf.Tensor) -> tuple[float, int]:
    """The largest length of a row, and the first row that has it."""
    norms = tf.math.reduce_euclidean_norm(rows, axis=1).numpy()
    # Squares that overflow float32 need not mean scores that do.
    if not norms.max() < _LARGEST_SQUARED:
        norms = _counting.norms(rows).numpy()
    return float(norms.max()), int(norms.argmax())
