"""LazyAdam compared with Keras' Adam on a large table: ``python -m benchmarks.optimizer``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from benchmarks import harness

import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

from tfrs_croloss.optimizers import LazyAdam  # isort: skip

BATCH, HISTORY, NEGATIVES, STEPS = 512, 20, 5_120, 5


def training_steps(
    optimizer: tf.keras.optimizers.Optimizer, num_items: int, dim: int, seed: int = 0
) -> Callable[[], object]:
    """A function that takes a few steps of a two-tower model with shared negatives."""
    random = np.random.default_rng(seed)
    table = tf.Variable(random.normal(size=(num_items, dim), scale=0.1).astype(np.float32))
    dense = tf.keras.layers.Dense(dim)
    dense.build([None, dim])
    variables = [table, *dense.trainable_variables]
    shapes = ((BATCH, HISTORY), (BATCH,), (NEGATIVES,))
    batches = [
        tuple(tf.constant(random.integers(0, num_items, shape)) for shape in shapes)
        for _ in range(STEPS)
    ]

    @tf.function
    def step(history: tf.Tensor, positives: tf.Tensor, negatives: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            users = dense(tf.reduce_mean(tf.gather(table, history), axis=1))
            own = tf.reduce_sum(users * tf.gather(table, positives), axis=1, keepdims=True)
            others = tf.matmul(users, tf.gather(table, negatives), transpose_b=True)
            loss = tf.reduce_mean(tf.reduce_logsumexp(tf.concat([own, others], 1), 1) - own[:, 0])
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))
        return loss

    return lambda: [float(step(*batch)) for batch in batches]


def main() -> int:
    """Prints the table; fails if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1_700_000)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    contenders = {
        "LazyAdam": training_steps(LazyAdam(0.001), arguments.items, arguments.dim),
        "Adam": training_steps(tf.keras.optimizers.Adam(0.001), arguments.items, arguments.dim),
    }
    seconds = harness.time_in_turns(contenders, arguments.repeats)
    met = harness.report(
        f"{STEPS} training steps: table of {arguments.items:,} x {arguments.dim}, batch {BATCH}, "
        f"history {HISTORY}, {NEGATIVES:,} shared negatives",
        seconds,
        [harness.Target("Adam", "LazyAdam", 10.0)],
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
