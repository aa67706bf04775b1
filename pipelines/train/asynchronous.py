"""Training steps of workers that do not wait for each other, for parameter servers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfrs_croloss.models import TwoTowerModel

from ..data.batches import TrainingInput


class AsynchronousSteps:
    """Schedules each step on the next free worker.

    The workers hold copies of the input's arrays and receive the number of a step, so that every
    batch is trained on once, however fast each worker is. When a worker is lost, the others take
    over its steps until it is back.

    Args:
      strategy: a `tf.distribute.ParameterServerStrategy`.
      model: model that was compiled in its scope.
      training_input: source of the batches.
    """

    def __init__(self, strategy: Any, model: TwoTowerModel, training_input: TrainingInput) -> None:
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

        def arrays() -> tf.data.Dataset:
            return tf.data.Dataset.from_tensors(training_input.arrays).repeat()

        @tf.function
        def step(iterator: Any, number: tf.Tensor) -> None:
            features = training_input.over(next(iterator)).batch(number)
            strategy.run(model.train_step, args=(features,))

        self._step = step
        self._arrays = iter(self._coordinator.create_per_worker_dataset(arrays))

    def run(self, first_step: int, last_step: int) -> None:
        """Trains the steps from ``first_step`` up to, not including, ``last_step``; then waits."""
        for number in range(first_step, last_step):
            self._coordinator.schedule(
                self._step, args=(self._arrays, tf.constant(number, tf.int64))
            )
        self._coordinator.join()
