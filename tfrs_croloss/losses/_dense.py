"""From scores to losses, with the gradient written out rather than differentiated.

With kernels that vanish far below a tie and one positive per row, which is what TFRS and most
models have, the positive is handled by its index, and values and gradient come from one pass
(``_by_index``). The readable form beside it (``_all_positives``) handles everything else: other
kernels, several positives, and objectives that do not depend on ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.losses import _numeric
from tfrs_croloss.losses._chunk_sums import chunk_sums, has_fast_form, losses_and_factors
from tfrs_croloss.losses._objective import Objective, RankObjective, RowObjective
from tfrs_croloss.losses.kernels import FAR_BELOW, LARGE_GAP
from tfrs_croloss.losses.ranks import (
    RankEstimator,
    count_true,
    importance_weights,
    positives_and_negatives,
)

Factored = tuple[tf.Tensor, tf.Tensor, tf.Tensor]
"""Losses ``[num_queries]``, and two tensors, ``[num_queries]`` and ``[num_queries,
num_candidates]``, whose product is the gradient."""


def pair_losses(
    scores: tf.Tensor,
    positive_columns: tf.Tensor,
    negatives: tf.Tensor,
    estimator: RankEstimator,
    objective: Objective,
) -> tf.Tensor:
    """The loss of one positive per row.

    Args:
      scores: ``[num_queries, num_candidates]`` floats.
      positive_columns: ``[num_queries]`` ints: the column of each row's positive.
      negatives: the shape of ``scores``, booleans; False at the positive.
      estimator: how the candidates represent the catalogue.
      objective: how the loss is computed.

    Returns:
      ``[num_queries]`` losses, differentiable with respect to ``scores``.
    """

    def readable(exact: tf.Tensor) -> Factored:
        return _unfactored(*one_positive(exact, positive_columns, negatives, estimator, objective))

    if not _goes_by_index(objective):
        return _with_gradient(readable, scores)
    return _with_gradient(
        lambda exact: _by_index(
            exact, positive_columns, negatives, estimator, objective, lambda: readable(exact)
        ),
        scores,
    )


def _goes_by_index(objective: Objective) -> TypeGuard[RankObjective]:
    """Whether ``_by_index`` gives the numbers of the readable form to the last digits."""
    return has_fast_form(objective) and objective.kernel.block_form_is_exact


def _by_index(
    scores: tf.Tensor,
    positive_columns: tf.Tensor,
    competing: tf.Tensor | None,
    estimator: RankEstimator,
    objective: RankObjective,
    otherwise: Callable[[], Factored],
) -> Factored:
    """As ``one_positive``, for objectives that have a fast form.

    Args:
      scores: ``[num_queries, num_candidates]``.
      positive_columns: ``[num_queries]`` ints.
      competing: the shape of ``scores``, booleans; the value at the positive does not matter. None
        if all candidates compete.
      estimator: how the candidates represent the catalogue.
      objective: how the loss is computed.
      otherwise: computes the result where exponentials of the gaps do not fit the type.
    """
    far_below = tf.constant(FAR_BELOW, scores.dtype)
    positive = tf.gather(scores, positive_columns, batch_dims=1)
    gaps = scores - positive[:, tf.newaxis]
    if competing is not None:
        gaps = tf.where(competing, gaps, far_below)
    rows = tf.range(tf.shape(scores)[0], dtype=positive_columns.dtype)
    place = tf.stack([rows, positive_columns], axis=-1)
    gaps = tf.tensor_scatter_nd_update(gaps, place, tf.fill(tf.shape(positive), far_below))
    sums = chunk_sums(gaps, objective, estimator.candidate_weights)
    losses, factors, pull = losses_and_factors([sums], objective, estimator)
    # A NaN positive leaves no trace in a row without negatives; it must not look like a loss of 0.
    losses = tf.where(tf.math.is_nan(positive), positive, losses)
    slopes, slope_sums = sums.gap_sums.slopes, sums.gap_sums.slope_sums
    own = -slope_sums if pull is None else -pull * slope_sums
    gradient = tf.tensor_scatter_nd_update(slopes, place, own)
    log_scale = sums.gap_sums.counts.log_scale
    if log_scale is None:
        return losses, factors[0], gradient
    fits = tf.reduce_max(log_scale) <= LARGE_GAP
    return tf.cond(fits, lambda: (losses, factors[0], gradient), otherwise)


def _unfactored(losses: tf.Tensor, gradient: tf.Tensor) -> Factored:
    return losses, tf.ones_like(losses), gradient


def one_positive(
    scores: tf.Tensor,
    positive_columns: tf.Tensor,
    negatives: tf.Tensor,
    estimator: RankEstimator,
    objective: Objective,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The readable form of one positive per row; arguments as for ``pair_losses``.

    Returns:
      Losses ``[num_queries]`` and their gradient ``[num_queries, num_candidates]``.
    """
    if isinstance(objective, RowObjective):
        columns = tf.range(tf.shape(scores)[1], dtype=positive_columns.dtype)
        positives = tf.equal(columns[tf.newaxis, :], positive_columns[:, tf.newaxis])
        return objective.losses_and_gradient(scores, positives, negatives, estimator)
    positive = tf.gather(scores, positive_columns, batch_dims=1)
    gaps = tf.where(negatives, scores - positive[:, tf.newaxis], tf.zeros_like(scores))
    losses, slopes, pull = objective.losses_and_slopes(gaps, negatives, estimator)
    # A NaN positive leaves no trace in a row without negatives; it must not look like a loss of 0.
    losses = tf.where(tf.math.is_nan(positive), positive, losses)
    rows = tf.range(tf.shape(scores)[0], dtype=positive_columns.dtype)
    total = tf.reduce_sum(slopes, axis=-1)
    gradient = tf.tensor_scatter_nd_sub(
        slopes,
        tf.stack([rows, positive_columns], axis=-1),
        total if pull is None else pull * total,
    )
    return losses, gradient


def _all_positives(
    scores: tf.Tensor,
    positives: tf.Tensor,
    negatives: tf.Tensor,
    estimator: RankEstimator,
    objective: Objective,
    loss_without_positive: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """As ``one_positive``, summed over the positives of each row."""
    count = tf.reduce_sum(tf.cast(positives, tf.int32), axis=-1)
    if isinstance(objective, RowObjective):
        losses, gradient = objective.losses_and_gradient(scores, positives, negatives, estimator)
        present = count > 0
        losses = tf.where(present, losses, tf.constant(loss_without_positive, scores.dtype))
        return losses, tf.where(present[:, tf.newaxis], gradient, tf.zeros_like(gradient))
    losses, gradient = one_positive(
        scores, _first_of_each_row(tf.cast(positives, tf.int8)), negatives, estimator, objective
    )
    present = count > 0
    losses = tf.where(present, losses, tf.constant(loss_without_positive, scores.dtype))
    gradient = tf.where(present[:, tf.newaxis], gradient, tf.zeros_like(gradient))

    def add_next(
        number: tf.Tensor, losses: tf.Tensor, gradient: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        order = tf.cumsum(tf.cast(positives, tf.int32), axis=-1)
        is_next = tf.logical_and(positives, tf.equal(order, number))
        more_losses, more_gradient = one_positive(
            scores, _first_of_each_row(tf.cast(is_next, tf.int8)), negatives, estimator, objective
        )
        present = count >= number
        losses += tf.where(present, more_losses, tf.zeros_like(losses))
        gradient += tf.where(present[:, tf.newaxis], more_gradient, tf.zeros_like(gradient))
        return number + 1, losses, gradient

    # The first positive of each row is outside the loop: with one per row the loop never runs.
    most = tf.reduce_max(tf.concat([count, [1]], axis=0))
    _, losses, gradient = tf.while_loop(
        lambda number, *_: number <= most,
        add_next,
        (tf.constant(2), losses, gradient),
        shape_invariants=(tf.TensorShape([]), losses.shape, gradient.shape),
    )
    return losses, gradient


def _with_gradient(
    losses_and_gradient: Callable[[tf.Tensor], Factored], scores: tf.Tensor
) -> tf.Tensor:
    """Losses per row whose gradient with respect to the scores is the one given.

    Half-precision scores are computed in float32, and the losses are float32. The gradient is
    clipped to the range of the scores' type before it is multiplied by the upstream gradient, so
    that a dynamic loss scale still sees the overflows that it causes.
    """
    dtype = scores.dtype

    @tf.custom_gradient
    def losses(scores: tf.Tensor) -> Any:
        values, factors, gradient = losses_and_gradient(
            _numeric.bounded(tf.cast(scores, _numeric.compute_dtype(dtype)))
        )
        if dtype.size < gradient.dtype.size:
            gradient = _numeric.clip_to_range(factors[:, tf.newaxis] * gradient, dtype)
            factors = tf.ones_like(factors)

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            return tf.cast((upstream * factors)[:, tf.newaxis] * gradient, dtype)

        return values, backward

    return losses(scores)


@tf.autograph.experimental.do_not_convert
def per_query_losses(
    scores: tf.Tensor,
    labels: tf.Tensor,
    objective: Objective,
    *,
    estimator: Callable[[tf.Tensor, tf.Tensor | None], RankEstimator],
    mask: tf.Tensor | None,
    sampling_probability: tf.Tensor | None,
    mask_rows_without_positive: bool,
    check_scores: bool,
) -> tf.Tensor:
    """The loss of each row of labelled scores.

    Args:
      estimator: from the number of negatives in each row, ``[num_queries]``, and the importance
        weights of the candidates, or None: how the candidates represent the catalogue.

    The other arguments are as in ``cro_loss``.
    """
    scores, labels, mask = _checks.candidates(scores, labels, mask)
    dtype = _numeric.compute_dtype(scores.dtype)
    candidate_weights = importance_weights(sampling_probability, scores)

    def with_any_labels(exact: tf.Tensor) -> Factored:
        exact, positives, negatives = positives_and_negatives(exact, labels, mask)
        if not mask_rows_without_positive:
            exact = _checks.rows(
                exact,
                tf.logical_not(tf.reduce_any(positives, axis=-1)),
                "`labels` should have a positive that `mask` does not hide in every row. Drop such "
                "rows, or pass mask_rows_without_positive=True to give them a loss of 0.",
            )
        if check_scores:
            # The scores as they came: those in ``exact`` are bounded.
            with tf.control_dependencies(
                [check_finite(scores, tf.logical_or(positives, negatives))]
            ):
                exact = tf.identity(exact)
        # XLA drops the check above; a row that fails it must not look like a good one.
        loss_without_positive = 0.0 if mask_rows_without_positive else float("nan")
        return _unfactored(
            *_all_positives(
                exact,
                positives,
                negatives,
                estimator(count_true(negatives, dtype), candidate_weights),
                objective,
                loss_without_positive,
            )
        )

    if check_scores or not _goes_by_index(objective):
        return _with_gradient(with_any_labels, scores)
    columns, have_one = _only_positives(labels, mask)

    def with_one_positive(exact: tf.Tensor) -> Factored:
        if mask is None:
            count = tf.fill(tf.shape(columns), tf.cast(tf.shape(exact)[1], dtype))
        else:
            count = count_true(mask, dtype)
        return _by_index(
            exact,
            columns,
            mask,
            estimator(count - 1.0, candidate_weights),
            objective,
            lambda: with_any_labels(exact),
        )

    return _with_gradient(
        lambda exact: tf.cond(
            have_one, lambda: with_one_positive(exact), lambda: with_any_labels(exact)
        ),
        scores,
    )


def _only_positives(labels: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
    """``[num_queries]`` columns of the positives, and whether every row has one, not masked."""
    if labels.dtype == tf.bool:
        labels = tf.cast(labels, tf.int8)
    columns = _first_of_each_row(labels)
    if labels.dtype in (tf.int8, tf.uint8):
        labels = tf.cast(labels, tf.int32)
    one = tf.ones([], labels.dtype)
    # No label is below zero, and one label is the whole sum.
    alone = tf.logical_and(
        tf.equal(tf.reduce_sum(labels, axis=-1), one),
        tf.equal(_at(labels, columns), one),
    )
    have_one = tf.logical_and(tf.reduce_all(alone), tf.reduce_min(labels) >= one - one)
    if mask is not None:
        unmasked = _at(mask, columns)
        have_one = tf.logical_and(have_one, tf.reduce_all(unmasked))
    return columns, have_one


def _at(matrix: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """``[num_queries]`` elements, one of each row; zeros where there are no columns."""

    def none() -> tf.Tensor:
        return tf.zeros([tf.shape(matrix)[0]], matrix.dtype)

    def some() -> tf.Tensor:
        return tf.gather(matrix, columns, batch_dims=1)

    if matrix.shape[1] == 0:
        return none()
    return some() if matrix.shape[1] is not None else tf.cond(tf.shape(matrix)[1] > 0, some, none)


def _first_of_each_row(ones: tf.Tensor) -> tf.Tensor:
    """``[num_queries]`` int64 columns of each row's first 1; 0 where there are no columns."""

    def none() -> tf.Tensor:
        return tf.zeros([tf.shape(ones)[0]], tf.int64)

    if ones.shape[1] == 0:
        return none()
    if ones.shape[1] is not None:
        return tf.argmax(ones, axis=-1)
    return tf.cond(tf.shape(ones)[1] > 0, lambda: tf.argmax(ones, axis=-1), none)


def check_finite(scores: tf.Tensor, considered: tf.Tensor) -> tf.Tensor:
    """Returns ``scores``; raises an error that lists the rows with a score that is not finite."""
    wrong = tf.logical_and(considered, tf.logical_not(tf.math.is_finite(scores)))
    return _checks.rows(
        scores,
        tf.reduce_any(wrong, axis=-1),
        "`scores` should be finite. Received NaN or infinity; look for a diverging learning rate, "
        "an empty history or a zero vector that is normalised.",
    )
