"""Beside keras-rs: each of its parts with our losses, tasks and models."""

from __future__ import annotations

import pytest

from tests.support.processes import python_output


@pytest.mark.slow
def test_the_parts_of_keras_rs_compose_with_ours():
    pytest.importorskip("keras_rs", reason="keras-rs is not installed")
    module = ("-m", "tests.support.beside_keras_rs")
    printed = python_output(*module, environment={"TF_USE_LEGACY_KERAS": None})
    assert printed.split() == [
        "hard_negative_mining",
        "remove_accidental_hits",
        "sampling_probability_correction",
        "metrics",
        "brute_force_retrieval",
        "embed_layers",
    ]
