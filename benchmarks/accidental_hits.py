"""Ids that are strings, compared with integers: ``python -m benchmarks.accidental_hits``.

With ``remove_accidental_hits``, the task compares the ids of all candidates of a batch. Strings are
numbered once, so that they cost hardly more than integers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from benchmarks import harness

import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

import tfrs_croloss  # isort: skip

NUM_QUERIES, NUM_ITEMS, DIM = 2048, 1682, 32
STRINGS, INTEGERS = "string ids", "integer ids"


def contenders() -> dict[str, Callable[[], object]]:
    """A loss with both gradients for a batch of in-batch negatives, with ids of either kind."""
    random = np.random.default_rng(0)
    items = random.integers(0, NUM_ITEMS, NUM_QUERIES)
    queries, candidates = (
        tf.Variable(random.standard_normal((NUM_QUERIES, DIM), dtype=np.float32)) for _ in range(2)
    )
    task = tfrs_croloss.tasks.Retrieval(
        tfrs_croloss.LambdaCROLoss(retrieval_size=100), remove_accidental_hits=True
    )

    def step(ids: tf.Tensor) -> Callable[[], object]:
        @tf.function
        def forward_and_backward(ids: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                loss = task(queries, candidates, candidate_ids=ids, compute_metrics=False)
            return tape.gradient(loss, [queries, candidates])

        return lambda: forward_and_backward(ids)[1][0, 0].numpy()

    return {
        INTEGERS: step(tf.constant(items)),
        STRINGS: step(tf.constant([f"film {item}" for item in items])),
    }


def main() -> int:
    """Prints a table; fails if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=31)
    arguments = parser.parse_args()
    seconds = harness.time_in_turns(contenders(), arguments.repeats, warm_up=3)
    title = f"remove_accidental_hits: {NUM_QUERIES:,} queries, as many candidates, D={DIM}"
    target = harness.Target(STRINGS, INTEGERS, 1.3, at_most=True)
    return 0 if harness.report(title, seconds, [target]) else 1


if __name__ == "__main__":
    sys.exit(main())
