"""Scores that a kernel cannot use: a warning, once, with the remedy."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

from tfrs_croloss import CROLoss, LambdaCROLoss
from tfrs_croloss.losses import Pull, ScoreRangeWarning, _score_range
from tfrs_croloss.tasks import CatalogueRetrieval, Retrieval

VECTORS = np.random.default_rng(0).normal(size=[40, 8]).astype("float32")
UNIT = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def nothing_told_yet():
    _score_range._told.clear()
    _score_range._counts.clear()


def told(call, times=1):
    """The warnings of some calls."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(times):
            call()
    return [str(one.message) for one in caught if one.category is ScoreRangeWarning]


def calls(task, queries, candidates):
    """The call in eager mode, in a graph, and in a graph of unknown sizes."""
    unknown = tf.function(task, input_signature=[tf.TensorSpec([None, 8])] * 2)
    return [
        lambda: task(queries, candidates),
        lambda: tf.function(task)(tf.constant(queries), tf.constant(candidates)),
        lambda: unknown(queries, candidates),
    ]


@pytest.mark.parametrize("mode", range(3))
def test_cosines_without_a_temperature(mode):
    for loss in (LambdaCROLoss(), CROLoss(reduction="none")):
        nothing = Retrieval(loss, temperature=0.1)
        assert told(calls(nothing, UNIT, UNIT)[mode]) == []
        assert told(calls(Retrieval(loss), 3.0 * UNIT, UNIT)[mode]) == []
        messages = told(calls(Retrieval(loss), UNIT, UNIT)[mode], times=3)
        assert len(messages) == 1 and "temperature=0.1" in messages[0]
        _score_range._told.clear()


def test_the_whole_catalogue():
    task = CatalogueRetrieval(LambdaCROLoss(), normalize=True)
    assert "temperature=0.1" in told(lambda: task(VECTORS, VECTORS, np.arange(40)))[0]
    task = CatalogueRetrieval(LambdaCROLoss(), normalize=True, temperature=0.1)
    assert told(lambda: task(VECTORS, VECTORS, np.arange(40))) == []


def test_a_flat_sigmoid_and_a_steep_exponential():
    far = 100.0 * VECTORS
    for kernel, word in (("sigmoid", "flat"), ("exponential", "exp(30)")):
        for task in (Retrieval, tfrs.tasks.Retrieval):
            _score_range._told.clear()
            loss = LambdaCROLoss(1.0, "unit_step", kernel)
            assert told(lambda task=task, loss=loss: task(loss)(VECTORS, VECTORS)) == []
            messages = told(lambda task=task, loss=loss: task(loss)(VECTORS, far))
            assert len(messages) == 1 and word in messages[0]
    assert told(lambda: Retrieval(LambdaCROLoss())(VECTORS, far)) == []
    assert told(lambda: Retrieval(CROLoss.softmax_cross_entropy())(VECTORS, far)) == []


def test_in_the_task_of_tfrs_small_scores_are_given_time_to_grow():
    task = tfrs.tasks.Retrieval(LambdaCROLoss())
    graph = tf.function(task)
    assert told(lambda: graph(UNIT, UNIT), times=_score_range._PATIENCE - 1) == []
    assert len(told(lambda: graph(UNIT, UNIT), times=3)) == 1
    _score_range._told.clear()
    assert told(lambda: task(VECTORS, VECTORS), times=3) == []


def test_compiled_with_xla_the_loss_is_silent_and_right():
    task = Retrieval(LambdaCROLoss())
    expected = float(Retrieval(LambdaCROLoss(), temperature=1.0)(UNIT, UNIT))
    compiled = tf.function(task, jit_compile=True)
    values = []
    assert told(lambda: values.append(float(compiled(UNIT, UNIT)))) == []
    assert values[0] == pytest.approx(expected, rel=1e-5)


def test_a_model_that_fits_is_told_and_one_with_a_temperature_is_not():
    class Cosines(tfrs.Model):
        def __init__(self, temperature):
            super().__init__()
            self.table = tf.keras.layers.Embedding(40, 8)
            self.task = Retrieval(LambdaCROLoss(), temperature=temperature)

        def compute_loss(self, features, training=False):
            vectors = tf.math.l2_normalize(self.table(features), axis=1)
            return self.task(vectors, vectors)

    def fit(temperature, **options):
        model = Cosines(temperature)
        model.compile(optimizer="sgd", **options)
        model.fit(tf.data.Dataset.range(40).batch(8), verbose=0)

    assert told(lambda: fit(0.1)) == []
    assert told(lambda: fit(None, jit_compile=True)) == []
    assert len(told(lambda: fit(None))) == 1


def test_a_model_that_collapses_is_told_after_some_batches():
    """All queries are near one point, and all candidates near the opposite one."""
    near = UNIT * 0.01 + np.eye(8, dtype="float32")[0]
    loss = LambdaCROLoss(pull=Pull(easing=0.1))
    task = tf.function(Retrieval(loss, temperature=0.1))
    patience = _score_range._COLLAPSED_PATIENCE
    assert told(lambda: task(near, -near), times=patience - 1) == []
    messages = told(lambda: task(near, -near), times=3)
    assert len(messages) == 1 and "Raise the loss's `pull`" in messages[0]
    _score_range._told.clear()
    assert told(lambda: task(UNIT, -UNIT), times=patience + 1) == []
    assert told(lambda: task(near, near), times=patience + 1) == []
    # A positive at -0.6 among 31 negatives at -1 stands out, and does not save the model.
    ones, own = np.ones([32, 1], "float32"), 0.4**0.5 * np.eye(32, dtype="float32")
    queries, items = np.concatenate([ones, own], axis=1), np.concatenate([-ones, own], axis=1)
    assert len(told(lambda: task(queries, items), times=patience + 1)) == 1
    _score_range._told.clear()
    whole = tf.function(Retrieval(LambdaCROLoss(), temperature=0.1))
    assert told(lambda: whole(near, -near), times=patience + 1) == []
