"""Loss and gradients straight from embeddings, never holding the whole score matrix.

Queries are taken block by block, and a block's candidates chunk by chunk. A block's scores, ranks,
weights and its parts of both gradients are done together: three matrix products, and nothing is
computed twice. Chunks are small enough that the passes over their scores stay in the processor's
cache. The gradients are known when the loss is, so nothing of a block has to be kept for the
backward pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfrs_croloss import _numeric
from tfrs_croloss.blocks import (
    NO_GAP,
    chunk_sums,
    losses_and_factors,
    needs_largest_gap,
)
from tfrs_croloss.objective import RankObjective
from tfrs_croloss.rank import RankEstimator

_LEAST_BUDGET = 128 * 2**20
# Matrices of a block's shape that are alive at once: scores, and the slopes that take their place.
_LIVE_MATRICES = 2
_CHUNK_BYTES = 4 * 2**20


@dataclasses.dataclass(frozen=True)
class Competition:
    """Who competes with a block of queries, as functions of the block's first row and its size.

    Attributes:
      mask: gives ``[num_rows, num_candidates]`` booleans, or None where all compete.
      dropped: gives ``[num_dropped, 2]`` pairs of a row of the block and a column to take out.
      estimator: from the number of negatives of each row, ``[num_rows]``, how they stand for the
        catalogue.
    """

    estimator: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], RankEstimator]
    mask: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
    dropped: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None


def weighted_loss(
    query_embeddings: tf.Tensor,
    candidate_embeddings: tf.Tensor,
    positive_columns: tf.Tensor,
    row_weights: tf.Tensor,
    objective: RankObjective,
    competition: Competition,
    memory_budget: int | None = None,
) -> tf.Tensor:
    """The sum of the queries' losses, each times its weight.

    Args:
      query_embeddings: ``[num_queries, dim]``, already divided by the temperature.
      candidate_embeddings: ``[num_candidates, dim]``.
      positive_columns: ``[num_queries]``: the row of ``candidate_embeddings`` that is each query's
        positive.
      row_weights: ``[num_queries]``.
      objective: of built-in kernels.
      competition: who competes with whom.
      memory_budget: in bytes, for the matrices of one block. By default 128 MB, or twice the
        candidates' embeddings where that is more: their gradient is written once per block.

    Returns:
      A scalar, differentiable with respect to both embeddings.
    """
    dtype = _numeric.compute_dtype(query_embeddings.dtype)
    row_weights = tf.stop_gradient(tf.cast(row_weights, dtype))
    positive_columns = tf.cast(positive_columns, tf.int32)

    @tf.custom_gradient
    def total(queries: tf.Tensor, candidates: tf.Tensor):  # type: ignore[no-untyped-def]
        value, query_gradient, candidate_gradient = _blocked(
            queries, candidates, positive_columns, row_weights, objective, competition,
            memory_budget,
        )

        def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return upstream * query_gradient, upstream * candidate_gradient

        return value, backward

    return total(tf.cast(query_embeddings, dtype), tf.cast(candidate_embeddings, dtype))


def rows_per_block(
    num_queries: tf.Tensor, candidates: tf.Tensor, memory_budget: int | None
) -> tf.Tensor:
    """How many queries fit the budget: at least one, at most all, in blocks of even size."""
    shape = tf.shape(candidates, out_type=tf.int64)
    size = candidates.dtype.size
    if memory_budget is None:
        budget = tf.maximum(2 * size * shape[0] * shape[1], _LEAST_BUDGET)
    else:
        budget = tf.constant(memory_budget, tf.int64)
    most = tf.maximum(budget // tf.maximum(_LIVE_MATRICES * size * shape[0], 1), 1)
    queries = tf.maximum(tf.cast(num_queries, tf.int64), 1)
    num_blocks = -(-queries // most)
    return tf.cast(-(-queries // num_blocks), tf.int32)


def chunk_bounds(num_candidates: int | None, num_rows: int | None, itemsize: int) -> list[int]:
    """Where chunks of candidates begin and end; one chunk where a size is not known beforehand.

    >>> chunk_bounds(100_000, 64, 4)
    [0, 14286, 28572, 42858, 57144, 71429, 85715, 100000]
    """
    if num_candidates is None:
        return [0, -1]
    rows = 32 if num_rows is None else max(num_rows, 1)
    num_chunks = max(-(-num_candidates * rows * itemsize // _CHUNK_BYTES), 1)
    return [-(-num_candidates * number // num_chunks) for number in range(num_chunks + 1)]


def _blocked(
    queries: tf.Tensor,
    candidates: tf.Tensor,
    positive_columns: tf.Tensor,
    row_weights: tf.Tensor,
    objective: RankObjective,
    competition: Competition,
    memory_budget: int | None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The weighted sum of losses and its gradients with respect to queries and candidates."""
    num_queries, dim = tf.shape(queries)[0], tf.shape(queries)[1]
    size = rows_per_block(num_queries, candidates, memory_budget)
    bounds = chunk_bounds(
        candidates.shape[0], tf.get_static_value(size), candidates.dtype.size
    )
    chunks = [_Chunk(candidates, first, last) for first, last in zip(bounds, bounds[1:])]
    num_blocks = -(-num_queries // size)
    # Rows of zeros fill the last block, so that every block has one shape, which XLA needs.
    filling = num_blocks * size - num_queries
    queries = tf.pad(queries, [[0, filling], [0, 0]])
    row_weights = tf.pad(row_weights, [[0, filling]])
    padded_columns = tf.pad(positive_columns, [[0, filling]])
    gradients, pulls = (
        tf.TensorArray(queries.dtype, num_blocks, element_shape=[None, candidates.shape[1]])
        for _ in range(2)
    )

    def add_block(number, value, chunk_gradients, gradients, pulls):  # type: ignore[no-untyped-def]
        start = number * size
        block_queries = tf.slice(queries, [start, 0], [size, dim])
        block_weights = tf.slice(row_weights, [start], [size])
        columns = tf.slice(padded_columns, [start], [size])
        positive, gaps, count = _gaps(block_queries, chunks, columns, competition, start, size)
        estimator = competition.estimator(count, start, size)
        largest = tf.zeros_like(positive)
        if needs_largest_gap(objective):
            largest = _largest(gaps, chunks, estimator)
        shift = largest - tf.math.log(estimator.row_weights)
        sums = [
            chunk_sums(chunk_gaps, objective, chunk.weights(estimator), shift)
            for chunk_gaps, chunk in zip(gaps, chunks)
        ]
        losses, factors = losses_and_factors(sums, objective, estimator, largest)
        losses = tf.where(tf.math.is_nan(positive), positive, losses)
        # The row factors go into the thin matrices, and the positive's part is a thin one too.
        factors = (block_weights * factors)[:, tf.newaxis]
        pull = tf.add_n([chunk.slope_sums for chunk in sums])[:, tf.newaxis]
        scaled_queries = factors * block_queries
        push = tf.add_n([tf.matmul(s.slopes, chunk.rows) for s, chunk in zip(sums, chunks)])
        query_gradient = factors * (push - pull * tf.gather(candidates, columns))
        chunk_gradients = [
            gradient + tf.matmul(s.slopes, scaled_queries, transpose_a=True)
            for gradient, s in zip(chunk_gradients, sums)
        ]
        return (
            number + 1,
            value + tf.reduce_sum(block_weights * losses),
            chunk_gradients,
            gradients.write(number, query_gradient),
            pulls.write(number, -pull * scaled_queries),
        )

    _, value, chunk_gradients, gradients, pulls = tf.while_loop(
        lambda number, *_: number < num_blocks,
        add_block,
        (
            tf.constant(0),
            tf.zeros([], queries.dtype),
            [tf.zeros_like(chunk.rows) for chunk in chunks],
            gradients,
            pulls,
        ),
        parallel_iterations=1,
    )
    query_gradient = tf.reshape(gradients.stack(), [-1, dim])[:num_queries]
    pulled = tf.reshape(pulls.stack(), [-1, dim])[:num_queries]
    candidate_gradient = (
        tf.concat(chunk_gradients, axis=0) if len(chunks) > 1 else chunk_gradients[0]
    )
    candidate_gradient = tf.tensor_scatter_nd_add(
        candidate_gradient, positive_columns[:, tf.newaxis], pulled
    )
    return value, query_gradient, candidate_gradient


class _Chunk:
    """Candidates from ``first`` up to, not including, ``last``; all where ``last`` is -1."""

    def __init__(self, candidates: tf.Tensor, first: int, last: int) -> None:
        self.is_all = last < 0 or (first == 0 and last == candidates.shape[0])
        self.first, self.last = first, last
        self.rows = candidates if self.is_all else candidates[first:last]

    def columns_of(self, matrix: tf.Tensor) -> tf.Tensor:
        """The chunk's part of a matrix with a column for every candidate."""
        return matrix if self.is_all else matrix[:, self.first : self.last]

    def weights(self, estimator: RankEstimator) -> tf.Tensor | None:
        """The chunk's part of the candidates' weights."""
        if estimator.candidate_weights is None:
            return None
        return self.columns_of(estimator.candidate_weights)

    def local(self, columns: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Columns as counted within the chunk, and whether they are in it."""
        if self.is_all:
            return columns, tf.ones_like(columns, tf.bool)
        inside = tf.logical_and(columns >= self.first, columns < self.last)
        return tf.clip_by_value(columns - self.first, 0, self.last - self.first - 1), inside


def _gaps(
    queries: tf.Tensor,
    chunks: list[_Chunk],
    columns: tf.Tensor,
    competition: Competition,
    start: tf.Tensor,
    size: tf.Tensor,
) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
    """The positives' scores, the gaps of each chunk, and how many compete in each row.

    Gaps are ``NO_GAP`` where there is no competition.
    """
    scores = [tf.matmul(queries, chunk.rows, transpose_b=True) for chunk in chunks]
    positive = tf.zeros_like(queries[:, 0])
    places = []
    for chunk, chunk_scores in zip(chunks, scores):
        local, inside = chunk.local(columns)
        place = tf.stack([tf.range(size), local], axis=-1)
        places.append((place, inside))
        positive = tf.where(inside, tf.gather_nd(chunk_scores, place), positive)
    considered = None if competition.mask is None else competition.mask(start, size)
    dropped = None if competition.dropped is None else competition.dropped(start, size)
    no_gap = tf.constant(NO_GAP, positive.dtype)
    gaps = []
    count = tf.zeros_like(positive)
    for chunk, chunk_scores, (place, inside) in zip(chunks, scores, places):
        chunk_gaps = chunk_scores - positive[:, tf.newaxis]
        if considered is not None:
            chunk_gaps = tf.where(chunk.columns_of(considered), chunk_gaps, no_gap)
        own = no_gap if chunk.is_all else tf.gather_nd(chunk_gaps, place)
        chunk_gaps = tf.tensor_scatter_nd_update(
            chunk_gaps, place, tf.where(inside, no_gap, own)
        )
        if dropped is not None:
            local, inside = chunk.local(dropped[:, 1])
            listed = tf.boolean_mask(tf.stack([dropped[:, 0], local], axis=-1), inside)
            chunk_gaps = tf.tensor_scatter_nd_update(
                chunk_gaps, listed, tf.fill([tf.shape(listed)[0]], no_gap)
            )
        if considered is not None:
            count += tf.reduce_sum(tf.cast(chunk_gaps > no_gap, count.dtype), axis=-1)
        else:
            count += tf.cast(tf.shape(chunk_gaps)[1], count.dtype)
        gaps.append(chunk_gaps)
    return positive, gaps, count if considered is not None else count - 1.0


def _largest(
    gaps: list[tf.Tensor], chunks: list[_Chunk], estimator: RankEstimator
) -> tf.Tensor:
    """The logarithm of each row's largest weighed exponential, at least 0."""
    largest = []
    for chunk_gaps, chunk in zip(gaps, chunks):
        weights = chunk.weights(estimator)
        if weights is not None:
            chunk_gaps = chunk_gaps + tf.math.log(weights)
        largest.append(tf.reduce_max(chunk_gaps, axis=-1))
    overall = tf.reduce_max(tf.stack(largest), axis=0) + tf.math.log(estimator.row_weights)
    return tf.maximum(overall, 0.0)
