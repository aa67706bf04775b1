"""The pull of the positive, and the log form of the Lambda method."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import tensorflow as tf

import tfrs_croloss
from tests.losses.test_losses import PAIRS, ROWS, assert_close, loss_and_gradient
from tests.support import oracle
from tfrs_croloss.losses import BilateralSoftmax, Pull

# The argument, and its share, easing and least value for the oracle.
PULLS = [
    (0.9, (0.9, 0.0, 1.0)),
    (Pull(1.1, easing=0.05, least=0.01), (1.1, 0.05, 0.01)),
    (Pull(easing=0.3, least=0.8), (1.0, 0.3, 0.8)),
]


@pytest.mark.parametrize("rank_kernel, kernel", PAIRS)
def test_value_and_gradient_equal_the_oracle(kernel, rank_kernel):
    width = max(len(row) for row in ROWS.values())
    padded = tf.constant([row + [123.0] * (width - len(row)) for row in ROWS.values()], tf.float64)
    mask = [[i < len(row) for i in range(width)] for row in ROWS.values()]
    labels = [[1] + [0] * (width - 1)] * len(ROWS)
    descents = ("rank",) if rank_kernel is None else ("rank", "log_rank")
    rows = [oracle.Row(padded[i].numpy(), labels[i], mask=mask[i]) for i in range(len(ROWS))]
    for (pull, numbers), descent in itertools.product(PULLS, descents):
        options = {} if rank_kernel is None else {"descent": descent}
        losses, gradient = loss_and_gradient(
            padded, labels, 1.4, kernel, rank_kernel, mask=mask, pull=pull, **options
        )
        for i, truth in enumerate(rows):
            gap = max((abs(float(value)) for value in truth.gaps.values()), default=0.0)
            expected = truth.loss(1.4, kernel, rank_kernel, False, descent)
            assert_close(losses[i], expected, tf.float64, gap)
            slopes = truth.gradient(1.4, kernel, rank_kernel, False, descent, numbers)
            for actual, value in zip(gradient[i], slopes):
                assert_close(actual, value, tf.float64, gap)


@pytest.mark.parametrize("kernel", oracle.DIFFERENTIABLE)
def test_gradient_is_the_slope_of_the_definition(kernel):
    """The positive's score counts as rho * s + (1 - rho) * SG[s]: the value moves by rho."""
    scores = np.random.default_rng(7).normal(scale=1.5, size=[3, 8])
    labels, step = np.eye(3, 8), 1e-6
    pull = Pull(0.95, easing=0.1, least=0.5)
    options = {"alpha": 1.2, "kernel": kernel, "num_items": 40}
    _, gradient = loss_and_gradient(
        tf.constant(scores), labels, 1.2, kernel, None, num_items=40, pull=pull
    )
    ranks = tfrs_croloss.soft_rank(tf.constant(scores), labels, kernel=kernel, num_items=40)
    share = 0.95 * np.maximum(1.0 / (1.0 + 0.1 * np.log(ranks)), 0.5)
    for i, j in itertools.product(range(3), range(8)):
        ends = []
        for sign in (1, -1):
            moved = scores.copy()
            moved[i, j] += sign * step * (share[i] if i == j else 1.0)
            ends.append(tfrs_croloss.cro_loss(tf.constant(moved), labels, **options)[i])
        slope = float(ends[0] - ends[1]) / (2 * step)
        assert float(gradient[i, j]) == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_a_pull_changes_the_gradient_of_the_positive_and_nothing_else():
    scores, labels = tf.constant([[0.5, 2.0, -1.0], [1.0, 0.0, 3.0]]), np.eye(2, 3)
    whole, gradient = loss_and_gradient(scores, labels, 1.4, "softplus", "sigmoid")
    eased, eased_gradient = loss_and_gradient(scores, labels, 1.4, "softplus", "sigmoid", pull=0.8)
    np.testing.assert_array_equal(whole, eased)
    np.testing.assert_allclose(
        eased_gradient, gradient * np.where(labels == 1.0, 0.8, 1.0), rtol=1e-6
    )


def test_the_log_form_of_one_kernel_at_alpha_1_is_croloss():
    scores, labels = tf.constant([[0.5, 2.0, -1.0], [1.0, 0.0, 3.0]]), np.eye(2, 3)
    for kernel in oracle.DIFFERENTIABLE:
        expected = loss_and_gradient(scores, labels, 1.0, kernel, None)
        found = loss_and_gradient(scores, labels, 1.0, kernel, kernel, descent="log_rank")
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)


def test_gradients_of_the_log_form_are_bounded():
    """The weights of alpha = 1 sum up to 1, however far ahead the negatives are."""
    scores, labels = tf.constant([[0.0, 300.0, 250.0, 300.0]]), [[1, 0, 0, 0]]
    steep = loss_and_gradient(scores, labels, 1.0, "exponential", "sigmoid")
    _, gradient = loss_and_gradient(
        scores, labels, 1.0, "exponential", "sigmoid", descent="log_rank"
    )
    assert float(tf.reduce_max(steep[1])) > 1e30
    np.testing.assert_allclose(gradient, [[-1.0, 0.5, 0.0, 0.5]], atol=1e-5)


def test_bsl_is_softmax_with_a_constant_pull():
    """Up to the factor kappa, and where the positive's own share of the softmax is negligible."""
    scores = np.random.default_rng(0).normal(size=[4, 9])
    scores[np.arange(4), np.arange(4)] -= 30.0
    labels, kappa = np.eye(4, 9), 1.2
    _, expected = loss_and_gradient(
        tf.constant(scores), labels, 1.0, "exponential", None, pull=1.0 / kappa
    )
    scores = tf.constant(scores)
    with tf.GradientTape() as tape:
        tape.watch(scores)
        loss = BilateralSoftmax(kappa).per_query(scores, labels)
    np.testing.assert_allclose(tape.gradient(loss, scores) / kappa, expected, rtol=1e-9)


@pytest.mark.parametrize("pull", [1.0, 0.9, Pull(0.95, easing=0.03, least=0.6)], ids=repr)
def test_saved_and_loaded(pull):
    loss = tfrs_croloss.LambdaCROLoss(pull=pull, descent="log_rank")
    config = json.loads(json.dumps(loss.get_config()))
    loaded = tfrs_croloss.LambdaCROLoss.from_config(config)
    assert loaded.get_config() == loss.get_config() and loaded.descent == "log_rank"
    assert loaded.pull.get_config() == loss.pull.get_config()
    if isinstance(pull, float):
        assert config["pull"] == pull


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: tfrs_croloss.CROLoss(pull=0.0), "`pull` should be above 0 and at most 2"),
        (lambda: tfrs_croloss.CROLoss(pull=float("nan")), "`pull` should be above 0"),
        (lambda: tfrs_croloss.CROLoss(pull="eased"), r"Write pull=0.9, or pull=Pull\(easing"),
        (lambda: tfrs_croloss.CROLoss(pull=True), "`pull` should be a number or"),
        (lambda: Pull(share=3.0), "`share` should be at most 2. Received: 3.0"),
        (lambda: Pull(easing=-0.1), "`easing` should be a finite number of at least 0"),
        (lambda: Pull(least=1.5), "`least` should be at most 1. Received: 1.5"),
        (lambda: tfrs_croloss.LambdaCROLoss(descent="log"), "`descent` should be"),
    ],
)
def test_errors_name_the_argument_and_the_remedy(call, message):
    with pytest.raises(ValueError, match=message):
        call()
