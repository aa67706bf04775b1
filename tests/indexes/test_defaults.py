"""What indexes find without any settings."""

from __future__ import annotations

import numpy as np
import pytest

from tfrs_croloss.indexes import PartitionedIndex, measure


def unit_vectors(num_rows, seed, dim, num_centres):
    random = np.random.default_rng(seed)
    rows = random.normal(size=(num_rows, dim))
    if num_centres:
        centres = np.random.default_rng(99).normal(size=(num_centres, dim))
        rows = centres[random.integers(0, num_centres, num_rows)] + 0.3 * rows
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("num_items", "dim", "num_centres", "most_leaves"),
    [
        (1_664, 16, 40, None),
        (12_000, 16, 100, 0.25),
        (12_000, 16, 0, None),
        pytest.param(166_400, 64, 400, 0.1, marks=pytest.mark.slow),
        pytest.param(166_400, 64, 0, None, marks=pytest.mark.slow),
    ],
)
def test_a_partitioned_index_finds_95_percent(num_items, dim, num_centres, most_leaves):
    index = PartitionedIndex(unit_vectors(num_items, 0, dim, num_centres))
    queries = unit_vectors(200, 1, dim, num_centres)
    assert measure(index, queries, 100).recall >= 0.95
    if most_leaves is None:  # Leaves do not pay: everything is scored, and search is exact.
        assert index.leaves_to_search == index.num_leaves
    else:
        assert index.leaves_to_search <= most_leaves * index.num_leaves
