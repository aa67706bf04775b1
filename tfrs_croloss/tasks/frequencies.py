"""How likely each item is to be drawn as a candidate: counted beforehand, or while training.

In-batch negatives are drawn by popularity, and the tasks correct for that if they know the
probability of a draw: an item's share of the log. ``CandidateFrequencies`` takes it from counts,
``StreamingFrequencies`` estimates it from the ids that the task sees. Both go into
``Retrieval(sampling_probability=…)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss import _checks

_LARGEST_HASH = tf.int64.max
# Odd 64-bit numbers, one for each hash function: products with them mix the bits of an id.
_MULTIPLIERS = (
    0x9E3779B97F4A7C15,
    0xC2B2AE3D27D4EB4F,
    0xD6E8FEB86659FD93,
    0xA0761D6478BD642F,
    0xE7037ED1A0B428DB,
    0x8EBC6AF09C88C6E3,
)


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class CandidateFrequencies:
    """The items' shares of a log that was counted beforehand.

    An id that was not counted has the share of the rarest one.

    Args:
      ids: ``[num_items]`` distinct integers or strings.
      counts: ``[num_items]`` numbers above 0: how often each item was chosen.

    >>> shares = CandidateFrequencies(["a", "b"], [3, 1])
    >>> print(shares.probabilities(tf.constant(["b", "a", "unknown"])).numpy())
    [0.25 0.75 0.25]
    """

    def __init__(self, ids: Any, counts: Any) -> None:
        ids = tf.convert_to_tensor(ids)
        weights = np.asarray(counts, np.float64)
        if ids.shape.rank != 1 or weights.shape != tuple(ids.shape) or not len(weights):
            raise ValueError(
                "`counts` should have one number for each of at least one `ids`. Received shapes: "
                f"{ids.shape} and {weights.shape}."
            )
        if not (np.isfinite(weights).all() and (weights > 0.0).all()):
            raise ValueError("`counts` should be above 0. Leave items out that were never chosen.")
        self._is_text = ids.dtype == tf.string
        keys = _keys(ids).numpy()
        order = np.argsort(keys, kind="stable")
        if (np.diff(keys[order]) == 0).any():
            raise ValueError(
                "`ids` should be distinct. Use CandidateFrequencies.from_ids to count."
            )
        self._keys, self._counts = tf.constant(keys[order]), weights[order]
        self._shares = tf.constant(weights[order] / weights.sum(), tf.float32)
        self._least = tf.constant(weights.min() / weights.sum(), tf.float32)

    @classmethod
    def from_counts(cls, counts: Mapping[Any, float]) -> CandidateFrequencies:
        """From a mapping of ids to counts, of which those of 0 are left out."""
        kept = {key: count for key, count in counts.items() if count != 0}
        return cls(list(kept), list(kept.values()))

    @classmethod
    def from_ids(cls, ids: Any) -> CandidateFrequencies:
        """From ``[num_events]`` ids, one for each event of the log."""
        return cls(*np.unique(_array(ids), return_counts=True))

    @classmethod
    def from_dataset(cls, ids: Iterable[Any]) -> CandidateFrequencies:
        """From a ``tf.data.Dataset`` of the ids of the training events, in batches or one by one.

        >>> log = tf.data.Dataset.from_tensor_slices({"user": [1, 2, 2], "item": [7, 7, 9]})
        >>> shares = CandidateFrequencies.from_dataset(log.map(lambda event: event["item"]))
        >>> print(np.round(shares.probabilities(tf.constant([7])).numpy(), 3))
        [0.667]
        """
        if isinstance(ids, tf.data.Dataset) and ids.element_spec.shape.rank == 0:
            ids = ids.batch(65_536)
        totals: dict[Any, int] = {}
        for batch in ids:
            for key, count in zip(*np.unique(_array(batch), return_counts=True)):
                totals[key] = totals.get(key, 0) + int(count)
        return cls(list(totals), list(totals.values()))

    def probabilities(self, ids: tf.Tensor) -> tf.Tensor:
        """``[num_candidates]`` shares of the items with these ids."""
        if (ids.dtype == tf.string) != self._is_text:
            raise ValueError(
                "`candidate_ids` should be of the type that was counted in `sampling_probability`. "
                f"Received dtype: {ids.dtype.name}, where "
                f"{'strings' if self._is_text else 'integers'} were counted."
            )
        keys = _keys(ids)
        places = tf.searchsorted(self._keys, keys)
        places = tf.minimum(places, tf.size(self._keys) - 1)
        known = tf.equal(tf.gather(self._keys, places), keys)
        return tf.where(known, tf.gather(self._shares, places), self._least)

    def get_config(self) -> dict[str, Any]:
        """The counts by id; strings are kept as their hashes."""
        return {
            "ids": self._keys.numpy().tolist(),
            "counts": self._counts.tolist(),
            "is_text": self._is_text,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CandidateFrequencies:
        """The inverse of ``get_config``."""
        loaded = cls(tf.constant(config["ids"], tf.int64), config["counts"])
        loaded._is_text = config["is_text"]
        return loaded


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class StreamingFrequencies(tf.Module):
    """The items' shares of the log, estimated from the candidates of the batches so far.

    The interval between two draws of an item is, on average, one over its share. For each item a
    moving average of its intervals is kept in hashed arrays, counted in draws. Items that share a
    place look more frequent than they are; of several hash functions, the rarest estimate counts.
    The memory is bounded, and the state is saved and restored with the model.

    Args:
      num_buckets: places of each hash function, a power of 2; several times the number of items
        that matter. Each takes 16 bytes.
      num_hashes: number of hash functions, 1 to 6.
      learning_rate: weight of the latest interval in the moving average, above 0 and at most 1.
        Until an item was seen one over this many times, all its intervals have the same weight.

    References:
      Yi et al., *Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations*,
      RecSys 2019.

    After two batches in which one of two candidates is item 7, its share is one half:

    >>> frequencies = StreamingFrequencies()
    >>> for batch in ([7, 1], [7, 2]):
    ...     estimate, update = frequencies.observe(tf.constant(batch))
    ...     _ = update()
    >>> print(estimate.numpy())
    [0.5  0.25]
    """

    def __init__(
        self, num_buckets: int = 2**18, num_hashes: int = 3, learning_rate: float = 0.01
    ) -> None:
        super().__init__(name="streaming_frequencies")
        remedy = "Use a power of 2, several times the number of items."
        self.num_buckets = _checks.whole_number("num_buckets", num_buckets, remedy=remedy)
        self._bits = self.num_buckets.bit_length() - 1
        if self.num_buckets < 2 or 2**self._bits != self.num_buckets:
            raise ValueError(
                f"`num_buckets` should be a power of 2. Received: {num_buckets!r}. {remedy}"
            )
        remedy = "Use 1 to 6 hash functions."
        self.num_hashes = _checks.whole_number("num_hashes", num_hashes, remedy=remedy)
        if self.num_hashes > len(_MULTIPLIERS):
            raise ValueError(
                f"`num_hashes` should be at most 6. Received: {num_hashes!r}. {remedy}"
            )
        remedy = "Use 0.01, or less for an estimate that moves more slowly."
        self.learning_rate = _checks.positive_number("learning_rate", learning_rate, remedy=remedy)
        if self.learning_rate > 1.0:
            raise ValueError(
                f"`learning_rate` should be at most 1. Received: {learning_rate!r}. {remedy}"
            )
        size = [self.num_hashes * self.num_buckets]
        self._draws = _state([], tf.int64, "draws")
        self._last = _state(size, tf.int64, "last_draw")
        self._seen = _state(size, tf.float32, "times_seen")
        self._interval = _state(size, tf.float32, "mean_interval")

    def observe(
        self, ids: tf.Tensor, drawn: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, Callable[[], list[tf.Operation]]]:
        """The estimate after a batch, and the function that makes it the state.

        Args:
          ids: ``[num_candidates]`` integers or strings.
          drawn: ``[num_candidates]`` booleans: which candidates were drawn by the sampler that is
            estimated; None for all.

        Returns:
          ``[num_candidates]`` probabilities, and a function that updates the variables and returns
          the operations. Without a call of it, nothing changes.
        """
        places = self._places(ids)
        counts = _occurrences(places, drawn)
        num_drawn = tf.shape(ids)[0] if drawn is None else tf.math.count_nonzero(drawn)
        now = self._draws + tf.cast(num_drawn, tf.int64)
        # At least one: an item that was never drawn counts as drawn now, for the first time.
        new = tf.maximum(counts, 1.0)
        since = tf.cast(tf.maximum(now - tf.gather(self._last, places), 1), tf.float32)
        seen = tf.gather(self._seen, places) + new
        share = tf.maximum(1.0 - tf.pow(1.0 - self.learning_rate, new), new / seen)
        before = tf.gather(self._interval, places)
        after = before + share * (since / new - before)
        is_drawn = counts > 0.0
        known = tf.logical_or(is_drawn, seen > new)
        interval = tf.where(is_drawn, after, before)
        interval = tf.where(known, interval, tf.cast(now + 1, tf.float32))
        # A collision shortens the interval, so the longest is the least disturbed.
        probabilities = 1.0 / tf.maximum(tf.reduce_max(interval, axis=0), 1.0)

        def update() -> list[tf.Operation]:
            # Places that no draw touched are written as they were; equal places, with equal values.
            last = tf.where(is_drawn, now, tf.gather(self._last, places))
            times = tf.where(is_drawn, seen, seen - new)
            rows = tf.reshape(places, [-1])
            written = [
                tf.raw_ops.ResourceScatterUpdate(
                    resource=variable.handle, indices=rows, updates=tf.reshape(values, [-1])
                )
                for variable, values in (
                    (self._last, last),
                    (self._seen, times),
                    (self._interval, tf.where(is_drawn, after, before)),
                )
            ]
            added = tf.raw_ops.AssignAddVariableOp(
                resource=self._draws.handle, value=tf.cast(num_drawn, tf.int64)
            )
            return [operation for operation in (*written, added) if operation is not None]

        return probabilities, update

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments; the estimates are variables."""
        names = ("num_buckets", "num_hashes", "learning_rate")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> StreamingFrequencies:
        """The inverse of ``get_config``."""
        return cls(**config)

    def _places(self, ids: tf.Tensor) -> tf.Tensor:
        """``[num_hashes, num_candidates]`` places in the arrays."""
        keys = tf.bitcast(_keys(ids), tf.uint64)
        rows = []
        for number, multiplier in enumerate(_MULTIPLIERS[: self.num_hashes]):
            mixed = keys * tf.constant(multiplier, tf.uint64)
            bucket = tf.bitwise.right_shift(mixed, tf.constant(64 - self._bits, tf.uint64))
            rows.append(tf.cast(bucket, tf.int32) + number * self.num_buckets)
        return tf.stack(rows)


def get(
    given: CandidateFrequencies | StreamingFrequencies | str | None,
) -> CandidateFrequencies | StreamingFrequencies | None:
    """What the task's argument ``sampling_probability`` stands for."""
    if isinstance(given, str) and given == "streaming":
        return StreamingFrequencies()
    if given is None or isinstance(given, (CandidateFrequencies, StreamingFrequencies)):
        return given
    raise ValueError(
        '`sampling_probability` should be "streaming", a StreamingFrequencies or a '
        f"CandidateFrequencies. Received: {given!r}. Pass probabilities of a batch to the call, as "
        "`candidate_sampling_probability`."
    )


def updated_when_differentiated(
    loss: tf.Tensor, update: Callable[[], list[tf.Operation]]
) -> tf.Tensor:
    """``loss``, whose gradient runs the update: a step that does not train changes nothing."""

    @tf.custom_gradient
    def identity(loss: tf.Tensor) -> Any:
        def backward(upstream: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies(update()):
                return tf.identity(upstream)

        return tf.identity(loss), backward

    return identity(loss)


def _state(shape: list[int], dtype: tf.DType, name: str) -> tf.Variable:
    """A variable that every replica updates for itself, all in the same way."""
    return tf.Variable(
        tf.zeros(shape, dtype),
        trainable=False,
        name=name,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def _keys(ids: tf.Tensor) -> tf.Tensor:
    """Ids as int64: strings by their hash, as replicas exchange them."""
    if ids.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(ids, _LARGEST_HASH)
    if not ids.dtype.is_integer:
        raise ValueError(
            f"`candidate_ids` should be integers or strings. Received dtype: {ids.dtype.name}."
        )
    return tf.cast(ids, tf.int64)


def _occurrences(places: tf.Tensor, drawn: tf.Tensor | None) -> tf.Tensor:
    """How often each place occurs in its row, float32 of the shape of ``places``."""
    counted = places
    if drawn is not None:
        # Places that are not drawn are moved out of reach of those that are looked for.
        counted = tf.where(drawn[tf.newaxis, :], places, places.dtype.max)
    ordered = tf.sort(counted, axis=-1)
    above = tf.searchsorted(ordered, places, side="right")
    return tf.cast(above - tf.searchsorted(ordered, places, side="left"), tf.float32)


def _array(ids: Any) -> np.ndarray:
    """Ids as a flat NumPy array; strings as bytes, which is what TensorFlow has."""
    return np.reshape(ids.numpy() if tf.is_tensor(ids) else np.asarray(ids), [-1])
