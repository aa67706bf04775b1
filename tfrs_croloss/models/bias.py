"""A learned bias of each item, for two-tower models."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks, _keras


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class ItemBias(tf.keras.layers.Layer):
    """What is added to every score of an item, whoever the user is: a place for its popularity.

    A cosine alone has no such place. The biases start at 0.

    Args:
      num_items: size of the catalogue; ids are 0 to ``num_items - 1``, and others have no bias.
      scale: factor between the trained weights and the biases. An optimizer like Adam moves all
        weights by about the learning rate, which would be far for a bias beside cosines.
      name: name of the layer.
    """

    def __init__(self, num_items: int, scale: float = 0.1, name: str | None = "item_bias") -> None:
        # In mixed precision too: a half has too few digits to tell items of equal cosines apart.
        super().__init__(name=name, dtype="float32")
        remedy = "Count the items of the catalogue."
        self.num_items = int(_checks.positive_number("num_items", num_items, remedy=remedy))
        self.scale = _checks.positive_number("scale", scale, remedy="The default is 0.1.")
        self._table = tf.keras.layers.Embedding(
            self.num_items, 1, embeddings_initializer="zeros", dtype="float32", name="table"
        )
        _keras.create_variables(self, tf.zeros([1], tf.int32))

    def build(self, input_shape: Any) -> None:
        """Creates the table."""
        self._table.build(input_shape)
        super().build(input_shape)

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        """``[batch, 1]`` biases of ``[batch]`` integer ids."""
        ids = tf.convert_to_tensor(ids)
        if not ids.dtype.is_integer:
            raise ValueError(
                f"`ids` of a bias should be integers, the numbers of the items. Received: "
                f"{ids.dtype.name}. Number the items, or leave out the bias."
            )
        are_items = tf.logical_and(ids >= 0, ids < tf.cast(self.num_items, ids.dtype))
        biases = self.scale * self._table(tf.where(are_items, ids, tf.zeros_like(ids)))
        return tf.where(are_items[..., tf.newaxis], biases, tf.zeros_like(biases))

    def get_config(self) -> dict[str, Any]:
        return {"num_items": self.num_items, "scale": self.scale, "name": self.name}
