"""The one place that knows which Keras the TFRS-facing parts need."""

from __future__ import annotations

import tensorflow as tf


def require_keras_2(what: str) -> None:
    """Raises an ImportError with the remedy unless ``tf.keras`` is Keras 2.

    Args:
      what: the module or class that needs it, for the message.
    """
    # Keras 2 under its new name tells no version through tf.keras; Keras 3 does.
    version = str(getattr(tf.keras, "__version__", "2"))
    if not version.startswith("2"):
        raise ImportError(
            f"{what} needs Keras 2, which TensorFlow Recommenders is built on, but tf.keras is "
            f"Keras {version}. Install tf-keras and set the environment variable "
            "TF_USE_LEGACY_KERAS=1 before TensorFlow is imported."
        )
