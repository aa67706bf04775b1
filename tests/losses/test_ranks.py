"""Ranks: soft, exact, masked, and estimated from samples."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.support import oracle
from tfrs_croloss import soft_rank

SCORES = np.random.default_rng(11).normal(scale=2.0, size=[5, 9])
LABELS = np.eye(9)[[0, 3, 8, 1, 4]]


@pytest.mark.parametrize("kernel", oracle.KERNELS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_items": 200},
        {"num_items": 200, "rank_estimate": "unbiased"},
        {"sampling_probability": np.linspace(0.01, 0.3, 9)},
    ],
)
def test_equal_to_the_oracle(kernel, options):
    mask = np.random.default_rng(1).random([5, 9]) < 0.7
    mask |= LABELS.astype(bool)
    ranks = soft_rank(tf.constant(SCORES), LABELS, kernel=kernel, mask=mask, **options)
    for i in range(5):
        row = oracle.Row(
            SCORES[i],
            LABELS[i],
            mask=mask[i],
            num_items=options.get("num_items"),
            estimate=options.get("rank_estimate", "paper"),
            probability=options.get("sampling_probability"),
        )
        assert float(ranks[i]) == pytest.approx(float(row.rank(kernel)), rel=1e-12)


@pytest.mark.parametrize("estimate", ["paper", "unbiased"])
@pytest.mark.parametrize("kernel", oracle.KERNELS)
def test_estimates_are_exact_when_the_sample_is_the_catalogue(kernel, estimate):
    exact = soft_rank(tf.constant(SCORES), LABELS, kernel=kernel)
    estimated = soft_rank(
        tf.constant(SCORES), LABELS, kernel=kernel, num_items=9, rank_estimate=estimate
    )
    np.testing.assert_allclose(estimated, exact, rtol=1e-13)


def test_ties_count_against_the_positive():
    equal = soft_rank(tf.zeros([1, 7]), tf.eye(1, 7), kernel="unit_step")
    assert float(equal[0]) == 7.0


def test_the_unbiased_and_the_weighted_estimate_are_right_on_average():
    """Means over many samples of 4 negatives out of 60, uniform and by popularity."""
    generator = np.random.default_rng(0)
    catalogue = generator.normal(size=60)
    positive = 0.5
    exact = 1.0 + np.sum(1.0 / (1.0 + np.exp(positive - catalogue)))
    draws = 40_000
    popularity = generator.random(60) + 0.2
    popularity /= popularity.sum()
    for probability in (None, popularity):
        picked = generator.choice(60, size=[draws, 4], p=probability)
        scores = np.concatenate([np.full([draws, 1], positive), catalogue[picked]], axis=1)
        options = {"num_items": 61, "rank_estimate": "unbiased"}
        if probability is not None:
            chances = np.concatenate([np.ones([draws, 1]), probability[picked]], axis=1)
            options = {"sampling_probability": chances}
        ranks = soft_rank(tf.constant(scores), np.eye(5)[np.zeros(draws, int)], **options).numpy()
        error = ranks.std() / np.sqrt(draws)
        assert abs(ranks.mean() - exact) < 4 * error


def test_candidates_may_be_permuted():
    order = np.random.default_rng(4).permutation(9)
    one = soft_rank(tf.constant(SCORES), LABELS, num_items=70)
    other = soft_rank(tf.constant(SCORES[:, order]), LABELS[:, order], num_items=70)
    np.testing.assert_allclose(one, other, rtol=1e-13)


def test_gradient_flows_through_the_soft_rank():
    scores = tf.Variable(SCORES)
    with tf.GradientTape() as tape:
        ranks = soft_rank(scores, LABELS, kernel="softplus")
    gradient = tape.gradient(ranks, scores).numpy()
    assert (gradient[LABELS == 1] < 0).all() and (gradient[LABELS == 0] > 0).all()
    np.testing.assert_allclose(gradient.sum(axis=1), np.zeros(5), atol=1e-12)
