"""What ``.keras`` files keep of tasks and models: their arguments, and the state of modules."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf


def to_config(argument: str, value: Any) -> Any:
    """The configuration of a Keras object, or of a list of them, for a file.

    Args:
      argument: name of the argument that it was given as, for errors.
      value: a layer, loss, metric or the like, a list of such, or None.
    """
    for part in value if isinstance(value, (list, tuple)) else [value]:
        if part is not None and (not hasattr(part, "get_config") or inspect.isclass(part)):
            raise _cannot_be_saved(argument, repr(part))
    if isinstance(value, tf.keras.layers.Layer):
        return shared_config(value)
    config = tf.keras.utils.serialize_keras_object(value)
    if _has_lambda(config):
        raise _cannot_be_saved(argument, "a lambda")
    return config


def shared_config(layer: tf.keras.layers.Layer) -> dict[str, Any]:
    """The configuration of a layer that other layers of the same file may have, too.

    Where Keras loads a file, it makes one layer of all that have the same number. It gives such
    numbers itself, but not to what a ``get_config`` has serialised already.
    """
    return {**tf.keras.utils.serialize_keras_object(layer), "shared_object_id": id(layer)}


def from_config(config: Any) -> Any:
    """The inverse of ``to_config`` and ``shared_config``; objects are returned as they are."""
    if isinstance(config, (list, tuple)):
        return [from_config(part) for part in config]
    return tf.keras.utils.deserialize_keras_object(config) if isinstance(config, dict) else config


def pair_from_config(first: Any, second: Any, attribute: str) -> tuple[Any, Any]:
    """Two layers, which are one or have one layer in common if those that were saved did.

    Args:
      first: what ``shared_config`` gave for the first layer.
      second: the same for the second layer.
      attribute: where both may have the layer in common, with a ``shared_config`` of its own, or
        where the first layer may have the second one.
    """
    layer = from_config(first)
    if _same_layer(first, second):
        return layer, layer
    inner = [config["config"] if isinstance(config, dict) else {} for config in (first, second)]
    if _same_layer(inner[0].get(attribute), second):
        return layer, getattr(layer, attribute)
    if _same_layer(*(config.get(attribute) for config in inner)):
        second = {**second, "config": {**inner[1], attribute: getattr(layer, attribute)}}
    return layer, from_config(second)


def _same_layer(first: Any, second: Any) -> bool:
    numbers = [
        config.get("shared_object_id") if isinstance(config, dict) else None
        for config in (first, second)
    ]
    return numbers[0] is not None and numbers[0] == numbers[1]


class ModuleState:
    """A base of layers and models that own a ``tf.Module``, whose variables Keras does not see."""

    def saved_modules(self) -> Mapping[str, Any]:
        """The modules by name; what is no module has no state, and is left out."""
        raise NotImplementedError(f"{type(self).__name__} should define `saved_modules`.")

    def save_own_variables(self, store: Any) -> None:
        """Adds the variables of the modules to those that Keras writes into a file."""
        super().save_own_variables(store)  # type: ignore[misc]
        for key, variable in self._module_variables().items():
            values = variable.numpy()
            # Files of Keras hold numbers only: text becomes rows of bytes.
            store[key] = _as_bytes(values) if variable.dtype == tf.string else values

    def load_own_variables(self, store: Any) -> None:
        """The inverse of ``save_own_variables``."""
        variables = self._module_variables()
        missing = sorted(set(variables) - set(store.keys()))
        if missing:
            raise ValueError(
                f"The file should have the state {missing} of {type(self).__name__}. Received: "
                f"{sorted(store.keys())}. It was written with other arguments: build the model "
                "with those."
            )
        for key, variable in variables.items():
            values = np.asarray(store[key])
            variable.assign(_as_text(values) if variable.dtype == tf.string else values)
        rest = {key: store[key] for key in store.keys() if key not in variables}
        super().load_own_variables(rest)  # type: ignore[misc]

    def _module_variables(self) -> dict[str, tf.Variable]:
        return {
            f"{name}_{number}": variable
            for name, module in self.saved_modules().items()
            if isinstance(module, tf.Module)
            for number, variable in enumerate(module.variables)
        }


def _cannot_be_saved(argument: str, what: str) -> ValueError:
    return ValueError(
        f"`{argument}` should be a Keras object with a get_config to be saved. Received: {what}. "
        "Write it as a class that is registered with tf.keras.utils.register_keras_serializable(), "
        "or save the weights alone, with save_weights."
    )


def _has_lambda(config: Any) -> bool:
    if isinstance(config, dict):
        return config.get("class_name") == "__lambda__" or any(map(_has_lambda, config.values()))
    return isinstance(config, (list, tuple)) and any(map(_has_lambda, config))


def _as_bytes(texts: np.ndarray) -> np.ndarray:
    """``[num_texts, longest]`` bytes, padded with zeros."""
    fixed = texts.astype(np.bytes_)
    return np.frombuffer(fixed.tobytes(), np.uint8).reshape(len(texts), fixed.itemsize)


def _as_text(rows: np.ndarray) -> list[bytes]:
    return [row.tobytes().rstrip(b"\0") for row in rows.astype(np.uint8)]
