"""A causal self-attention encoder of sequences, with a state for every position in one pass."""

from __future__ import annotations

import random
from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks, _replicas

_EPSILON = 1e-6
# Places of dropout in a block: attention weights, attention output, feed-forward output.
_DROPOUTS_PER_BLOCK = 3


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class SelfAttentionEncoder(tf.keras.layers.Layer):
    r"""Encodes sequences with causal self-attention: a state sees no item after its own.

    The layer replaces ``tf.keras.layers.GRU`` in a query tower. With inputs :math:`v_i` and
    positions that count back from the latest item, :math:`p_0` being that of the latest one,

    .. math:: x_i = \sqrt{d}\, v_i + p_{n-1-i}

    goes through the blocks, each of which adds attention over the normalised items up to i and
    then a feed-forward layer, and through a last normalisation ("pre-norm"). Masked items take no
    part: neither do they have a position, nor does anything depend on them.

    >>> encoder = SelfAttentionEncoder(max_length=10, blocks=1, heads=2)
    >>> vectors = tf.random.stateless_normal([3, 5, 8], seed=[1, 2])
    >>> encoder(vectors).shape, encoder.states(vectors).shape
    (TensorShape([3, 8]), TensorShape([3, 5, 8]))

    Dropout depends on ``seed`` and on the number of training passes so far, which is saved with the
    weights, so a run that continues from a checkpoint sees the masks of one without interruption.

    Args:
      max_length: number of positions that have a vector of their own; items further back share the
        vector of the last one.
      blocks: number of blocks.
      heads: number of attention heads, which divide the size of the vectors.
      dropout: share of inputs, attention weights and outputs of the blocks to drop in training.
      feed_forward: size of the hidden layer of a block, in sizes of the vectors.
      return_sequences: whether a call returns the states of all positions, ``[batch, length, dim]``
        with zeros where items are masked, instead of the state of the last item, ``[batch, dim]``,
        which is zero for a sequence without items.
      seed: seed of the dropout.
      name: name of the layer.
    """

    def __init__(
        self,
        max_length: int = 50,
        blocks: int = 2,
        heads: int = 1,
        dropout: float = 0.0,
        feed_forward: int = 1,
        return_sequences: bool = False,
        seed: int | None = None,
        name: str | None = "self_attention_encoder",
        **options: Any,
    ) -> None:
        super().__init__(name=name, **options)
        self.max_length = _checks.whole_number(
            "max_length", max_length, remedy="Pass the length of the longest history."
        )
        self.blocks = _checks.whole_number("blocks", blocks, remedy="Most towers have 1 or 2.")
        self.heads = _checks.whole_number("heads", heads, remedy="It should divide the dimension.")
        self.feed_forward = _checks.whole_number(
            "feed_forward", feed_forward, remedy="The hidden layer is so many times as wide."
        )
        if not 0.0 <= dropout < 1.0:
            raise ValueError(
                f"`dropout` should be at least 0 and below 1. Received: {dropout}. It is the share "
                "that is dropped; 0 drops nothing."
            )
        self.dropout = float(dropout)
        self.return_sequences = bool(return_sequences)
        self.seed = seed
        # Two numbers of 31 bits are a key; Keras seeds Python's random numbers with its own.
        self._seed = random.randrange(2**31) if seed is None else seed
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        """Creates the variables for vectors of the last axis' size."""
        dim = tf.TensorShape(input_shape)[-1]
        if dim is None or dim % self.heads:
            raise ValueError(
                f"`heads` should divide the size of the vectors. Received: {self.heads} heads for "
                f"inputs of shape {tf.TensorShape(input_shape)}."
            )
        self._positions = self.add_weight(
            name="positions",
            shape=[self.max_length, dim],
            initializer=tf.keras.initializers.RandomNormal(stddev=0.02),
        )
        if self.dropout:
            self._passes = _replicas.pass_counter(self)
        self._blocks = [
            _Block(dim, self.heads, self.dropout, self.feed_forward, name=f"block_{number}")
            for number in range(self.blocks)
        ]
        self._norm = tf.keras.layers.LayerNormalization(epsilon=_EPSILON, name="norm")
        super().build(input_shape)

    def call(
        self,
        inputs: tf.Tensor,
        mask: tf.Tensor | None = None,
        training: bool | None = None,
        return_sequences: bool | None = None,
    ) -> tf.Tensor:
        """States of the last items, or of all.

        Args:
          inputs: ``[batch, length, dim]`` vectors of items, oldest first.
          mask: ``[batch, length]`` booleans: which of them are items.
          training: whether to drop anything.
          return_sequences: overrides the layer's setting for this call, unless None.
        """
        states = self._states(inputs, mask, training)
        every = self.return_sequences if return_sequences is None else return_sequences
        return states if every else last_state(states, mask)

    def states(
        self, inputs: tf.Tensor, mask: tf.Tensor | None = None, training: bool | None = None
    ) -> tf.Tensor:
        """``[batch, length, dim]``: the state of every item, from the same pass as the last one.

        State i is what ``call`` would return for a sequence that ends with item i, but for the
        positions, which count back from the last item of the whole sequence.
        """
        return self(inputs, mask=mask, training=training, return_sequences=True)

    def compute_mask(self, inputs: Any, mask: tf.Tensor | None = None) -> tf.Tensor | None:
        """The mask of the states, if there is one for each item."""
        return mask if self.return_sequences else None

    def _states(
        self, inputs: tf.Tensor, mask: tf.Tensor | None, training: bool | None
    ) -> tf.Tensor:
        if mask is None:
            mask = tf.ones(tf.shape(inputs)[:2], tf.bool)
        else:
            mask = tf.cast(mask, tf.bool)
        counts = tf.cumsum(tf.cast(mask, tf.int32), axis=1)
        from_latest = tf.clip_by_value(counts[:, -1:] - counts, 0, self.max_length - 1)
        scale = tf.cast(inputs.shape[-1], inputs.dtype) ** 0.5
        positions = tf.cast(tf.gather(self._positions, from_latest), inputs.dtype)
        is_item = mask[..., tf.newaxis]
        vectors = tf.where(is_item, inputs * scale + positions, tf.zeros_like(inputs))
        keys = self._dropout_keys(training)
        vectors = _dropped(vectors, self.dropout, keys, 0)
        allowed = _allowed(mask)
        for number, block in enumerate(self._blocks):
            first = 1 + _DROPOUTS_PER_BLOCK * number
            # Keras 3 allows nothing but tensors in positions.
            vectors = block(vectors, allowed=allowed, keys=keys, first_dropout=first)
        return tf.where(is_item, self._norm(vectors), tf.zeros_like(vectors))

    def _dropout_keys(self, training: bool | None) -> tf.Tensor | None:
        """``[2]`` numbers of this pass and this replica; None if nothing is to be dropped."""
        if not self.dropout or not training:
            return None
        return _replicas.next_keys(self._seed, self._passes)

    def get_config(self) -> dict[str, Any]:
        names = (
            "max_length",
            "blocks",
            "heads",
            "dropout",
            "feed_forward",
            "return_sequences",
            "seed",
        )
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


class _Block(tf.keras.layers.Layer):
    """Attention and a feed-forward layer, each on normalised inputs and added to them."""

    def __init__(self, dim: int, heads: int, dropout: float, feed_forward: int, name: str) -> None:
        super().__init__(name=name)
        self._dim, self._heads, self._rate = dim, heads, dropout
        layers = tf.keras.layers
        self._attention_norm = layers.LayerNormalization(epsilon=_EPSILON, name="attention_norm")
        self._projections = [layers.Dense(dim, name=name) for name in ("query", "key", "value")]
        self._output = layers.Dense(dim, name="output")
        self._hidden_norm = layers.LayerNormalization(epsilon=_EPSILON, name="hidden_norm")
        self._hidden = layers.Dense(dim * feed_forward, activation="gelu", name="hidden")
        self._result = layers.Dense(dim, name="result")

    def call(
        self, vectors: tf.Tensor, allowed: tf.Tensor, keys: tf.Tensor | None, first_dropout: int
    ) -> tf.Tensor:
        """``[batch, length, dim]``; ``allowed`` says which items each item attends to."""
        normed = self._attention_norm(vectors)
        queries, items, values = (
            self._in_heads(projection(normed)) for projection in self._projections
        )
        scores = tf.matmul(queries, items, transpose_b=True)
        # In float32 even in mixed precision: exponentials of half precision lose the tail.
        scores = tf.cast(scores, tf.float32) * (self._dim // self._heads) ** -0.5
        scores = tf.where(allowed[:, tf.newaxis], scores, tf.float32.min)
        weights = tf.cast(tf.nn.softmax(scores), values.dtype)
        weights = _dropped(weights, self._rate, keys, first_dropout)
        attended = tf.transpose(tf.matmul(weights, values), [0, 2, 1, 3])
        attended = self._output(tf.reshape(attended, tf.shape(vectors)))
        vectors += _dropped(attended, self._rate, keys, first_dropout + 1)
        hidden = self._result(self._hidden(self._hidden_norm(vectors)))
        return vectors + _dropped(hidden, self._rate, keys, first_dropout + 2)

    def _in_heads(self, vectors: tf.Tensor) -> tf.Tensor:
        """``[batch, heads, length, dim / heads]``."""
        shape = tf.shape(vectors)
        size = self._dim // self._heads
        return tf.transpose(
            tf.reshape(vectors, [shape[0], shape[1], self._heads, size]), [0, 2, 1, 3]
        )


def last_state(states: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """``[batch, dim]``: the state of each sequence's last item; zero for one without items.

    >>> states = tf.constant([[[1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0]]])
    >>> mask = tf.constant([[True, True, False], [False, False, False]])
    >>> print(last_state(states, mask).numpy().tolist())
    [[2.0], [0.0]]

    Args:
      states: ``[batch, length, dim]``.
      mask: ``[batch, length]`` booleans: which columns are items; all by default.
    """
    if mask is None:
        return states[:, -1]
    numbers = tf.range(1, tf.shape(mask)[1] + 1)
    last = tf.reduce_max(tf.where(mask, numbers, 0), axis=1)
    found = tf.gather(states, tf.maximum(last - 1, 0), axis=1, batch_dims=1)
    return tf.where((last > 0)[:, tf.newaxis], found, tf.zeros_like(found))


def _allowed(mask: tf.Tensor) -> tf.Tensor:
    """``[batch, length, length]``: whether a row's item attends to a column's item.

    Each attends to itself, masked or not, so that no row of weights is empty.
    """
    length = tf.shape(mask)[1]
    earlier = tf.linalg.band_part(tf.ones([length, length], tf.bool), -1, 0)
    itself = tf.eye(length, dtype=tf.bool)
    return tf.logical_or(tf.logical_and(earlier, mask[:, tf.newaxis]), itself)


def _dropped(vectors: tf.Tensor, rate: float, keys: tf.Tensor | None, place: int) -> tf.Tensor:
    """Vectors with a share of their values at zero, and the others scaled up to the same mean."""
    if keys is None or not rate:
        return vectors
    seed = tf.stack([keys[0] + place, keys[1]])
    return tf.nn.experimental.stateless_dropout(vectors, rate, seed=seed, rng_alg="philox")
