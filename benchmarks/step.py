"""A full training step on a large table with sampled negatives: ``python -m benchmarks.step``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from benchmarks import harness

import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

import tfrs_croloss  # isort: skip
from tfrs_croloss import models, optimizers, tasks  # isort: skip

BATCH, HISTORY, NEGATIVES, DIM, ALPHA, STEPS = 512, 20, 5_120, 32, 1.4, 5
Batch = dict[str, tf.Tensor]


def batches(num_items: int) -> list[Batch]:
    """A batch of random ids, which do not affect the time."""
    random = np.random.default_rng(0)
    shapes = {"history": (BATCH, HISTORY), "item_id": (BATCH,), "negative_item_id": (NEGATIVES,)}
    return [
        {
            name: tf.constant(random.integers(0, num_items, shape), tf.int32)
            for name, shape in shapes.items()
        }
        for _ in range(STEPS)
    ]


def in_turns(step: Callable[[Batch], tf.Tensor], num_items: int) -> Callable[[], object]:
    """A function that takes a few steps."""
    inputs = batches(num_items)
    return lambda: [float(step(batch)) for batch in inputs]


def ours(num_items: int) -> Callable[[], object]:
    """The two-tower model with LambdaCROLoss and LazyAdam, as ``train`` builds it."""
    loss = tfrs_croloss.LambdaCROLoss(ALPHA, "sigmoid", "exponential", num_items)
    embedding = models.ItemEmbedding(num_items, DIM)
    model = models.TwoTowerModel(
        models.HistoryTower(embedding),
        models.ItemTower(embedding),
        tasks.Retrieval(loss, temperature=0.1),
    )
    model.compile(optimizers.LazyAdam(0.02))
    step = tf.function(lambda batch: model.train_step(batch)["loss"])
    return in_turns(step, num_items)


def authors(num_items: int) -> Callable[[], object]:
    """The paper's formulas in plain TensorFlow, differentiated automatically, with Keras' Adam."""
    table = tf.Variable(tf.random.normal([num_items, DIM], stddev=0.05, seed=1))
    dense = tf.keras.layers.Dense(DIM)
    dense.build([None, DIM])
    variables = [table, *dense.trainable_variables]
    optimizer = tf.keras.optimizers.Adam(0.02)

    @tf.function
    def step(batch: Batch) -> tf.Tensor:
        with tf.GradientTape() as tape:
            users = dense(tf.reduce_mean(tf.gather(table, batch["history"]), axis=1))
            users = tf.math.l2_normalize(users, axis=1)
            positives, negatives = (
                tf.math.l2_normalize(tf.gather(table, batch[name]), axis=1)
                for name in ("item_id", "negative_item_id")
            )
            own = 10.0 * tf.reduce_sum(users * positives, axis=1, keepdims=True)
            gaps = 10.0 * tf.matmul(users, negatives, transpose_b=True) - own
            ratio = num_items / (NEGATIVES + 1)
            rank = ratio * (1.0 + tf.reduce_sum(tf.sigmoid(gaps), axis=1))
            weight = tf.stop_gradient(rank**-ALPHA)
            loss = tf.reduce_mean(weight * ratio * (1.0 + tf.reduce_sum(tf.exp(gaps), axis=1)))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return in_turns(step, num_items)


def main() -> int:
    """Prints the table; fails if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1_708_530)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    contenders = {"ours": ours(arguments.items), "authors' form, Adam": authors(arguments.items)}
    met = harness.report(
        f"{STEPS} training steps: {arguments.items:,} items, D={DIM}, batch {BATCH}, history "
        f"{HISTORY}, {NEGATIVES:,} shared negatives, sigmoid/exponential",
        harness.time_in_turns(contenders, arguments.repeats),
        [harness.Target("authors' form, Adam", "ours", 10.0)],
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
