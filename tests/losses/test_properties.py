"""Properties that hold for every loss, on scores that hypothesis generates."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import tfrs_croloss
from tests.support import oracle

score_matrices = arrays.arrays(
    np.float64,
    st.tuples(st.integers(1, 4), st.integers(1, 8)),
    elements=st.floats(-1e4, 1e4, allow_nan=False, width=32),
)
alphas = st.one_of(st.sampled_from(oracle.ALPHAS), st.floats(0.0, 3.0))
kernels = st.sampled_from(oracle.DIFFERENTIABLE)
rank_kernels = st.sampled_from((None, *oracle.KERNELS))
modest = settings(max_examples=40, deadline=None)


def losses_and_gradient(scores, positives, alpha, kernel, rank_kernel, **options):
    labels = np.eye(scores.shape[1])[positives]
    scores = tf.constant(scores)
    with tf.GradientTape() as tape:
        tape.watch(scores)
        if rank_kernel is None:
            losses = tfrs_croloss.cro_loss(scores, labels, alpha=alpha, kernel=kernel, **options)
        else:
            losses = tfrs_croloss.lambda_cro_loss(
                scores, labels, alpha=alpha, kernel=kernel, rank_kernel=rank_kernel, **options
            )
    return losses.numpy(), tape.gradient(losses, scores).numpy()


def positives_of(data, scores):
    rows, columns = scores.shape
    return data.draw(st.lists(st.integers(0, columns - 1), min_size=rows, max_size=rows))


@modest
@given(score_matrices, alphas, kernels, rank_kernels, st.data())
def test_finite_and_pushing_the_right_way(scores, alpha, kernel, rank_kernel, data):
    positives = positives_of(data, scores)
    losses, gradient = losses_and_gradient(scores, positives, alpha, kernel, rank_kernel)
    assert np.isfinite(losses).all() and np.isfinite(gradient).all()
    assert (losses >= 0).all()
    is_positive = np.eye(scores.shape[1])[positives] == 1
    assert (gradient[is_positive] <= 0).all() and (gradient[~is_positive] >= 0).all()
    scale = np.abs(gradient).max(axis=1) + 1e-300
    np.testing.assert_allclose(gradient.sum(axis=1) / scale, 0.0, atol=1e-9)


@modest
@given(score_matrices, alphas, kernels, rank_kernels, st.data())
def test_the_order_of_candidates_does_not_matter(scores, alpha, kernel, rank_kernel, data):
    positives = positives_of(data, scores)
    order = np.array(data.draw(st.permutations(range(scores.shape[1]))))
    losses, gradient = losses_and_gradient(scores, positives, alpha, kernel, rank_kernel)
    moved = [int(np.flatnonzero(order == positive)[0]) for positive in positives]
    other, other_gradient = losses_and_gradient(scores[:, order], moved, alpha, kernel, rank_kernel)
    np.testing.assert_allclose(other, losses, rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(other_gradient, gradient[:, order], rtol=1e-9, atol=1e-300)


@modest
@given(score_matrices, alphas, kernels, rank_kernels, st.data())
def test_a_masked_candidate_is_as_good_as_none(scores, alpha, kernel, rank_kernel, data):
    positives = positives_of(data, scores)
    options = {"num_items": data.draw(st.one_of(st.none(), st.integers(1, 10**7)))}
    losses, gradient = losses_and_gradient(scores, positives, alpha, kernel, rank_kernel, **options)
    intruders = np.full([len(scores), 2], data.draw(st.floats(-1e4, 1e4)))
    wider = np.concatenate([scores, intruders], axis=1)
    mask = np.concatenate([np.ones_like(scores), np.zeros_like(intruders)], axis=1) > 0
    masked, masked_gradient = losses_and_gradient(
        wider, positives, alpha, kernel, rank_kernel, mask=mask, **options
    )
    np.testing.assert_allclose(masked, losses, rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(masked_gradient[:, :-2], gradient, rtol=1e-9, atol=1e-300)
    assert (masked_gradient[:, -2:] == 0).all()


@modest
@given(score_matrices, alphas, kernels, rank_kernels, st.floats(-100, 100), st.data())
def test_only_differences_of_scores_matter(scores, alpha, kernel, rank_kernel, shift, data):
    scores = np.round(scores / 100.0, 3)
    positives = positives_of(data, scores)
    losses, _ = losses_and_gradient(scores, positives, alpha, kernel, rank_kernel)
    shifted, _ = losses_and_gradient(scores + shift, positives, alpha, kernel, rank_kernel)
    if rank_kernel != "unit_step":  # where rounding may break a tie
        np.testing.assert_allclose(shifted, losses, rtol=1e-7, atol=1e-9)


@modest
@given(score_matrices, alphas, kernels, st.floats(0.01, 50.0), st.data())
def test_a_higher_positive_never_costs_more(scores, alpha, kernel, raised, data):
    positives = positives_of(data, scores)
    losses, _ = losses_and_gradient(scores, positives, alpha, kernel, None)
    better = scores.copy()
    better[np.arange(len(scores)), positives] += raised
    after, _ = losses_and_gradient(better, positives, alpha, kernel, None)
    assert (after <= losses * (1 + 1e-9) + 1e-9).all()


@pytest.mark.parametrize("kernel", oracle.DIFFERENTIABLE)
def test_a_larger_alpha_weighs_small_ranks_more(kernel):
    """The gradient of a well-ranked positive compared with that of a badly ranked one."""
    scores = np.array([[3.0] + [0.0] * 20, [-3.0] + [0.0] * 20])
    share = []
    for alpha in (0.0, 0.6, 1.0, 1.4, 2.0):
        _, gradient = losses_and_gradient(scores, [0, 0], alpha, kernel, "sigmoid")
        slope = -gradient[:, 0]
        share.append(slope[0] / slope.sum())
    assert np.all(np.diff(share) > 0)
