"""Items that are in a batch several times count once, unless the loss counts copies."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

import tfrs_croloss
from tfrs_croloss import tasks
from tfrs_croloss.losses import _copies

TASKS = pytest.mark.parametrize("task", [tfrs.tasks.Retrieval, tasks.Retrieval])
QUERIES = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0]], np.float32)
FILMS = np.array([[0.5, 1.0], [2.0, 0.0]], np.float32)
WATCHED = [0, 1, 1, 1]  # one film once, the other three times


def softmax_rank_losses(task, **options):
    """The losses log(1 + sum of exp(gaps)) of the four queries."""
    loss = tfrs_croloss.CROLoss(1.0, "exponential", reduction="none", **options)
    return task(loss=loss)(tf.constant(QUERIES), tf.constant(FILMS[WATCHED])).numpy()


@TASKS
def test_an_item_counts_once(task):
    # The scores are 0.5 and 2, 1 and 0, 1.5 and 2, 2 and 4. The first query chose the first film:
    # the other one counts once. The others chose the second film, two thirds of which are copies.
    expected = np.log([1 + np.exp(1.5), *(1 + np.exp([1.0, -0.5, -2.0]) + 2 / 3)])
    np.testing.assert_allclose(softmax_rank_losses(task), expected, rtol=1e-6)


@TASKS
def test_copies_count_if_they_are_asked_for(task):
    expected = np.log([1 + 3 * np.exp(1.5), *(1 + np.exp([1.0, -0.5, -2.0]) + 2)])
    np.testing.assert_allclose(softmax_rank_losses(task, count_copies=True), expected, rtol=1e-6)
    softmax = tfrs_croloss.CROLoss.softmax_cross_entropy(reduction="none")
    losses = task(loss=softmax)(tf.constant(QUERIES), tf.constant(FILMS[WATCHED]))
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


def batch(num_rows=96, num_items=20, dim=7):
    random = np.random.default_rng(1)
    items = random.integers(0, num_items, num_rows)
    table = random.normal(size=[num_items, dim]).astype(np.float32)
    queries = random.normal(size=[num_rows, dim]).astype(np.float32)
    return queries, table[items], np.bincount(items)[items]


@pytest.mark.parametrize("in_graph", [False, True])
def test_copies_are_found_by_their_vectors_and_by_their_scores(in_graph):
    queries, films, copies = batch()

    def weights(queries, films):
        scores = tf.matmul(queries, films, transpose_b=True)
        labels = tf.eye(tf.shape(scores)[0], tf.shape(scores)[1])
        return _copies.weights_by_vector(films), _copies.weights_by_score(scores, labels)

    if in_graph:
        unknown = tf.TensorSpec([None, None])
        weights = tf.function(weights, input_signature=[unknown, unknown])
    for found in weights(tf.constant(queries), tf.constant(films)):
        np.testing.assert_allclose(found, 1.0 / copies[np.newaxis], rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"check_scores": True}], ids=["fused", "scores"])
def test_both_tasks_agree_in_value_and_gradient(options):
    queries, films, _ = batch()
    results = []
    for task in (tfrs.tasks.Retrieval, tasks.Retrieval):
        inputs = tf.constant(queries), tf.constant(films)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            value = task(loss=tfrs_croloss.LambdaCROLoss(retrieval_size=5, **options))(*inputs)
        results.append((value, *tape.gradient(value, inputs)))
    for theirs, ours in zip(*results):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def losses_of(task_options=None, **call_options):
    queries, films, _ = batch()
    values = []
    for count_copies in (False, True):
        loss = tfrs_croloss.LambdaCROLoss(count_copies=count_copies, **(task_options or {}))
        values.append(float(tasks.Retrieval(loss)(queries, films, **call_options)))
    return values


def test_sampling_probabilities_and_shared_negatives_say_more_than_copies_do():
    once, often = losses_of()
    assert once != often
    once, often = losses_of(candidate_sampling_probability=np.full(96, 0.05, np.float32))
    assert once == often
    once, often = losses_of(shared_negatives=np.ones(96, bool))
    assert once == often
    once, often = losses_of({"rank_estimate": "unbiased", "num_items": 500})
    assert once == often


def test_rows_of_any_other_layout_are_taken_as_they_are():
    scores, labels = [[2.0, 1.0, 1.0], [3.0, 0.0, 0.0]], [[1.0, 0.0, 0.0]] * 2
    loss = tfrs_croloss.CROLoss(1.0, "exponential", reduction="none")
    expected = np.log([1 + 2 * np.exp(-1.0), 1 + 2 * np.exp(-3.0)])
    np.testing.assert_allclose(loss(labels, scores), expected, rtol=1e-6)
    np.testing.assert_allclose(loss(labels[:1], scores[:1]), expected[:1], rtol=1e-6)


def test_a_model_without_any_difference_still_learns():
    queries = tf.constant(QUERIES)
    films = tf.ones([4, 2])
    for task in (tfrs.tasks.Retrieval, tasks.Retrieval):
        with tf.GradientTape() as tape:
            tape.watch(films)
            value = task(loss=tfrs_croloss.LambdaCROLoss())(queries, films)
        assert float(tf.norm(tape.gradient(value, films))) > 0.1


def test_numbers_that_are_not_finite_stay_visible():
    films = FILMS[WATCHED].copy()
    films[1, 0] = np.nan
    for task in (tfrs.tasks.Retrieval, tasks.Retrieval):
        value = task(loss=tfrs_croloss.LambdaCROLoss())(tf.constant(QUERIES), tf.constant(films))
        assert np.isnan(float(value))


def test_the_setting_is_saved():
    for setting in (False, True):
        loss = tfrs_croloss.LambdaCROLoss(count_copies=setting)
        assert type(loss).from_config(loss.get_config()).count_copies is setting
    assert tfrs_croloss.losses.PairwiseSoftmaxLoss().count_copies
