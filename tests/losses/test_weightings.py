"""The power weighting: a density and its integral, for every alpha; and custom weightings."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

import tfrs_croloss
from tests.support import oracle
from tfrs_croloss import PowerWeighting, RankWeighting

RANKS = [1.0, 1.0 + 1e-6, 1.5, 2.0, 10.0, 1e3, 313_967.0]
ITEMS = 313_966


@pytest.mark.parametrize("alpha", oracle.ALPHAS)
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_density_and_integral_equal_the_oracle(alpha, normalized, dtype):
    weighting = PowerWeighting(alpha, normalized)
    ranks, items = tf.constant(RANKS, dtype), tf.constant(float(ITEMS), dtype)
    truth = [oracle.Decimal(float(rank)) for rank in ranks]
    tolerance = 100 * np.finfo(dtype.as_numpy_dtype).eps
    np.testing.assert_allclose(
        weighting.density(ranks, items),
        [float(oracle.weight(rank, ITEMS, alpha, normalized)) for rank in truth],
        rtol=tolerance,
    )
    np.testing.assert_allclose(
        weighting.integral(ranks, items),
        [float(oracle.weight_integral(rank, ITEMS, alpha, normalized)) for rank in truth],
        rtol=tolerance,
        # The logarithm of a rank just above 1 is known to one epsilon.
        atol=20 * tolerance,
    )


@pytest.mark.parametrize("alpha", oracle.ALPHAS)
def test_ends_and_slope(alpha):
    weighting = PowerWeighting(alpha, normalized=True)
    items = tf.constant(99.0, tf.float64)
    ends = weighting.integral(tf.constant([1.0, 100.0], tf.float64), items)
    np.testing.assert_allclose(ends, [0.0, 1.0], atol=1e-12)
    ranks = tf.Variable(np.linspace(1.0, 99.0, 50))
    with tf.GradientTape() as tape:
        integral = weighting.integral(ranks, items)
    np.testing.assert_allclose(
        tape.gradient(integral, ranks), weighting.density(ranks, items), rtol=1e-10
    )


def test_alpha_one_on_the_default_scale_is_the_logarithm_whatever_the_catalogue():
    for items in (1.0, 100.0, 1e7):
        integral = PowerWeighting(1.0).integral(tf.constant(8.0), tf.constant(items))
        assert float(integral) == pytest.approx(math.log(8.0))


def test_continuous_through_one():
    ranks, items = tf.constant([3.0, 500.0], tf.float64), tf.constant(1e6, tf.float64)
    at_one = PowerWeighting(1.0).integral(ranks, items)
    for alpha in (1 - 1e-9, 1 + 1e-9):
        np.testing.assert_allclose(PowerWeighting(alpha).integral(ranks, items), at_one, rtol=1e-7)


class TopTen(RankWeighting):
    """Gives ranks 1 to 10 the same weight, and no weight to the others."""

    def density(self, rank, num_items):
        return tf.where(rank < 11.0, tf.ones_like(rank) / 10.0, tf.zeros_like(rank))

    def integral(self, rank, num_items):
        return (tf.minimum(rank, 11.0) - 1.0) / 10.0


def test_a_weighting_of_one_s_own_with_every_kernel():
    scores = tf.constant([[2.0, 1.0, 3.0], [-1e4, 0.0, 0.0]], tf.float64)
    labels = tf.constant([[1, 0, 0], [1, 0, 0]])
    for kernel in oracle.DIFFERENTIABLE:
        with tf.GradientTape() as tape:
            tape.watch(scores)
            losses = tfrs_croloss.cro_loss(scores, labels, kernel=kernel, weighting=TopTen())
        rank = oracle.Row([2.0, 1.0, 3.0], [1, 0, 0]).rank(kernel)
        assert float(losses[0]) == pytest.approx((min(float(rank), 11.0) - 1) / 10)
        assert np.isfinite(losses).all() and np.isfinite(tape.gradient(losses, scores)).all()


def test_an_unfinished_weighting_says_what_is_missing():
    with pytest.raises(NotImplementedError, match="density"):
        RankWeighting().density(tf.constant(1.0), tf.constant(2.0))
    with pytest.raises(NotImplementedError, match="integral"):
        RankWeighting().integral(tf.constant(1.0), tf.constant(2.0))
