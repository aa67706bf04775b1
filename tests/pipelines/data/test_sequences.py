"""Batches of whole sequences, against loops over lists."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pipelines.data.batches import TrainingInput, WindowOptions
from pipelines.data.sequences import SequenceInput, training_input
from pipelines.errors import UserError
from tests.pipelines.data.test_batches import NUM_ITEMS, batches_of, make_split, make_users

Example = tuple[list[int], int]


def make_input(options: WindowOptions, users: list[list[int]] | None = None) -> SequenceInput:
    return SequenceInput(make_split(users or make_users()), NUM_ITEMS, options)


def plain_examples(users: list[list[int]], length: int, least: int) -> list[Example]:
    """Every position of every user, with the inputs up to it of a window counted from the end."""
    found = []
    for items in users:
        last = len(items) - 1
        while last >= least:
            begin = max(last - length, 0)
            for target in range(max(begin + 1, least), last + 1):
                found.append((items[begin:target], items[target]))
            last -= length
    return sorted(found)


def examples_of(batches: list[dict[str, np.ndarray]]) -> list[Example]:
    return [
        (batch["history"][row, : column + 1].tolist(), int(item))
        for batch in batches
        for (row, column), item in zip(batch["query_positions"], batch["item_id"])
    ]


def epoch_of(source: TrainingInput, epoch: int = 0) -> list[dict[str, np.ndarray]]:
    first = epoch * source.steps_per_epoch
    return batches_of(source, first, first + source.steps_per_epoch)


# The quick half has every pair of values.
CASES = [
    pytest.param(length, least, size, marks=[] if (one + two + three) % 2 else [pytest.mark.slow])
    for one, length in enumerate((1, 4, 40))
    for two, least in enumerate((1, 4))
    for three, size in enumerate((1000, 1, 3))
]


@pytest.mark.parametrize("history_length, min_history, batch_size", CASES)
def test_an_epoch_has_every_position_once(
    history_length: int, min_history: int, batch_size: int
) -> None:
    options = WindowOptions(batch_size, history_length, min_history, "sequences")
    source = make_input(options)
    expected = plain_examples(make_users(), history_length, min_history)
    assert source.num_examples == len(expected)
    for epoch in range(2):
        batches = epoch_of(source, epoch)
        assert sorted(examples_of(batches)) == expected
        assert max(len(batch["history"]) for batch in batches) <= batch_size
        for batch in batches:
            # As wide as the longest window, and padded at the end.
            are_items = (batch["history"] < NUM_ITEMS).astype(int)
            assert batch["history"].shape[1] == are_items.sum(axis=1).max()
            assert np.all(np.diff(are_items, axis=1) <= 0)
            assert len(batch["negative_item_id"]) == 10 * batch_size


def test_batches_have_windows_of_similar_length() -> None:
    generator = np.random.default_rng(0)
    users = make_users(generator.integers(2, 61, 400).tolist())
    source = make_input(WindowOptions(16, 60, 1, "sequences"), users)
    values = padding = 0
    for batch in epoch_of(source):
        values += batch["history"].size
        padding += int((batch["history"] == NUM_ITEMS).sum())
    assert padding < 0.25 * values
    lengths = [batch["history"].shape[1] for batch in epoch_of(source)]
    # Short and long batches are mixed.
    assert lengths != sorted(lengths) and len(set(lengths)) > 4


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    def order(seed: int, epoch: int) -> list[Example]:
        source = make_input(WindowOptions(2, 8, 1, "sequences", seed=seed))
        return examples_of(epoch_of(source, epoch))

    assert order(0, 0) == order(0, 0)
    orders = [order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    for number, one in enumerate(orders):
        assert all(one != other for other in orders[number + 1 :])


def test_any_step_can_be_the_first() -> None:
    options = WindowOptions(2, 8, 1, "sequences", known_positives=True)
    source = make_input(options)
    last = 2 * source.steps_per_epoch + 2
    whole = batches_of(source, 0, last)
    for step in (1, source.steps_per_epoch, last - 1):
        later = batches_of(make_input(options), step, last)
        for one, other in zip(later, whole[step:]):
            assert one.keys() == other.keys()
            for name in one:
                np.testing.assert_array_equal(one[name], other[name])


def test_known_positives_are_all_items_of_the_user() -> None:
    users = [[1, 2, 3, 4, 5, 6], [7, 8, 9]]
    source = make_input(WindowOptions(4, 3, 1, "sequences", known_positives=True), users)
    seen = 0
    for batch in epoch_of(source):
        for known, item in zip(batch["known_item_ids"], batch["item_id"]):
            owner = users[0] if item in users[0] else users[1]
            assert sorted(known[known >= 0].tolist()) == owner
            seen += 1
    assert seen == 5 + 2


def test_parts_have_all_windows_of_a_batch() -> None:
    source = make_input(WindowOptions(5, 8, 1, "sequences"))
    for step, batch in enumerate(epoch_of(source)):
        parts = [
            {name: values.numpy() for name, values in source.batch(step, part, 3).items()}
            for part in range(3)
        ]
        assert sorted(examples_of(parts)) == sorted(examples_of([batch]))
        negatives = np.concatenate([part["negative_item_id"] for part in parts])
        np.testing.assert_array_equal(negatives, batch["negative_item_id"])
    twin = source.over(source.arrays)
    np.testing.assert_array_equal(twin.batch(1)["history"], source.batch(1)["history"])


def test_a_part_of_the_positions_is_enough_to_look_at() -> None:
    source = make_input(WindowOptions(100, 40, 1, "sequences"), make_users([41] * 20))
    batch, some = source.batch(0), source.inspected_batch(0)
    assert len(batch["item_id"]) == 800
    np.testing.assert_array_equal(some["item_id"], batch["item_id"][:256])
    np.testing.assert_array_equal(some["query_positions"], batch["query_positions"][:256])


def test_positions_choose_the_input() -> None:
    split, options = make_split(make_users()), WindowOptions(4, 8, 1, "sequences")
    assert isinstance(training_input(split, NUM_ITEMS, options), SequenceInput)
    options = dataclasses.replace(options, positions="all")
    assert type(training_input(split, NUM_ITEMS, options)) is TrainingInput


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_history": 0}, "minimum history of at least 1"),
        ({"users": True}, "no numbers of users"),
        ({"min_history": 30}, "no training user has more than 30 items"),
    ],
)
def test_what_cannot_be_cut_is_an_error(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_input(WindowOptions(**{"min_history": 1, "positions": "sequences", **options}))
