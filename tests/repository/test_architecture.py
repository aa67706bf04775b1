"""The worked examples of the architecture page run, and do what the page says."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from tests.support.processes import ROOT
from tfrs_croloss.losses import kernels
from tfrs_croloss.losses._chunk_sums import has_fast_form

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page():
    """The names that the page's blocks define, run in order in one namespace."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    names = {"__name__": "architecture_page"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/architecture.md, block {number}", "exec"), names)
    yield names
    del kernels.NAMED["smooth_hinge"]


def test_the_kernel_is_fast_and_gives_the_numbers_of_the_readable_form(page):
    loss = page["loss"]
    assert has_fast_form(loss.objective)
    readable = type(loss).from_config(loss.get_config())
    readable.kernel = kernels.FunctionKernel(page["SmoothHinge"](margin=2.0))
    assert not has_fast_form(readable.objective)
    arguments = page["queries"], page["items"]
    results = []
    for one in (loss, readable):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            value = page["Retrieval"](one, temperature=0.1)(*arguments)
        results.append((value, *tape.gradient(value, arguments)))
    for fast, slow in zip(*results):
        np.testing.assert_allclose(fast, slow, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(results[0][0], page["value"], rtol=1e-6)


def test_the_loss_has_the_gradient_of_its_value(page):
    loss = page["SquaredError"](0.3)
    scores = np.array([[0.5, 2.0, -1.0, np.nan], [1.5, 0.2, 0.3, 0.4]])
    labels, mask = [[1, 0, 0, 0], [0, 1, 1, 0]], [[True, True, True, False], [True] * 4]
    values = loss.per_query(scores, labels, mask=mask)
    expected = [0.5**2 + 0.3 * (2.0**2 + 1.0), 0.8**2 + 0.7**2 + 0.3 * (1.5**2 + 0.4**2)]
    np.testing.assert_allclose(values, expected)
    variable = tf.constant(scores)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        values = loss.per_query(variable, labels, mask=mask)
    expected = [[-1.0, 0.6 * 2.0, -0.6, 0.0], [0.6 * 1.5, -1.6, -1.4, 0.6 * 0.4]]
    np.testing.assert_allclose(tape.gradient(values, variable), expected)


def test_the_training_step_lowers_the_loss(page):
    assert float(page["after"]) < float(page["before"])
    config = page["SquaredError"](0.3, 99).get_config()
    assert page["SquaredError"].from_config(config).get_config() == config
    assert config["negative_weight"] == 0.3
