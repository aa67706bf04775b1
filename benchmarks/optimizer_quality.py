"""Quality of LazyAdam and Adam on real data: ``python -m benchmarks.optimizer_quality``.

A small two-tower model (mean of the last items, a dense layer, cosine scores) with a sampled
softmax is trained with both optimizers, from the same start on the same batches. Users are split,
and the last fifth of a validation user's items is predicted from the others. Rows that no batch
touches keep moving with Adam and stay unchanged with LazyAdam, so the two algorithms differ.
"""

from __future__ import annotations

import argparse
import gzip
import pathlib
import sys
import time

from benchmarks import harness

import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

from tfrs_croloss import metrics  # isort: skip
from tfrs_croloss.optimizers import LazyAdam  # isort: skip

DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
HISTORY, DIM, BATCH, NEGATIVES, TEMPERATURE = 20, 32, 512, 5_120, 0.1


def read_sequences(path: pathlib.Path) -> tuple[list[np.ndarray], int]:
    """An array of item numbers (from 1; 0 is padding) for each user, and the number of items."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        sequences = [np.array(line.split(), np.int64) for line in lines if line.strip()]
    flat, numbers = np.unique(np.concatenate(sequences), return_inverse=True)
    ends = np.cumsum([len(sequence) for sequence in sequences])[:-1]
    return np.split(numbers.reshape(-1) + 1, ends), len(flat)


def last_items(sequence: np.ndarray, end: int) -> np.ndarray:
    """The last items before position ``end``, padded with zeros on the left."""
    window = sequence[max(0, end - HISTORY) : end]
    return np.pad(window, (HISTORY - len(window), 0))


class Towers(tf.Module):
    """An item table, and a dense layer over the mean of the history."""

    def __init__(self, num_items: int, seed: int) -> None:
        super().__init__()
        tf.keras.utils.set_random_seed(seed)
        self.table = tf.Variable(tf.random.normal([num_items + 1, DIM], stddev=0.1))
        self.dense = tf.keras.layers.Dense(DIM)
        self.dense.build([None, DIM])

    def users(self, history: tf.Tensor) -> tf.Tensor:
        """``[batch, dim]`` unit vectors from ``[batch, HISTORY]`` items."""
        known = tf.cast(history > 0, tf.float32)[:, :, tf.newaxis]
        total = tf.reduce_sum(tf.gather(self.table, history) * known, axis=1)
        return tf.nn.l2_normalize(self.dense(total / tf.reduce_sum(known, axis=1)), axis=1)

    def items(self, ids: tf.Tensor) -> tf.Tensor:
        """``[n, dim]`` unit vectors."""
        return tf.nn.l2_normalize(tf.gather(self.table, ids), axis=1)


def train(
    optimizer: tf.keras.optimizers.Optimizer,
    examples: tuple[np.ndarray, np.ndarray],
    validation: tuple[np.ndarray, list[np.ndarray]],
    num_items: int,
    epochs: int,
    seed: int,
) -> tuple[list[float], float, float]:
    """Recall@50 over pairs after each epoch, its standard error, and the seconds of training."""
    model = Towers(num_items, seed)
    variables = [model.table, *model.dense.trainable_variables]

    @tf.function(reduce_retracing=True)
    def step(history: tf.Tensor, positives: tf.Tensor, negatives: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            users = model.users(history)
            own = tf.reduce_sum(users * model.items(positives), axis=1, keepdims=True)
            others = tf.matmul(users, model.items(negatives), transpose_b=True)
            scores = tf.concat([own, others], axis=1) / TEMPERATURE
            loss = tf.reduce_mean(tf.reduce_logsumexp(scores, axis=1) - scores[:, 0])
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    random = np.random.default_rng(seed)
    histories, positives = examples
    recalls, error, seconds = [], 0.0, 0.0
    for _ in range(epochs):
        order = random.permutation(len(positives))
        start = time.perf_counter()
        for first in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[first : first + BATCH]
            negatives = random.integers(1, num_items + 1, NEGATIVES)
            step(
                tf.constant(histories[chosen]),
                tf.constant(positives[chosen]),
                tf.constant(negatives),
            )
        seconds += time.perf_counter() - start
        report = metrics.evaluate(
            model.users(tf.constant(validation[0])),
            model.items(tf.range(1, num_items + 1)),
            [targets - 1 for targets in validation[1]],
            cutoffs=[50],
        )
        recalls.append(report.recall[50])
        error = report.pairs.standard_errors["recall@50"] or 0.0
    return recalls, error, seconds


def main() -> int:
    """Prints Recall@50 after each epoch for both optimizers and each seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, default=DATA / "cds" / "sequences.txt.gz")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[0.02])
    arguments = parser.parse_args()
    if not arguments.data.exists():
        print(
            f"{arguments.data} does not exist. Pass --data, a file with a line of items per user."
        )
        return 1
    sequences, num_items = read_sequences(arguments.data)
    sequences = [sequence for sequence in sequences if len(sequence) >= 5]
    order = np.random.default_rng(0).permutation(len(sequences))
    held_out = [sequences[user] for user in order[: len(sequences) // 10]]
    training = [sequences[user] for user in order[len(sequences) // 10 :]]
    ends = [(sequence, end) for sequence in training for end in range(4, len(sequence))]
    examples = (
        np.stack([last_items(sequence, end) for sequence, end in ends]),
        np.array([sequence[end] for sequence, end in ends]),
    )
    cuts = [int(0.8 * len(sequence)) for sequence in held_out]
    validation = (
        np.stack([last_items(sequence, cut) for sequence, cut in zip(held_out, cuts)]),
        [sequence[cut:] for sequence, cut in zip(held_out, cuts)],
    )
    print(f"{harness.environment()}\n")
    print(
        f"{arguments.data.parent.name}: {num_items:,} items, {len(ends):,} training examples, "
        f"{len(held_out):,} validation users"
    )
    for rate in arguments.learning_rates:
        for seed in arguments.seeds:
            for kind in (tf.keras.optimizers.Adam, LazyAdam):
                recalls, error, seconds = train(
                    kind(rate), examples, validation, num_items, arguments.epochs, seed
                )
                text = " ".join(f"{recall:.4f}" for recall in recalls)
                print(
                    f"{kind.__name__:<9} rate {rate:g} seed {seed}: Recall@50 by epoch {text}; "
                    f"best {max(recalls):.4f} ± {error:.4f}; {seconds:.0f} s of training",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
