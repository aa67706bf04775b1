"""``retrieval_size``: an alpha that suits the number of items retrieved."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import tensorflow as tf

import tfrs_croloss
from tests.support import oracle
from tfrs_croloss import (
    CROLoss,
    LambdaCROLoss,
    PowerWeighting,
    RankWeighting,
    RetrievalSizeWeighting,
)
from tfrs_croloss.tasks import Retrieval

SIZES = (1, 20, 50, 500)


def test_alpha_falls_towards_one_as_more_items_are_retrieved():
    alphas = [RetrievalSizeWeighting(size).alpha for size in SIZES]
    assert alphas == [1 + 1.5 / math.sqrt(size) for size in SIZES]
    assert alphas == sorted(alphas, reverse=True) and min(alphas) > 1.0


@pytest.mark.parametrize("normalized", [False, True])
def test_the_weight_is_that_of_the_power_weighting(normalized):
    ranks = tf.constant([1.0, 1.5, 2.0, 20.0, 1e3, 35_119.0], tf.float64)
    items = tf.fill([6], tf.constant(35_118.0, tf.float64))
    for size in SIZES:
        weighting = RetrievalSizeWeighting(size, normalized)
        alpha = 1 + 1.5 / math.sqrt(size)
        for rank, integral in zip(ranks.numpy(), weighting.integral(ranks, items).numpy()):
            expected = oracle.weight_integral(oracle.Decimal(rank), 35_118, alpha, normalized)
            assert integral == pytest.approx(float(expected), rel=1e-12)


def test_the_losses_take_it_in_place_of_alpha():
    scores = tf.constant(np.random.default_rng(0).normal(size=[3, 6]))
    labels = np.eye(3, 6)
    alpha = RetrievalSizeWeighting(20).alpha
    options = {"num_items": 1_000}
    for ours, theirs in (
        (CROLoss(retrieval_size=20, **options), CROLoss(alpha, **options)),
        (LambdaCROLoss(retrieval_size=20, **options), LambdaCROLoss(alpha, **options)),
    ):
        expected = theirs.per_query(scores, labels)
        np.testing.assert_allclose(ours.per_query(scores, labels), expected, rtol=1e-7)
        again = type(ours).from_config(json.loads(json.dumps(ours.get_config())))
        assert again.retrieval_size == 20 and repr(again) == repr(ours)
        assert again.alpha == ours.alpha == alpha
        np.testing.assert_allclose(again.per_query(scores, labels), expected, rtol=1e-7)
    for function in (tfrs_croloss.cro_loss, tfrs_croloss.lambda_cro_loss):
        np.testing.assert_allclose(
            function(scores, labels, retrieval_size=20, **options),
            function(scores, labels, alpha=alpha, **options),
            rtol=1e-7,
        )


def test_the_alpha_of_a_loss_is_the_one_in_use():
    class Flat(RankWeighting):
        """A weighting that knows no alpha."""

    for kind in (CROLoss, LambdaCROLoss):
        assert kind(1.4).alpha == 1.4
        assert kind(retrieval_size=5).alpha == 1 + 1.5 / math.sqrt(5)
        assert kind(weighting=PowerWeighting(0.5)).alpha == 0.5
        assert kind(weighting=Flat()).alpha is None


def test_the_catalogue_may_be_what_is_at_hand_and_differ_from_row_to_row():
    scores = np.random.default_rng(1).normal(size=[2, 40])
    labels = np.eye(2, 40)
    mask = np.ones([2, 40], bool)
    mask[1, 10:] = False
    losses = CROLoss(retrieval_size=3).per_query(tf.constant(scores), labels, mask=mask)
    alpha = RetrievalSizeWeighting(3).alpha
    for row in (0, 1):
        alone = CROLoss(alpha).per_query(
            tf.constant(scores[row : row + 1]), labels[row : row + 1], mask=mask[row : row + 1]
        )
        assert float(losses[row]) == pytest.approx(float(alone[0]), rel=1e-7)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kernel", oracle.DIFFERENTIABLE)
def test_extreme_scores_stay_finite(kernel, dtype):
    for loss in (
        CROLoss(kernel=kernel, num_items=10**7, retrieval_size=1),
        LambdaCROLoss(kernel=kernel, num_items=10**7, retrieval_size=10**6),
    ):
        for gap in (1e4, -1e4):
            scores = tf.constant([[0.0, gap, gap / 2]], dtype)
            with tf.GradientTape() as tape:
                tape.watch(scores)
                losses = loss.per_query(scores, [[1, 0, 0]])
            assert np.isfinite(losses).all()
            assert np.isfinite(tape.gradient(losses, scores)).all()


def test_the_task_s_fast_path_gives_the_same():
    generator = np.random.default_rng(2)
    queries, items = generator.normal(size=[6, 4]), generator.normal(size=[30, 4])
    loss = LambdaCROLoss(num_items=500, retrieval_size=10)
    expected = np.sum(loss.per_query(tf.constant(queries @ items.T), np.eye(6, 30)))
    assert float(Retrieval(loss)(queries, items)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retrieval_size": 0}, "`retrieval_size` should be a whole number of at least 1"),
        ({"retrieval_size": 2.5}, "`retrieval_size` should be a whole number of at least 1"),
        ({"retrieval_size": "20"}, "`retrieval_size` should be a whole number of at least 1"),
        ({"retrieval_size": 20, "alpha": 1.2}, "without `alpha` and `weighting`"),
        ({"retrieval_size": 20, "weighting": PowerWeighting()}, "without `alpha` and `weighting`"),
    ],
)
def test_errors_say_what_was_wrong(options, message):
    for kind in (CROLoss, LambdaCROLoss):
        with pytest.raises(ValueError, match=message):
            kind(**options)
