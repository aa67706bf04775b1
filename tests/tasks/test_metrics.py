"""What the tasks accept as metrics, and what they say to the rest."""

from __future__ import annotations

import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

import tfrs_croloss
from tfrs_croloss import metrics, tasks

QUERIES = tf.constant([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
ITEMS = tf.constant([[2.0, 0.0], [0.0, 2.0], [0.5, 0.5]])  # the third is behind the other two


@pytest.mark.parametrize(
    "given",
    [
        tf.keras.metrics.CategoricalAccuracy(),
        [tf.keras.metrics.CategoricalAccuracy],
        "categorical_accuracy",
        [tf.keras.metrics.categorical_accuracy],
        ("CategoricalAccuracy",),
    ],
    ids=["object", "class", "name", "function", "name of a class"],
)
def test_batch_metrics_may_be_objects_classes_names_or_functions(given):
    task = tasks.Retrieval(tfrs_croloss.CROLoss(), batch_metrics=given, loss_metrics="Mean")
    loss = task(QUERIES, ITEMS)
    accuracy, mean = task._batch_metrics[0].result(), task._loss_metrics[0].result()
    assert float(accuracy) == pytest.approx(2 / 3)
    assert float(mean) == pytest.approx(float(loss))


@pytest.mark.parametrize("argument", ["batch_metrics", "loss_metrics"])
@pytest.mark.parametrize("given", ["no_such_metric", 5, [tf.keras.losses.Loss]], ids=repr)
def test_what_is_no_metric_is_refused_with_an_example(argument, given):
    with pytest.raises(TypeError, match=f"`{argument}` should be Keras metrics, such as tf.keras"):
        tasks.Retrieval(tfrs_croloss.CROLoss(), **{argument: given})


@pytest.mark.parametrize("task", [tasks.Retrieval, tasks.CatalogueRetrieval])
@pytest.mark.parametrize(
    "given, received",
    [
        (metrics.FactorizedRecall, "the class FactorizedRecall. Write what the candidates are"),
        ("factorized_recall", "'factorized_recall'. Write what the candidates are"),
        ([tfrs.metrics.FactorizedTopK], "the class FactorizedTopK"),
        (tf.keras.metrics.AUC(name="auc"), "Pass a metric of labels and scores .* `batch_metrics`"),
        (lambda: 0, "the function <lambda>"),
    ],
    ids=["class", "name", "class of TFRS", "Keras metric", "function"],
)
def test_a_metric_of_the_catalogue_has_to_know_the_catalogue(task, given, received):
    with pytest.raises(TypeError, match=f"Received: .*{received}.*metrics=tfrs_croloss.metrics"):
        task(tfrs_croloss.CROLoss(), metrics=given)


def test_the_class_in_tfrs_s_own_task_says_what_to_write():
    task = tfrs.tasks.Retrieval(metrics=metrics.FactorizedRecall)
    with pytest.raises(TypeError, match=r"Write\s+metrics=FactorizedRecall\(candidates=...\)"):
        task(QUERIES, ITEMS)
