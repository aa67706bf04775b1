"""Exact evaluation compared with TFRS' metrics: ``python -m benchmarks.evaluation``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from benchmarks import harness

import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip
import tensorflow_recommenders as tfrs  # isort: skip

from tfrs_croloss import metrics  # isort: skip

CUTOFFS = (50, 100, 200, 500)
OURS, PRODUCT = "evaluate", "bare matrix product"
BRUTE_FORCE, DATASET = "FactorizedTopK, BruteForce", "FactorizedTopK, dataset"


def contenders(
    num_queries: int, num_items: int, dim: int, seed: int = 0
) -> dict[str, Callable[[], object]]:
    """The functions to time, on a random problem in which positives score above average."""
    random = np.random.default_rng(seed)
    table = random.normal(size=(num_items, dim)).astype(np.float32)
    positives = random.integers(0, num_items, num_queries)
    queries = table[positives] + 2 * random.normal(size=(num_queries, dim)).astype(np.float32)
    candidates, query_tensor = tf.constant(table), tf.constant(queries)
    true_candidates = tf.gather(candidates, positives)

    index = tfrs.layers.factorized_top_k.BruteForce(k=max(CUTOFFS)).index(candidates)
    dataset = tf.data.Dataset.from_tensor_slices(candidates).batch(128)
    compared = {
        DATASET: tfrs.metrics.FactorizedTopK(dataset, ks=CUTOFFS),
        BRUTE_FORCE: tfrs.metrics.FactorizedTopK(index, ks=CUTOFFS),
        "FactorizedRecall": metrics.FactorizedRecall(candidates, ks=CUTOFFS),
    }

    def in_graph(metric: tfrs.metrics.Factorized) -> Callable[[], object]:
        @tf.function
        def update() -> None:
            metric.update_state(query_tensor, true_candidates)

        def call() -> object:
            update()
            return [float(value) for value in metric.result()]

        return call

    ours = metrics.evaluate(query_tensor, candidates, positives, cutoffs=CUTOFFS)
    calls = {name: in_graph(metric) for name, metric in compared.items()}
    for name, call in calls.items():
        call()
        first = float(compared[name].result()[0])
        if abs(first - ours.recall[50]) > 2.0 / num_queries:
            raise AssertionError(f"{name} has Recall@50 {first}, evaluate {ours.recall[50]}")
    return {
        PRODUCT: lambda: tf.matmul(query_tensor, candidates, transpose_b=True)[0, 0].numpy(),
        OURS: lambda: metrics.evaluate(query_tensor, candidates, positives, cutoffs=CUTOFFS),
        **calls,
    }


def main() -> int:
    """Prints a table for each dimension; fails if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=2048)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--dims", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--dataset-repeats",
        type=int,
        default=2,
        help="timed calls of the slowest baseline (%(default)s)",
    )
    arguments = parser.parse_args()
    met = True
    for dim in arguments.dims:
        calls = contenders(arguments.queries, arguments.items, dim)
        title = (
            f"Exact evaluation: {arguments.queries:,} queries, {arguments.items:,} items, D={dim}, "
            f"N up to {max(CUTOFFS)}"
        )
        # The slowest takes a hundred times as long, and is timed separately.
        slowest = {DATASET: calls.pop(DATASET)}
        met &= harness.report(
            title,
            harness.time_in_turns(calls, arguments.repeats),
            [
                harness.Target(BRUTE_FORCE, OURS, 6.0),
                harness.Target(OURS, PRODUCT, 2.5, at_most=True),
            ],
        )
        slowest[OURS] = calls[OURS]
        met &= harness.report(
            title,
            harness.time_in_turns(slowest, arguments.dataset_repeats, warm_up=0),
            [harness.Target(DATASET, OURS, 40.0)],
            baseline=OURS,
        )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
