"""Several replicas compute what one does: losses, gradients and whole trainings."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

# One step on a batch that is cut into the given parts, one for each replica. Devices have to be
# made before TensorFlow starts, hence the processes.
PROGRAM = """
import json, sys
import numpy as np
import tensorflow as tf

sizes, case = json.loads('''%s''')
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * len(sizes),
)
import tfrs_croloss
from tfrs_croloss.models import HistoryTower, ItemEmbedding, ItemTower, TwoTowerModel

random = np.random.default_rng(3)
NUM_ITEMS, BATCH, PER_EXAMPLE = 40, sum(sizes), 2
batch = {
    "history": random.integers(0, NUM_ITEMS, (BATCH, 5)),
    "item_id": random.integers(0, NUM_ITEMS, BATCH),
}
negatives = random.integers(0, NUM_ITEMS, BATCH * PER_EXAMPLE)
known = random.integers(0, NUM_ITEMS, (BATCH, 3))
weights = random.uniform(0.5, 2.0, BATCH).astype("float32")
table = random.normal(size=(BATCH, 8)).astype("float32")
names = np.array([f"name {number}" for number in range(NUM_ITEMS)])

strategy = tf.distribute.MirroredStrategy([f"CPU:{n}" for n in range(len(sizes))])
if len(sizes) == 1:
    strategy = tf.distribute.get_strategy()
ends = np.cumsum(sizes)
starts = ends - sizes


def part(array, per_example=1):
    def of_replica(context):
        replica = context.replica_id_in_sync_group
        return tf.constant(
            array[starts[replica] * per_example : ends[replica] * per_example]
        )
    if len(sizes) == 1:
        return tf.constant(array)
    return strategy.experimental_distribute_values_from_function(of_replica)


loss = (
    tfrs_croloss.LambdaCROLoss(case["alpha"], num_items=NUM_ITEMS, reduction=case["reduction"])
    if case["lambda"]
    else tfrs_croloss.CROLoss(case["alpha"], "softplus", reduction=case["reduction"])
)
with strategy.scope():
    task = tfrs_croloss.tasks.Retrieval(loss, temperature=0.1, remove_accidental_hits=True)
    whole = tfrs_croloss.tasks.CatalogueRetrieval(loss, temperature=0.5)
    if case["kind"] == "model":
        embedding = ItemEmbedding(NUM_ITEMS, 8, stddev=1.0, seed=1)
        tower = HistoryTower(embedding, encoder="mean")
        shares = np.arange(1.0, NUM_ITEMS + 1.0) / np.arange(1.0, NUM_ITEMS + 1.0).sum()
        model = TwoTowerModel(
            tower, ItemTower(embedding), task, in_batch_negatives=case["in_batch"],
            candidate_probabilities=shares if case["in_batch"] else None,
        )
        model.embed_queries({"history": tf.constant(batch["history"])})
        dense = [v for v in model.trainable_variables if v.shape[0] != NUM_ITEMS + 1]
        for number, variable in enumerate(dense):
            values = np.random.default_rng(number).normal(size=variable.shape)
            variable.assign(values.astype("float32"))
        variables = model.trainable_variables
    else:
        queries = tf.Variable(random.normal(size=(BATCH, 8)).astype("float32"))
        items = tf.Variable(random.normal(size=(NUM_ITEMS, 8)).astype("float32"))
        variables = [queries, items]


def compute(history, item_id, negative, known_ids, weight, rows, item_names, known_names):
    if case["kind"] == "model":
        features = {"history": history, "item_id": item_id, "negative_item_id": negative,
                    "known_item_ids": known_ids}
        return model.compute_loss(features, training=True)
    candidates = tf.concat([item_id, negative], axis=0)
    if case["kind"] == "catalogue":
        return whole(tf.gather(queries, rows), tf.convert_to_tensor(items), item_id, weight)
    return task(
        tf.gather(queries, rows), tf.gather(items, candidates), sample_weight=weight,
        candidate_sampling_probability=tf.cast(candidates + 1, tf.float32) / 1000.0,
        candidate_ids=tf.concat([item_names, tf.gather(names, negative)], axis=0),
        known_positive_ids=known_names,
    )


inputs = [
    part(batch["history"]), part(batch["item_id"]), part(negatives, PER_EXAMPLE), part(known),
    part(weights), part(np.arange(BATCH)), part(names[batch["item_id"]]), part(names[known]),
]


def step(*given):
    with tf.GradientTape() as tape:
        value = compute(*given)
    gradients = [tf.convert_to_tensor(g) for g in tape.gradient(value, variables)]
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync > 1:
        value, *gradients = context.all_reduce("SUM", [value, *gradients])
    return value, gradients


value, gradients = tf.function(lambda: strategy.run(step, args=tuple(inputs)))()
local = [strategy.experimental_local_results(tensor)[0] for tensor in (value, *gradients)]
print(json.dumps([np.asarray(tensor).tolist() for tensor in local]))
"""

CASES = [
    {"kind": "model", "lambda": True, "alpha": 1.0, "reduction": "sum_over_batch_size",
     "in_batch": False},
    {"kind": "model", "lambda": False, "alpha": 1.2, "reduction": "sum", "in_batch": True},
    {"kind": "task", "lambda": True, "alpha": 0.8, "reduction": "sum_over_batch_size"},
    {"kind": "catalogue", "lambda": False, "alpha": 1.0, "reduction": "sum_over_batch_size"},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['kind']}-{case['reduction']}")
def test_parts_of_a_batch_give_the_loss_and_gradients_of_the_whole(
    case: dict[str, Any], run_python: Callable[..., str]
) -> None:
    def step(sizes: list[int]) -> list[np.ndarray]:
        printed = run_python(PROGRAM % json.dumps([sizes, case]))
        return [np.array(values) for values in json.loads(printed.splitlines()[-1])]

    whole = step([12])
    assert all(np.abs(gradient).max() > 1e-4 for gradient in whole[1:])
    for sizes in ([6, 6], [7, 1, 4, 0]):
        for alone, together in zip(whole, step(sizes)):
            np.testing.assert_allclose(together, alone, rtol=2e-4, atol=2e-6)
