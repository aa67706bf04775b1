"""Input at the end of what is possible: a right value, or an error that names the argument."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
import tensorflow as tf

import tfrs_croloss
from tests.support import oracle
from tfrs_croloss import CROLoss, LambdaCROLoss, soft_rank
from tfrs_croloss.tasks import CatalogueRetrieval, Retrieval

LARGE = 3e38
LOSSES = [
    *(CROLoss(1.0, kernel) for kernel in oracle.DIFFERENTIABLE),
    CROLoss(0.0, "hinge"),
    CROLoss(0.5, "exponential"),
    LambdaCROLoss(1.4, kernel="exponential"),
    LambdaCROLoss(),
    tfrs_croloss.BinaryCrossEntropy(),
    tfrs_croloss.BilateralSoftmax(),
    tfrs_croloss.SoftmaxAtK(2),
    tfrs_croloss.Talos(2),
    tfrs_croloss.LowerLeftPartialAUC(),
    tfrs_croloss.PairwiseSoftmaxLoss(),
]
FORMS = {
    "scores": lambda loss: lambda q, c: loss(tf.eye(len(q), len(c)), tf.matmul(q, c, False, True)),
    "fused": lambda loss: Retrieval(loss),
    "hard": lambda loss: Retrieval(loss, num_hard_negatives=2),
    "catalogue": lambda loss: lambda q, c: CatalogueRetrieval(loss)(q, c, tf.range(len(q))),
}


@pytest.mark.parametrize("form", FORMS)
def test_scores_near_the_end_of_the_type(form):
    """The positive is as far behind as can be, then as far ahead."""
    one = tf.constant([[1.0]])
    for loss in LOSSES:
        task = FORMS[form](loss)
        behind = float(task(one, tf.constant([[-LARGE], [LARGE], [0.0]])))
        ahead = float(task(one, tf.constant([[LARGE], [-LARGE], [0.0]])))
        assert np.isfinite(behind), loss
        assert np.isfinite(ahead), loss
        assert behind >= ahead, loss


@pytest.mark.parametrize("form", FORMS)
def test_equal_scores_near_the_end_of_the_type_are_ties(form):
    task = FORMS[form](CROLoss.softmax_cross_entropy())
    value = task(tf.constant([[1.0]]), tf.constant([[LARGE], [LARGE], [LARGE]]))
    assert float(value) == pytest.approx(np.log(3.0))


@pytest.mark.parametrize("kernel", oracle.KERNELS)
@pytest.mark.parametrize("estimate", ["paper", "unbiased"])
def test_more_candidates_than_items(kernel, estimate):
    """Some are repeated: each of 8 negatives stands for 2 of the 3 items, divided by 8."""
    scores = np.random.default_rng(2).normal(size=[3, 9])
    options = {"kernel": kernel, "num_items": 3, "rank_estimate": estimate}
    ranks = soft_rank(tf.constant(scores), np.eye(3, 9), **options)
    for row in range(3):
        gaps = np.delete(scores[row] - scores[row, row], row)
        counts = sum(oracle.kernel(kernel, Decimal(float(gap))) for gap in gaps)
        assert float(ranks[row]) == pytest.approx(1.0 + 2.0 / 8.0 * float(counts))


@pytest.mark.parametrize("form", FORMS)
def test_more_candidates_than_items_never_give_a_negative_loss(form):
    queries, candidates = tf.eye(2, 6), 20.0 * tf.eye(6)
    for loss in LOSSES[:6]:
        config = {**loss.get_config(), "num_items": 2}
        value = FORMS[form](type(loss).from_config(config))(queries, candidates)
        assert float(value) >= 0.0, loss


@pytest.mark.parametrize("form", FORMS)
def test_nothing_costs_nothing(form):
    """No queries and no candidates."""
    for loss in LOSSES:
        empty = tf.zeros([0, 3])
        with tf.GradientTape() as tape:
            tape.watch(empty)
            value = FORMS[form](loss)(empty, empty)
        assert float(value) == 0.0, loss
        assert tape.gradient(value, empty).shape == (0, 3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "options",
    [{}, {"num_items": 10**15, "rank_estimate": "unbiased"}],
    ids=["probabilities", "unbiased"],
)
def test_weights_of_millions_of_candidates_that_are_far_ahead(form, options):
    """The weight times the gap, 1e12 times 1e29, does not fit the type."""
    if form == "catalogue" or (form == "scores" and not options):
        pytest.skip("has no weights")
    probability = {} if options else {"candidate_sampling_probability": [1e-12] * 3}
    for kernel in oracle.DIFFERENTIABLE:
        for loss in (CROLoss(1.0, kernel, **options), LambdaCROLoss(kernel=kernel, **options)):
            task = FORMS[form](loss)
            candidates = tf.constant([[-LARGE], [LARGE], [0.0]])
            with tf.GradientTape() as tape:
                tape.watch(candidates)
                value = task(tf.constant([[1.0]]), candidates, **probability)
            assert np.isfinite(float(value)), loss
            assert np.all(np.isfinite(tape.gradient(value, candidates))), loss


def test_the_smallest_probability():
    tiny = float(np.finfo(np.float32).tiny)
    for kernel in oracle.DIFFERENTIABLE:
        scores = tf.constant([[0.0, 50.0, -50.0]])
        loss = tfrs_croloss.cro_loss(
            scores, [[1, 0, 0]], kernel=kernel, sampling_probability=[tiny] * 3
        )
        assert np.isfinite(float(loss[0])), kernel


@pytest.mark.parametrize("kernel", oracle.KERNELS)
def test_ranks_of_scores_near_the_end_of_the_type(kernel):
    scores = [[-LARGE, LARGE, 0.0], [LARGE, -LARGE, 0.0]]
    ranks = soft_rank(tf.constant(scores), [[1, 0, 0], [1, 0, 0]], kernel=kernel)
    assert np.all(np.isfinite(ranks)), ranks
    assert ranks[0] > ranks[1] == 1.0


def test_nan_is_not_lost_among_the_negatives_that_are_left_out():
    candidates = tf.constant([[1.0, 0.0], [0.0, 1.0], [np.nan, 0.0], [0.5, 0.5]])
    for loss in (*LOSSES, None):
        for count in (1, 2, 3):
            task = Retrieval(loss, num_hard_negatives=count)
            assert np.isnan(task(tf.eye(2), candidates)), (loss, count)
    masked = tf.constant([[True, True, False, True]] * 2)
    task = Retrieval(CROLoss(), num_hard_negatives=1)
    assert np.isfinite(task(tf.eye(2), candidates, score_mask=masked))


def test_rows_of_more_than_32_bits_are_not_other_rows():
    task, vectors = CatalogueRetrieval(CROLoss()), tf.eye(4)
    for number in (2**32 + 1, -(2**32), 2**63 - 1, 4, -1):
        with pytest.raises(ValueError, match="`positive_items` should be from 0"):
            task(vectors[:2], vectors, tf.constant([0, number], tf.int64))
        known = tf.RaggedTensor.from_row_lengths(tf.constant([number], tf.int64), [1, 0])
        with pytest.raises(ValueError, match="`known_positive_items` should be from 0"):
            task(vectors[:2], vectors, [0, 1], known_positive_items=known)
    small = tf.constant([0, 1], tf.uint8)
    wide = tf.constant(np.random.default_rng(0).normal(size=[300, 4]), tf.float32)
    assert task(vectors[:2], wide, small) == task(vectors[:2], wide, [0, 1])


@pytest.mark.parametrize(
    "make",
    [
        lambda value: CROLoss(num_items=value),
        lambda value: CROLoss(alpha=value),
        lambda value: CROLoss(kernel={"name": "hinge", "margin": value}),
        lambda value: CROLoss(retrieval_size=value),
        lambda value: Retrieval(temperature=value),
        lambda value: CatalogueRetrieval(CROLoss(), temperature=value),
    ],
    ids=["num_items", "alpha", "margin", "retrieval_size", "temperature", "catalogue"],
)
def test_numbers_that_do_not_fit_the_type(make):
    for value in (10**400, 1e39):
        with pytest.raises(ValueError, match=r"should be a.* number .* Received: 1"):
            make(value)


def test_temperatures_that_are_zero_in_the_type():
    with pytest.raises(ValueError, match="`temperature` .* Received: 1e-50, which is 0 in float32"):
        Retrieval(temperature=1e-50)


def test_any_number_of_bytes_is_a_budget():
    for value in (10**30, 1e30):
        task = Retrieval(CROLoss(), memory_budget=value)
        assert task(tf.eye(2), tf.eye(2)) == Retrieval(CROLoss())(tf.eye(2), tf.eye(2))


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(loss, marks=[pytest.mark.slow] * (place > 0), id=type(loss).__name__)
        for place, loss in enumerate([LOSSES[0], LambdaCROLoss(), *LOSSES[-6:]])
    ],
)
def test_under_xla_which_cannot_raise_a_wrong_row_is_nan(loss):
    vectors = tf.eye(4)
    scores = tf.constant([[1.0, 2.0, 3.0]])
    hidden = tf.constant([[True] * 4, [True, False, True, True]])
    calls = {
        "labels": (
            lambda labels: loss(labels, scores),
            tf.constant([[1.0, 0.0, 0.0]]),
            [[[0.9, 0.05, 0.05]], [[1.0, np.nan, 0.0]], [[2.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]]],
        ),
        "catalogue": (
            lambda items: CatalogueRetrieval(loss)(vectors[:2], vectors, items),
            tf.constant([0, 1]),
            [[0, 4], [0, -1]],
        ),
        "score_mask": (
            lambda mask: Retrieval(loss)(vectors[:2], vectors, score_mask=mask),
            tf.constant([[True] * 4] * 2),
            [hidden],
        ),
        "score_mask, hard": (
            lambda mask: Retrieval(loss, num_hard_negatives=2)(
                vectors[:2], vectors, score_mask=mask
            ),
            tf.constant([[True] * 4] * 2),
            [hidden],
        ),
    }
    for name, (call, right, wrong) in calls.items():
        compiled = tf.function(call, jit_compile=True)
        assert np.isfinite(compiled(right)), name
        for value in wrong:
            assert np.isnan(compiled(tf.constant(value, right.dtype))), (name, value)
            with pytest.raises(ValueError, match="should"):
                call(tf.constant(value, right.dtype))


def call_of_any_shape(function, *tensors, compiled):
    """Calls a function that was traced for tensors of unknown sizes."""
    tensors = [tf.convert_to_tensor(one) for one in tensors]
    signature = [tf.TensorSpec([None] * one.shape.rank, one.dtype) for one in tensors]
    return tf.function(function, input_signature=signature, jit_compile=compiled)(*tensors)


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("sample_weight", tf.ones([1])),
        pytest.param("candidate_sampling_probability", tf.ones([1]), marks=pytest.mark.slow),
        pytest.param("shared_negatives", tf.ones([1], tf.bool), marks=pytest.mark.slow),
        pytest.param("score_mask", tf.ones([3, 1], tf.bool), marks=pytest.mark.slow),
        pytest.param("score_mask", tf.ones([1, 4], tf.bool), marks=pytest.mark.slow),
    ],
)
def test_under_xla_one_element_does_not_stand_for_all(name, wrong):
    def loss(queries, candidates, value):
        return Retrieval(CROLoss())(queries, candidates, **{name: value})

    for compiled in (False, True):
        with pytest.raises(tf.errors.InvalidArgumentError):
            call_of_any_shape(loss, tf.eye(3, 4), tf.eye(4), wrong, compiled=compiled)


@pytest.mark.slow
def test_under_xla_every_query_has_a_candidate():
    for compiled in (False, True):
        with pytest.raises(tf.errors.InvalidArgumentError):
            call_of_any_shape(Retrieval(CROLoss()), tf.eye(4), tf.eye(3, 4), compiled=compiled)


def test_no_queries_among_candidates_under_xla():
    task = Retrieval(CROLoss())
    assert float(call_of_any_shape(task, tf.zeros([0, 4]), tf.eye(4), compiled=True)) == 0.0


def test_queries_without_candidates_are_an_error_that_names_the_labels():
    nothing = tf.zeros([2, 0])
    for loss in (LOSSES[0], LOSSES[-1]):
        with pytest.raises(ValueError, match="`labels` should have a positive"):
            loss(nothing, nothing)
        with pytest.raises(tf.errors.InvalidArgumentError, match="`labels` should have a positive"):
            call_of_any_shape(loss, nothing, nothing, compiled=False)


@pytest.mark.slow
def test_under_xla_which_cannot_raise_a_wrong_probability_is_nan():
    vectors = tf.constant(np.random.default_rng(0).normal(size=[4, 3]), tf.float32)
    for loss in (CROLoss(), CROLoss(0.0, "hinge"), tfrs_croloss.PairwiseSoftmaxLoss(), None):
        for options in ({}, {"num_hard_negatives": 3}):
            task = Retrieval(loss, **options)

            @tf.function(jit_compile=True)
            def compiled(probability, task=task):
                return task(vectors, vectors, candidate_sampling_probability=probability)

            for number in (np.nan, -0.5, 2.0):
                probability = tf.constant([0.1, 0.1, number, 0.1], tf.float32)
                assert np.isnan(compiled(probability).numpy()), (loss, options, number)
            right = tf.constant([0.1, 0.1, 0.2, 0.1], tf.float32)
            assert np.isfinite(compiled(right).numpy()), (loss, options)
            with pytest.raises(ValueError, match="`candidate_sampling_probability` should be"):
                task(vectors, vectors, candidate_sampling_probability=probability)
