"""A moving average of the weights, which is evaluated and kept in their place."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks, _keras

# Step t has a decay of at most t / (t + 9), so that the average forgets the first weights.
_RAMP = 9.0


class WeightAverage(tf.keras.callbacks.Callback):
    r"""Keeps a moving average of the weights, shows it to validation, and leaves it in the model.

    After step :math:`t`, the average of the weights :math:`\theta` is

    .. math:: \bar\theta \leftarrow d_t \bar\theta + (1 - d_t)\, \theta, \quad
      d_t = \min\Bigl(\text{decay}, \frac{t}{t + 9}\Bigr)

    Training goes on from the weights themselves. Validation, the callbacks that are listed after
    this one at the end of an epoch, and whoever uses the model after ``fit`` see the average::

        callbacks=[
            WeightAverage(0.998),
            RecallCallback(queries, candidates, positives),
            tf.keras.callbacks.EarlyStopping("val_recall@50", mode="max"),
        ]

    A callback that saves what training continues from, such as ``BackupAndRestore``, comes before
    it, and so saves the weights themselves; the average then begins anew. To save the average, too,
    save `variables`.

    It suits models that are about to overfit, such as self-attention over short sequences, whose
    average is often better than any of the weights it is made of. A decay of 0.998 averages over
    some 500 steps, and a few epochs are a good choice.

    Another ``fit`` of the same model with the same callback continues from the weights that the
    last one ended with, not from their average, unless the model got other weights since.

    >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[1])])
    >>> model.compile("sgd", "mse")
    >>> x = tf.ones([8, 1])
    >>> _ = model.fit(x, x, epochs=2, verbose=0, callbacks=[WeightAverage(decay=0.9)])

    Args:
      decay: share of the average that a step keeps, at least 0 and below 1.
      every: number of steps between updates, each of which passes over all weights. With tables of
        millions of rows, whose optimizer touches only some of them, 10 or more saves time. An
        update keeps what its steps would have kept one by one, and the average is up to date
        whenever it is seen.
    """

    def __init__(self, decay: float = 0.999, every: int = 1) -> None:
        _keras.require_tensorflow(type(self).__name__)
        super().__init__()
        if not 0.0 <= decay < 1.0:
            raise ValueError(
                f"`decay` should be at least 0 and below 1. Received: {decay}. 0.999 averages over "
                "about 1,000 steps."
            )
        self.decay = float(decay)
        self.every = _checks.whole_number("every", every, remedy="Pass 1 to update in each step.")
        self._watched: tf.keras.Model | None = None
        self._weights: list[tf.Variable] = []
        self._averages: list[tf.Variable] = []
        # The weights themselves, while the model has their average.
        self._kept: list[tf.Tensor] | None = None
        self._step = 0
        self._updated: tf.Variable | None = None
        self._training = False
        self._batch = -1
        self._update_all: Any = None

    @property
    def variables(self) -> list[tf.Variable]:
        """The averages, and the step of their last update, for a checkpoint."""
        return [] if self._updated is None else [*self._averages, self._updated]

    def watch(self, model: tf.keras.Model) -> None:
        """Begins with the weights of a model, all of which exist.

        ``fit`` does this. It is there for programs that restore `variables` from a checkpoint.

        Args:
          model: the model whose trainable weights are averaged.
        """
        self._watched, self._kept = model, None
        self._weights = _keras.trainable_variables(model)
        with _keras.strategy_scope(model):
            # Sixteen bits would lose what one step adds.
            self._averages = [
                tf.Variable(
                    weight if weight.dtype.size > 2 else tf.cast(weight, tf.float32),
                    trainable=False,
                    name=f"average_{number}",
                )
                for number, weight in enumerate(self._weights)
            ]
            self._updated = tf.Variable(0, trainable=False, dtype=tf.int64, name="averaged_steps")
        self._step = 0

        @tf.function(autograph=False)
        def update_all(share: tf.Tensor) -> None:
            for average, weight in zip(self._averages, self._weights):
                change = tf.cast(weight, average.dtype) - average
                average.assign_add(tf.cast(share, average.dtype) * change)

        self._update_all = update_all

    def update(self, step: int) -> None:
        """Averages the weights after a step, if the next update is due.

        Args:
          step: number of steps done, 1 after the first one.
        """
        assert self._updated is not None
        self._step = step
        if step // self.every > int(self._updated) // self.every:
            self._catch_up()

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """A scope in which the model has the average as its weights."""
        inside = self._kept is not None
        self._show()
        try:
            yield
        finally:
            if not inside:
                self._hide()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Continues from the weights that an earlier ``fit`` of the model ended with."""
        if self._kept is not None and self._is_as_left():
            self._hide()
        elif self._kept is not None:
            # Another model, or other weights: the average begins anew.
            self._watched = self._kept = None
        self._training = True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Continues from the weights themselves."""
        self._hide()
        self._batch = -1

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages the weights, after one step or as many as Keras runs in one go."""
        if self._batch < 0:
            # Not before the first step: many models create their weights in it.
            if not self._is_watched():
                self.watch(self.model)
            assert self._updated is not None
            self._step = max(self._step, int(self._updated))
        steps, self._batch = batch - self._batch, batch
        self.update(self._step + steps)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Validates the average."""
        if self._training:
            self._show()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Continues from the weights themselves."""
        if self._training:
            self._hide()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Shows the average to the callbacks that come next."""
        self._show()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Leaves the average in the model."""
        self._training = False
        self._show()

    def _catch_up(self) -> None:
        """Updates the average with the weights of the current step."""
        assert self._updated is not None
        steps = range(int(self._updated) + 1, self._step + 1)
        kept = math.prod(min(self.decay, step / (step + _RAMP)) for step in steps)
        self._update_all(tf.constant(1.0 - kept, tf.float32))
        self._updated.assign(self._step)

    def _show(self) -> None:
        """Gives the model the average, and keeps its weights."""
        if self._kept is not None or self._updated is None:
            return
        if self._step > int(self._updated):
            self._catch_up()
        self._kept = [tf.identity(weight) for weight in self._weights]
        self._assign(self._averages)

    def _hide(self) -> None:
        """Gives the model its weights back."""
        if self._kept is not None:
            self._assign(self._kept)
            self._kept = None

    def _assign(self, values: Sequence[tf.Variable | tf.Tensor]) -> None:
        for weight, value in zip(self._weights, values):
            weight.assign(tf.cast(tf.convert_to_tensor(value), weight.dtype))
        _keras.mark_averaged(self._watched, values is self._averages)

    def _is_watched(self) -> bool:
        """Whether the averages are those of the model's weights as they are now."""
        weights = _keras.trainable_variables(self.model)
        return self._watched is self.model and list(map(id, weights)) == list(
            map(id, self._weights)
        )

    def _is_as_left(self) -> bool:
        """Whether the model still has the average that the last ``fit`` left."""
        return self._is_watched() and all(
            bool(tf.reduce_all(tf.equal(weight, tf.cast(average, weight.dtype))))
            for weight, average in zip(self._weights, self._averages)
        )
