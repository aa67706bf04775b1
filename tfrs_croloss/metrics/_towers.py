"""The towers of a model, under whatever names it has them, and embeddings of datasets by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfrs_croloss import _keras

Embedder: TypeAlias = Callable[[Any], Any]

_SUFFIXES = ("model", "tower", "embedding_model", "embeddings", "embedding")
# Elements of a dataset that was not batched are batched by this many.
_BATCH_SIZE = 1024


def _names(method: str, nouns: Sequence[str]) -> tuple[str, ...]:
    public = [f"{noun}_{suffix}" for suffix in _SUFFIXES for noun in nouns]
    return (method, *public, *(f"_{name}" for name in public))


# The names of `tfrs_croloss.models.TwoTowerModel` first, then those of TFRS' tutorials.
_TOWERS = {
    "query_embedder": _names("embed_queries", ("query", "user")),
    "candidate_embedder": _names("embed_candidates", ("candidate", "item", "movie")),
}


def find(model: Any, given: Embedder | str | None, argument: str, dataset: str) -> Embedder:
    """What turns batches of a dataset into embeddings.

    Args:
      model: the Keras model.
      given: a function or layer; the name of an attribute of the model, with dots for attributes of
        attributes; or None for the first usual name that the model has.
      argument: ``"query_embedder"`` or ``"candidate_embedder"``.
      dataset: the argument that is the dataset, for errors.
    """
    if given is None:
        for name in _TOWERS[argument]:
            tower = getattr(model, name, None)
            if callable(tower):
                return tower
        shown = ", ".join(_TOWERS[argument][:6])
        raise ValueError(
            f"`{argument}` should be given where `{dataset}` is a dataset and the model has no "
            f"attribute of a usual name ({shown}, ...). Received: None. {_choices(model, argument)}"
        )
    if isinstance(given, str):
        tower = model
        for name in given.split("."):
            tower = getattr(tower, name, None)
        if not callable(tower):
            raise ValueError(
                f"`{argument}` should be the name of a layer or method of the model. Received: "
                f"{given!r}. {_choices(model, argument)}"
            )
        return tower
    return checked(given, argument)


def checked(given: Any, argument: str) -> Embedder:
    """``given`` if it is a function or a layer, else an error."""
    if isinstance(given, type):
        raise TypeError(
            f"`{argument}` should be a function or a layer. Received: the class {given.__name__}. "
            "Pass the layer of your model, which has its weights."
        )
    if not callable(given):
        raise TypeError(
            f"`{argument}` should be a function or a layer that turns a batch into embeddings. "
            f"Received: {given!r}."
        )
    return given


def _choices(model: Any, argument: str) -> str:
    """The layers that the model has, and how to pass one of them."""
    layers = {
        name: value
        for name, value in vars(model).items()
        if isinstance(value, tf.keras.layers.Layer) and not isinstance(value, _keras.TASKS)
    }
    if not layers:
        return (
            f"The {type(model).__name__} has no layers as attributes: pass {argument}=... with the "
            "function or layer that turns a batch into embeddings."
        )
    listed = ", ".join(f"{name} ({type(layer).__name__})" for name, layer in layers.items())
    return (
        f"The {type(model).__name__} has the layers {listed}: pass the one that turns a batch into "
        f"embeddings, such as {argument}={next(iter(layers))!r}."
    )


def batched(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset, in batches if its elements are single ids or numbers."""
    specs = tf.nest.flatten(dataset.element_spec)
    is_single = specs[0].shape.rank == 0 and not isinstance(specs[0], tf.RaggedTensorSpec)
    return dataset.batch(_BATCH_SIZE) if is_single else dataset


def split(element: Any) -> tuple[Any, Any]:
    """The ids, or None, and the features of a batch of candidates.

    A pair is ids and features, as for the indexes of TFRS; integers or strings
    ``[batch]`` are both.
    """
    if isinstance(element, tuple) and len(element) == 2:
        return element
    if tf.is_tensor(element) and not isinstance(element, tf.RaggedTensor):
        is_id = element.dtype.is_integer or element.dtype == tf.string
        if is_id and element.shape.rank == 1:
            return element, element
    return None, element


def embed(batch: Any, embedder: Embedder, argument: str, dataset: str) -> tf.Tensor:
    """The embeddings ``[batch, dim]`` of a batch; the last two arguments are as in ``find``."""
    try:
        names = getattr(embedder, "input_names", None)
        if isinstance(batch, Mapping) and len(batch) > 1 and names and not {*names} & {*batch}:
            # Keras would take the first feature, whatever it is.
            raise TypeError("It takes one input.")
        embeddings = tf.convert_to_tensor(embedder(batch))
    except (KeyError, TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        shapes = tf.nest.map_structure(lambda one: f"{one.dtype.name} {one.shape}", batch)
        raise ValueError(
            f"`{dataset}` should have the inputs of `{argument}`. Received batches of {shapes}, "
            f"for which it raised {type(error).__name__}: {error} Map the dataset to what the "
            "tower takes, for example with .map(lambda x: x['user_id'])."
        ) from error
    if embeddings.shape.rank not in (None, 2) or not embeddings.dtype.is_floating:
        raise ValueError(
            f"`{argument}` should return floats of shape [batch, dim]. Received: "
            f"{embeddings.dtype.name} of shape {embeddings.shape}."
        )
    return embeddings
