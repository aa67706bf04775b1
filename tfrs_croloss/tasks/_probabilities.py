"""The sampling probabilities of a batch's candidates, from wherever the task has them."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfrs_croloss import _checks, _replicas
from tfrs_croloss.losses.ranks import inverse_probability
from tfrs_croloss.tasks.frequencies import StreamingFrequencies

_NAME = "candidate_sampling_probability"


def needed_ids(columns: dict[str, tf.Tensor]) -> tf.Tensor:
    """The candidates' ids, which `sampling_probability` of the task needs."""
    if "ids" not in columns:
        raise ValueError(
            "`candidate_ids` should be given where the task has a `sampling_probability`, which is "
            "looked up by id. Received: None. Pass the id of every candidate to the call."
        )
    return columns["ids"]


def of_each_query(
    probabilities: tf.Tensor, sizes: list[tf.Tensor], exchanges_candidates: bool
) -> tf.Tensor:
    """Probabilities that differ between queries, checked.

    Args:
      probabilities: ``[num_queries, num_candidates]``.
      sizes: numbers of queries and of candidates.
      exchanges_candidates: whether the candidates of other replicas come in addition.
    """
    if exchanges_candidates:
        raise ValueError(
            f"`{_NAME}` should have the shape [num_candidates] under a strategy with several "
            f"replicas. Received shape: {probabilities.shape}."
        )
    static = [tf.get_static_value(size) for size in sizes]
    # A column is a common slip, so the message names the usual shape first.
    names = ["num_candidates] or [num_queries, num_candidates"]
    return _checks.with_shape(_NAME, probabilities, static, sizes, names)


def observed(
    frequencies: StreamingFrequencies, columns: dict[str, tf.Tensor], exchanges_candidates: bool
) -> tuple[tf.Tensor, Callable[[], list[tf.Operation]]]:
    """The streaming estimate for the candidates, and its update.

    Every replica observes the candidates of all of them, so that their estimates stay the same.

    Args:
      frequencies: the estimate so far.
      columns: the candidates' ids, and which of them are shared negatives, if not all are.
      exchanges_candidates: whether these are the candidates of all replicas already.
    """
    seen = {"ids": needed_ids(columns)}
    if "shared" in columns:
        seen["shared"] = columns["shared"]
    num_candidates = tf.size(seen["ids"])
    if not exchanges_candidates:
        seen = _replicas.all_candidates(seen)
    estimate, update = frequencies.observe(seen["ids"], seen.get("shared"))
    return estimate[:num_candidates], update


def importance_weights(probability: tf.Tensor | None, dtype: tf.DType) -> tf.Tensor | None:
    """``[1 or num_queries, num_candidates]`` importance weights, or None."""
    if probability is None:
        return None
    weights = inverse_probability(probability, dtype, _NAME)
    return weights[tf.newaxis, :] if weights.shape.rank == 1 else weights


def by_block(weights: tf.Tensor | None) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None:
    """The importance weights of a block of queries, from its first row and its size."""
    if weights is None:
        return None

    def of_block(start: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
        rows = tf.minimum(start + tf.range(size), tf.shape(weights)[0] - 1)
        return weights if weights.shape[0] == 1 else tf.gather(weights, rows)

    return of_block
