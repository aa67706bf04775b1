"""A training step holds neither the scores nor a mask of its queries and candidates."""

from __future__ import annotations

import pytest

from tests.support.processes import python_output

NUM_QUERIES, NUM_CANDIDATES = 2_048, 65_536
DENSE_BYTES = NUM_QUERIES * NUM_CANDIDATES * (1 + 4)  # a mask of booleans, and scores


@pytest.mark.slow
@pytest.mark.parametrize("case", ["replicas", "memory"])
def test_a_step_takes_far_less_than_a_dense_mask_and_scores(case: str) -> None:
    printed = python_output("tests/support/step_memory.py", case, NUM_QUERIES, NUM_CANDIDATES)
    assert int(printed.splitlines()[-1]) < DENSE_BYTES / 3
