"""A loss from whatever stands for one: an object, a name, a class, or one of the functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrs_croloss.losses.base import RetrievalLoss
from tfrs_croloss.losses.baselines import (
    BilateralSoftmax,
    BinaryCrossEntropy,
    LowerLeftPartialAUC,
    PairwiseSoftmaxLoss,
    SoftmaxAtK,
    Talos,
)
from tfrs_croloss.losses.croloss import CROLoss, LambdaCROLoss, cro_loss, lambda_cro_loss

NAMED: dict[str, Callable[..., RetrievalLoss]] = {
    "cro_loss": CROLoss,
    "lambda_cro_loss": LambdaCROLoss,
    "softmax_cross_entropy": CROLoss.softmax_cross_entropy,
    "triplet": CROLoss.triplet,
    "bpr": CROLoss.bpr,
    "binary_cross_entropy": BinaryCrossEntropy,
    "pairwise_softmax": PairwiseSoftmaxLoss,
    "bilateral_softmax": BilateralSoftmax,
    "softmax_at_k": SoftmaxAtK,
    "talos": Talos,
    "lower_left_partial_auc": LowerLeftPartialAUC,
}
"""The losses by name: what builds each of them."""

_FUNCTIONS: dict[Any, type[RetrievalLoss]] = {cro_loss: CROLoss, lambda_cro_loss: LambdaCROLoss}

# Keras 2 looks names up here, so that compile(loss="lambda_cro_loss") finds the class. It has no
# use for a class that needs arguments, nor for a method that builds a loss.
tf.keras.utils.get_custom_objects().update(
    {
        name: build
        for name, build in NAMED.items()
        if inspect.isclass(build) and build not in (SoftmaxAtK, Talos)
    }
)


def get(loss: Any, argument: str = "loss") -> tf.keras.losses.Loss:
    """The loss that ``loss`` stands for, with its default arguments.

    Args:
      loss: a Keras loss, which is returned as it is; a name in ``NAMED`` or of a class; a class of
        losses; or ``cro_loss`` or ``lambda_cro_loss``.
      argument: the argument that it came from, for errors.

    >>> get("lambda_cro_loss").name
    'lambda_cro_loss'
    >>> get("LambdaCROLoss").name == get(lambda_cro_loss).name == get(LambdaCROLoss).name
    True
    """
    if isinstance(loss, tf.keras.losses.Loss):
        return loss
    if isinstance(loss, str):
        classes = {build.__name__: build for build in NAMED.values() if inspect.isclass(build)}
        build = NAMED.get(loss) or classes.get(loss)
        if build is None:
            raise ValueError(
                f"`{argument}` should be a loss, or one of the names {sorted(NAMED)}. Received: "
                f"{loss!r}. Give a loss of Keras as an object: "
                'tf.keras.losses.CategoricalCrossentropy(from_logits=True, reduction="sum").'
            )
        return _built(build, loss, argument)
    if inspect.isclass(loss) and issubclass(loss, tf.keras.losses.Loss):
        return _built(loss, loss.__name__, argument)
    if inspect.isfunction(loss) and loss in _FUNCTIONS:
        return _FUNCTIONS[loss]()
    raise ValueError(
        f"`{argument}` should be a loss object, such as tfrs_croloss.LambdaCROLoss("
        f"retrieval_size=100). Received: {loss!r}. To write a loss of your own, subclass "
        "tfrs_croloss.losses.RowLoss or tf.keras.losses.Loss."
    )


def _built(build: Callable[..., Any], name: str, argument: str) -> tf.keras.losses.Loss:
    """The loss with its default arguments; an error that names those that have no default."""
    needed = [
        parameter.name
        for parameter in inspect.signature(build).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        written = getattr(build, "__name__", name)
        arguments = ", ".join(f"{parameter}=…" for parameter in needed)
        raise ValueError(
            f"`{argument}` should be an object here, since {written} has no default for "
            f"{', '.join(needed)}. Received: {name!r}. Write {written}({arguments})."
        )
    return build()
