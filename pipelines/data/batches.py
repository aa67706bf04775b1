"""Training batches, gathered by TensorFlow from the arrays of prepared data.

An example is a position k in a user's sequence: the last items before k, and item k itself. Batch
b of epoch e depends on (seed, e, b) alone: a keyed permutation, which needs no array, shuffles the
positions, and random numbers are stateless. So training can resume at any step, and checkpoints
hold nothing about the input.

Memory: the items and offsets are copied into TensorFlow once, 4 bytes per interaction and 24 per
user (340 MB for 85 million interactions, and twice as much for a moment at the start). Functions of
the dataset refer to these copies, which are not constants of a graph.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..errors import UserError
from .columns import Encoded, Tensors, as_tensors, gathered
from .features import Column
from .prepared import Split

SEQUENCES = "sequences"
POSITIONS = ("all", "one-per-user", SEQUENCES)

# Distinct streams of random numbers under one seed.
_SHUFFLE, _POSITION, _NEGATIVES = 1, 2, 3


@dataclasses.dataclass(frozen=True)
class WindowOptions:
    """How sequences are cut into examples, and examples are put into batches.

    Attributes:
      batch_size: examples per batch; the last batch of an epoch may have fewer.
      history_length: number of items before the position that are used, the latest ones.
      min_history: minimum number of items before a position (4 in the authors' code).
      positions: training positions per epoch: ``"all"`` of them, or ``"one-per-user"``, a random
        position of every user (as in the authors' code), or ``"sequences"``, all of them in one
        pass over each sequence (see ``sequences``).
      negatives_per_example: uniform negatives per example; all examples of a batch share them.
      known_positives: whether batches list all items of the examples' users.
      users: whether batches contain the numbers of the examples' users.
      seed: seed of the shuffle, the positions and the negatives.
    """

    batch_size: int = 256
    history_length: int = 20
    min_history: int = 4
    positions: str = "all"
    negatives_per_example: int = 10
    known_positives: bool = False
    users: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("batch_size", 1),
            ("history_length", 1),
            ("min_history", 0),
            ("negatives_per_example", 0),
        ):
            if getattr(self, name) < least:
                raise UserError(
                    f"{name} should be at least {least}. Received: {getattr(self, name)}."
                )
        if self.positions not in POSITIONS:
            raise UserError(
                f"positions should be one of {', '.join(POSITIONS)}. Received: {self.positions!r}."
            )


@dataclasses.dataclass(frozen=True)
class ExampleColumns:
    """What examples have besides items.

    Attributes:
      user: encoded features of the training users, by name.
      context: encoded features of the interactions, by name. An example has those of its target.
      negatives: ``[num]`` int32, items that negatives are drawn from; None for all items.
    """

    user: Mapping[str, Column] = dataclasses.field(default_factory=dict)
    context: Mapping[str, Column] = dataclasses.field(default_factory=dict)
    negatives: np.ndarray | None = None

    def tensors(self) -> dict[str, Tensors]:
        """All of them, by what they belong to; a part without columns is left out."""
        found = {"user": as_tensors(self.user), "context": as_tensors(self.context)}
        if self.negatives is not None:
            found["negatives"] = {"item_id": (tf.constant(self.negatives),)}
        return {of: tensors for of, tensors in found.items() if tensors}


class TrainingInput:
    """Batches of training examples, by number.

    Args:
      split: the training split.
      num_items: size of the catalogue, and the id that histories are padded with.
      options: how examples are cut and batched.
      columns: what examples have besides items.
    """

    def __init__(
        self,
        split: Split,
        num_items: int,
        options: WindowOptions,
        columns: ExampleColumns | None = None,
    ) -> None:
        lengths = np.diff(split.offsets)
        per_user = np.maximum(lengths - options.min_history, 0)
        if not per_user.any():
            raise UserError(
                f"no training user has more than {options.min_history} items, so there is nothing "
                "to predict. Lower --min-history, or prepare the data with other filters."
            )
        self.options = options
        self.num_items = num_items
        if options.positions == "one-per-user":
            per_user = np.minimum(per_user, 1)
        first_example = np.concatenate([[0], np.cumsum(per_user, dtype=np.int64)])
        self.num_examples = int(first_example[-1])
        self.steps_per_epoch = -(-self.num_examples // options.batch_size)
        self._device: str | None = "CPU"
        with tf.device("CPU"):
            self._items = tf.constant(split.items)
            self._offsets = tf.constant(split.offsets)
            self._first_example = tf.constant(first_example)
            self._columns = {} if columns is None else columns.tensors()

    def dataset(self, first_step: int, last_step: int) -> tf.data.Dataset:
        """The batches of the steps from ``first_step`` up to, not including, ``last_step``."""
        dataset = tf.data.Dataset.range(first_step, last_step)
        dataset = dataset.map(self.batch, num_parallel_calls=2, deterministic=True)
        return dataset.prefetch(4)

    def part_dataset(
        self, first_step: int, last_step: int, parts: Sequence[int], num_parts: int
    ) -> tf.data.Dataset:
        """Parts of these batches: for each step, one element for each of ``parts`` in turn.

        Args:
          first_step, last_step: first step, and the one after the last, as in ``dataset``.
          parts: numbers of the parts, one for each replica of this worker.
          num_parts: number of parts in a batch, one for each replica of all workers.
        """
        numbers = tf.constant(list(parts), tf.int64)
        count = len(parts)

        def part(number: tf.Tensor) -> dict[str, tf.Tensor]:
            return self.batch(number // count, numbers[number % count], num_parts)

        dataset = tf.data.Dataset.range(first_step * count, last_step * count)
        dataset = dataset.map(part, num_parallel_calls=2, deterministic=True)
        return dataset.prefetch(4 * count)

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays that batches are made from: items, offsets, first examples and columns."""
        return self._items, self._offsets, self._first_example, self._columns

    def over(self, arrays: tuple[Any, ...]) -> TrainingInput:
        """This input, reading from copies of its ``arrays`` on the device that holds them."""
        twin = copy.copy(self)
        twin._device = None
        twin._items, twin._offsets, twin._first_example, twin._columns = arrays
        return twin

    def batch(
        self, step: tf.Tensor, part: tf.Tensor | int = 0, num_parts: int = 1
    ) -> dict[str, tf.Tensor]:
        """The batch of one step, counted over all epochs, or a part of it.

        Part p of P has the examples, and the negatives, from number ``n p // P`` up to, not
        including, ``n (p + 1) // P`` of the n in the batch. Parts can be empty.

        Args:
          step: scalar int64.
          part: scalar, number of the part.
          num_parts: number of parts.

        Returns:
          ``history`` ``[batch, history_length]`` int32, oldest first, padded at the end with
          ``num_items``; ``item_id`` ``[batch]`` int32; with negatives ``negative_item_id``
          ``[batch_size * negatives_per_example]`` int32; with known positives ``known_item_ids``
          ``[batch, (ids)]`` ragged int32; with users ``user`` ``[batch]`` int64; the features of
          users and of the targets' contexts under their names, ``[batch]`` or ragged.
        """
        with contextlib.nullcontext() if self._device is None else tf.device(self._device):
            users, positions = (part_of(values, part, num_parts) for values in self.examples(step))
            begins = tf.gather(self._offsets, users)
            starts = tf.maximum(begins, positions - self.options.history_length)
            window = starts[:, tf.newaxis] + tf.range(self.options.history_length, dtype=tf.int64)
            before = window < positions[:, tf.newaxis]
            items = tf.gather(self._items, tf.minimum(window, positions[:, tf.newaxis]))
            batch = {
                "history": tf.where(before, items, self.num_items),
                "item_id": tf.gather(self._items, positions),
            }
            if self.options.negatives_per_example:
                batch["negative_item_id"] = part_of(self.negatives(step), part, num_parts)
            if self.options.known_positives:
                ends = tf.gather(self._offsets, users + 1)
                known = tf.ragged.range(begins, ends)
                batch["known_item_ids"] = known.with_values(tf.gather(self._items, known.values))
            if self.options.users:
                batch["user"] = users
            return {**batch, **self._gathered(user=users, context=positions)}

    def _gathered(self, **rows: tf.Tensor) -> dict[str, Encoded]:
        """The columns of users, and of contexts, in these rows."""
        found: dict[str, Encoded] = {}
        for of, chosen in rows.items():
            found.update(gathered(self._columns.get(of, {}), chosen))
        return found

    def inspected_batch(self, step: tf.Tensor) -> dict[str, tf.Tensor]:
        """The batch of a step, to look at all of its scores."""
        return self.batch(step)

    def negatives(self, step: tf.Tensor) -> tf.Tensor:
        """``[batch_size * negatives_per_example]`` int32: the shared negatives of a step."""
        items = self._columns.get("negatives", {}).get("item_id")
        numbers = tf.random.stateless_uniform(
            [self.options.batch_size * self.options.negatives_per_example],
            self._key(_NEGATIVES, step),
            maxval=self.num_items if items is None else tf.size(items[0]),
            dtype=tf.int32,
        )
        return numbers if items is None else tf.gather(items[0], numbers)

    def examples(self, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The users of a step's examples, and their positions in the flat items, both int64."""
        step = tf.cast(step, tf.int64)
        epoch, number = step // self.steps_per_epoch, step % self.steps_per_epoch
        first = number * self.options.batch_size
        last = tf.minimum(first + self.options.batch_size, self.num_examples)
        examples = tf.random.experimental.index_shuffle(
            tf.range(first, last),
            self._key(_SHUFFLE, epoch),
            tf.constant(self.num_examples - 1, tf.int64),
        )
        # Users without a position have no example between theirs and the next user's first.
        users = tf.searchsorted(self._first_example, examples, side="right", out_type=tf.int64) - 1
        if self.options.positions == "all":
            within = examples - tf.gather(self._first_example, users)
        else:
            ends = tf.gather(self._offsets, users + 1)
            choices = ends - tf.gather(self._offsets, users) - self.options.min_history
            drawn = tf.random.stateless_uniform(
                tf.shape(users), self._key(_POSITION, step), dtype=tf.float64
            )
            within = tf.cast(drawn * tf.cast(choices, tf.float64), tf.int64)
        return users, tf.gather(self._offsets, users) + self.options.min_history + within

    def _key(self, stream: int, count: tf.Tensor) -> tf.Tensor:
        """Two int32 that depend on all bits of the seed, the stream and the count."""
        stream_and_count = tf.cast(count, tf.int64) * 8 + stream
        seed = tf.stack([tf.constant(self.options.seed, tf.int64), stream_and_count])
        # The shuffle takes the low halves of a seed only, hence the mixing.
        return tf.random.stateless_uniform([2], seed, minval=None, maxval=None, dtype=tf.int32)


def part_of(values: tf.Tensor, part: tf.Tensor | int, num_parts: int) -> tf.Tensor:
    """The part of rows that a replica gets; all of them if there is one part."""
    if num_parts == 1:
        return values
    count, part = tf.size(values, tf.int64), tf.cast(part, tf.int64)
    return values[count * part // num_parts : count * (part + 1) // num_parts]


@dataclasses.dataclass(frozen=True)
class EvaluationInput:
    """The users of a validation or test split: their histories, and the targets to be found.

    Attributes:
      histories: ``[num_users, history_length]`` int32, the latest items of the histories, oldest
        first, padded at the end with ``num_items``.
      targets: ``[num_pairs]`` int32.
      users: ``[num_pairs]`` int64, the user of each target.
      seen: ``[num_users, (ids)]`` ragged, the whole histories.
      numbers: ``[num_users]`` int32, numbers of the users in the training split, for models with
        user embeddings.
      columns: ``[num_users]`` or ragged, encoded features of the users and of the context of their
        first targets, by name.
    """

    histories: np.ndarray
    targets: np.ndarray
    users: np.ndarray
    seen: tf.RaggedTensor
    numbers: np.ndarray | None = None
    columns: Mapping[str, Encoded] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls, split: Split, num_items: int, history_length: int, max_users: int | None = None
    ) -> EvaluationInput:
        """Reads a split, or its first ``max_users`` users."""
        if split.history_lengths is None or not split.num_users:
            raise UserError(
                f"split '{split.name}' has no users to evaluate. Use valid or test, and prepare "
                "the data so that this split has users."
            )
        if max_users is not None and max_users < split.num_users:
            split = dataclasses.replace(
                split,
                items=split.items[: split.offsets[max_users]],
                offsets=split.offsets[: max_users + 1],
                history_lengths=split.history_lengths[:max_users],
            )
        assert split.history_lengths is not None
        begins = np.asarray(split.offsets[:-1])
        middles = begins + split.history_lengths
        starts = np.maximum(begins, middles - history_length)
        window = starts[:, np.newaxis] + np.arange(history_length)
        before = window < middles[:, np.newaxis]
        histories = split.items[np.minimum(window, len(split.items) - 1)]
        users = np.repeat(np.arange(split.num_users), np.diff(split.offsets))
        is_target = np.arange(len(split.items)) >= middles[users]
        if not is_target.any():
            raise UserError(
                f"split '{split.name}' has no targets. Prepare the data with a smaller "
                "--history-share."
            )
        return cls(
            histories=np.where(before, histories, num_items).astype(np.int32),
            targets=split.items[is_target],
            users=users[is_target],
            seen=tf.RaggedTensor.from_row_lengths(
                split.items[~is_target], np.asarray(split.history_lengths, np.int64)
            ),
        )
