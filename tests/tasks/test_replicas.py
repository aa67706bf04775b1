"""Several replicas compute what one does: the loss and the gradients of the whole batch."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.support.processes import python_output

# All of one number of replicas: a process cannot have groups of two sizes.
CUTS = [[4, 4, 4], [7, 5, 0]]
CASES: list[dict[str, Any]] = [
    {
        "kind": "model",
        "lambda": True,
        "alpha": 1.0,
        "reduction": "sum_over_batch_size",
        "in_batch": False,
    },
    {"kind": "model", "lambda": False, "alpha": 1.2, "reduction": "sum", "in_batch": True},
    {"kind": "task", "lambda": True, "alpha": 0.8, "reduction": "sum_over_batch_size"},
    {"kind": "catalogue", "lambda": False, "alpha": 1.0, "reduction": "sum_over_batch_size"},
]


# The slow cases share a process, since importing TensorFlow takes as long as a case.
@pytest.mark.parametrize(
    "cases", [CASES[2:3], pytest.param([*CASES[:2], CASES[3]], marks=pytest.mark.slow)]
)
def test_parts_of_a_batch_give_the_loss_and_gradients_of_the_whole(
    cases: list[dict[str, Any]],
) -> None:
    printed = python_output("tests/support/replica_steps.py", json.dumps(cases), json.dumps(CUTS))
    steps = json.loads(printed.splitlines()[-1])
    assert len(steps) == len(cases)
    for case, (whole, *cut) in zip(cases, steps):
        assert len(cut) == len(CUTS)
        assert all(np.abs(gradient).max() > 1e-4 for gradient in whole[1:])
        for parts in cut:
            assert len(parts) == len(whole)
            for together, alone in zip(parts, whole):
                np.testing.assert_allclose(together, alone, rtol=2e-4, atol=2e-6, err_msg=str(case))
