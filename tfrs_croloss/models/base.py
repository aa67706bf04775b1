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

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """As in Keras, with the variables of the optimizer, whose values a loaded file has."""
        self.compile(**tf.keras.utils.deserialize_keras_object(config))
        if self.trainable_variables:  # Layers of a user's own may not have created theirs yet.
            self.optimizer.build(self.trainable_variables)
