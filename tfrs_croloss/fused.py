"""Loss and gradients straight from embeddings, never holding the whole score matrix.

Queries are taken block by block. A block's scores, ranks, weights and its parts of both gradients
are done together: three matrix products, and nothing is computed twice. The gradients are known
when the loss is, so nothing of a block has to be kept for the backward pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfrs_croloss import _numeric
from tfrs_croloss.blocks import NO_GAP, block_losses
from tfrs_croloss.objective import RankObjective
from tfrs_croloss.rank import RankEstimator

_LEAST_BUDGET = 256 * 2**20
# Matrices of a block's shape that are alive at once.
_LIVE_MATRICES = 4


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
      memory_budget: in bytes, for the matrices of one block. By default 256 MB, or three times
        the candidates' embeddings where that is more: their gradient is written once per block.

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
        budget = tf.maximum(3 * size * shape[0] * shape[1], _LEAST_BUDGET)
    else:
        budget = tf.constant(memory_budget, tf.int64)
    most = tf.maximum(budget // tf.maximum(_LIVE_MATRICES * size * shape[0], 1), 1)
    queries = tf.maximum(tf.cast(num_queries, tf.int64), 1)
    num_blocks = -(-queries // most)
    return tf.cast(-(-queries // num_blocks), tf.int32)


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
    num_blocks = -(-num_queries // size)
    # Rows of zeros fill the last block, so that every block has one shape, which XLA needs.
    filling = num_blocks * size - num_queries
    queries = tf.pad(queries, [[0, filling], [0, 0]])
    row_weights = tf.pad(row_weights, [[0, filling]])
    padded_columns = tf.pad(positive_columns, [[0, filling]])
    gradients = tf.TensorArray(
        queries.dtype, num_blocks, element_shape=[None, candidates.shape[1]]
    )
    pulls = tf.TensorArray(queries.dtype, num_blocks, element_shape=[None, candidates.shape[1]])

    def add_block(number, value, candidate_gradient, gradients, pulls):  # type: ignore[no-untyped-def]
        start = number * size
        block_queries = tf.slice(queries, [start, 0], [size, dim])
        block_weights = tf.slice(row_weights, [start], [size])
        columns = tf.slice(padded_columns, [start], [size])
        scores = tf.matmul(block_queries, candidates, transpose_b=True)
        places = tf.stack([tf.range(size), columns], axis=-1)
        positive = tf.gather_nd(scores, places)
        gaps, count = _gaps(scores, positive, places, competition, start, size)
        estimator = competition.estimator(count, start, size)
        block = block_losses(gaps, objective, estimator)
        losses = tf.where(tf.math.is_nan(positive), positive, block.losses)
        # The row factors go into the thin matrices, and the positive's part is a thin one too.
        factors = (block_weights * block.row_factors)[:, tf.newaxis]
        pull = block.slope_sums[:, tf.newaxis]
        scaled_queries = factors * block_queries
        query_gradient = factors * (
            tf.matmul(block.slopes, candidates) - pull * tf.gather(candidates, columns)
        )
        candidate_gradient += tf.matmul(block.slopes, scaled_queries, transpose_a=True)
        value += tf.reduce_sum(block_weights * losses)
        return (
            number + 1, value, candidate_gradient,
            gradients.write(number, query_gradient), pulls.write(number, -pull * scaled_queries),
        )

    _, value, candidate_gradient, gradients, pulls = tf.while_loop(
        lambda number, *_: number < num_blocks,
        add_block,
        (tf.constant(0), tf.zeros([], queries.dtype), tf.zeros_like(candidates), gradients, pulls),
        parallel_iterations=1,
    )
    query_gradient = tf.reshape(gradients.stack(), [-1, dim])[:num_queries]
    pulled = tf.reshape(pulls.stack(), [-1, dim])[:num_queries]
    candidate_gradient = tf.tensor_scatter_nd_add(
        candidate_gradient, positive_columns[:, tf.newaxis], pulled
    )
    return value, query_gradient, candidate_gradient


def _gaps(
    scores: tf.Tensor,
    positive: tf.Tensor,
    places: tf.Tensor,
    competition: Competition,
    start: tf.Tensor,
    size: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The gaps of a block, ``NO_GAP`` where there is no competition, and how many compete."""
    gaps = scores - positive[:, tf.newaxis]
    if competition.mask is not None:
        gaps = tf.where(competition.mask(start, size), gaps, tf.constant(NO_GAP, gaps.dtype))
    if competition.dropped is not None:
        places = tf.concat([places, competition.dropped(start, size)], axis=0)
    gaps = tf.tensor_scatter_nd_update(
        gaps, places, tf.fill([tf.shape(places)[0]], tf.constant(NO_GAP, gaps.dtype))
    )
    if competition.mask is None:
        count = tf.fill([size], tf.cast(tf.shape(scores)[1] - 1, gaps.dtype))
    else:
        count = tf.reduce_sum(tf.cast(gaps > NO_GAP, gaps.dtype), axis=-1)
    return gaps, count
