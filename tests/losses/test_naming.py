"""A loss by name, as a class or as a function: it works, or the error says what to write."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

import tfrs_croloss
from tfrs_croloss import CROLoss, LambdaCROLoss, SoftmaxAtK, losses
from tfrs_croloss.losses import naming
from tfrs_croloss.tasks import CatalogueRetrieval, Retrieval

QUERIES, CANDIDATES = (
    np.random.default_rng(seed).normal(size=[4, 3]).astype("float32") for seed in (0, 1)
)


@pytest.mark.parametrize("name", sorted(set(naming.NAMED) - {"softmax_at_k", "talos"}))
def test_every_name_makes_the_loss_of_that_name(name):
    assert losses.get(name).name == name
    loss = losses.get(name)
    assert float(Retrieval(name)(QUERIES, CANDIDATES)) == pytest.approx(
        float(Retrieval(loss)(QUERIES, CANDIDATES))
    )


@pytest.mark.parametrize(
    "given", ["lambda_cro_loss", "LambdaCROLoss", LambdaCROLoss, tfrs_croloss.lambda_cro_loss]
)
def test_what_stands_for_a_loss_works_in_both_tasks(given):
    expected = float(Retrieval(LambdaCROLoss())(QUERIES, CANDIDATES))
    assert float(Retrieval(given)(QUERIES, CANDIDATES)) == expected
    assert float(CatalogueRetrieval(given)(QUERIES, CANDIDATES, np.arange(4))) == pytest.approx(
        expected
    )


def test_keras_finds_the_losses_by_name():
    assert isinstance(tf.keras.losses.get("lambda_cro_loss"), LambdaCROLoss)
    assert isinstance(tf.keras.losses.get("cro_loss"), CROLoss)
    model = tf.keras.Sequential([tf.keras.layers.Embedding(4, 3)])
    model.compile(optimizer="sgd", loss="lambda_cro_loss")
    assert np.isfinite(model.train_on_batch(np.arange(4), np.eye(3)[[0, 1, 2, 0]]))


def in_tfrs_task(loss):
    return lambda: tfrs.tasks.Retrieval(loss=loss)(QUERIES, CANDIDATES)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Retrieval("lamda"), r"`loss` should be a loss, or one of the names.*'bpr'"),
        (lambda: Retrieval("softmax_at_k"), r"Write SoftmaxAtK\(retrieval_size=…\)"),
        (lambda: Retrieval("talos"), r"Write Talos\(retrieval_size=…\)"),
        (lambda: Retrieval(SoftmaxAtK), r"Write SoftmaxAtK\(retrieval_size=…\)"),
        (lambda: Retrieval(tf.nn.relu), r"`loss` should be a loss object, such as"),
        (lambda: Retrieval(3.0), r"`loss` should be a loss object.*Received: 3.0"),
        (lambda: CatalogueRetrieval("lamda"), r"`loss` should be a loss, or one of the names"),
        (in_tfrs_task(LambdaCROLoss), r"it is a class.*loss=LambdaCROLoss\(\)"),
        (in_tfrs_task(tfrs_croloss.cro_loss), r"loss=tfrs_croloss.CROLoss\(\)"),
    ],
)
def test_errors_say_what_to_write(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_a_function_in_compile_says_that_an_object_belongs_there():
    model = tf.keras.Sequential([tf.keras.layers.Embedding(4, 3)])
    model.compile(optimizer="sgd", loss=tfrs_croloss.lambda_cro_loss, run_eagerly=True)
    with pytest.raises(ValueError, match=r"give compile\(\) a loss object"):
        model.train_on_batch(np.arange(4), np.eye(3, dtype="float32")[[0, 1, 2, 0]])
