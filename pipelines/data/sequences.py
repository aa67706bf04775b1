"""Training batches of whole sequences, in which every position is an example.

A window is a stretch of a user's sequence with as many inputs as a history has at most; the item
after each input is its target. The windows of a user are counted from the end of the sequence and
have no target in common, so every position is trained on once per epoch. Windows of similar length
share a batch, which is as wide as its longest window, so that little of it is padding.

Batch b of epoch e depends on (seed, e, b) alone, as in ``batches``.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from ..errors import UserError
from .batches import SEQUENCES, ExampleColumns, TrainingInput, WindowOptions, part_of
from .prepared import Split

# Streams of random numbers besides those of ``batches``.
_BATCHES, _WINDOWS = 4, 5

# Each bucket of lengths ends at this many times the length at which it begins.
_GROWTH = 1.5
_INSPECTED_POSITIONS = 256


class SequenceInput(TrainingInput):
    """Batches of windows, by number.

    Args:
      split: the training split.
      num_items: size of the catalogue, and the id that windows are padded with.
      options: ``batch_size`` counts windows, and ``history_length`` their inputs.
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
        _check(options, per_user)
        self.options = options
        self.num_items = num_items
        self.num_examples = int(per_user.sum())
        longest = options.history_length
        counts = -(-per_user // longest)
        users = np.repeat(np.arange(len(lengths)), counts)
        firsts = np.cumsum(counts) - counts
        from_end = np.arange(len(users)) - firsts[users]
        # Within the user's sequence: the last target, the first input, and the first target.
        last = lengths[users] - 1 - from_end * longest
        begin = np.maximum(last - longest, 0)
        first = np.maximum(begin + 1, options.min_history)
        order, bounds = _buckets(last - begin, options.batch_size, longest)
        num_batches = -(-np.diff(bounds) // options.batch_size)
        self.steps_per_epoch = int(num_batches.sum())
        self.num_windows = len(users)
        self._device = "CPU"
        with tf.device("CPU"):
            self._windows = (
                tf.constant(split.items),
                tf.constant(split.offsets),
                tf.constant(users[order]),
                tf.constant((split.offsets[users] + begin)[order]),
                tf.constant((last - begin)[order]),
                tf.constant((first - begin - 1)[order]),
                tf.constant(bounds),
                tf.constant(np.concatenate([[0], np.cumsum(num_batches)])),
            )
            self._columns = {} if columns is None else columns.tensors()

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays that batches are made from: items, offsets, windows by bucket, and columns."""
        return *self._windows, self._columns

    def over(self, arrays: tuple[Any, ...]) -> SequenceInput:
        """This input, reading from copies of its ``arrays`` on the device that holds them."""
        twin = copy.copy(self)
        twin._device = None
        *windows, twin._columns = arrays
        twin._windows = tuple(windows)
        return twin

    def batch(
        self, step: tf.Tensor, part: tf.Tensor | int = 0, num_parts: int = 1
    ) -> dict[str, tf.Tensor]:
        """The batch of one step, counted over all epochs, or a part of its windows.

        Args:
          step: scalar int64.
          part: scalar, number of the part.
          num_parts: number of parts.

        Returns:
          ``history`` ``[windows, length]`` int32, oldest first, padded at the end with
          ``num_items``; ``query_positions`` ``[num_positions, 2]`` int64, the row and the column of
          each position that has a target, and ``item_id`` ``[num_positions]`` int32, the targets;
          with negatives ``negative_item_id`` ``[batch_size * negatives_per_example]`` int32; with
          known positives ``known_item_ids`` ``[num_positions, (ids)]`` ragged int32; features of
          users ``[windows]``, and of the targets' contexts ``[num_positions]``, under their names.
        """
        with contextlib.nullcontext() if self._device is None else tf.device(self._device):
            items, offsets, users, starts, lengths, firsts, _, _ = self._windows
            windows = part_of(self.examples(step)[0], part, num_parts)
            start, length = tf.gather(starts, windows), tf.gather(lengths, windows)
            columns = tf.range(tf.reduce_max(tf.concat([length, [1]], axis=0)))
            are_inputs = columns < length[:, tf.newaxis]
            have_targets = tf.logical_and(
                are_inputs, columns >= tf.gather(firsts, windows)[:, tf.newaxis]
            )
            positions = tf.where(have_targets)
            places = start[:, tf.newaxis] + tf.minimum(columns, length[:, tf.newaxis])
            targets = tf.gather_nd(places, positions) + 1
            batch = {
                "history": tf.where(are_inputs, tf.gather(items, places), self.num_items),
                "query_positions": positions,
                "item_id": tf.gather(items, targets),
            }
            if self.options.negatives_per_example:
                batch["negative_item_id"] = part_of(self.negatives(step), part, num_parts)
            if self.options.known_positives:
                owners = tf.gather(tf.gather(users, windows), positions[:, 0])
                known = tf.ragged.range(tf.gather(offsets, owners), tf.gather(offsets, owners + 1))
                batch["known_item_ids"] = known.with_values(tf.gather(items, known.values))
            of_windows = self._gathered(user=tf.gather(users, windows), context=targets)
            return {**batch, **of_windows}

    def inspected_batch(self, step: tf.Tensor) -> dict[str, tf.Tensor]:
        """The batch of a step with the first of its positions, whose scores fit into memory."""
        batch = self.batch(step)
        context = self._columns.get("context", ())
        for name in ("query_positions", "item_id", "known_item_ids", *context):
            if name in batch:
                batch[name] = batch[name][:_INSPECTED_POSITIONS]
        return batch

    def examples(self, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The numbers of a step's windows, and their users, both int64."""
        _, _, users, _, _, _, bounds, first_batch = self._windows
        step = tf.cast(step, tf.int64)
        epoch, number = step // self.steps_per_epoch, step % self.steps_per_epoch
        # Batches of all buckets in random order, and the windows of each bucket, too.
        number = tf.random.experimental.index_shuffle(
            number, self._key(_BATCHES, epoch), tf.constant(self.steps_per_epoch - 1, tf.int64)
        )
        bucket = tf.searchsorted(first_batch, number[tf.newaxis], "right", tf.int64)[0] - 1
        begin, end = bounds[bucket], bounds[bucket + 1]
        first = (number - first_batch[bucket]) * self.options.batch_size
        last = tf.minimum(first + self.options.batch_size, end - begin)
        windows = begin + tf.random.experimental.index_shuffle(
            tf.range(first, last),
            self._key(_WINDOWS, epoch * tf.size(bounds, tf.int64) + bucket),
            end - begin - 1,
        )
        return windows, tf.gather(users, windows)


def training_input(
    split: Split,
    num_items: int,
    options: WindowOptions,
    columns: ExampleColumns | None = None,
) -> TrainingInput:
    """The input whose examples are what ``options.positions`` says."""
    kind = SequenceInput if options.positions == SEQUENCES else TrainingInput
    return kind(split, num_items, options, columns)


def _check(options: WindowOptions, per_user: np.ndarray) -> None:
    if options.min_history < 1 or options.users:
        raise UserError(
            "sequences should have a minimum history of at least 1, and no numbers of users. "
            f"Received: {options.min_history} and {options.users}."
        )
    if not per_user.any():
        raise UserError(
            f"no training user has more than {options.min_history} items, so there is nothing "
            "to predict. Lower --min-history, or prepare the data with other filters."
        )


def _buckets(lengths: np.ndarray, batch_size: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """The order of windows by bucket, and where each bucket begins and ends in that order.

    A bucket with less than a batch of windows is joined with the next one, the last one with the
    one before.

    >>> order, bounds = _buckets(np.array([9, 1, 2, 8, 1, 9]), batch_size=2, longest=9)
    >>> order.tolist(), bounds.tolist()
    ([1, 2, 4, 0, 3, 5], [0, 3, 6])
    """
    order = np.argsort(np.searchsorted(list(_ends(longest)), lengths), kind="stable")
    sizes = np.bincount(np.searchsorted(list(_ends(longest)), lengths))
    bounds = [0]
    for end in np.cumsum(sizes).tolist():
        if end - bounds[-1] >= batch_size:
            bounds.append(end)
    if len(bounds) > 1:
        bounds.pop()
    return order, np.array([*bounds, len(lengths)], np.int64)


def _ends(longest: int) -> Iterator[int]:
    """The longest window of each bucket.

    >>> list(_ends(20))
    [4, 6, 9, 13, 19, 20]
    """
    end = 4
    while end < longest:
        yield end
        end = int(end * _GROWTH)
    yield longest
