"""The library in a process with Keras 3: the numbers of Keras 2, and nothing of TFRS."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support import environments, keras_numbers
from tests.support.processes import python_output
from tfrs_croloss import LambdaCROLoss, _keras, cro_loss, soft_rank
from tfrs_croloss.memory import CandidateMemory
from tfrs_croloss.optimizers import LazyAdam

KERAS_3 = {"TF_USE_LEGACY_KERAS": None}
# Sections that are quick: the others trace, export and compile.
QUICK = {
    "losses": keras_numbers.loss_numbers,
    "tasks": keras_numbers.task_numbers,
    "optimizers": keras_numbers.optimizer_numbers,
}
SLOW = ("training", "compiled")


def leaves(value: Any, *path: Any) -> Iterator[tuple[str, Any]]:
    """The values of nested mappings with their paths; lists are values."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, *path, key)
    else:
        yield " / ".join(map(str, path)), value


def assert_equal(ours: Any, theirs: Any, rtol: float = 2e-5) -> None:
    """The same paths, and at each the same numbers to float precision."""
    ours, theirs = dict(leaves(ours)), dict(leaves(theirs))
    assert ours.keys() == theirs.keys() and ours
    for path, value in ours.items():
        for one, other in zip(_parts(value), _parts(theirs[path]), strict=True):
            if isinstance(one, str):
                assert one == other, path
                continue
            # Half precision has a thousandth of the digits.
            tolerance = 5e-3 if "mixed" in path else rtol
            scale = max(float(np.max(np.abs(one), initial=0.0)), 1e-3)
            np.testing.assert_allclose(other, one, 0.0, tolerance * scale, err_msg=path)


def _parts(value: Any) -> list[Any]:
    """Lists of names, and lists of arrays of different shapes, one by one."""
    is_list = isinstance(value, list) and any(isinstance(part, (list, str)) for part in value)
    return [leaf for part in value for leaf in _parts(part)] if is_list else [value]


@pytest.fixture(scope="module")
def python_without_tfrs(tmp_path_factory):
    """The interpreter of an environment without TFRS and Keras 2."""
    return environments.without(environments.TFRS, tmp_path_factory.mktemp("environment"))


def test_losses_tasks_and_optimizers_give_the_numbers_of_keras_2_without_tfrs(python_without_tfrs):
    module = ("-m", "tests.support.keras_numbers", *QUICK)
    printed = python_output(*module, environment=KERAS_3, python=python_without_tfrs)
    found = json.loads(printed.splitlines()[-1])
    assert found.pop("keras").startswith("3.") and found.pop("modules") == []
    expected = json.loads(json.dumps({name: make() for name, make in QUICK.items()}))
    assert_equal(expected, found)
    for numbers in (expected["optimizers"], found["optimizers"]):
        # Adam moves rows that earlier batches had, too.
        assert numbers["lazy leaves other rows"] and not numbers["adam leaves other rows"]


def test_the_environment_has_no_tfrs(python_without_tfrs):
    program = "import importlib.util as u; print([u.find_spec(n) for n in {!r}])"
    names = (*environments.TFRS, "numpy")
    printed = python_output("-c", program.format(names), python=python_without_tfrs)
    assert printed.startswith("[None, None, ModuleSpec")


@pytest.mark.slow
def test_training_metrics_export_xla_and_replicas_give_the_numbers_of_keras_2(python_without_tfrs):
    found = {}
    for keras, python in (("1", sys.executable), (None, python_without_tfrs)):
        environment = {"TF_USE_LEGACY_KERAS": keras}
        module = ("-m", "tests.support.keras_numbers", *SLOW)
        printed = python_output(*module, environment=environment, python=python)
        found[keras] = json.loads(printed.splitlines()[-1])
    assert found["1"].pop("keras") == "2" and found[None].pop("keras").startswith("3.")
    assert found["1"].pop("modules") and found[None].pop("modules") == []
    assert_equal(found["1"], found[None])
    for numbers in found.values():
        compiled = numbers["compiled"]
        assert_equal(compiled["one replica"], compiled["two replicas"], rtol=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        LambdaCROLoss,
        lambda: cro_loss([[1.0, 0.0]], [[1.0, 0.0]]),
        lambda: soft_rank([[1.0, 0.0]], [[1.0, 0.0]]),
        lambda: CandidateMemory(2, 3),
        LazyAdam,
    ],
    ids=["class", "function", "rank", "memory", "optimizer"],
)
def test_another_backend_is_refused_with_the_remedy(make, monkeypatch):
    monkeypatch.setattr(_keras, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match="with the backend 'jax'.*KERAS_BACKEND=tensorflow"):
        make()
