"""Custom kernels and weightings in a configuration, by Keras' own mechanism."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf


def to_config(custom: Any) -> dict[str, Any]:
    """A JSON-ready description of a function or object.

    Loading it back needs the function or class to be registered with
    ``tf.keras.utils.register_keras_serializable``, or handed to the loader as ``custom_objects``.
    """
    if getattr(custom, "__name__", "") == "<lambda>":
        raise ValueError(
            "A kernel should be a named function to be saved. Received: a lambda. Write it with "
            "`def` and register it with tf.keras.utils.register_keras_serializable()."
        )
    return {"keras": tf.keras.utils.serialize_keras_object(custom)}


def from_config(config: Mapping[str, Any]) -> Any:
    """The inverse of ``to_config``."""
    return tf.keras.utils.deserialize_keras_object(config["keras"])
