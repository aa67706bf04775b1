"""A warning, once, if a model's scores leave the range that a kernel can use.

A sample of the batch is enough to see it. The check is a few operations on the sample, and Python
is called only if something is wrong: compiled with XLA, or on another machine, where Python cannot
be called, nothing is said.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.losses import kernels
from tfrs_croloss.losses._objective import Objective, RankObjective

NUM_ROWS, _COLUMNS = 32, 256
"""Numbers of queries and candidates that are looked at."""
_UNIT_TOLERANCE = 1e-3
# A model of inner products starts with small scores, too; one that learns leaves them behind.
_PATIENCE = 100
_FLAT_GAP, _FLAT_SHARE = 20.0, 0.9
_STEEP_GAP = 30.0
# Scores that have collapsed deviate by less than this share of what they have in common: 8 % in a
# model that has lost more than half of its recall, 66 % and more in models that gain by their pull.
_COLLAPSED_SPREAD, _COLLAPSED_SCORE, _COLLAPSED_PATIENCE = 0.2, -0.5, 20


class ScoreRangeWarning(UserWarning):
    """Scores are too close together or too far apart for the kernel of the loss."""


_SMALL = (
    "all scores lie between -1 and 1, as those of cosines without a temperature do, and the loss "
    "can hardly tell such candidates apart. Divide them by a temperature: Retrieval(loss, "
    "temperature=0.1)."
)
_FLAT = (
    "nearly all gaps between scores are above 20 or below -20, where the sigmoid kernel is flat "
    "and has no gradient. Raise the temperature, shorten the vectors, or use kernel='softplus'."
)
_STEEP = (
    "some negatives are more than 30 ahead of the positive, where the gradient of the exponential "
    "kernel in LambdaCROLoss exceeds exp(30). Raise the temperature, or use descent='log_rank' or "
    "kernel='softplus'."
)
_COLLAPSED = (
    "nearly all scores are far below 0 and close to each other: the model collapses, since "
    "positives are pulled too weakly. Raise the loss's `pull` towards 1, or lower its `easing`."
)
_counts: dict[str, int] = {}
_told: set[str] = set()


@tf.autograph.experimental.do_not_convert
def watch_vectors(
    queries: tf.Tensor,
    candidates: tf.Tensor,
    positives: tf.Tensor,
    objective: Objective,
    temperature: float | None,
) -> None:
    """Warns if inner products of these vectors, over the temperature, do not suit the objective.

    Args:
      queries: ``[num_queries, dim]``.
      candidates: ``[num_candidates, dim]``.
      positives: ``[num_queries, dim]`` or more rows: the positive of each query.
      objective: how the loss is computed.
      temperature: what scores are divided by; None for 1.
    """
    if _is_mute():
        return
    rows = tf.cast(queries[:NUM_ROWS], tf.float32)
    columns = tf.cast(candidates[:_COLUMNS], tf.float32)
    own = tf.cast(positives[: tf.shape(rows)[0]], tf.float32)
    if temperature is None:
        vectors = tf.concat([rows, columns], axis=0)
        lengths = tf.norm(vectors, axis=-1)
        are_unit = tf.reduce_all(tf.abs(lengths - 1.0) < _UNIT_TOLERANCE)
        _tell_if(tf.logical_and(are_unit, tf.size(lengths) > 0), _SMALL)
    if _watches_gaps(objective):
        scale = 1.0 if temperature is None else 1.0 / temperature
        positive = scale * tf.reduce_sum(rows * own, axis=-1, keepdims=True)
        scores = scale * tf.matmul(rows, columns, transpose_b=True)
        _watch_gaps(scores, positive, objective)


@tf.autograph.experimental.do_not_convert
def watch_scores(scores: tf.Tensor, labels: tf.Tensor, objective: Objective) -> None:
    """Warns if labelled scores, ``[num_queries, num_candidates]``, do not suit the objective."""
    if _is_mute() or scores.shape.rank != 2 or labels.shape.rank != 2:
        return
    sample = tf.cast(scores[:NUM_ROWS, :_COLUMNS], tf.float32)
    are_small = tf.reduce_all(tf.abs(sample) <= 1.0 + _UNIT_TOLERANCE)
    _tell_if(tf.logical_and(are_small, tf.size(sample) > 0), _SMALL, _PATIENCE)
    if _watches_gaps(objective):
        are_positive = tf.cast(tf.cast(labels[:NUM_ROWS], tf.bool), tf.float32)
        rows = tf.cast(scores[:NUM_ROWS], tf.float32)
        positive = tf.math.divide_no_nan(
            tf.reduce_sum(are_positive * rows, axis=-1, keepdims=True),
            tf.reduce_sum(are_positive, axis=-1, keepdims=True),
        )
        _watch_gaps(sample, positive, objective)


def _kernels(objective: Objective) -> tuple[bool, bool]:
    """Whether the kernel that closes the gaps can be flat, and whether it can be too steep."""
    if not isinstance(objective, RankObjective):
        return False, False
    kernel, rank_kernel = objective.kernel, objective.rank_kernel
    can_be_steep = (
        isinstance(kernel, kernels.Exponential)
        and rank_kernel not in (None, kernel)
        and objective.descent == "rank"
    )
    return isinstance(kernel, kernels.Sigmoid), can_be_steep


def _can_collapse(objective: Objective) -> bool:
    return isinstance(objective, RankObjective) and not objective.pull.is_whole


def _watches_gaps(objective: Objective) -> bool:
    return any(_kernels(objective)) or _can_collapse(objective)


def _watch_gaps(scores: tf.Tensor, positive: tf.Tensor, objective: Objective) -> None:
    """Looks at ``[num_rows, num_columns]`` scores and ``[num_rows, 1]`` scores of positives."""
    gaps = scores - positive
    can_be_flat, can_be_steep = _kernels(objective)
    if can_be_flat:
        far = tf.cast(tf.abs(gaps) > _FLAT_GAP, tf.float32)
        _tell_if(tf.reduce_sum(far) > _FLAT_SHARE * tf.cast(tf.size(far), tf.float32), _FLAT)
    if can_be_steep:
        _tell_if(tf.reduce_any(gaps > _STEEP_GAP), _STEEP)
    if _can_collapse(objective):
        # The mean of no scores is NaN, which is below nothing.
        level, spread = tf.reduce_mean(scores), tf.math.reduce_std(scores)
        collapsed = tf.logical_and(level < _COLLAPSED_SCORE, spread < -_COLLAPSED_SPREAD * level)
        _tell_if(collapsed, _COLLAPSED, _COLLAPSED_PATIENCE)


def _tell_if(condition: tf.Tensor, message: str, patience: int = 1) -> None:
    """Warns when the condition held for the given number of times; once in a process."""
    if message in _told:
        return
    if tf.executing_eagerly():
        if bool(condition):
            _tell(message, patience)
        return
    call: Callable[[], tf.Tensor] = lambda: tf.numpy_function(  # noqa: E731
        lambda: _tell(message, patience), [], tf.int32
    )
    tf.cond(condition, call, lambda: 0)


def _tell(message: str, patience: int) -> np.int32:
    _counts[message] = _counts.get(message, 0) + 1
    if _counts[message] >= patience and message not in _told:
        _told.add(message)
        warnings.warn(message, ScoreRangeWarning, stacklevel=2)
    return np.int32(0)


def _is_mute() -> bool:
    """Whether Python cannot be called from the function that is being traced."""
    if tf.executing_eagerly():
        return False
    remote = (tf.distribute.experimental.ParameterServerStrategy, tf.distribute.TPUStrategy)
    return isinstance(tf.distribute.get_strategy(), remote) or _checks.is_compiled_with_xla()
