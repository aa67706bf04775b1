"""A program that computes ranks over a sharded catalogue and over the same catalogue in one tensor.

It needs a process of its own, since devices have to be configured before TensorFlow starts. It
prints both kinds of ranks for each case.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.replica_steps import mirrored_strategy

NUM_REPLICAS, DIM, NUM_QUERIES = 4, 8, 23


def ranks(case: dict[str, Any], strategy: Any) -> dict[str, Any]:
    """Both kinds of ranks, or the error of the sharded catalogue."""
    from tfrs_croloss.metrics import ShardedCatalogue, exact_ranks

    num_items = case["num_items"]
    random = np.random.default_rng(case["seed"])
    table = random.normal(size=(num_items, DIM)).astype(np.float32)
    # Copies of items in other shards, so that there are ties across shards.
    table[num_items // 2 :] = table[: num_items - num_items // 2]
    for row in case.get("broken", ()):
        table[row] = np.nan
    queries = random.normal(size=(NUM_QUERIES, DIM)).astype(np.float32)
    rows = np.sort(random.integers(0, NUM_QUERIES, 60))
    positives = random.integers(0, num_items, 60)
    options: dict[str, Any] = {"query_rows": rows, "candidate_block_size": 7}
    if case.get("excluded"):
        options["excluded"] = [
            random.integers(0, num_items, 3).tolist() for _ in range(NUM_QUERIES)
        ]
        options["excluded_positives"] = "miss"
    with strategy.scope():
        variable = tf.Variable(table)
    try:
        catalogue = ShardedCatalogue(
            strategy, lambda ids: tf.gather(variable, ids), num_items, block_size=5
        )
    except ValueError as error:
        return {"error": str(error)}
    parts = strategy.experimental_local_results(catalogue._parts)
    return {
        "sizes": [len(part) for part in parts],
        "lengths": np.linalg.norm(table, axis=1).tolist(),
        "longest": [catalogue.longest_item, catalogue.largest_norm],
        "in_parts": exact_ranks(queries, catalogue, positives, **options).tolist(),
        "in_one": exact_ranks(queries, table, positives, **options).tolist(),
    }


def main(cases: str) -> None:
    """Prints a list with an entry for each case."""
    mirrored = mirrored_strategy(NUM_REPLICAS)
    print(json.dumps([ranks(case, mirrored) for case in json.loads(cases)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
