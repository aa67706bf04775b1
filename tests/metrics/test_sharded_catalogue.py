"""A catalogue in parts over replicas gives the ranks of the whole one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.processes import python_output
from tfrs_croloss.metrics import ShardedCatalogue, evaluate, exact_ranks

CASES: list[dict[str, Any]] = [
    {"num_items": 160, "seed": 1},
    {"num_items": 161, "seed": 2, "excluded": True},
    {"num_items": 7, "seed": 3, "excluded": True},
    # Fewer items than replicas: one of them has none.
    {"num_items": 3, "seed": 4},
    {"num_items": 40, "seed": 5, "broken": [31, 17, 39]},
]


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    printed = python_output("tests/support/replica_ranks.py", json.dumps(CASES))
    return list(json.loads(printed.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4), ids=lambda n: f"{CASES[n]['num_items']} items")
def test_ranks_over_four_parts_are_those_over_the_whole(
    number: int, results: list[dict[str, Any]]
) -> None:
    result = results[number]
    assert sum(result["sizes"]) == CASES[number]["num_items"]
    assert max(result["sizes"]) - min(result["sizes"]) <= 1
    assert len(set(result["in_one"])) > 1
    assert result["in_parts"] == result["in_one"]
    item, length = result["longest"]
    assert [result["lengths"][item], length] == pytest.approx([max(result["lengths"])] * 2)


@pytest.mark.slow
def test_the_first_item_that_is_not_finite_is_named(results: list[dict[str, Any]]) -> None:
    assert "3 of 40 vectors" in results[4]["error"]
    assert "item 17" in results[4]["error"]


def test_one_replica_evaluates_as_a_tensor_does() -> None:
    random = np.random.default_rng(0)
    table = random.normal(size=(50, 4)).astype(np.float32)
    queries = random.normal(size=(9, 4)).astype(np.float32)
    positives = random.integers(0, 50, 9)
    catalogue = ShardedCatalogue(
        tf.distribute.get_strategy(), lambda ids: tf.gather(table, ids), 50
    )
    reports = [
        evaluate(queries, candidates, positives, cutoffs=[1, 10])
        for candidates in (catalogue, table)
    ]
    assert reports[0].as_dict() == reports[1].as_dict()


def test_a_refreshed_catalogue_has_the_vectors_of_today() -> None:
    table = tf.Variable([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    catalogue = ShardedCatalogue(tf.distribute.get_strategy(), lambda ids: tf.gather(table, ids), 3)
    query = np.array([[1.0, 0.0]], np.float32)
    before = exact_ranks(query, catalogue, [0])
    table.assign(-table)
    held = exact_ranks(query, catalogue, [0])
    catalogue.refresh()
    after = exact_ranks(query, catalogue, [0])
    assert (before[0], held[0], after[0]) == (3, 3, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"num_items": 0}, "num_items"), ({"num_items": 5, "block_size": 2.5}, "block_size")],
)
def test_sizes_that_are_not_whole_numbers_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"`{message}` should be a whole number"):
        ShardedCatalogue(tf.distribute.get_strategy(), lambda ids: ids, **options)


def test_queries_of_another_dimension_are_refused() -> None:
    catalogue = ShardedCatalogue(
        tf.distribute.get_strategy(), lambda ids: tf.ones([tf.size(ids), 4]), 5
    )
    with pytest.raises(ValueError, match="same dim"):
        evaluate(np.ones((2, 3), np.float32), catalogue, [0, 1])
