"""Loss and gradients straight from embeddings, without ever holding the whole score matrix.

Queries are processed block by block, and a block's candidates chunk by chunk. A block's scores,
ranks, weights and its parts of both gradients are computed together: three matrix products, and
nothing is computed twice. Chunks are small enough that the passes over their scores stay in the
processor's cache. The gradients are known when the loss is, so nothing of a block has to be kept
for the backward pass.

This holds for objectives that have a fast form. Others see whole rows of a block's scores.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tfrs_croloss.losses import _numeric
from tfrs_croloss.losses._chunk_sums import (
    ChunkSums,
    chunk_sums,
    has_fast_form,
    losses_and_factors,
)
from tfrs_croloss.losses._dense import one_positive
from tfrs_croloss.losses._objective import Objective, RankObjective
from tfrs_croloss.losses.kernels import FAR_BELOW
from tfrs_croloss.losses.ranks import RankEstimator, count_true

# A chunk's scores and what is made of them should stay in the processor's cache.
_CHUNK_BYTES = 6 * 2**20
# The gradient of all candidates is written once per block, so blocks should not be too thin. The
# more candidates there are, the thicker they should be: a long gradient leaves the cache.
_LEAST_ROWS = 40
_CANDIDATES_PER_ROW = 18_000
_THICK_BYTES = 520 * 2**20


@dataclasses.dataclass(frozen=True)
class Competition:
    """Which candidates are negatives of a block of queries, and how they count.

    All but the estimator are functions of the block's first row and its number of rows.

    Attributes:
      estimator: maps the number of negatives of each row, ``[num_rows]``, to how they represent the
        catalogue.
      mask: returns ``[num_rows, num_candidates]`` booleans; None if all candidates compete.
      dropped: returns ``[num_dropped, 2]`` pairs of a row of the block and a column to leave out;
        None if there are none.
      candidate_weights: returns ``[1 or num_rows, num_candidates]`` importance weights; None if
        every candidate counts once.
    """

    estimator: Callable[[tf.Tensor], RankEstimator]
    mask: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
    dropped: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
    candidate_weights: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None


@tf.autograph.experimental.do_not_convert
def weighted_loss(
    query_embeddings: tf.Tensor,
    candidate_embeddings: tf.Tensor,
    positive_columns: tf.Tensor,
    row_weights: tf.Tensor,
    objective: Objective,
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
      objective: how the loss is computed. Objectives that have a fast form are computed in chunks,
        and need less time and memory.
      competition: which candidates are negatives of which queries.
      memory_budget: bytes for the slopes of one block; see ``most_rows``. Without a fast form,
        several matrices of this size are needed.

    Returns:
      A scalar, differentiable with respect to both embeddings.
    """
    dtype = _numeric.compute_dtype(query_embeddings.dtype)
    row_weights = tf.stop_gradient(tf.cast(row_weights, dtype))
    positive_columns = tf.cast(positive_columns, tf.int32)

    @tf.custom_gradient
    def total(queries: tf.Tensor, candidates: tf.Tensor):  # type: ignore[no-untyped-def]
        whole = _blocked(
            queries,
            candidates,
            positive_columns,
            row_weights,
            objective,
            competition,
            memory_budget,
        )

        def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # Done here, when the slopes are no longer in memory; and in chunks, which stay in the
            # cache.
            scaled = [tf.transpose(upstream * push) for push in whole.pushes]
            candidate_gradient = tf.concat(scaled, axis=0) if len(scaled) > 1 else scaled[0]
            return upstream * whole.query_gradient, tf.tensor_scatter_nd_add(
                candidate_gradient, positive_columns[:, tf.newaxis], upstream * whole.pull
            )

        return whole.loss, backward

    return total(tf.cast(query_embeddings, dtype), tf.cast(candidate_embeddings, dtype))


def most_rows(
    candidates: tf.Tensor, memory_budget: int | None, is_chunked: bool = True
) -> int | tf.Tensor:
    """How many queries a block may have: at least one.

    By default, as many as fit into 6 MB, but at least 40; where candidates come in chunks, also at
    least one per 18,000 candidates, as long as they fit into 545 MB. The result is a tensor where
    the number of candidates is not known statically.
    """
    num_candidates = candidates.shape[0]
    if num_candidates is None:
        row_bytes = tf.maximum(tf.shape(candidates, tf.int64)[0] * candidates.dtype.size, 1)
        if memory_budget is None:
            return tf.maximum(_CHUNK_BYTES // row_bytes, _LEAST_ROWS)
        return tf.maximum(memory_budget // row_bytes, 1)
    row_bytes = max(num_candidates * candidates.dtype.size, 1)
    if memory_budget is not None:
        return max(memory_budget // row_bytes, 1)
    thick = min(num_candidates // _CANDIDATES_PER_ROW, _THICK_BYTES // row_bytes)
    return max(_CHUNK_BYTES // row_bytes, _LEAST_ROWS, thick if is_chunked else 0)


def rows_per_block(num_queries: tf.Tensor, most: int | tf.Tensor) -> tf.Tensor:
    """The number of queries per block, if blocks of at most ``most`` have even sizes."""
    queries = tf.maximum(tf.cast(num_queries, tf.int64), 1)
    num_blocks = -(-queries // most)
    return tf.cast(-(-queries // num_blocks), tf.int32)


def chunk_bounds(num_candidates: int, num_rows: int, itemsize: int) -> list[int]:
    """Where chunks of candidates begin and end, for blocks of ``num_rows`` queries.

    >>> chunk_bounds(100_000, 64, 4)
    [0, 20000, 40000, 60000, 80000, 100000]
    """
    num_chunks = max(-(-num_candidates * num_rows * itemsize // _CHUNK_BYTES), 1)
    return [-(-num_candidates * number // num_chunks) for number in range(num_chunks + 1)]


@dataclasses.dataclass(frozen=True)
class _Block:
    """``size`` queries from row ``start`` on.

    Attributes:
      start: scalar, the first row.
      size: scalar, the number of rows.
      queries: ``[size, dim]`` embeddings.
      weights: ``[size]`` weights of the queries' losses.
      columns: ``[size]`` columns of the positives.
      positive_rows: ``[size, dim]`` embeddings of the positives.
    """

    start: tf.Tensor
    size: tf.Tensor
    queries: tf.Tensor
    weights: tf.Tensor
    columns: tf.Tensor
    positive_rows: tf.Tensor


class _Part(NamedTuple):
    """The loss and the gradients of one block, or of all blocks together.

    Attributes:
      loss: the weighted sum of the losses.
      query_gradient: ``[num_queries, dim]``.
      pushes: the gradient of each chunk of candidates as negatives, ``[dim, chunk_size]``.
      pull: ``[num_queries, dim]``: the gradient of each query's positive.
    """

    loss: tf.Tensor
    query_gradient: tf.Tensor
    pushes: list[tf.Tensor]
    pull: tf.Tensor


def _blocked(
    queries: tf.Tensor,
    candidates: tf.Tensor,
    positive_columns: tf.Tensor,
    row_weights: tf.Tensor,
    objective: Objective,
    competition: Competition,
    memory_budget: int | None,
) -> _Part:
    """The loss and the gradients of all blocks."""
    num_queries, dim = tf.shape(queries)[0], tf.shape(queries)[1]
    bound = 2.0 * _longest(queries) * _longest(candidates)
    queries = tf.cond(
        bound <= 2.0 * _numeric.LARGEST_SCORE,
        lambda: queries,
        lambda: _shortened(queries, candidates),
    )
    most = most_rows(candidates, memory_budget, has_fast_form(objective))
    size = rows_per_block(num_queries, most)
    if has_fast_form(objective):
        chunks = _chunks(candidates, queries.shape[0], most)
        part_of = functools.partial(_chunked_part, objective, competition, chunks, bound)
    else:
        chunks = [_Chunk(candidates, 0, -1)]
        part_of = functools.partial(_whole_part, objective, competition, chunks[0])
    num_blocks = -(-num_queries // size)
    # Rows of zeros fill the last block, so that every block has one shape, which XLA needs.
    filling = tf.maximum(num_blocks, 1) * size - num_queries
    queries = tf.pad(queries, [[0, filling], [0, 0]])
    row_weights = tf.pad(row_weights, [[0, filling]])
    padded_columns = tf.pad(positive_columns, [[0, filling]])
    gradients, pulls = (
        # The first block starts as zeros, in case there are no queries.
        tf.TensorArray(
            queries.dtype, tf.maximum(num_blocks, 1), element_shape=[None, candidates.shape[1]]
        ).write(0, tf.zeros([size, dim], queries.dtype))
        for _ in range(2)
    )

    def add_block(number, value, chunk_gradients, gradients, pulls):  # type: ignore[no-untyped-def]
        start = number * size
        columns = tf.slice(padded_columns, [start], [size])
        part = part_of(
            _Block(
                start,
                size,
                tf.slice(queries, [start, 0], [size, dim]),
                tf.slice(row_weights, [start], [size]),
                columns,
                tf.gather(candidates, columns),
            )
        )
        return (
            number + 1,
            value + part.loss,
            [gradient + push for gradient, push in zip(chunk_gradients, part.pushes)],
            gradients.write(number, part.query_gradient),
            pulls.write(number, part.pull),
        )

    _, value, chunk_gradients, gradients, pulls = tf.while_loop(
        lambda number, *_: number < num_blocks,
        add_block,
        (
            tf.constant(0),
            tf.zeros([], queries.dtype),
            [tf.zeros([dim, tf.shape(chunk.rows)[0]], queries.dtype) for chunk in chunks],
            gradients,
            pulls,
        ),
        parallel_iterations=1,
    )
    query_gradient = tf.reshape(gradients.stack(), [-1, dim])[:num_queries]
    pull = tf.reshape(pulls.stack(), [-1, dim])[:num_queries]
    return _Part(value, query_gradient, chunk_gradients, pull)


def _chunked_part(
    objective: RankObjective,
    competition: Competition,
    chunks: list[_Chunk],
    bound: tf.Tensor,
    block: _Block,
) -> _Part:
    """One block, by the sums over chunks of candidates; no gap is above ``bound``."""
    # From a matrix product as for the candidates, so that a copy of the positive ties with it.
    positive = tf.linalg.diag_part(tf.matmul(block.queries, block.positive_rows, transpose_b=True))
    block_gaps = _BlockGaps(positive, competition, block)
    weights = _candidate_weights(competition, block)
    sums: list[ChunkSums] = []
    for chunk in chunks:
        # One chunk after the other: together they would not stay in the cache.
        with tf.control_dependencies([s.gap_sums.slope_sums for s in sums[-1:]]):
            scores = tf.matmul(block.queries, chunk.rows, transpose_b=True)
            gaps = block_gaps.of(chunk, scores)
            sums.append(chunk_sums(gaps, objective, chunk.columns_of(weights), bound))
    estimator = competition.estimator(block_gaps.num_negatives)
    losses, factors, share = losses_and_factors(sums, objective, estimator)
    losses = tf.where(tf.math.is_nan(positive), positive, losses)
    # The row factors are multiplied into the thin matrices; the positive's part is thin too.
    factors = [(block.weights * factor)[:, tf.newaxis] for factor in factors]
    query_gradient, pull = tf.zeros_like(block.queries), tf.zeros_like(positive)[:, tf.newaxis]
    pushes = []
    for s, chunk, factor in zip(sums, chunks, factors):
        slopes, slope_sums = s.gap_sums.slopes, s.gap_sums.slope_sums
        query_gradient += factor * tf.matmul(slopes, chunk.rows)
        pull += factor * slope_sums[:, tf.newaxis]
        # Transposed, since the other form of the product takes twice the time on CPUs.
        pushes.append(tf.matmul(factor * block.queries, slopes, transpose_a=True))
    if share is not None:
        pull *= share[:, tf.newaxis]
    query_gradient -= pull * block.positive_rows
    loss = tf.reduce_sum(block.weights * losses)
    return _Part(loss, query_gradient, pushes, -pull * block.queries)


def _whole_part(
    objective: Objective, competition: Competition, candidates: _Chunk, block: _Block
) -> _Part:
    """One block, by the form that needs whole rows of scores; the chunk holds all candidates."""
    scores = tf.matmul(block.queries, candidates.rows, transpose_b=True)
    positive = tf.gather(scores, block.columns, batch_dims=1)
    gaps = _BlockGaps(positive, competition, block).of(candidates, scores)
    negatives = tf.not_equal(gaps, tf.constant(FAR_BELOW, gaps.dtype))
    estimator = dataclasses.replace(
        competition.estimator(count_true(negatives, scores.dtype)),
        candidate_weights=_candidate_weights(competition, block),
    )
    losses, gradient = one_positive(scores, block.columns, negatives, estimator, objective)
    gradient *= block.weights[:, tf.newaxis]
    return _Part(
        tf.reduce_sum(block.weights * losses),
        tf.matmul(gradient, candidates.rows),
        [tf.matmul(block.queries, gradient, transpose_a=True)],
        tf.zeros_like(block.queries),
    )


def _chunks(candidates: tf.Tensor, num_queries: int | None, most: int | tf.Tensor) -> list[_Chunk]:
    """Chunks for blocks of ``most`` rows; one chunk if the number of candidates is not known."""
    num_candidates = candidates.shape[0]
    if num_candidates is None or not isinstance(most, int):
        return [_Chunk(candidates, 0, -1)]
    num_rows = most if num_queries is None else max(min(most, num_queries), 1)
    bounds = chunk_bounds(num_candidates, num_rows, candidates.dtype.size)
    return [_Chunk(candidates, first, last) for first, last in zip(bounds, bounds[1:])]


def _candidate_weights(competition: Competition, block: _Block) -> tf.Tensor | None:
    if competition.candidate_weights is None:
        return None
    return competition.candidate_weights(block.start, block.size)


def _longest(vectors: tf.Tensor) -> tf.Tensor:
    """The length of the longest vector; infinite or NaN if it does not fit the type."""
    return tf.sqrt(tf.reduce_max(tf.reduce_sum(tf.square(vectors), axis=-1)))


def _shortened(queries: tf.Tensor, candidates: tf.Tensor) -> tf.Tensor:
    """The queries, shortened by one factor so that all scores fit the type, if they do not.

    Queries or candidates that are not finite themselves make them NaN.
    """
    longest = tf.reduce_max(tf.abs(queries))
    width = tf.cast(tf.shape(queries)[1], queries.dtype)
    most = _numeric.LARGEST_SCORE / width / tf.reduce_max(tf.abs(candidates))
    return tf.where(longest > most, queries / longest * most, queries)


class _Chunk:
    """Candidates from ``first`` up to, not including, ``last``; all if ``last`` is -1."""

    def __init__(self, candidates: tf.Tensor, first: int, last: int) -> None:
        self.is_all = last < 0 or (first == 0 and last == candidates.shape[0])
        self.first, self.last = first, last
        self.rows = candidates if self.is_all else candidates[first:last]

    def columns_of(self, matrix: tf.Tensor | None) -> tf.Tensor | None:
        """The chunk's part of a matrix with a column for every candidate."""
        return matrix if matrix is None or self.is_all else matrix[:, self.first : self.last]

    def local(self, columns: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Columns counted from the start of the chunk, and whether they are in it."""
        if self.is_all:
            return columns, tf.ones_like(columns, tf.bool)
        inside = tf.logical_and(columns >= self.first, columns < self.last)
        return tf.clip_by_value(columns - self.first, 0, self.last - self.first - 1), inside


class _BlockGaps:
    """Turns a block's scores into gaps, ``FAR_BELOW`` where a candidate is not a negative.

    Attributes:
      num_negatives: ``[num_rows]``: the number of negatives in the chunks so far. Without a mask,
        known positives that are dropped are counted too.
    """

    def __init__(self, positive: tf.Tensor, competition: Competition, block: _Block) -> None:
        start, size = block.start, block.size
        self._positive = positive[:, tf.newaxis]
        self._columns = block.columns
        self._size = size
        self._considered = None if competition.mask is None else competition.mask(start, size)
        self._dropped = None if competition.dropped is None else competition.dropped(start, size)
        # Without a mask, all candidates but the positive are negatives.
        self.num_negatives = tf.zeros_like(positive) - (1.0 if self._considered is None else 0.0)

    def of(self, chunk: _Chunk, scores: tf.Tensor) -> tf.Tensor:
        """The gaps of a chunk, ``[num_rows, chunk_size]``."""
        far_below = tf.constant(FAR_BELOW, scores.dtype)
        gaps = scores - self._positive
        if self._considered is not None:
            gaps = tf.where(chunk.columns_of(self._considered), gaps, far_below)
        local, inside = chunk.local(self._columns)
        place = tf.stack([tf.range(self._size), local], axis=-1)
        own = tf.fill(tf.shape(local), far_below)
        if not chunk.is_all:
            own = tf.where(inside, own, tf.gather_nd(gaps, place))
        gaps = tf.tensor_scatter_nd_update(gaps, place, own)
        if self._dropped is not None:
            local, inside = chunk.local(self._dropped[:, 1])
            listed = tf.boolean_mask(tf.stack([self._dropped[:, 0], local], axis=-1), inside)
            none = tf.fill([tf.shape(listed)[0]], far_below)
            gaps = tf.tensor_scatter_nd_update(gaps, listed, none)
        if self._considered is None:
            self.num_negatives += tf.cast(tf.shape(gaps)[1], gaps.dtype)
        else:
            self.num_negatives += tf.reduce_sum(tf.cast(gaps > far_below, gaps.dtype), axis=-1)
        return gaps
