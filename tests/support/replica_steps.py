"""A program that runs single training steps on a batch that is split over replicas.

It needs a process of its own, since devices have to be configured before TensorFlow starts. For
each case and each split of the batch it prints the loss and the gradients, summed over replicas.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf

NUM_ITEMS, BATCH, PER_EXAMPLE, DIM, NUM_REPLICAS = 40, 12, 2, 8, 3


def mirrored_strategy(num_replicas: int) -> tf.distribute.Strategy:
    """A strategy with this many logical CPUs; has to come before TensorFlow computes anything."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * num_replicas,
    )
    return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(num_replicas)])


def own_part(sizes: tf.Tensor, array: np.ndarray) -> tf.Tensor:
    """This replica's part of an array that has one or more rows for each example.

    Args:
      sizes: number of examples of each replica.
      array: array of the whole batch.
    """
    per_example = len(array) // BATCH
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    end = tf.cumsum(sizes)[replica] * per_example
    return tf.constant(array)[end - sizes[replica] * per_example : end]


def run(case: dict[str, Any], cuts: list[list[int]], strategy: Any) -> list[list[np.ndarray]]:
    """The loss and gradients for each split of the batch, all over the same number of replicas."""
    import tfrs_croloss
    from tfrs_croloss.models import HistoryTower, ItemEmbedding, ItemTower, TwoTowerModel

    random = np.random.default_rng(3)
    history = random.integers(0, NUM_ITEMS, (BATCH, 5))
    positives = random.integers(0, NUM_ITEMS, BATCH)
    negatives = random.integers(0, NUM_ITEMS, BATCH * PER_EXAMPLE)
    known = random.integers(0, NUM_ITEMS, (BATCH, 3))
    weights = random.uniform(0.5, 2.0, BATCH).astype(np.float32)
    names = np.array([f"name {number}" for number in range(NUM_ITEMS)])
    if case["lambda"]:
        loss = tfrs_croloss.LambdaCROLoss(
            case["alpha"], num_items=NUM_ITEMS, reduction=case["reduction"]
        )
    else:
        loss = tfrs_croloss.CROLoss(case["alpha"], "softplus", reduction=case["reduction"])
    with strategy.scope():
        task = tfrs_croloss.tasks.Retrieval(loss, temperature=0.1, remove_accidental_hits=True)
        whole = tfrs_croloss.tasks.CatalogueRetrieval(loss, temperature=0.5)
        queries = tf.Variable(random.normal(size=(BATCH, DIM)).astype(np.float32))
        items = tf.Variable(random.normal(size=(NUM_ITEMS, DIM)).astype(np.float32))
        variables = [queries, items]
        if case["kind"] == "model":
            embedding = ItemEmbedding(NUM_ITEMS, DIM, stddev=1.0, seed=1)
            shares = np.arange(1.0, NUM_ITEMS + 1.0) / np.arange(1.0, NUM_ITEMS + 1.0).sum()
            model = TwoTowerModel(
                HistoryTower(embedding),
                ItemTower(embedding),
                task,
                in_batch_negatives=case["in_batch"],
                candidate_probabilities=shares if case["in_batch"] else None,
            )
            model.embed_queries({"history": tf.constant(history)})
            variables = model.trainable_variables
            for number, variable in enumerate(variables):
                values = np.random.default_rng(number).normal(size=variable.shape)
                variable.assign(values.astype(np.float32))

    def compute(
        history: tf.Tensor,
        positive: tf.Tensor,
        negative: tf.Tensor,
        known_ids: tf.Tensor,
        weight: tf.Tensor,
        rows: tf.Tensor,
    ) -> tf.Tensor:
        if case["kind"] == "model":
            features = {"history": history, "item_id": positive, "negative_item_id": negative}
            return model.compute_loss({**features, "known_item_ids": known_ids}, training=True)
        if case["kind"] == "catalogue":
            return whole(tf.gather(queries, rows), tf.convert_to_tensor(items), positive, weight)
        candidates = tf.concat([positive, negative], axis=0)
        return task(
            tf.gather(queries, rows),
            tf.gather(items, candidates),
            sample_weight=weight,
            candidate_sampling_probability=tf.cast(candidates + 1, tf.float32) / 1000.0,
            candidate_ids=tf.gather(names, candidates),
            known_positive_ids=tf.gather(names, known_ids),
        )

    arrays = (history, positives, negatives, known, weights, np.arange(BATCH))

    def step(sizes: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            value = compute(*(own_part(sizes, array) for array in arrays))
        gradients = [tf.convert_to_tensor(one) for one in tape.gradient(value, variables)]
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1:
            value, *gradients = context.all_reduce("SUM", [value, *gradients])
        return value, gradients

    # The sizes are a tensor, so that the function is traced once for all splits.
    compiled = tf.function(lambda sizes: strategy.run(step, args=(sizes,)))

    def results(sizes: list[int]) -> list[np.ndarray]:
        value, gradients = compiled(tf.constant(sizes))
        return [
            np.asarray(strategy.experimental_local_results(tensor)[0])
            for tensor in (value, *gradients)
        ]

    return [results(sizes) for sizes in cuts]


def main(cases: str, cuts: str) -> None:
    """Prints an entry for each case: the results of the whole batch, then those of each split."""
    # One for all cases, since the collectives of a second strategy would mix with the first's.
    mirrored = mirrored_strategy(NUM_REPLICAS)
    alone = tf.distribute.get_strategy()
    results = [
        run(case, [[BATCH]], alone) + run(case, json.loads(cuts), mirrored)
        for case in json.loads(cases)
    ]
    print(json.dumps(results, default=np.ndarray.tolist))


if __name__ == "__main__":
    main(*sys.argv[1:])
