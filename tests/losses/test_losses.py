"""The losses against the oracle: every kernel (pair), every alpha, every type, extreme scores."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

import tfrs_croloss
from tests.support import oracle
from tests.support.repeats import first_of_each

# One row each: ordinary scores, ties, one candidate, gaps of every size up to 1e4 both ways.
ROWS = {
    "ordinary": [0.5, -1.25, 2.0, 0.75, -3.5],
    "ties": [1.5, 1.5, 1.5, 1.5],
    "one candidate": [2.0],
    "far ahead": [1e4, 0.0, 5000.0, -3.0],
    "far behind": [0.0, 1e4, 9984.0, 20.0, -40.0],
    "moderate": [-20.0, 0.0, 10.0, -60.0],
}
DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
PAIRS = [(None, kernel) for kernel in oracle.DIFFERENTIABLE] + list(
    itertools.product(oracle.KERNELS, oracle.DIFFERENTIABLE)
)

COMPILED = [
    *zip((None,) * 4, oracle.DIFFERENTIABLE),
    *zip(oracle.KERNELS, itertools.cycle(oracle.DIFFERENTIABLE[::-1])),
]


def loss_and_gradient(scores, labels, alpha, kernel, rank_kernel, **options):
    with tf.GradientTape() as tape:
        tape.watch(scores)
        if rank_kernel is None:
            losses = tfrs_croloss.cro_loss(scores, labels, alpha=alpha, kernel=kernel, **options)
        else:
            losses = tfrs_croloss.lambda_cro_loss(
                scores, labels, alpha=alpha, kernel=kernel, rank_kernel=rank_kernel, **options
            )
    return losses, tape.gradient(losses, scores)


def assert_close(actual, expected, dtype, largest_gap=1.0):
    """Right to the precision of the type; finite and large where the exact value overflows."""
    actual = float(actual)
    assert np.isfinite(actual)
    compute = np.finfo(np.float64 if dtype == tf.float64 else np.float32)
    # A gap is rounded once, which an exponential turns into a relative error of gap * epsilon.
    relative = float(compute.eps) * (40 + 2 * abs(largest_gap))
    limit = float(compute.max) / 2**16
    if abs(expected) >= limit:
        # The factor of the weighting, here above 1e-2, comes after the saturation.
        assert abs(actual) >= limit * 1e-2 and (actual > 0) == (expected > 0)
    else:
        smallest = float(compute.tiny)
        assert actual == pytest.approx(float(expected), rel=relative, abs=smallest)


@pytest.mark.parametrize("alpha", oracle.ALPHAS)
@pytest.mark.parametrize("rank_kernel, kernel", PAIRS)
def test_value_and_gradient_equal_the_oracle(kernel, rank_kernel, alpha):
    width = max(len(row) for row in ROWS.values())
    padded = [row + [123.0] * (width - len(row)) for row in ROWS.values()]
    mask = [[i < len(row) for i in range(width)] for row in ROWS.values()]
    labels = [[1] + [0] * (width - 1)] * len(ROWS)
    for dtype in DTYPES:
        scores = tf.constant(padded, dtype)
        losses, gradient = loss_and_gradient(scores, labels, alpha, kernel, rank_kernel, mask=mask)
        compute = tf.float64 if dtype == tf.float64 else tf.float32
        assert losses.dtype == compute and gradient.dtype == dtype
        rounded, slopes = tf.cast(scores, tf.float64).numpy(), tf.cast(gradient, tf.float64).numpy()
        for i in range(len(ROWS)):
            truth = oracle.Row(rounded[i], labels[i], mask=mask[i])
            gap = max((abs(float(value)) for value in truth.gaps.values()), default=0.0)
            assert_close(losses[i], truth.loss(alpha, kernel, rank_kernel), compute, gap)
            expected = truth.gradient(alpha, kernel, rank_kernel)
            for actual, value in zip(slopes[i], expected):
                if dtype in (tf.float16, tf.bfloat16):
                    assert_half(actual, value, dtype)
                else:
                    assert_close(actual, value, dtype, gap)


@pytest.mark.parametrize("rank_kernel, kernel", PAIRS)
def test_one_candidate_is_ranked_first_and_moves_nothing(kernel, rank_kernel):
    losses, gradient = loss_and_gradient(tf.constant([[2.0]]), [[1]], 1.4, kernel, rank_kernel)
    truth = oracle.Row([2.0], [1])
    assert float(losses[0]) == pytest.approx(float(truth.loss(1.4, kernel, rank_kernel)))
    assert float(gradient[0, 0]) == 0.0


def assert_half(actual, expected, dtype):
    actual = float(actual)
    assert np.isfinite(actual)
    limit = min(float(dtype.max), float(tf.float32.max) / 2**16)
    if abs(expected) >= limit:
        assert abs(actual) >= limit * 0.99 and (actual > 0) == (expected > 0)
    else:
        eps = {tf.float16: 2.0**-10, tf.bfloat16: 2.0**-7}[dtype]
        tiny = 2.0**-24 if dtype == tf.float16 else 1e-37
        assert actual == pytest.approx(float(expected), rel=eps + 2e-3, abs=tiny)


@pytest.mark.parametrize(
    "options",
    [
        {"num_items": 1000},
        {"num_items": 1000, "rank_estimate": "unbiased"},
        {"sampling_probability": [0.3, 0.2, 0.125, 1e-9, 0.25]},
        {"sampling_probability": [0.3, 0.2, 0.125, 1e-9, 0.25], "num_items": 1000},
        {"normalized": True, "num_items": 77},
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_sampled_ranks_masks_and_scales_equal_the_oracle(options, masked):
    generator = np.random.default_rng(3)
    scores = generator.normal(scale=2.0, size=[4, 5])
    labels = np.eye(4, 5)
    mask = generator.random([4, 5]) < 0.6 if masked else np.ones([4, 5], bool)
    mask |= labels.astype(bool)
    mask[0] = labels[0]  # all other candidates masked
    for (rank_kernel, kernel), alpha in itertools.product(PAIRS, (0.0, 1.4)):
        losses, gradient = loss_and_gradient(
            tf.constant(scores),
            labels,
            alpha,
            kernel,
            rank_kernel,
            mask=mask if masked else None,
            **options,
        )
        for i in range(4):
            truth = oracle.Row(
                scores[i],
                labels[i],
                mask=mask[i] if masked else None,
                num_items=options.get("num_items"),
                estimate=options.get("rank_estimate", "paper"),
                probability=options.get("sampling_probability"),
            )
            arguments = (alpha, kernel, rank_kernel, options.get("normalized", False))
            assert_close(losses[i], truth.loss(*arguments), tf.float64)
            np.testing.assert_allclose(
                gradient[i], [float(g) for g in truth.gradient(*arguments)], rtol=1e-10, atol=1e-14
            )


def test_a_perfect_positive_has_the_rank_that_each_estimate_says():
    scores, labels = [[50.0, 0.0, 0.0, 0.0]], [[1, 0, 0, 0]]
    rank = {
        estimate: tfrs_croloss.soft_rank(
            scores, labels, kernel="unit_step", num_items=100, rank_estimate=estimate
        )[0]
        for estimate in ("paper", "unbiased")
    }
    assert float(rank["paper"]) == pytest.approx(100 / 4)
    assert float(rank["unbiased"]) == 1.0


@pytest.mark.parametrize("kernel", oracle.DIFFERENTIABLE)
@pytest.mark.parametrize("alpha", oracle.ALPHAS)
def test_several_positives_each_against_the_negatives_only(kernel, alpha):
    scores = np.random.default_rng(0).normal(size=[3, 6])
    labels = np.array([[1, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0]])
    for rank_kernel in (None, "sigmoid"):
        losses, gradient = loss_and_gradient(
            tf.constant(scores), labels, alpha, kernel, rank_kernel, num_items=50
        )
        for i in range(3):
            rows = [
                oracle.Row(scores[i], labels[i], positive=int(p), num_items=50)
                for p in np.flatnonzero(labels[i])
            ]
            expected = sum(row.loss(alpha, kernel, rank_kernel) for row in rows)
            assert_close(losses[i], expected, tf.float64)
            slopes = [row.gradient(alpha, kernel, rank_kernel) for row in rows]
            np.testing.assert_allclose(
                gradient[i], [float(sum(column)) for column in zip(*slopes)], rtol=1e-10, atol=1e-14
            )


@pytest.mark.parametrize("alpha", oracle.ALPHAS)
@pytest.mark.parametrize("kernel", oracle.DIFFERENTIABLE)
def test_gradient_is_the_slope_of_the_loss(kernel, alpha):
    """Finite differences of the value itself, in float64, away from the hinge's corner."""
    scores = np.random.default_rng(7).normal(scale=1.5, size=[3, 8])
    labels = np.eye(3, 8)
    options = {"alpha": alpha, "kernel": kernel, "num_items": 40}
    _, gradient = loss_and_gradient(tf.constant(scores), labels, rank_kernel=None, **options)
    # Row (i, j) of the moved scores is row i with its j-th score moved: rows do not interact.
    step = 1e-6 * np.tile(np.eye(8), [3, 1])
    rows, row_labels = np.repeat(scores, 8, axis=0), np.repeat(labels, 8, axis=0)
    up, down = (
        tfrs_croloss.cro_loss(tf.constant(rows + sign * step), row_labels, **options).numpy()
        for sign in (1, -1)
    )
    slopes = (up - down).reshape(3, 8) / 2e-6
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-8)


def test_identities_of_the_paper():
    generator = np.random.default_rng(1)
    scores = tf.Variable(generator.normal(scale=3, size=[16, 40]))
    labels = tf.eye(16, 40, dtype=tf.float64)
    gaps = scores - tf.linalg.diag_part(scores)[:, tf.newaxis]
    negatives = 1.0 - labels
    known_forms = {
        tfrs_croloss.CROLoss.softmax_cross_entropy(): lambda: (
            tf.nn.softmax_cross_entropy_with_logits(labels, scores)
        ),
        tfrs_croloss.CROLoss.triplet(normalized=True): lambda: (
            tf.reduce_sum(negatives * tf.nn.relu(gaps_of() + 5.0), axis=1) / 40
        ),
        tfrs_croloss.CROLoss.bpr(normalized=True): lambda: (
            tf.reduce_sum(-negatives * tf.math.log_sigmoid(-gaps_of()), axis=1) / 40
        ),
    }

    def gaps_of():
        return scores - tf.reduce_sum(labels * scores, axis=1, keepdims=True)

    assert gaps.shape == [16, 40]
    for loss, known_form in known_forms.items():
        with tf.GradientTape(persistent=True) as tape:
            ours = loss.call(labels, scores)
            theirs = known_form()
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
        np.testing.assert_allclose(
            tape.gradient(ours, scores), tape.gradient(theirs, scores), rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("kernel", oracle.DIFFERENTIABLE)
@pytest.mark.parametrize("alpha", oracle.ALPHAS)
def test_lambda_with_one_kernel_has_the_gradient_of_croloss(kernel, alpha):
    scores = tf.constant(np.random.default_rng(5).normal(scale=4, size=[6, 9]))
    labels = tf.eye(6, 9)
    _, plain = loss_and_gradient(scores, labels, alpha, kernel, None, num_items=500)
    _, lambda_ = loss_and_gradient(scores, labels, alpha, kernel, kernel, num_items=500)
    np.testing.assert_allclose(plain, lambda_, rtol=1e-12)


@pytest.mark.parametrize("alpha", oracle.ALPHAS)
def test_unit_step_and_normalised_weights_give_one_minus_the_expected_recall(alpha):
    """mean W(R) = 1 - sum over N of Recall@N times the weight of [N, N + 1)."""
    num_items = 30
    scores = np.random.default_rng(2).normal(size=[50, num_items])
    labels = np.eye(num_items)[np.arange(50) % num_items]
    ranks = tfrs_croloss.soft_rank(tf.constant(scores), labels, kernel="unit_step").numpy()
    weighting = tfrs_croloss.PowerWeighting(alpha, normalized=True)
    sizes = np.arange(1.0, num_items + 2)
    integral = weighting.integral(tf.constant(sizes), tf.constant(float(num_items), tf.float64))
    recall = np.array([np.mean(ranks <= size) for size in sizes[:-1]])
    expected_recall = np.sum(recall * np.diff(integral.numpy()))
    loss = np.mean(weighting.integral(tf.constant(ranks), tf.constant(30.0, tf.float64)))
    assert loss == pytest.approx(1.0 - expected_recall, rel=1e-12)


@pytest.mark.parametrize(
    "compiled, rank_kernel, kernel",
    # Tracing takes a second for each pair, and XLA several: there, every kernel has its turn.
    first_of_each([(False, *pair) for pair in PAIRS], lambda case: case[2])
    + first_of_each(
        [(True, rank_kernel, kernel) for rank_kernel, kernel in COMPILED],
        lambda case: case[1] is None,
    ),
)
def test_nan_scores_never_give_a_finite_loss(compiled, rank_kernel, kernel):
    scores = np.array([[1.0, 2.0, 3.0], [1.0, 0.0, 2.0], [1.0, 0.0, 2.0]])
    scores[0, 0] = scores[1, 2] = np.nan
    function = tf.function(
        lambda s: loss_and_gradient(s, tf.eye(3), 1.4, kernel, rank_kernel), jit_compile=compiled
    )
    losses, _ = function(tf.constant(scores))
    np.testing.assert_array_equal(np.isnan(losses), [True, True, False])


@pytest.mark.parametrize("rank_kernel, kernel", PAIRS)
def test_nan_scores_never_give_a_finite_loss_outside_of_functions(rank_kernel, kernel):
    scores = np.array([[1.0, 2.0, 3.0], [1.0, 0.0, 2.0], [1.0, 0.0, 2.0]])
    scores[0, 0] = scores[1, 2] = np.nan
    losses, _ = loss_and_gradient(tf.constant(scores), tf.eye(3), 1.4, kernel, rank_kernel)
    np.testing.assert_array_equal(np.isnan(losses), [True, True, False])
    assert np.isnan(tfrs_croloss.cro_loss([[np.nan]], [[1]], kernel=kernel)[0])


def test_nan_of_a_masked_candidate_is_not_looked_at():
    scores = tf.constant([[1.0, np.nan, 2.0]])
    losses, gradient = loss_and_gradient(
        scores, [[1, 0, 0]], 1.0, "exponential", None, mask=[[True, False, True]]
    )
    assert float(losses[0]) == pytest.approx(np.log(1 + np.exp(1)))
    np.testing.assert_allclose(
        gradient[0], [-1 / (1 + np.exp(-1)), 0.0, 1 / (1 + np.exp(-1))], rtol=1e-6
    )


def test_check_scores_names_the_rows():
    scores = tf.constant([[1.0, 2.0], [np.nan, 0.0], [0.0, np.inf]])
    loss = tfrs_croloss.CROLoss(check_scores=True)
    with pytest.raises(ValueError, match=r"`scores` should be finite.*Rows: \[1, 2\]"):
        loss(tf.eye(3, 2)[:1] + tf.zeros([3, 2]), scores)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)finite.*Rows:\] \[1 2\]"):
        tf.function(loss)(tf.constant([[1.0, 0.0]] * 3), scores)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: tfrs_croloss.CROLoss(alpha=-0.1),
            "`alpha` should be a finite number of at least 0",
        ),
        (lambda: tfrs_croloss.CROLoss(alpha=float("nan")), "`alpha`"),
        (lambda: tfrs_croloss.CROLoss(alpha="1"), "`alpha`"),
        (lambda: tfrs_croloss.CROLoss(kernel="hing"), "`kernel` should name one of"),
        (lambda: tfrs_croloss.CROLoss(kernel="unit_step"), "rank_kernel"),
        (
            lambda: tfrs_croloss.CROLoss(kernel={"name": "hinge", "magin": 1}),
            "that 'hinge' accepts",
        ),
        (lambda: tfrs_croloss.CROLoss(kernel=3), "`kernel` should be one of"),
        (lambda: tfrs_croloss.CROLoss(kernel=tfrs_croloss.losses.kernels.Hinge), "Hinge()"),
        (
            lambda: tfrs_croloss.LambdaCROLoss(kernel="unit_step"),
            "`kernel` should be differentiable",
        ),
        (
            lambda: tfrs_croloss.LambdaCROLoss(rank_kernel="step"),
            "`rank_kernel` should name one of",
        ),
        (
            lambda: tfrs_croloss.CROLoss(num_items=0),
            "`num_items` should be a finite number above 0",
        ),
        (lambda: tfrs_croloss.CROLoss(num_items=2.5), "`num_items` should be a whole number"),
        (lambda: tfrs_croloss.CROLoss(rank_estimate="best"), "`rank_estimate` should be one of"),
        (lambda: tfrs_croloss.CROLoss(weighting=1.0), "`weighting` should be a RankWeighting"),
        (lambda: tfrs_croloss.CROLoss(0.5, weighting=tfrs_croloss.PowerWeighting(2.0)), "without"),
        (lambda: tfrs_croloss.losses.kernels.Hinge(margin=-1.0), "`margin`"),
        (lambda: tfrs_croloss.cro_loss([[1.0, 2.0]], [[0, 0]]), "`labels` should have a positive"),
        (lambda: tfrs_croloss.cro_loss([[1.0, 2.0]], [[1, 0]], mask=[[False, True]]), "`mask`"),
        (lambda: tfrs_croloss.cro_loss([[1.0, 2.0]], [[0.9, 0.1]]), "without label smoothing"),
        (
            lambda: tfrs_croloss.cro_loss([[1.0, 2.0]], [[1, 0, 0]]),
            "`labels` should have the shape of",
        ),
        (
            lambda: tfrs_croloss.cro_loss([1.0, 2.0], [1, 0]),
            r"`scores` should have shape \[num_quer",
        ),
        (lambda: tfrs_croloss.cro_loss([[1, 2]], [[1, 0]]), "`scores` should be floating point"),
        (
            lambda: tfrs_croloss.cro_loss([[1.0, 2.0]], [[1, 0]], mask=[[True]]),
            "`mask` should have",
        ),
        (
            lambda: tfrs_croloss.cro_loss([[1.0, 2.0]], [[1, 0]], sampling_probability=[0.5, 0.0]),
            "`sampling_probability` should be above 0",
        ),
        (lambda: tfrs_croloss.soft_rank([[1.0, 2.0]], [[1, 1]]), "exactly one positive"),
    ],
)
def test_errors_name_the_argument_and_the_remedy(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_rows_without_a_positive_can_be_masked():
    scores = tf.constant([[1.0, 2.0, 3.0], [1.0, 2.0, np.nan]])
    labels = tf.constant([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    losses, gradient = loss_and_gradient(
        scores, labels, 1.0, "softplus", None, mask_rows_without_positive=True
    )
    assert float(losses[0]) > 0.0 and float(losses[1]) == 0.0
    np.testing.assert_array_equal(gradient[1], [0.0, 0.0, 0.0])


def test_under_xla_which_cannot_raise_a_row_without_a_positive_is_nan_not_a_good_loss():
    compiled = tf.function(tfrs_croloss.cro_loss, jit_compile=True)
    assert np.isnan(compiled(tf.constant([[1.0, 2.0]]), tf.constant([[0.0, 0.0]]))[0])


def test_half_precision_gradients_overflow_with_the_loss_scale_so_that_it_can_adapt():
    scores = tf.constant([[0.0, 5.0]], tf.float16)
    with tf.GradientTape() as tape:
        tape.watch(scores)
        loss = 2.0**20 * tfrs_croloss.cro_loss(scores, [[1, 0]], kernel="hinge")[0]
    assert np.isinf(tape.gradient(loss, scores).numpy()).all()
