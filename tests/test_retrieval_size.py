"""``retrieval_size``: the alpha that suits the number of items retrieved."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import tensorflow as tf

import tfrs_croloss
from tests import oracle
from tfrs_croloss import CROLoss, LambdaCROLoss, PowerWeighting, RetrievalSizeWeighting
from tfrs_croloss.tasks import Retrieval

SIZES = (1, 20, 50, 500)
CATALOGUES = (1_000, 35_118, 10**7)


def alpha_of(weighting, num_items, dtype=tf.float64):
    return float(weighting.alpha(tf.constant(float(num_items), dtype)))


@pytest.mark.parametrize("retrieval_size", SIZES)
@pytest.mark.parametrize("num_items", CATALOGUES)
@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_the_retrieved_ranks_have_their_share_of_the_weight(retrieval_size, num_items, share):
    weighting = RetrievalSizeWeighting(retrieval_size, share)
    if (retrieval_size, num_items, share) == (500, 1_000, 0.3):
        # Half of the items have half of the weight if all weigh alike, and never less.
        assert alpha_of(weighting, num_items) == pytest.approx(0.0, abs=1e-7)
        return
    alpha = alpha_of(weighting, num_items)
    end = oracle.Decimal(retrieval_size + 1)
    weight = float(oracle.weight_integral(end, num_items, alpha, normalized=True))
    assert weight == pytest.approx(share, abs=1e-6)
    assert alpha_of(weighting, num_items, tf.float32) == pytest.approx(alpha, abs=2e-5)


def test_alpha_falls_with_the_retrieval_size_and_rises_with_the_catalogue():
    by_size = [alpha_of(RetrievalSizeWeighting(size), 35_118) for size in SIZES]
    assert by_size == sorted(by_size, reverse=True) and len(set(by_size)) == len(SIZES)
    by_items = [alpha_of(RetrievalSizeWeighting(50), items) for items in CATALOGUES]
    assert by_items == sorted(by_items) and len(set(by_items)) == len(CATALOGUES)


def test_half_of_the_weight_below_the_root_of_the_catalogue_is_alpha_one():
    for root in (10, 100, 1000):
        weighting = RetrievalSizeWeighting(root - 1, share=0.5)
        assert alpha_of(weighting, root**2 - 1) == pytest.approx(1.0, abs=1e-7)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_it_is_the_power_weighting_of_that_alpha(normalized, dtype):
    ranks = tf.constant([1.0, 1.5, 2.0, 20.0, 1e3, 35_119.0], dtype)
    items = tf.fill([6], tf.constant(35_118.0, dtype))
    for size in SIZES:
        weighting = RetrievalSizeWeighting(size, normalized=normalized)
        power = PowerWeighting(float(weighting.alpha(items)[0]), normalized)
        tolerance = 2e-5 if dtype == tf.float32 else 1e-12
        for method in ("density", "integral"):
            np.testing.assert_allclose(
                getattr(weighting, method)(ranks, items),
                getattr(power, method)(ranks, items),
                rtol=tolerance,
                atol=tolerance,
            )


def test_the_slope_of_the_integral_is_the_density():
    items = tf.constant(999.0, tf.float64)
    ranks = tf.Variable(np.linspace(1.0, 999.0, 40))
    # The second takes all items, which makes alpha 0.
    for weighting in (RetrievalSizeWeighting(50), RetrievalSizeWeighting(999)):
        with tf.GradientTape() as tape:
            integral = weighting.integral(ranks, items)
        np.testing.assert_allclose(
            tape.gradient(integral, ranks), weighting.density(ranks, items), rtol=1e-9
        )


def test_the_losses_take_it_in_place_of_alpha():
    scores = tf.constant(np.random.default_rng(0).normal(size=[3, 6]))
    labels = np.eye(3, 6)
    alpha = alpha_of(RetrievalSizeWeighting(20), 1_000)
    options = {"num_items": 1_000}
    for ours, theirs in (
        (CROLoss(retrieval_size=20, **options), CROLoss(alpha, **options)),
        (LambdaCROLoss(retrieval_size=20, **options), LambdaCROLoss(alpha, **options)),
    ):
        expected = theirs.per_query(scores, labels)
        np.testing.assert_allclose(ours.per_query(scores, labels), expected, rtol=1e-7)
        again = type(ours).from_config(json.loads(json.dumps(ours.get_config())))
        assert again.retrieval_size == 20 and repr(again) == repr(ours)
        np.testing.assert_allclose(again.per_query(scores, labels), expected, rtol=1e-7)
    for function in (tfrs_croloss.cro_loss, tfrs_croloss.lambda_cro_loss):
        np.testing.assert_allclose(
            function(scores, labels, retrieval_size=20, **options),
            function(scores, labels, alpha=alpha, **options),
            rtol=1e-7,
        )


def test_the_catalogue_may_be_what_is_at_hand_and_differ_from_row_to_row():
    scores = np.random.default_rng(1).normal(size=[2, 40])
    labels = np.eye(2, 40)
    mask = np.ones([2, 40], bool)
    mask[1, 10:] = False
    losses = CROLoss(retrieval_size=3).per_query(tf.constant(scores), labels, mask=mask)
    for row, items in ((0, 40), (1, 10)):
        alpha = alpha_of(RetrievalSizeWeighting(3), items)
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
    expected = np.mean(loss.per_query(tf.constant(queries @ items.T), np.eye(6, 30)))
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


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, math.nan])
def test_a_share_is_between_nothing_and_all(share):
    with pytest.raises(ValueError, match="`share` should be"):
        RetrievalSizeWeighting(20, share)
