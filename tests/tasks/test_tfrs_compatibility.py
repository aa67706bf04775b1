"""TFRS's own tests of its retrieval task, as installed, with our class in its place."""

from __future__ import annotations

import pytest
from tensorflow_recommenders.tasks import retrieval, retrieval_test

import tfrs_croloss.tasks

CASES = [
    (case, name)
    for case in vars(retrieval_test).values()
    if isinstance(case, type) and issubclass(case, retrieval_test.tf.test.TestCase)
    for name in dir(case)
    if name.startswith("test_task")
]


@pytest.fixture(autouse=True)
def our_task(monkeypatch):
    monkeypatch.setattr(retrieval, "Retrieval", tfrs_croloss.tasks.Retrieval)


def test_there_are_such_tests():
    assert len(CASES) >= 4


@pytest.mark.parametrize("case, name", CASES, ids=lambda value: getattr(value, "__name__", value))
def test_passes(case, name):
    outcome = case(name).run()
    assert outcome.testsRun == 1
    assert outcome.wasSuccessful(), outcome.failures + outcome.errors
