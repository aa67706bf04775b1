"""Run as a program: the peak memory of a training step with many candidates, in bytes.

It needs a process of its own, since peak memory is that of a whole process and devices have to be
configured before TensorFlow starts. It prints by how much a full-size step raises the peak memory
above that of small steps.
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

from benchmarks.harness import own_peak_memory
from tests.support.replica_steps import mirrored_strategy
from tfrs_croloss import LambdaCROLoss
from tfrs_croloss.memory import CandidateMemory
from tfrs_croloss.models import HistoryTower, ItemEmbedding, ItemTower, TwoTowerModel
from tfrs_croloss.tasks import Retrieval

NUM_ITEMS, DIM, NUM_KNOWN = 5_000, 8, 20
REMEMBERED = 16_384


def features(num_queries: int, num_negatives: int) -> dict[str, tf.Tensor]:
    """A batch of the model's inputs."""
    random = np.random.default_rng(0)

    def items(*shape: int) -> tf.Tensor:
        return tf.constant(random.integers(0, NUM_ITEMS, shape))

    return {
        "history": items(num_queries, 4),
        "item_id": items(num_queries),
        "negative_item_id": items(num_negatives),
        "known_item_ids": items(num_queries, NUM_KNOWN),
    }


def main(case: str, queries: str, candidates: str) -> None:
    """Prints the bytes that a step takes: with a ``memory``, or on two ``replicas``."""
    strategy = mirrored_strategy(2) if case == "replicas" else tf.distribute.get_strategy()
    with strategy.scope():
        embedding = ItemEmbedding(NUM_ITEMS, DIM)
        model = TwoTowerModel(
            HistoryTower(embedding),
            ItemTower(embedding),
            Retrieval(LambdaCROLoss(num_items=NUM_ITEMS), temperature=0.1),
            memory=CandidateMemory(REMEMBERED, DIM) if case == "memory" else None,
        )
        model.compile(tf.keras.optimizers.SGD(0.1))

    @tf.function(reduce_retracing=True)
    def step(batch: dict[str, tf.Tensor]) -> None:
        strategy.run(model.train_step, args=(batch,))

    share = strategy.num_replicas_in_sync
    num_queries, num_candidates = int(queries) // share, int(candidates) // share
    sizes = [(24, 96), (16, 64), (num_queries, num_candidates - num_queries)]
    *small, full = (features(*size) for size in sizes)
    for batch in small:
        step(batch)
    before = own_peak_memory()
    step(full)
    print(own_peak_memory() - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
