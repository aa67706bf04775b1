"""Which losses train at which temperature: ``python -m benchmarks.temperatures``.

Two embedding tables, cosine scores and in-batch negatives, as a TFRS user would write it, are
trained on made-up users who choose the items that suit their tastes. The table has Recall@20 on
held-out choices. A random model has 20 / 300 = 0.067.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import harness

import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip
import tensorflow_recommenders as tfrs  # isort: skip

from tfrs_croloss import CROLoss, LambdaCROLoss, RetrievalLoss, metrics, tasks  # isort: skip

NUM_USERS, NUM_ITEMS, DIM, BATCH = 400, 300, 8, 128
SIZE = 20
NUM_TRAIN, NUM_TEST = 18, 6

LOSSES: dict[str, RetrievalLoss] = {
    "softmax": CROLoss.softmax_cross_entropy(NUM_ITEMS),
    "LambdaCROLoss, sigmoid/softplus": LambdaCROLoss(num_items=NUM_ITEMS),
    "the same, log form": LambdaCROLoss(num_items=NUM_ITEMS, descent="log_rank"),
    "LambdaCROLoss, sigmoid/exponential": LambdaCROLoss(1.0, "sigmoid", "exponential", NUM_ITEMS),
    "the same, log form ": LambdaCROLoss(
        1.0, "sigmoid", "exponential", NUM_ITEMS, descent="log_rank"
    ),
}


def choices(seed: int) -> np.ndarray:
    """``[num_users, num_train + num_test]`` items that suit each user's taste, with some noise."""
    generator = np.random.default_rng(seed)
    tastes = generator.normal(size=[NUM_USERS, 4])
    items = generator.normal(size=[NUM_ITEMS, 4])
    liking = tastes @ items.T + generator.gumbel(scale=0.5, size=[NUM_USERS, NUM_ITEMS])
    best = np.argsort(-liking, axis=1)[:, : NUM_TRAIN + NUM_TEST]
    return generator.permuted(best, axis=1)


class Model(tfrs.Model):
    """Two tables of unit vectors, and a task."""

    def __init__(self, task: tasks.Retrieval) -> None:
        super().__init__()
        self.users = tf.keras.layers.Embedding(NUM_USERS, DIM)
        self.items = tf.keras.layers.Embedding(NUM_ITEMS, DIM)
        self.task = task

    def compute_loss(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        """The loss of a batch of pairs."""
        users = tf.math.l2_normalize(self.users(inputs["user"]), axis=1)
        items = tf.math.l2_normalize(self.items(inputs["item"]), axis=1)
        return self.task(users, items, candidate_ids=inputs["item"])


def recall(loss: RetrievalLoss, temperature: float, steps: int, seed: int) -> float:
    """Recall@20 after training."""
    tf.keras.utils.set_random_seed(seed)
    chosen = choices(seed)
    seen, targets = chosen[:, :NUM_TRAIN], chosen[:, NUM_TRAIN:]
    pairs = {"user": np.repeat(np.arange(NUM_USERS), NUM_TRAIN), "item": seen.ravel()}
    data = tf.data.Dataset.from_tensor_slices(pairs).shuffle(NUM_USERS * NUM_TRAIN, seed=seed)
    model = Model(tasks.Retrieval(loss, temperature=temperature, remove_accidental_hits=True))
    model.compile(optimizer=tf.keras.optimizers.Adam(0.02))
    model.fit(data.repeat().batch(BATCH), steps_per_epoch=steps, verbose=0)
    report = metrics.evaluate(
        tf.math.l2_normalize(model.users(tf.range(NUM_USERS)), axis=1),
        tf.math.l2_normalize(model.items(tf.range(NUM_ITEMS)), axis=1),
        list(targets),
        cutoffs=[SIZE],
        excluded=list(seen),
    )
    return float(report.recall[SIZE])


def main() -> int:
    """Prints a row for each loss and a column for each temperature."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.05, 0.1, 0.3, 1.0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=3)
    arguments = parser.parse_args()
    print(harness.environment())
    print(f"Recall@{SIZE}, {arguments.steps} steps, seed {arguments.seed}; temperature:")
    print(" " * 36 + "".join(f"{temperature:>8g}" for temperature in arguments.temperatures))
    for name, loss in LOSSES.items():
        found = [
            recall(loss, temperature, arguments.steps, arguments.seed)
            for temperature in arguments.temperatures
        ]
        print(f"{name:36}" + "".join(f"{value:8.3f}" for value in found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
