"""Metrics as tasks accept them: objects, classes and names where these say enough."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_EXAMPLE = (
    "tfrs_croloss.metrics.FactorizedRecall(movies.batch(128), candidate_embedder=movie_model)"
)


def factorized(value: Any) -> list[Any]:
    """The metrics over the whole catalogue, from one, several or None.

    A class or a name does not say what the catalogue is: these are errors that say what to write.
    """
    metrics = _listed(value)
    for metric in metrics:
        if hasattr(metric, "update_state") and not isinstance(metric, type):
            if not isinstance(metric, tf.keras.metrics.Metric):
                continue
            remedy = "Pass a metric of labels and scores within the batch as `batch_metrics`"
        else:
            remedy = "Write what the candidates are"
        raise TypeError(
            "`metrics` should be objects of tfrs.metrics.Factorized, which rank the whole "
            f"catalogue. Received: {_described(metric)}. {remedy}, or pass metrics={_EXAMPLE}."
        )
    return metrics


def of_scores(value: Any, argument: str) -> list[tf.keras.metrics.Metric]:
    """Keras metrics from one or several objects, classes, names or functions, or from None.

    Args:
      value: what the user gave.
      argument: ``"batch_metrics"`` or ``"loss_metrics"``, for errors.
    """
    metrics = []
    for metric in _listed(value):
        try:
            made = tf.keras.metrics.get(metric)
            if isinstance(made, type):
                made = made()
            elif inspect.isfunction(made):
                made = tf.keras.metrics.MeanMetricWrapper(made, name=made.__name__)
        except (TypeError, ValueError):
            made = None
        if not hasattr(made, "update_state"):
            raise TypeError(
                f"`{argument}` should be Keras metrics, such as tf.keras.metrics."
                f"{_SUITABLE[argument]}. Received: {_described(metric)}."
            )
        metrics.append(made)
    return metrics


def refuse_to_save(metrics: Sequence[Any]) -> None:
    """Raises an error if there are metrics over the whole catalogue, which no file can keep.

    Their candidates are functions, datasets and tables of the program.
    """
    if metrics:
        raise ValueError(
            "`metrics` of a task should be None when it is saved, since a file cannot keep the "
            f"candidates that they rank. Received: {[metric.name for metric in metrics]}. Write "
            "task.factorized_metrics = None before saving, and give the metrics to the task again "
            "afterwards and once it is loaded; or save the weights alone, with save_weights."
        )


_SUITABLE = {"batch_metrics": "TopKCategoricalAccuracy(k=10)", "loss_metrics": "Mean()"}


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    return list(value) if is_list else [value]


def _described(metric: Any) -> str:
    if isinstance(metric, type):
        return f"the class {metric.__name__}"
    if inspect.isfunction(metric):
        return f"the function {metric.__name__}"
    return repr(metric)
