"""Candidates of recent batches as further negatives (cross-batch memory)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks, _keras


@dataclasses.dataclass(frozen=True)
class Candidates:
    """Candidates of a batch, with what a task needs to know about them.

    Attributes:
      embeddings: ``[num_candidates, dim]``.
      ids: ``[num_candidates]``.
      sampling_probability: ``[num_candidates]``.
    """

    embeddings: tf.Tensor
    ids: tf.Tensor
    sampling_probability: tf.Tensor


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class CandidateMemory(tf.Module):
    """The latest candidates of earlier batches, first in, first out.

    Remembered embeddings are slightly older than the model and get no gradient. They were drawn by
    the same sampler as the batch they came with, so they keep their sampling probability, and the
    importance weights of the rank stay right: there are only more draws.

    Args:
      capacity: number of candidates to remember.
      dim: size of the embeddings.
      id_dtype: type of the ids.
      name: name of the module.

    >>> memory = CandidateMemory(capacity=3, dim=1)
    >>> first = memory.extend(tf.constant([[1.0], [2.0]]), [10, 20], [0.5, 0.25])
    >>> second = memory.extend(tf.constant([[3.0]]), [30], [0.125])
    >>> print(first.ids.numpy(), second.ids.numpy(), second.sampling_probability.numpy())
    [10 20] [30 10 20] [0.125 0.5   0.25 ]
    """

    def __init__(
        self,
        capacity: int,
        dim: int,
        id_dtype: tf.DType = tf.int64,
        name: str | None = "candidate_memory",
    ) -> None:
        super().__init__(name=name)
        _keras.require_tensorflow("CandidateMemory")
        remedy = "Give a whole number of at least 1."
        self.capacity = int(_checks.positive_number("capacity", capacity, remedy=remedy))
        dim = int(_checks.positive_number("dim", dim, remedy=remedy))
        id_dtype = tf.as_dtype(id_dtype)
        no_id = "" if id_dtype == tf.string else 0

        def variable(shape: Sequence[int], value: object, dtype: tf.DType) -> tf.Variable:
            return tf.Variable(tf.fill(shape, tf.constant(value, dtype)), trainable=False)

        self._embeddings = variable([self.capacity, dim], 0.0, tf.float32)
        self._ids = variable([self.capacity], no_id, id_dtype)
        self._probabilities = variable([self.capacity], 1.0, tf.float32)
        self._seen = variable([], 0, tf.int64)

    def extend(
        self,
        embeddings: tf.Tensor,
        ids: tf.Tensor,
        sampling_probability: tf.Tensor,
        *,
        remember: bool = True,
    ) -> Candidates:
        """Adds the remembered candidates to those of the batch.

        Args:
          embeddings: ``[num_candidates, dim]`` of the batch.
          ids: ``[num_candidates]``.
          sampling_probability: ``[num_candidates]`` or a scalar.
          remember: whether to remember the batch, from the next call on.

        Returns:
          The candidates of the batch first, then the remembered ones.
        """
        embeddings = tf.convert_to_tensor(embeddings)
        ids = tf.cast(ids, self._ids.dtype)
        probability = tf.broadcast_to(
            tf.cast(sampling_probability, tf.float32), tf.shape(embeddings)[:1]
        )
        filled = tf.cast(tf.minimum(self._seen, self.capacity), tf.int32)
        extended = Candidates(
            tf.concat([embeddings, tf.cast(self._embeddings[:filled], embeddings.dtype)], axis=0),
            tf.concat([ids, self._ids[:filled]], axis=0),
            tf.concat([probability, self._probabilities[:filled]], axis=0),
        )
        if remember:
            # Only after what is remembered has been read.
            with tf.control_dependencies(
                [extended.embeddings, extended.ids, extended.sampling_probability]
            ):
                self._remember(tf.stop_gradient(embeddings), ids, probability)
        return extended

    def _remember(self, embeddings: tf.Tensor, ids: tf.Tensor, probability: tf.Tensor) -> None:
        count = tf.shape(embeddings, out_type=tf.int64)[0]
        kept = tf.minimum(count, self.capacity)
        places = (self._seen + tf.range(count - kept, count)) % self.capacity
        places = places[:, tf.newaxis]
        latest = count - kept
        self._embeddings.scatter_nd_update(places, tf.cast(embeddings[latest:], tf.float32))
        self._ids.scatter_nd_update(places, ids[latest:])
        self._probabilities.scatter_nd_update(places, probability[latest:])
        self._seen.assign_add(count)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments; what is remembered are variables."""
        return {
            "capacity": self.capacity,
            "dim": self._embeddings.shape[1],
            "id_dtype": self._ids.dtype.name,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CandidateMemory:
        """The inverse of ``get_config``."""
        return cls(**config)


def mixture_probability(
    draws: Sequence[tf.Tensor | int], probabilities: Sequence[tf.Tensor | float]
) -> tf.Tensor:
    """The probability of each candidate under several samplers at once.

    Weighting a candidate by one over the number of all draws times this probability is unbiased,
    whichever sampler the candidate came from (the balance heuristic).

    Args:
      draws: number of candidates from each sampler.
      probabilities: for each sampler, the probability with which it draws each candidate,
        ``[num_candidates]`` or one number for all. It covers all candidates, not only the sampler's
        own.

    Two candidates, one drawn by popularity and one uniformly from ten items:

    >>> print(mixture_probability([1, 1], [[0.5, 0.3], 0.1]).numpy())
    [0.3 0.2]
    """
    if len(draws) != len(probabilities) or not draws:
        raise ValueError(
            "`probabilities` should have one entry for each entry of `draws`. Received: "
            f"{len(probabilities)} and {len(draws)}."
        )
    counts = [tf.cast(count, tf.float32) for count in draws]
    total = tf.add_n(counts)
    mixture: tf.Tensor = tf.constant(0.0)
    for count, probability in zip(counts, probabilities):
        mixture = mixture + count / total * tf.cast(probability, tf.float32)
    return mixture
