"""The baselines: hand-worked values, gradients, limits, masks, weights, extreme scores."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import tensorflow as tf

from tfrs_croloss import (
    BilateralSoftmax,
    BinaryCrossEntropy,
    CROLoss,
    LambdaCROLoss,
    LowerLeftPartialAUC,
    PairwiseSoftmaxLoss,
    SoftmaxAtK,
    Talos,
)
from tfrs_croloss.losses import kernels
from tfrs_croloss.tasks import CatalogueRetrieval, Retrieval

ACTIVATIONS = ("tanh", "atan", "relu")
LOSSES = [
    BinaryCrossEntropy(num_items=50),
    BinaryCrossEntropy(0.75, num_items=50),
    *(PairwiseSoftmaxLoss(activation, 0.2, num_items=50) for activation in ACTIVATIONS),
    BilateralSoftmax(1.3, num_items=50),
    SoftmaxAtK(9, 2.0, num_items=50),
    SoftmaxAtK(9, 2.0, num_items=50, differentiate_weight=False),
    Talos(9, 0.2, num_items=50),
    LowerLeftPartialAUC(1.0, 0.4, num_items=50),
]


def every_loss_but(*kinds):
    losses = [loss for loss in LOSSES if not isinstance(loss, kinds)]
    return pytest.mark.parametrize("loss", losses, ids=repr)


every_loss = every_loss_but()
ROW = [0.5, 2.0, -1.0, 1.0]
LABEL = [[1, 0, 0, 0]]


def softplus(x):
    return math.log1p(math.exp(x))


def sigmoid(x):
    return 1.0 / (1.0 + math.exp(-x))


def example(seed=0, num_queries=3, num_candidates=8, positives=1, dtype=np.float64):
    generator = np.random.default_rng(seed)
    scores = generator.normal(scale=1.5, size=[num_queries, num_candidates]).astype(dtype)
    labels = np.zeros_like(scores)
    for row in labels:
        row[generator.choice(num_candidates, positives, replace=False)] = 1
    return scores, labels


def value_and_gradient(loss, scores, labels, **options):
    scores = tf.constant(scores)
    with tf.GradientTape() as tape:
        tape.watch(scores)
        losses = loss.per_query(scores, labels, **options)
    return losses.numpy(), tape.gradient(losses, scores).numpy()


def only(loss, row=ROW, labels=LABEL, **options):
    return float(loss.per_query(tf.constant([row], tf.float64), labels, **options)[0])


def test_binary_cross_entropy_by_hand():
    negatives = softplus(2.0) + softplus(-1.0) + softplus(1.0)
    assert only(BinaryCrossEntropy()) == pytest.approx((softplus(-0.5) + negatives) / 4)
    # 3 of 30 other items are sampled: alpha = 0.1, beta = alpha (t (1 - 1 / alpha) + 1 / alpha).
    beta = 0.1 * (0.75 * (1 - 1 / 0.1) + 1 / 0.1)
    calibrated = BinaryCrossEntropy(0.75, num_items=31)
    assert only(calibrated) == pytest.approx((beta * softplus(-0.5) + negatives) / 4)
    fully = BinaryCrossEntropy(1.0, num_items=31)
    assert only(fully) == pytest.approx((0.1 * softplus(-0.5) + negatives) / 4)


def test_gbce_without_calibration_or_with_the_whole_catalogue_is_plain():
    plain = only(BinaryCrossEntropy())
    assert only(BinaryCrossEntropy(0.0, num_items=10**6)) == plain
    assert only(BinaryCrossEntropy(0.9)) == plain
    assert only(BinaryCrossEntropy(0.9, num_items=4)) == plain


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("tanh", lambda x: 1.0 + math.tanh(x)),
        ("atan", lambda x: max(1.0 + math.atan(x), 0.0)),
        ("relu", lambda x: max(1.0 + x, 0.0)),
    ],
)
def test_pairwise_softmax_by_hand(activation, function):
    for temperature in (0.1, 0.5, 1.2):
        total = sum(function(temperature * gap) ** (1 / temperature) for gap in (1.5, -1.5, 0.5))
        loss = PairwiseSoftmaxLoss(activation, temperature)
        assert only(loss) == pytest.approx(math.log(1 + total), rel=1e-12)
        # From a sample of 3 out of 7 others the rank is 8 / 4 times as large.
        sampled = PairwiseSoftmaxLoss(activation, temperature, num_items=8)
        assert only(sampled) == pytest.approx(math.log(2 * (1 + total)), rel=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_pairwise_softmax_becomes_softmax(activation):
    scores, labels = example()
    softmax = value_and_gradient(CROLoss.softmax_cross_entropy(), scores, labels)
    near = value_and_gradient(PairwiseSoftmaxLoss(activation, 1e-6), scores, labels)
    for one, other in zip(near, softmax):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    ahead = tf.constant([0.1, 1.0, 5.0], tf.float64)
    kernel = kernels.PairwiseSoftmax(activation, 0.1)
    assert (kernel(ahead).numpy() < np.exp(ahead)).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("temperature", [0.02, 0.3])
def test_the_pairwise_kernel_s_derivative_is_its_own(activation, temperature):
    kernel = kernels.PairwiseSoftmax(activation, temperature)
    gaps = tf.constant([-7.0, -2.0, -0.3, 0.0, 0.4, 6.0], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(gaps)
        values = kernel(gaps)
    np.testing.assert_allclose(kernel.derivative(gaps), tape.gradient(values, gaps), rtol=1e-9)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_pairwise_kernel_goes_everywhere_a_kernel_goes(activation):
    kernel = {"name": "pairwise_softmax", "activation": activation, "temperature": 0.2}
    generator = np.random.default_rng(3)
    queries, items = generator.normal(size=[5, 4]), generator.normal(size=[9, 4])
    labels = np.eye(5, 9)
    for loss in (
        CROLoss(1.0, kernel),
        CROLoss(1.4, kernel),
        LambdaCROLoss(1.0, kernel, "softplus"),
        LambdaCROLoss(1.0, "sigmoid", kernel),
    ):
        expected = np.sum(loss.per_query(tf.constant(queries @ items.T), labels))
        for task, arguments in (
            (Retrieval(loss), (queries, items)),
            (CatalogueRetrieval(loss), (queries, items, np.arange(5))),
        ):
            assert float(task(*arguments)) == pytest.approx(expected, rel=1e-9)


def test_bilateral_softmax_by_hand():
    negatives = math.log(math.exp(2.0) + math.exp(-1.0) + math.exp(1.0))
    assert only(BilateralSoftmax(1.0)) == pytest.approx(-0.5 + negatives)
    assert only(BilateralSoftmax(1.25)) == pytest.approx(-0.5 + 1.25 * negatives)
    # Two positives are averaged as exponentials, and count twice.
    negatives = math.log(math.exp(2.0) + math.exp(-1.0))
    positives = math.log((math.exp(0.5) + math.exp(1.0)) / 2)
    both = only(BilateralSoftmax(1.25), labels=[[1, 0, 0, 1]])
    assert both == pytest.approx(2 * (-positives + 1.25 * negatives))


def test_bilateral_softmax_with_an_exponent_of_one_is_softmax_without_the_positive():
    scores, labels = example()
    losses, _ = value_and_gradient(BilateralSoftmax(1.0), scores, labels)
    softmax, _ = value_and_gradient(CROLoss.softmax_cross_entropy(), scores, labels)
    np.testing.assert_allclose(np.exp(losses), np.exp(softmax) - 1.0)


def test_softmax_at_k_by_hand():
    softmax = math.log(1 + math.exp(1.5) + math.exp(-1.5) + math.exp(0.5))
    for k, threshold in ((1, 2.0), (2, 1.0), (3, -1.0)):
        expected = sigmoid((0.5 - threshold) / 2.0) * softmax
        assert only(SoftmaxAtK(k, 2.0)) == pytest.approx(expected)
    # Each of 3 negatives stands for 4 others: 8 items are the two highest, 9 are three.
    for k, threshold in ((1, 2.0), (4, 2.0), (8, 1.0), (9, -1.0)):
        expected = sigmoid((0.5 - threshold) / 2.0) * softmax
        assert only(SoftmaxAtK(k, 2.0, num_items=13)) == pytest.approx(expected)


def test_softmax_at_k_of_all_items_is_softmax():
    scores, labels = example()
    softmax = value_and_gradient(CROLoss.softmax_cross_entropy(), scores, labels)
    for loss in (SoftmaxAtK(8), SoftmaxAtK(100, 0.1), SoftmaxAtK(60, num_items=60)):
        for one, other in zip(value_and_gradient(loss, scores, labels), softmax):
            np.testing.assert_allclose(one, other, rtol=1e-12)


def test_softmax_at_k_can_leave_its_weight_out_of_the_gradient():
    scores, labels = example(num_queries=1)
    stopped = SoftmaxAtK(2, 1.0, differentiate_weight=False)
    losses, gradient = value_and_gradient(stopped, scores, labels)
    _, softmax = value_and_gradient(CROLoss.softmax_cross_entropy(), scores, labels)
    own = scores[labels == 1][0]
    threshold = np.sort(scores[labels == 0])[-2]
    np.testing.assert_allclose(gradient, sigmoid(own - threshold) * softmax, rtol=1e-12)
    np.testing.assert_array_equal(losses, stopped_twin(stopped).per_query(scores, labels))


def stopped_twin(loss):
    """The same loss with its weight differentiated."""
    return SoftmaxAtK(loss.retrieval_size, loss.weight_temperature)


def test_softmax_at_k_differentiates_its_weight_by_hand():
    """The positive is pulled by w (1 - softmax) - w (1 - w) / 2 * L, pushed down if that is < 0."""
    exponentials = [math.exp(score) for score in ROW]
    share = exponentials[0] / sum(exponentials)
    for k, threshold in ((1, 2.0), (2, 1.0)):
        weight = sigmoid((0.5 - threshold) / 2.0)
        change = weight * (1 - weight) / 2.0 * -math.log(share)
        _, gradient = value_and_gradient(SoftmaxAtK(k, 2.0), np.array([ROW]), LABEL)
        assert gradient[0, 0] == pytest.approx(-weight * (1 - share) + change)
        others = [weight * value / sum(exponentials) for value in exponentials[1:]]
        assert gradient[0, 1:] == pytest.approx(others)
    _, gradient = value_and_gradient(SoftmaxAtK(1, 0.5), np.array([[-3.0, 1.0, 0.0]]), [[1, 0, 0]])
    assert gradient[0, 0] > 0


def talos_by_hand(row, threshold, temperature):
    """The positive first: -log of its share of sigmoid(c - threshold) ** (1 / temperature)."""
    powers = [sigmoid(temperature * (score - threshold)) ** (1 / temperature) for score in row]
    return -math.log(powers[0] / sum(powers))


def test_talos_by_hand():
    for temperature in (0.1, 0.5, 2.0):
        for k, threshold in ((1, 2.0), (2, 1.0), (3, -1.0)):
            expected = talos_by_hand(ROW, threshold, temperature)
            assert only(Talos(k, temperature)) == pytest.approx(expected)
        # Each of 3 negatives stands for 4 others: 8 items are the two highest, 9 are three.
        for k, threshold in ((4, 2.0), (8, 1.0), (9, -1.0)):
            expected = talos_by_hand(ROW, threshold, temperature)
            assert only(Talos(k, temperature, num_items=13)) == pytest.approx(expected)
        # There are not as many items: the lowest negative is the threshold.
        expected = talos_by_hand(ROW, -1.0, temperature)
        assert only(Talos(4, temperature)) == pytest.approx(expected)


def test_talos_pulls_little_what_is_retrieved_anyway():
    """As the temperature of the link goes to 0, slopes are 1/2, and Talos is softmax of s / 2."""
    scores, labels = example()
    near = value_and_gradient(Talos(2, 1e-7), scores, labels)
    softmax = value_and_gradient(CROLoss.softmax_cross_entropy(), scores / 2, labels)
    np.testing.assert_allclose(near[0], softmax[0], rtol=1e-5)
    np.testing.assert_allclose(near[1], softmax[1] / 2, rtol=1e-4, atol=1e-7)
    # Far above the threshold, at sigmoid(-2 * 10) of the slope, there is nothing more to gain.
    _, gradient = value_and_gradient(Talos(1, 2.0), np.array([[10.0, 0.0, -1.0]]), [[1, 0, 0]])
    assert abs(gradient[0, 0]) < sigmoid(-20.0)


def squares(positive, negatives):
    return sum((1 - sigmoid(positive) + sigmoid(score)) ** 2 for score in negatives)


def test_partial_auc_by_hand():
    assert only(LowerLeftPartialAUC(1.0, 1.0)) == pytest.approx(squares(0.5, [2.0, -1.0, 1.0]) / 3)
    assert only(LowerLeftPartialAUC(1.0, 2 / 3)) == pytest.approx(squares(0.5, [2.0, 1.0]) / 2)
    for share in (1 / 3, 0.1):
        assert only(LowerLeftPartialAUC(1.0, share)) == pytest.approx(squares(0.5, [2.0]))
    # Half of three negatives: the highest, and half of the next.
    half = (squares(0.5, [2.0]) + 0.5 * squares(0.5, [1.0])) / 1.5
    assert only(LowerLeftPartialAUC(1.0, 0.5)) == pytest.approx(half)
    # One of two positives counts, and as two.
    both = only(LowerLeftPartialAUC(0.5, 0.5), labels=[[1, 0, 0, 1]])
    assert both == pytest.approx(2 * squares(1.0, [2.0]))
    assert both == only(LowerLeftPartialAUC(0.2, 0.5), labels=[[1, 0, 0, 1]])


def test_partial_auc_is_the_authors_saddle_point():
    """min over a, b, s- and max over gamma, s+ of the authors' function, without its softplus.

    The optima are known: a and b are the averages of the chosen positives and negatives, gamma is
    b - a, and the averages of the highest are minima over a threshold. Away from them, the function
    is higher where it is minimised and lower where it is maximised.
    """
    generator = np.random.default_rng(2)
    positives, negatives = (1 / (1 + np.exp(-generator.normal(size=size))) for size in (6, 10))
    alpha, beta = 0.5, 0.3

    def function(a, b, gamma, own, other):
        of_positives = -((positives - a) ** 2) + 2 * (1 + gamma) * positives
        of_negatives = (negatives - b) ** 2 + 2 * (1 + gamma) * negatives
        return (
            -own
            - np.mean(np.maximum(of_positives - own, 0)) / alpha
            + other
            + np.mean(np.maximum(of_negatives - other, 0)) / beta
            - gamma**2
            + 1
        )

    highest, others = np.sort(positives)[-3:], np.sort(negatives)[-3:]
    a, b = highest.mean(), others.mean()
    gamma = b - a
    # Any threshold between the last that counts and the next will do.
    lasts = np.sort(positives)[-4:-2]
    own = np.mean(-((lasts - a) ** 2) + 2 * (1 + gamma) * lasts)
    lasts = np.sort(negatives)[-4:-2]
    other = np.mean((lasts - b) ** 2 + 2 * (1 + gamma) * lasts)
    saddle = function(a, b, gamma, own, other)
    row = np.concatenate([positives, negatives])
    labels = [[1] * 6 + [0] * 10]
    mine = only(LowerLeftPartialAUC(alpha, beta), list(np.log(row / (1 - row))), labels)
    assert mine / 6 == pytest.approx(saddle, rel=1e-9)
    for step in (-0.01, 0.01):
        assert function(a + step, b, gamma, own, other) > saddle
        assert function(a, b + step, gamma, own, other) > saddle
        assert function(a, b, gamma + step, own, other) < saddle
    for step in (-0.5, 0.5):
        assert function(a, b, gamma, own + step, other) < saddle
        assert function(a, b, gamma, own, other + step) > saddle


def test_ties_share_the_end_of_the_average():
    row = np.array([[0.5, 1.0, 1.0, 1.0, 2.0]])
    _, gradient = value_and_gradient(LowerLeftPartialAUC(1.0, 0.5), row, [[1, 0, 0, 0, 0]])
    assert gradient[0, 1] == gradient[0, 2] == gradient[0, 3] > 0
    # Of two candidates that count, one is the highest, and the other is a third of each tie.
    slope = sigmoid(1.0) * sigmoid(-1.0) / 3 * (1 - sigmoid(0.5) + sigmoid(1.0))
    assert gradient[0, 1] == pytest.approx(slope)


@pytest.mark.parametrize("positives", [1, 3])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("name", ["sl_at_k", "talos"])
def test_gradients_are_finite_differences_with_the_threshold_held(name, positives, sampled):
    """The authors' losses in plain NumPy, with the threshold as a constant."""
    scores, labels = example(positives=positives)
    probability = np.random.default_rng(1).uniform(0.01, 0.05, 8) if sampled else np.full(8, 1 / 49)
    weights = 1 / (probability * 49)
    loss = SoftmaxAtK(9, 2.0, 50) if name == "sl_at_k" else Talos(9, 0.2, 50)
    is_negative = labels == 0
    thresholds = []
    for row, negative in zip(scores, is_negative):
        order = sorted(np.flatnonzero(negative), key=lambda column: -row[column])
        stands_for = np.cumsum([49 * weights[column] / negative.sum() for column in order])
        thresholds.append(row[order[int(np.argmax(stands_for >= 9 - 1e-6))]])
    threshold = np.array(thresholds)[:, np.newaxis]

    def definition(values):
        linked = values
        if name == "talos":
            linked = -np.log1p(np.exp(-0.2 * (values - threshold))) / 0.2
        negatives = np.sum(weights * np.exp(linked) * is_negative, -1, keepdims=True)
        each = np.log1p(negatives * np.exp(-linked))
        if name == "sl_at_k":
            each = each / (1 + np.exp((threshold - values) / 2.0))
        return np.sum(each * labels, -1)

    options = {"sampling_probability": probability} if sampled else {}
    losses, gradient = value_and_gradient(loss, scores, labels, **options)
    np.testing.assert_allclose(losses, definition(scores), rtol=1e-9)
    for place in np.ndindex(*scores.shape):
        step = np.zeros_like(scores)
        step[place] = 1e-5
        slope = np.sum(definition(scores + step) - definition(scores - step)) / 2e-5
        assert gradient[place] == pytest.approx(slope, rel=1e-6, abs=1e-8)


@every_loss_but(SoftmaxAtK, Talos)  # Their thresholds take no part in the gradient.
@pytest.mark.parametrize("positives", [1, 3])
def test_gradients_are_finite_differences(loss, positives):
    scores, labels = example(positives=positives)
    _, gradient = value_and_gradient(loss, scores, labels)
    # Row (i, j) of the moved scores is row i with its j-th score moved: rows do not interact.
    num_queries, num_candidates = scores.shape
    step = 1e-5 * np.tile(np.eye(num_candidates), [num_queries, 1])
    rows, row_labels = (np.repeat(table, num_candidates, axis=0) for table in (scores, labels))
    up, down = (
        loss.per_query(tf.constant(rows + sign * step), row_labels).numpy() for sign in (1, -1)
    )
    slopes = (up - down).reshape(scores.shape) / 2e-5
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-8)


@every_loss_but(BilateralSoftmax)  # It averages positives in its own way.
def test_several_positives_are_a_sum(loss):
    scores, labels = example(positives=3)
    total, total_gradient = value_and_gradient(loss, scores, labels)
    parts = []
    for number in range(3):
        single = np.zeros_like(labels)
        for row, columns in enumerate(labels):
            single[row, np.flatnonzero(columns)[number]] = 1
        others = (labels - single) == 0
        parts.append(value_and_gradient(loss, scores, single, mask=others))
    np.testing.assert_allclose(total, sum(values for values, _ in parts))
    np.testing.assert_allclose(total_gradient, sum(g for _, g in parts), atol=1e-15)


@every_loss
def test_masked_candidates_add_exactly_nothing(loss):
    scores, labels = example()
    losses, gradient = value_and_gradient(loss, scores, labels)
    for intruder in (np.nan, np.inf, 1e300, -1e300):
        wide = np.hstack([scores, np.full([3, 2], intruder)])
        wide_labels = np.hstack([labels, np.zeros([3, 1]), np.ones([3, 1])])
        mask = np.hstack([np.ones_like(labels), np.zeros([3, 2])]) == 1
        masked = value_and_gradient(loss, wide, wide_labels, mask=mask)
        np.testing.assert_allclose(masked[0], losses, rtol=1e-14)
        np.testing.assert_allclose(masked[1][:, :8], gradient, rtol=1e-13)
        np.testing.assert_array_equal(masked[1][:, 8:], 0.0)


@every_loss
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_extreme_scores_stay_finite(loss, dtype):
    for gap in (1e4, -1e4, 0.0):
        scores = np.array([[0.0, gap, gap / 2, -gap]], dtype)
        losses, gradient = value_and_gradient(loss, scores, LABEL)
        assert losses.dtype == (np.float64 if dtype == np.float64 else np.float32)
        assert np.isfinite(losses).all() and np.isfinite(gradient).all()
        assert (gradient[0, 1:] >= 0).all()
        # SL@K may push a positive down, whose loss is large and whose weight is small.
        assert gradient[0, 0] <= 0 or isinstance(loss, SoftmaxAtK)


@every_loss
def test_nan_scores_give_a_nan_loss(loss):
    for column in (0, 2):
        row = [*ROW]
        row[column] = math.nan
        assert math.isnan(only(loss, row))
    assert math.isnan(only(loss, [math.nan, 1.0], [[1, 0]], mask=[[True, False]]))


@every_loss
def test_a_row_without_negatives_is_finite_and_still(loss):
    losses, gradient = value_and_gradient(
        loss, np.array([[3.0, 1.0]]), [[1, 0]], mask=[[True, False]]
    )
    assert np.isfinite(losses).all() and np.isfinite(gradient).all()
    assert gradient[0, 1] == 0.0


@every_loss
def test_uniform_probabilities_are_the_uniform_estimate(loss):
    scores, labels = example(num_candidates=8)
    plain = value_and_gradient(loss, scores, labels)
    uniform = np.full([8], 1 / 49)
    weighted = value_and_gradient(loss, scores, labels, sampling_probability=uniform)
    if isinstance(loss, PairwiseSoftmaxLoss):
        unbiased = PairwiseSoftmaxLoss(
            loss.kernel.activation, 0.2, num_items=50, rank_estimate="unbiased"
        )
        plain = value_and_gradient(unbiased, scores, labels)
    for one, other in zip(weighted, plain):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-15)


def test_a_negative_of_half_the_probability_counts_twice():
    half = np.array([1.0, 0.5, 1.0, 1.0]) / 49
    summed = 2 * math.exp(2.0) + math.exp(-1.0) + math.exp(1.0)
    bilateral = only(BilateralSoftmax(1.3, 50), sampling_probability=half)
    assert bilateral == pytest.approx(-0.5 + 1.3 * math.log(summed))
    binary = only(BinaryCrossEntropy(0.0, 50), sampling_probability=half)
    negatives = 2 * softplus(2.0) + softplus(-1.0) + softplus(1.0)
    assert binary == pytest.approx((softplus(-0.5) + negatives) / 4)
    partial = only(LowerLeftPartialAUC(1.0, 1.0, 50), sampling_probability=half)
    averaged = 2 * squares(0.5, [2.0]) + squares(0.5, [-1.0, 1.0])
    assert partial == pytest.approx(averaged / 4)
    # Three of a total of four: the first is two of them.
    partial = only(LowerLeftPartialAUC(1.0, 0.75, 50), sampling_probability=half)
    assert partial == pytest.approx((2 * squares(0.5, [2.0]) + squares(0.5, [1.0])) / 3)
    # A draw stands for 49 / 3 items, the first for twice that: it alone for 9.
    at_k = only(SoftmaxAtK(9, 2.0, 50), sampling_probability=half)
    expected = sigmoid((0.5 - 2.0) / 2.0) * math.log(1 + summed / math.exp(0.5))
    assert at_k == pytest.approx(expected)


def test_softmax_at_k_counts_weighed_negatives_up_to_k():
    softmax = 1 + 3 * math.exp(1.5) + math.exp(-1.5) + math.exp(0.5)
    probability = np.array([1.0, 1 / 3, 1.0, 1.0]) / 12
    # The draws stand for 3 * 12 / 3 = 12, 4 and 4 items; the highest, of 2.0, reaches 12 by itself.
    expected = sigmoid((0.5 - 2.0) / 2.0) * math.log(softmax)
    loss = SoftmaxAtK(12, 2.0, num_items=13)
    assert only(loss, sampling_probability=probability) == pytest.approx(expected)
    for k in (4, 5, 8, 9, 12):
        loss = SoftmaxAtK(k, 2.0, num_items=13)
        uniform = np.full([4], 1 / 12)
        assert only(loss, sampling_probability=uniform) == pytest.approx(only(loss))


@every_loss
def test_the_task_gives_what_the_loss_gives(loss):
    generator = np.random.default_rng(5)
    queries = generator.normal(size=[4, 3]).astype(np.float32)
    items = generator.normal(size=[9, 3]).astype(np.float32)
    weights = np.array([1.0, 0.0, 2.0, 0.5], np.float32)
    mask = generator.random([4, 9]) < 0.7
    np.fill_diagonal(mask, True)
    probability = generator.uniform(0.01, 0.05, size=9).astype(np.float32)
    task = Retrieval(loss, temperature=0.5)
    losses = loss.per_query(
        tf.constant(queries @ items.T / 0.5),
        np.eye(4, 9),
        mask=mask,
        sampling_probability=probability,
    )
    value = task(
        queries,
        items,
        sample_weight=weights,
        score_mask=mask,
        candidate_sampling_probability=probability,
    )
    assert float(value) == pytest.approx(float(np.sum(losses * weights)), rel=1e-5)


@every_loss
def test_graphs_of_unknown_shape_and_configurations(loss):
    scores, labels = example(dtype=np.float32)
    again = type(loss).from_config(json.loads(json.dumps(loss.get_config())))
    assert again.get_config() == loss.get_config()
    expected = float(loss(labels, scores))
    assert float(again(labels, scores)) == pytest.approx(expected)
    registered = tf.keras.utils.deserialize_keras_object(
        tf.keras.utils.serialize_keras_object(loss)
    )
    assert float(registered(labels, scores)) == pytest.approx(expected)
    unknown = tf.TensorSpec([None, None], tf.float32)
    compiled = tf.function(loss.__call__, input_signature=[unknown, unknown])
    assert float(compiled(labels.astype(np.float32), scores)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: BinaryCrossEntropy(1.5), "calibration"),
        (lambda: BinaryCrossEntropy(-0.1), "calibration"),
        (lambda: PairwiseSoftmaxLoss("relu6"), "activation"),
        (lambda: PairwiseSoftmaxLoss("relu", 0.0), "temperature"),
        (lambda: BilateralSoftmax(0.0), "negative_exponent"),
        (lambda: SoftmaxAtK(0), "retrieval_size"),
        (lambda: SoftmaxAtK(2.5), "retrieval_size"),
        (lambda: SoftmaxAtK(20, math.nan), "weight_temperature"),
        (lambda: SoftmaxAtK(20, num_items=0), "num_items"),
        (lambda: Talos(0), "retrieval_size"),
        (lambda: Talos(20, 0.0), "temperature"),
        (lambda: LowerLeftPartialAUC(0.0), "positive_share"),
        (lambda: LowerLeftPartialAUC(1.5), "positive_share"),
        (lambda: LowerLeftPartialAUC(1.0, math.nan), "negative_share"),
        (lambda: LowerLeftPartialAUC(1.0, 1.5), "negative_share"),
    ],
)
def test_errors_name_the_argument(make, argument):
    with pytest.raises(ValueError, match=f"`{argument}` should be.*Received"):
        make()
