"""The retrieval task: what TFRS means by its arguments, and ranks that are right."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

import tfrs_croloss
from tests.support import oracle
from tfrs_croloss import CROLoss, LambdaCROLoss
from tfrs_croloss.tasks import Retrieval

GENERATOR = np.random.default_rng(0)
QUERIES = GENERATOR.normal(size=[4, 3]).astype("float32")
CANDIDATES = GENERATOR.normal(size=[6, 3]).astype("float32")
IDS = np.array(["a", "b", "a", "c", "a", "d"])
SCORES = QUERIES @ CANDIDATES.T


def rank_losses(loss, **options):
    """Our task's losses per query."""
    options.setdefault("temperature", None)
    call = {
        name: options.pop(name)
        for name in (
            "score_mask",
            "candidate_ids",
            "candidate_sampling_probability",
            "known_positive_ids",
            "sample_weight",
            "shared_negatives",
        )
        if name in options
    }
    return Retrieval(loss=loss, **options)(QUERIES, CANDIDATES, **call).numpy()


def expected(loss, rows):
    return [
        float(row.loss(loss.alpha, loss.kernel.__class__.__name__.lower(), None)) for row in rows
    ]


def oracle_rows(mask=None, scale=1.0, **options):
    return [
        oracle.Row(
            SCORES[i] / scale, np.eye(4, 6)[i], mask=None if mask is None else mask[i], **options
        )
        for i in range(4)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.1},
        {"num_hard_negatives": 2},
        {"num_hard_negatives": 100},
        {"remove_accidental_hits": True},
        {"batch": True},
    ],
)
@pytest.mark.parametrize(
    "call",
    [
        {},
        {"sample_weight": np.array([1.0, 0.0, 2.0, 0.5], "float32")},
        {"score_mask": np.eye(4, 6, dtype=bool) | (np.arange(24).reshape(4, 6) % 3 > 0)},
        {"candidate_sampling_probability": np.linspace(0.05, 0.3, 6, dtype="float32")},
    ],
)
def test_with_no_loss_given_it_is_the_task_of_tfrs(options, call):
    options, call = dict(options), {**call, "candidate_ids": IDS}
    outcomes = []
    for task_class in (tfrs.tasks.Retrieval, Retrieval):
        metrics = (
            {
                "batch_metrics": [tf.keras.metrics.TopKCategoricalAccuracy(k=2, name="top")],
                "loss_metrics": [tf.keras.metrics.Mean(name="mean")],
            }
            if options.get("batch")
            else {}
        )
        arguments = {name: value for name, value in options.items() if name != "batch"}
        task = task_class(**arguments, **metrics)
        query = tf.Variable(QUERIES)
        with tf.GradientTape() as tape:
            loss = task(query, CANDIDATES, **call)
        outcomes.append(
            (
                loss.numpy(),
                tape.gradient(loss, query).numpy(),
                [float(metric.result()) for metric in task.metrics],
            )
        )
    for theirs, ours in zip(*outcomes):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


def test_tfrs_s_own_task_takes_the_losses_as_they_are():
    for loss in (CROLoss(num_items=50), LambdaCROLoss(1.4, num_items=50, kernel="exponential")):
        theirs = tfrs.tasks.Retrieval(loss=loss, temperature=0.1)
        ours = Retrieval(loss=loss, temperature=0.1)
        np.testing.assert_allclose(
            theirs(QUERIES, CANDIDATES), ours(QUERIES, CANDIDATES), rtol=1e-5
        )


@pytest.mark.parametrize("kernel", oracle.DIFFERENTIABLE)
def test_masked_candidates_add_nothing_to_the_rank(kernel):
    mask = np.eye(4, 6, dtype=bool) | (GENERATOR.random([4, 6]) < 0.5)
    loss = CROLoss(0.5, kernel, 30, reduction="none")
    np.testing.assert_allclose(
        rank_losses(loss, score_mask=mask),
        expected(loss, oracle_rows(mask, num_items=30)),
        rtol=1e-5,
    )


def test_accidental_hits_and_known_positives_are_dropped_by_id():
    loss = CROLoss(1.2, "sigmoid", reduction="none")
    hits = np.array([[IDS[i] != IDS[j] or i == j for j in range(6)] for i in range(4)])
    np.testing.assert_allclose(
        rank_losses(loss, remove_accidental_hits=True, candidate_ids=IDS),
        expected(loss, oracle_rows(hits)),
        rtol=1e-5,
    )
    known = [["c", "zzz", "c"], [], ["a", "d"], ["d", "b"]]
    others = np.array([[i == j or IDS[j] not in known[i] for j in range(6)] for i in range(4)])
    np.testing.assert_allclose(
        rank_losses(loss, candidate_ids=IDS, known_positive_ids=tf.ragged.constant(known)),
        expected(loss, oracle_rows(others)),
        rtol=1e-5,
    )
    numbers = {name: number for number, name in enumerate("abcd", start=5)}
    padded = np.array([[numbers.get(k, -1) for k in (row + ["", "", ""])[:3]] for row in known])
    np.testing.assert_allclose(
        rank_losses(
            loss,
            candidate_ids=np.array([numbers[i] for i in IDS]),
            known_positive_ids=padded,
            remove_accidental_hits=True,
        ),
        expected(loss, oracle_rows(others & hits)),
        rtol=1e-5,
    )


def test_sampling_probabilities_weigh_the_rank_and_are_not_clipped():
    probability = np.array([0.5, 0.2, 1e-9, 0.1, 3e-8, 0.05], "float32")
    for kernel in oracle.DIFFERENTIABLE:
        loss = CROLoss(1.4, kernel, 10**9, reduction="none")
        np.testing.assert_allclose(
            rank_losses(loss, candidate_sampling_probability=probability),
            expected(loss, oracle_rows(num_items=10**9, probability=probability)),
            rtol=1e-4,
        )


def test_num_items_of_the_task_is_that_of_the_sampled_rank():
    with_loss = rank_losses(CROLoss(0.5, num_items=1000, reduction="none"))
    with_task = rank_losses(CROLoss(0.5, reduction="none"), num_items=1000)
    np.testing.assert_array_equal(with_loss, with_task)
    assert not np.allclose(with_task, rank_losses(CROLoss(0.5, reduction="none")))


@pytest.mark.parametrize("rank_estimate", ["paper", "unbiased"])
def test_hard_negatives_leave_the_rest_of_the_sum_out(rank_estimate):
    """The n of the estimate still counts all valid negatives, of which two are kept."""
    loss = CROLoss(
        1.0, "softplus", 500, normalized=True, rank_estimate=rank_estimate, reduction="none"
    )
    mask = np.ones([4, 6], bool)
    mask[:, 5] = False
    losses = rank_losses(loss, num_hard_negatives=2, score_mask=mask)
    for i in range(4):
        gaps = sorted(SCORES[i, j] - SCORES[i, i] for j in range(5) if j != i)[-2:]
        total = sum(math.log1p(math.exp(gap)) for gap in gaps)
        rank = {"paper": 500 / 5 * (1 + total), "unbiased": 1 + 499 / 4 * total}[rank_estimate]
        assert losses[i] == pytest.approx(math.log(rank) / math.log(501), rel=1e-5)


def test_the_best_head_scores():
    heads = np.stack([QUERIES, -QUERIES], axis=1)
    task = Retrieval(loss=CROLoss(reduction="none"))
    expected_losses = tfrs_croloss.cro_loss(np.abs(SCORES), np.eye(4, 6))
    np.testing.assert_allclose(task(heads, CANDIDATES), expected_losses, rtol=1e-5)


@pytest.mark.parametrize("task", [tfrs.tasks.Retrieval, Retrieval])
def test_a_loss_in_place_of_tfrs_default_has_its_value_and_gradient(task):
    """No learning rate has to change: both are sums over the batch."""

    def value_and_gradient(**options):
        queries = tf.constant(QUERIES)
        with tf.GradientTape() as tape:
            tape.watch(queries)
            value = task(**options)(queries, CANDIDATES)
        return float(value), tape.gradient(value, queries)

    value, gradient = value_and_gradient(loss=CROLoss.softmax_cross_entropy())
    default, default_gradient = value_and_gradient()
    assert value == pytest.approx(default, rel=1e-6)
    np.testing.assert_allclose(gradient, default_gradient, rtol=1e-4, atol=1e-6)


def test_sample_weights_and_reductions_are_keras_own():
    rows = rank_losses(LambdaCROLoss(reduction="none"))
    weights = np.array([0.0, 1.0, 2.0, 3.0], "float32")
    mean = LambdaCROLoss(reduction="sum_over_batch_size")
    assert rank_losses(LambdaCROLoss(), sample_weight=weights) == pytest.approx(
        float(np.sum(rows * weights)), rel=1e-5
    )
    assert rank_losses(mean, sample_weight=weights) == pytest.approx(
        float(np.mean(rows * weights)), rel=1e-5
    )


def test_batch_metrics_see_the_masked_scores():
    metric = tf.keras.metrics.TopKCategoricalAccuracy(k=1, name="first")
    mask = np.eye(4, 6, dtype=bool)
    Retrieval(loss=CROLoss(), batch_metrics=[metric])(QUERIES, CANDIDATES, score_mask=mask)
    assert float(metric.result()) == 1.0


def test_factorized_metrics_with_ids_and_extra_negatives():
    catalogue = tf.data.Dataset.from_tensor_slices((IDS[:4], CANDIDATES[:4])).batch(4)
    metric = tfrs.metrics.FactorizedTopK(
        tfrs.layers.factorized_top_k.BruteForce().index_from_dataset(catalogue), ks=[2]
    )
    task = Retrieval(loss=CROLoss(), metrics=metric)
    task(QUERIES, CANDIDATES, candidate_ids=IDS)
    best = np.argsort(-SCORES[:, :4], axis=1)[:, :2]
    hits = [IDS[i] in IDS[best[i]] for i in range(4)]
    assert float(task.metrics[0].result()) == pytest.approx(np.mean(hits))
    task.factorized_metrics = None
    assert task.factorized_metrics == []
    task.factorized_metrics = metric
    assert list(task.factorized_metrics) == [metric]


@pytest.mark.parametrize("loss", [None, CROLoss(1.2, "exponential", 90), LambdaCROLoss(0.5)])
def test_graph_mode_with_unknown_batch_sizes_and_xla(loss):
    task = Retrieval(loss=loss, temperature=0.5)

    def value_and_gradient(query, candidate):
        with tf.GradientTape() as tape:
            tape.watch(query)
            value = task(query, candidate)
        return value, tape.gradient(value, query)

    graph = tf.function(value_and_gradient, input_signature=[tf.TensorSpec([None, 3])] * 2)
    compiled = tf.function(value_and_gradient, jit_compile=True)
    # XLA compiles anew for every shape.
    for rows, candidates, functions in (
        (4, 6, (graph, compiled)),
        (1, 1, (graph,)),
        (2, 2, (graph,)),
    ):
        inputs = tf.constant(QUERIES[:rows]), tf.constant(CANDIDATES[:candidates])
        wanted = value_and_gradient(*inputs)
        for function in functions:
            for actual, value in zip(function(*inputs), wanted):
                np.testing.assert_allclose(actual, value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_masks_are_safe_in_half_precision(policy):
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        half = tf.keras.mixed_precision.global_policy().compute_dtype
        query = tf.cast(tf.math.l2_normalize(QUERIES, axis=1), half)
        candidate = tf.cast(tf.math.l2_normalize(CANDIDATES, axis=1), half)
        for loss in (None, LambdaCROLoss(), CROLoss(kernel="exponential")):
            task = Retrieval(loss=loss, remove_accidental_hits=True, temperature=0.1)
            with tf.GradientTape() as tape:
                tape.watch(query)
                value = task(query, candidate, candidate_ids=IDS)
            assert np.isfinite(value.numpy())
            assert np.isfinite(tf.cast(tape.gradient(value, query), tf.float32)).all()
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Retrieval(temperature=0.0), "`temperature` should be a finite number above 0"),
        (lambda: Retrieval(temperature=-1), "`temperature`"),
        (
            lambda: Retrieval(num_items=10),
            "`num_items` should only be given with a loss of tfrs_croloss",
        ),
        (
            lambda: Retrieval(CROLoss(num_items=5), num_items=10),
            "`num_items` should be that of the",
        ),
        (lambda: Retrieval(CROLoss(), num_items=0), "`num_items`"),
        (lambda: Retrieval(remove_accidental_hits=True)(QUERIES, CANDIDATES), "`candidate_ids`"),
        (lambda: Retrieval()(QUERIES, CANDIDATES[:2]), "`candidate_embeddings` should have a row"),
        (lambda: Retrieval()(QUERIES[0], CANDIDATES), "`query_embeddings` should have shape"),
        (
            lambda: Retrieval()(QUERIES, CANDIDATES[None]),
            "`candidate_embeddings` should have shape",
        ),
        (
            lambda: Retrieval(CROLoss())(QUERIES, CANDIDATES, score_mask=np.zeros([4, 6], bool)),
            "`score_mask` should not hide",
        ),
        (
            lambda: Retrieval(CROLoss())(QUERIES, CANDIDATES, score_mask=np.ones([4, 4], bool)),
            "`score_mask` should have the shape",
        ),
        (
            lambda: Retrieval(CROLoss())(QUERIES, CANDIDATES, shared_negatives=np.ones([4], bool)),
            r"`shared_negatives` should have the shape \[num_candidates\]",
        ),
        (
            lambda: Retrieval(CROLoss())(
                QUERIES, CANDIDATES, candidate_sampling_probability=np.zeros(6, "float32")
            ),
            "`candidate_sampling_probability` should be above 0",
        ),
        (
            lambda: Retrieval(CROLoss())(
                QUERIES, CANDIDATES, candidate_ids=IDS, known_positive_ids=np.ones([4, 1], "int64")
            ),
            "`known_positive_ids` should have the type",
        ),
        (
            lambda: Retrieval(CROLoss(check_scores=True))(QUERIES * np.nan, CANDIDATES),
            "`scores` should be finite",
        ),
    ],
)
def test_errors_name_the_argument_and_the_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_query_whose_candidate_is_masked_counts_nothing_on_request():
    mask = np.ones([4, 6], bool)
    mask[1, 1] = False
    loss = CROLoss(mask_rows_without_positive=True, reduction="none")
    losses = rank_losses(loss, score_mask=mask)
    np.testing.assert_allclose(losses[[0, 2, 3]], rank_losses(loss)[[0, 2, 3]], rtol=1e-6)
    assert losses[1] == 0.0


@pytest.mark.parametrize("as_id", [int, str], ids=["integers", "strings"])
def test_the_filter_by_blocks_equals_a_plain_loop(as_id):
    known = [[3, 9, 9, 5], [], [1], [2, 7]]
    ids = [7, 3, 3, 0, 9, 7, 5]
    shared = [True, False, True, True, False, True, True]
    allowed = tfrs_croloss.tasks._candidates.CandidateFilter.build(
        4,
        7,
        shared_negatives=tf.constant(shared),
        candidate_ids=tf.constant([as_id(one) for one in ids]),
        drop_accidental_hits=True,
        known_positive_ids=tf.ragged.constant(
            [[as_id(one) for one in row] for row in known],
            dtype=tf.int32 if as_id is int else tf.string,
        ),
    )
    for start, size in ((0, 4), (1, 2), (2, 4)):
        considered = allowed.considered(start, size).numpy()
        assert considered.shape == (size, 7)
        for i, j in itertools.product(range(size), range(7)):
            row = min(start + i, 3)
            counts = shared[j] and ids[j] != ids[row] and ids[j] not in known[row]
            assert considered[i, j] == (row == j or counts)


def test_negatives_that_are_not_shared_are_only_the_positive_of_their_query():
    loss = CROLoss(1.2, "sigmoid", reduction="none")
    shared = np.array([False, False, True, False, True, True])
    mask = np.eye(4, 6, dtype=bool) | shared
    np.testing.assert_allclose(
        rank_losses(loss, shared_negatives=shared), expected(loss, oracle_rows(mask)), rtol=1e-5
    )
    fused = CROLoss(1.2, "sigmoid", reduction="sum")
    np.testing.assert_allclose(
        rank_losses(fused, shared_negatives=shared),
        sum(expected(loss, oracle_rows(mask))),
        rtol=1e-5,
    )


def test_a_call_can_override_what_happens_to_accidental_hits():
    loss = CROLoss(1.2, "sigmoid", reduction="none")
    task = Retrieval(loss)
    np.testing.assert_array_equal(
        task(QUERIES, CANDIDATES, candidate_ids=IDS, remove_accidental_hits=True),
        rank_losses(loss, remove_accidental_hits=True, candidate_ids=IDS),
    )
    np.testing.assert_array_equal(task(QUERIES, CANDIDATES, candidate_ids=IDS), rank_losses(loss))
