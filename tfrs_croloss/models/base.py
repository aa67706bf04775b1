"""The base of models of your own that are trained with a task."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfrs_croloss import _keras


class RetrievalModel(_keras.Model):
    """A model whose ``fit`` descends what its ``compute_loss`` returns.

    In Keras 2 it is a ``tfrs.Model``; in Keras 3 it does the same without TFRS, so that a model of
    TFRS' tutorials runs on either once this is its base. Layers may create their variables in the
    first step. The metrics of ``fit`` and ``evaluate`` are those of the task, and ``loss``,
    ``regularization_loss`` and ``total_loss`` of the last batch.

    Subclasses define ``compute_loss(features, training)``:

    >>> import tensorflow as tf
    >>> from tfrs_croloss import tasks
    >>> class Films(RetrievalModel):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.users = tf.keras.layers.Embedding(9, 4)
    ...         self.films = tf.keras.layers.Embedding(9, 4)
    ...         self.task = tasks.Retrieval("lambda_cro_loss")
    ...
    ...     def compute_loss(self, features, training=False):
    ...         return self.task(self.users(features["user"]), self.films(features["film"]))
    >>> films = Films()
    >>> films.compile(tf.keras.optimizers.Adagrad(0.1))
    >>> log = tf.data.Dataset.from_tensor_slices({"user": [0, 1], "film": [2, 3]})
    >>> sorted(films.fit(log.batch(2), verbose=0).history)
    ['loss', 'regularization_loss', 'total_loss']
    """

    def get_compile_config(self) -> dict[str, Any] | None:
        """As in Keras, with the number of variables, for ``compile_from_config``."""
        found = super().get_compile_config()
        if not found:
            return found
        return {**found, "num_trainable_variables": len(self.trainable_variables)}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """As in Keras, with the variables of the optimizer, whose values a loaded file has.

        Raises:
          ValueError: the layers have not created the variables that the file has values for. Keras
            3 would leave the values of some layers in the file, without a word.
        """
        rest = dict(config)
        num_saved = rest.pop("num_trainable_variables", 0)
        if num_saved and not self.trainable_variables:
            raise ValueError(
                f"{type(self).__name__} should create its variables in __init__ for its weights "
                f"to be loaded. Received: a file with {num_saved} of them, and layers without any. "
                "Call the layers once at the end of __init__, or build the model yourself, train "
                "or call it once, and use load_weights."
            )
        self.compile(**tf.keras.utils.deserialize_keras_object(rest))
        if self.trainable_variables:  # Layers of a user's own may not have created theirs yet.
            self.optimizer.build(self.trainable_variables)
