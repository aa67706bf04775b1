"""Arguments of wrong lengths are errors that name them, before and while a graph runs."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfrs_croloss
from tfrs_croloss import CROLoss
from tfrs_croloss.tasks import CatalogueRetrieval, Retrieval

QUERIES, CANDIDATES = (
    np.random.default_rng(seed).normal(size=[8, 3]).astype("float32") for seed in (0, 1)
)
FORMS = {
    "fused": lambda: Retrieval(CROLoss()),
    "dense": lambda: Retrieval(CROLoss(reduction="none")),
    "hard negatives": lambda: Retrieval(CROLoss(), num_hard_negatives=3),
    "Keras": lambda: Retrieval(),
}
WRONG = {
    "candidate_sampling_probability": [
        np.full([8, 1], 0.1, "float32"),
        np.full([7], 0.1, "float32"),
        np.float32(0.1),
    ],
    "candidate_ids": [np.arange(7), np.arange(9)],
    "sample_weight": [np.ones(7, "float32"), np.ones([8, 2], "float32")],
    "known_positive_ids": [np.ones([7, 2], "int64"), np.ones(8, "int64")],
}
CASES = [(name, value) for name, values in WRONG.items() for value in values]


@pytest.mark.parametrize("form", FORMS)
def test_the_task_names_the_argument(form):
    task = FORMS[form]()
    for name, value in CASES:
        options = {"candidate_ids": np.arange(8), name: value}
        with pytest.raises(ValueError, match=f"`{name}` should have the shape"):
            task(QUERIES, CANDIDATES, **options)


@pytest.mark.parametrize("form", FORMS)
def test_the_task_names_the_argument_while_a_graph_runs(form):
    task = FORMS[form]()
    for name in ("candidate_sampling_probability", "sample_weight"):

        @tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec(None)])
        def call(vectors, value, name=name):
            return task(vectors, vectors, **{name: value})

        call(QUERIES, np.full([8], 0.1, "float32"))
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"`{name}` should have the shape"):
            call(QUERIES, np.full([7], 0.1, "float32"))


def test_a_candidate_for_every_query_while_a_graph_runs():
    task = Retrieval(CROLoss())
    call = tf.function(task, input_signature=[tf.TensorSpec([None, 3])] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`candidate_embeddings` should have"):
        call(QUERIES, CANDIDATES[:5])


@pytest.mark.parametrize(
    "options, name",
    [
        ({"positive_items": [0] * 7}, "positive_items"),
        ({"sample_weight": np.ones(7, "float32")}, "sample_weight"),
        ({"known_positive_items": tf.ragged.constant([[1]] * 7)}, "known_positive_items"),
    ],
)
def test_the_catalogue_names_the_argument(options, name):
    options = {"positive_items": [0] * 8, **options}
    with pytest.raises(ValueError, match=f"`{name}` should have the shape"):
        CatalogueRetrieval(CROLoss())(QUERIES, CANDIDATES, **options)


@pytest.mark.parametrize("probability", [np.full([4, 1], 0.5), np.full([5], 0.5), np.array(0.5)])
def test_the_functions_name_the_argument(probability):
    for function in (tfrs_croloss.cro_loss, tfrs_croloss.lambda_cro_loss, tfrs_croloss.soft_rank):
        with pytest.raises(ValueError, match="`sampling_probability` should have the shape"):
            function(tf.zeros([4, 6]), tf.eye(4, 6), sampling_probability=probability)


def test_the_losses_name_the_sample_weight():
    with pytest.raises(ValueError, match="`sample_weight` should have the shape"):
        CROLoss()(tf.eye(4, 6), tf.zeros([4, 6]), sample_weight=np.ones(3, "float32"))


def test_the_forms_of_keras_still_work():
    """A scalar counts for every row, and a column has one weight for each."""
    loss = CROLoss.softmax_cross_entropy()
    rows = np.log(6.0) * np.arange(1.0, 5.0)
    scores, labels = tf.zeros([4, 6]), tf.eye(4, 6)
    weights = np.arange(1.0, 5.0, dtype="float32")
    assert float(loss(labels, scores, sample_weight=2.0)) == pytest.approx(8 * np.log(6.0))
    assert float(loss(labels, scores, sample_weight=weights[:, None])) == pytest.approx(rows.sum())
