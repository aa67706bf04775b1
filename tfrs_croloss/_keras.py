"""The check for Keras 2, and the serialisation of custom kernels and weightings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf


def require_keras_2(what: str) -> None:
    """Raises an ImportError with the remedy unless ``tf.keras`` is Keras 2.

    Args:
      what: the module or class that needs Keras 2, for the message.
    """
    # Keras 2 from the package tf-keras has no version in tf.keras; Keras 3 has one.
    version = str(getattr(tf.keras, "__version__", "2"))
    if not version.startswith("2"):
        raise ImportError(
            f"{what} needs Keras 2, which TensorFlow Recommenders is built on, but tf.keras is "
            f"Keras {version}. Install tf-keras and set the environment variable "
            "TF_USE_LEGACY_KERAS=1 before TensorFlow is imported."
        )


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
