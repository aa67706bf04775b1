"""Training windows and evaluation inputs, against loops over lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipelines.data.batches import EvaluationInput, TrainingInput, WindowOptions
from pipelines.data.prepared import Split
from pipelines.errors import UserError

NUM_ITEMS = 50

# Users without a position are first, last and in between.
LENGTHS = [2, 9, 0, 5, 3, 14, 6, 1, 30, 5, 4]


def make_users(lengths: list[int] = LENGTHS) -> list[list[int]]:
    generator = np.random.default_rng(5)
    return [generator.integers(0, NUM_ITEMS, length).tolist() for length in lengths]


def make_split(users: list[list[int]], histories: list[int] | None = None) -> Split:
    flat = [item for items in users for item in items]
    offsets = np.cumsum([0] + [len(items) for items in users])
    lengths = None if histories is None else np.array(histories, np.int32)
    name = "train" if histories is None else "test"
    return Split(name, np.array(flat, np.int32), offsets.astype(np.int64), lengths, Path())


def plain_windows(
    users: list[list[int]], length: int, least: int
) -> dict[int, list[tuple[list[int], int]]]:
    """Every example of every user, by loops."""
    windows: dict[int, list[tuple[list[int], int]]] = {}
    for number, items in enumerate(users):
        for position in range(least, len(items)):
            history = items[max(0, position - length) : position]
            padding = [NUM_ITEMS] * (length - len(history))
            windows.setdefault(number, []).append((history + padding, items[position]))
    return windows


def examples_of(batches: list[dict[str, np.ndarray]]) -> list[tuple[list[int], int]]:
    return [
        (history.tolist(), int(item))
        for batch in batches
        for history, item in zip(batch["history"], batch["item_id"])
    ]


def make_input(options: WindowOptions, users: list[list[int]] | None = None) -> TrainingInput:
    return TrainingInput(make_split(users or make_users()), NUM_ITEMS, options)


def batches_of(source: TrainingInput, first: int, last: int) -> list[dict[str, np.ndarray]]:
    return [
        {
            name: values.to_tensor(-1).numpy() if name == "known_item_ids" else values.numpy()
            for name, values in batch.items()
        }
        for batch in source.dataset(first, last)
    ]


# Every two values of two options meet once.
@pytest.mark.parametrize(
    "history_length, min_history, batch_size",
    [
        (history_length, min_history, (1000, 7, 1)[(i + j) % 3])
        for i, history_length in enumerate([1, 4, 40])
        for j, min_history in enumerate([0, 1, 4])
    ],
)
def test_an_epoch_has_every_position_once(
    history_length: int, min_history: int, batch_size: int
) -> None:
    options = WindowOptions(batch_size, history_length, min_history)
    source = make_input(options)
    plain = plain_windows(make_users(), history_length, min_history)
    expected = sorted(example for examples in plain.values() for example in examples)
    assert source.num_examples == len(expected)
    assert source.steps_per_epoch == -(-len(expected) // batch_size)
    for epoch in range(2):
        first = epoch * source.steps_per_epoch
        batches = batches_of(source, first, first + source.steps_per_epoch)
        assert sorted(examples_of(batches)) == expected


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    def order(seed: int, epoch: int) -> list[tuple[list[int], int]]:
        source = make_input(WindowOptions(16, 4, 1, seed=seed))
        first = epoch * source.steps_per_epoch
        return examples_of(batches_of(source, first, first + source.steps_per_epoch))

    assert order(0, 0) == order(0, 0)
    orders = [order(seed, epoch) for seed in (0, 1, 2**40) for epoch in (0, 1)]
    for number, one in enumerate(orders):
        assert all(one != other for other in orders[number + 1 :])
    in_file = [
        example for examples in plain_windows(make_users(), 4, 1).values() for example in examples
    ]
    assert in_file not in orders


@pytest.mark.parametrize("positions", ["all", "one-per-user"])
def test_any_step_can_be_the_first(positions: str) -> None:
    options = WindowOptions(5, 4, 1, positions, known_positives=True)
    source = make_input(options)
    last = 3 * source.steps_per_epoch + 2
    whole = batches_of(source, 0, last)
    for step in (1, source.steps_per_epoch - 1, source.steps_per_epoch, last - 1):
        later = batches_of(make_input(options), step, last)
        assert len(later) == last - step
        for one, other in zip(later, whole[step:]):
            assert one.keys() == other.keys()
            for name in one:
                np.testing.assert_array_equal(one[name], other[name])


def test_one_random_position_of_every_user() -> None:
    source = make_input(WindowOptions(4, 3, 2, "one-per-user"))
    plain = plain_windows(make_users(), 3, 2)
    assert source.num_examples == len(plain)
    drawn: dict[int, set[int]] = {user: set() for user in plain}
    examples = tf.function(source.examples)
    offsets = np.cumsum([0] + LENGTHS)
    for epoch in range(200):
        users_of_epoch = []
        for step in range(source.steps_per_epoch):
            number = epoch * source.steps_per_epoch + step
            users, positions = examples(tf.constant(number, tf.int64))
            for user, position in zip(users.numpy().tolist(), positions.numpy().tolist()):
                users_of_epoch.append(user)
                drawn[user].add(position - int(offsets[user]))
        assert sorted(users_of_epoch) == sorted(plain)
    for user, positions in drawn.items():
        # A user of 30 items has 28 positions; 200 draws miss one with probability 0.02.
        assert positions <= set(range(2, LENGTHS[user]))
        assert len(positions) >= 0.8 * (LENGTHS[user] - 2)


def test_negatives_are_uniform_and_new_in_every_step() -> None:
    source = make_input(WindowOptions(64, negatives_per_example=10))
    drawn = [batch["negative_item_id"] for batch in batches_of(source, 0, 40)]
    assert {len(negatives) for negatives in drawn} == {640}
    assert len({negatives.tobytes() for negatives in drawn}) == 40
    counts = np.bincount(np.concatenate(drawn), minlength=NUM_ITEMS)
    expected = 40 * 640 / NUM_ITEMS
    # Chi square with 49 degrees of freedom: mean 49, standard deviation 9.9.
    assert len(counts) == NUM_ITEMS
    assert 10 < np.sum((counts - expected) ** 2 / expected) < 100
    assert (
        "negative_item_id"
        not in batches_of(make_input(WindowOptions(4, negatives_per_example=0)), 0, 1)[0]
    )


def test_known_positives_are_all_items_of_the_user() -> None:
    users = make_users()
    source = make_input(WindowOptions(8, 4, 1, known_positives=True))
    for step in range(source.steps_per_epoch):
        batch = source.batch(tf.constant(step, tf.int64))
        owners, _ = source.examples(tf.constant(step, tf.int64))
        assert batch["known_item_ids"].to_list() == [users[owner] for owner in owners]


def test_what_cannot_be_cut_into_windows_is_an_error() -> None:
    with pytest.raises(UserError, match="more than 4 items.*--min-history"):
        make_input(WindowOptions(), [[1, 2, 3, 4], [1]])
    with pytest.raises(UserError, match="batch_size should be at least 1. Received: 0"):
        WindowOptions(batch_size=0)
    with pytest.raises(UserError, match="one of all, one-per-user, sequences. Received: 'some'"):
        WindowOptions(positions="some")


def test_a_single_example() -> None:
    source = make_input(WindowOptions(4, 3, 2), [[8, 9, 7]])
    batches = batches_of(source, 0, 3)
    assert examples_of(batches) == [([8, 9, NUM_ITEMS], 7)] * 3


@pytest.mark.parametrize("history_length", [1, 3, 60])
def test_evaluation_against_loops(history_length: int) -> None:
    users = make_users()
    histories = [int(0.8 * len(items)) for items in users]
    arrived = EvaluationInput.of(make_split(users, histories), NUM_ITEMS, history_length)
    targets, owners = [], []
    for number, (items, middle) in enumerate(zip(users, histories)):
        latest = items[max(0, middle - history_length) : middle]
        padding = [NUM_ITEMS] * (history_length - len(latest))
        assert arrived.histories[number].tolist() == latest + padding
        assert arrived.seen[number].numpy().tolist() == items[:middle]
        targets += items[middle:]
        owners += [number] * len(items[middle:])
    assert arrived.targets.tolist() == targets
    assert arrived.users.tolist() == owners


def test_evaluation_of_the_first_users() -> None:
    users = make_users()
    histories = [int(0.8 * len(items)) for items in users]
    arrived = EvaluationInput.of(make_split(users, histories), NUM_ITEMS, 5, max_users=6)
    expected = EvaluationInput.of(make_split(users[:6], histories[:6]), NUM_ITEMS, 5)
    np.testing.assert_array_equal(arrived.histories, expected.histories)
    np.testing.assert_array_equal(arrived.targets, expected.targets)
    np.testing.assert_array_equal(arrived.users, expected.users)
    assert arrived.seen.to_list() == expected.seen.to_list()


def test_a_split_without_users_or_targets_is_an_error() -> None:
    with pytest.raises(UserError, match="'test' has no users to evaluate"):
        EvaluationInput.of(make_split([], []), NUM_ITEMS, 3)
    with pytest.raises(UserError, match="'test' has no targets"):
        EvaluationInput.of(make_split([[1, 2]], [2]), NUM_ITEMS, 3)
