r"""Adam for embedding tables of millions of rows.

Keras' Adam updates every row of a table in every step, because moments decay and moves go on for
rows without a gradient. `LazyAdam` does not change those rows or their moments, so that
the cost of a step depends on the rows in the batch and not on the size of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfrs_croloss import _keras


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class LazyAdam(tf.keras.optimizers.Adam):
    r"""Adam that touches only the rows of a table that have a gradient in this step.

    For a row with gradient :math:`g` in step :math:`t`, as in Adam,

    .. math::

      m \leftarrow \beta_1 m + (1 - \beta_1) g, \quad
      v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \quad
      \theta \leftarrow \theta - \eta \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}
      \frac{m}{\sqrt{v} + \epsilon}

    where :math:`t` counts the steps of the optimizer, not the visits to the row: one scalar serves
    all rows, and a row seen first in a late step moves by up to
    :math:`\eta (1 - \beta_1) / \sqrt{1 - \beta_2}`, about three learning rates, as it does with
    Adam. Rows without a gradient keep their values and moments bit for bit. Gradients that are not
    sparse are applied exactly as Adam applies them.

    Sparse gradients (`tf.IndexedSlices`) are what `tf.gather` and embedding layers give. Gradients
    of rows that occur several times in a batch are summed first. Clipping is that of the Keras base
    class, which clips before it sums.

    Two options of the base class pass over whole tables in every step, and are slow: ``use_ema``,
    and variables with a constraint.

    >>> table = tf.Variable([[1.0], [2.0]])
    >>> gradient = tf.IndexedSlices(tf.constant([[3.0]]), tf.constant([1]), tf.constant([2, 1]))
    >>> _ = LazyAdam(learning_rate=0.5).apply_gradients([(gradient, table)])
    >>> print(table.numpy().round(4).tolist())
    [[1.0], [1.5]]

    Args:
      learning_rate: a number or a `tf.keras.optimizers.schedules.LearningRateSchedule`.
      beta_1: decay of the first moment, in [0, 1).
      beta_2: decay of the second moment, in [0, 1).
      epsilon: added to the root of the second moment, above 0.
      amsgrad: whether to divide by the largest second moment so far.
      weight_decay: decoupled weight decay; of a table, only the rows with a gradient decay.
      clipnorm, clipvalue, global_clipnorm, use_ema, ema_momentum, ema_overwrite_frequency: as in
        `tf.keras.optimizers.Adam`.
      jit_compile: off by default, unlike in Adam: the number of rows differs from step to step, and
        XLA would compile anew for each number.
      name: name of the optimizer.
    """

    # What `update_step` does with sparse gradients, so that nothing before it has to.
    sums_equal_rows = True

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        jit_compile: bool = False,
        name: str = "LazyAdam",
        **kwargs: Any,
    ) -> None:
        _keras.require_tensorflow(type(self).__name__)
        for argument, beta in (("beta_1", beta_1), ("beta_2", beta_2)):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"`{argument}` should be in [0, 1). Received: {beta!r}.")
        if not epsilon > 0.0:
            raise ValueError(f"`epsilon` should be above 0. Received: {epsilon!r}.")
        super().__init__(
            learning_rate=learning_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            amsgrad=amsgrad,
            weight_decay=weight_decay,
            clipnorm=clipnorm,
            clipvalue=clipvalue,
            global_clipnorm=global_clipnorm,
            use_ema=use_ema,
            ema_momentum=ema_momentum,
            ema_overwrite_frequency=ema_overwrite_frequency,
            name=name,
            **_keras.optimizer_options(jit_compile),
            **kwargs,
        )

    def _apply_weight_decay(self, variables: Sequence[tf.Variable]) -> None:
        """Does nothing, since the base class passes over whole tables; `update_step` decays."""

    def update_step(self, gradient: Any, variable: tf.Variable, *rate: Any) -> None:
        """Applies one gradient to one variable; Keras 3 also passes the learning rate."""
        dtype = variable.dtype
        learning_rate = tf.cast(rate[0] if rate else self.learning_rate, dtype)
        decay = None
        if self.weight_decay and self._use_weight_decay(variable):
            decay = learning_rate * tf.cast(self.weight_decay, dtype)
        if not isinstance(gradient, tf.IndexedSlices):
            if decay is not None:
                variable.assign_sub(variable * decay)
            super().update_step(gradient, variable, *rate)
            return

        gradient = _keras.distinct_rows(gradient)
        beta_1, beta_2 = tf.cast(self.beta_1, dtype), tf.cast(self.beta_2, dtype)
        step = tf.cast(self.iterations + 1, dtype)
        correction = tf.sqrt(1 - tf.pow(beta_2, step)) / (1 - tf.pow(beta_1, step))
        names = ("_momentums", "_velocities", *(["_velocity_hats"] if self.amsgrad else []))
        first, second, *largest = _keras.slots(self, variable, *names)
        rows, values = gradient.indices, gradient.values

        first_rows = beta_1 * tf.gather(first, rows) + (1 - beta_1) * values
        first.scatter_update(tf.IndexedSlices(first_rows, rows))
        second_rows = beta_2 * tf.gather(second, rows) + (1 - beta_2) * tf.square(values)
        second.scatter_update(tf.IndexedSlices(second_rows, rows))
        if largest:
            second_rows = tf.maximum(tf.gather(largest[0], rows), second_rows)
            largest[0].scatter_update(tf.IndexedSlices(second_rows, rows))

        moves = learning_rate * correction * first_rows
        moves /= tf.sqrt(second_rows) + tf.cast(self.epsilon, dtype)
        if decay is not None:
            moves += decay * tf.gather(variable, rows)
        variable.scatter_sub(tf.IndexedSlices(moves, rows))
