"""Approximate indexes compared with TFRS' BruteForce: ``python -m benchmarks.index``."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Mapping

from benchmarks import harness

import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip
import tensorflow_recommenders as tfrs  # isort: skip

from tfrs_croloss.indexes.tuning import Measurement, build_index, measure, tune  # isort: skip
from tfrs_croloss.indexes import BruteForceIndex, Index, PartitionedIndex  # isort: skip

BASELINE = "TFRS BruteForce"
# The speed-ups that each kind should reach for single queries and for a batch.
TARGETS = {"scann": (30.0, 30.0), "partitioned": (10.0, 4.0)}
NUM_QUERIES = 512
# Catalogues on which an index without settings is measured: the numbers of items and of clusters,
# and the speed-up over exact search that it should reach at least.
DEFAULTS = ((1_664, 40, 0.5), (166_400, 400, 2.0), (166_400, 0, 0.8))
DEFAULT_RECALL = 0.95

Search = Callable[[tf.Tensor], object]


def clustered(
    num_rows: int, centres: np.ndarray, spread: float, random: np.random.Generator
) -> np.ndarray:
    """Unit vectors ``[num_rows, dim]`` around centres, some of which are far more popular."""
    popularity = np.arange(1, len(centres) + 1) ** -0.5
    chosen = random.choice(len(centres), num_rows, p=popularity / popularity.sum())
    rows = centres[chosen]
    rows += spread / np.sqrt(centres.shape[1]) * random.standard_normal(rows.shape, np.float32)
    return unit(rows)


def tuned_index(
    kind: str, embeddings: np.ndarray, queries: list[np.ndarray], top_n: int, target: float
) -> tuple[Index, float]:
    """An index with settings that reach the target, and its recall on other queries."""
    start = time.perf_counter()
    index = build_index(kind, embeddings)
    built = time.perf_counter()
    print(f"{kind}: built in {built - start:.0f} s", flush=True)
    index, tried, _ = tune(
        index,
        queries[0],
        queries[1],
        top_n=top_n,
        recall_target=target,
        rebuild=False,
        on_progress=lambda one: print(f"  {describe(one)}", flush=True),
    )
    tuned = time.perf_counter()
    recall = measure(index, queries[2], top_n).recall
    print(
        f"{kind}: {len(tried)} settings tried in {tuned - built:.0f} s, {index.settings()}",
        flush=True,
    )
    return index, recall


def describe(measured: Measurement) -> str:
    """One line about a measurement."""
    names = ("leaves_to_search", "reorder")
    settings = ", ".join(f"{name} {measured.settings.get(name, '-')}" for name in names)
    return (
        f"{settings}: recall {measured.recall:.4f}, {measured.single_ms:.1f} ms single, "
        f"{measured.batch_ms:.0f} ms batch"
    )


def baseline_search(embeddings: np.ndarray, top_n: int) -> Search:
    """TFRS' exact layer, as a server runs it."""
    layer = tfrs.layers.factorized_top_k.BruteForce(k=top_n).index(tf.constant(embeddings))
    signature = [tf.TensorSpec([None, embeddings.shape[1]], tf.float32)]
    compiled = tf.function(lambda queries: layer(queries), input_signature=signature)
    return lambda queries: compiled(queries)[0].numpy()


def compiled_search(index: Index, top_n: int) -> Search:
    """The search of an index, as a server runs it."""
    compiled = tf.function(
        lambda queries: index.search(queries, top_n),
        input_signature=[tf.TensorSpec([None, index.dim], tf.float32)],
    )
    return lambda queries: compiled(queries)[0].numpy()


def measure_defaults(dim: int, top_n: int, random: np.random.Generator) -> bool:
    """Measures `PartitionedIndex` without settings; returns whether the targets are met."""
    met = True
    for num_items, num_centres, speed_up in DEFAULTS:
        if num_centres:
            centres = unit(random.standard_normal((num_centres, dim), np.float32))
            rows = clustered(num_items + NUM_QUERIES, centres, 0.75, random)
        else:
            rows = unit(random.standard_normal((num_items + NUM_QUERIES, dim), np.float32))
        items, queries = rows[:num_items], rows[num_items:]
        exact, index = BruteForceIndex(items), PartitionedIndex(items)
        recall = measure(index, queries, top_n).recall
        met &= recall >= DEFAULT_RECALL
        seconds = harness.time_in_turns(
            {
                "BruteForceIndex": searching(exact, queries, top_n),
                "PartitionedIndex": searching(index, queries, top_n),
            },
            repeats=50,
            warm_up=2,
        )
        met &= harness.report(
            f"{num_items:,} items in {num_centres or 'no'} clusters, defaults, single queries: "
            f"{index.leaves_to_search} of {index.num_leaves} leaves, Recall@{top_n} {recall:.4f} "
            f"(at least {DEFAULT_RECALL}: {'met' if recall >= DEFAULT_RECALL else 'MISSED'})",
            seconds,
            [harness.Target("BruteForceIndex", "PartitionedIndex", speed_up)],
        )
    return met


def measure_eager(dim: int, top_n: int, random: np.random.Generator) -> bool:
    """Times exact search outside of a ``tf.function`` and inside of one."""
    rows = random.standard_normal((1_664, dim), np.float32)
    index, queries = BruteForceIndex(rows), tf.constant(rows[:1])
    compiled = compiled_search(index, top_n)
    return harness.report(
        "1,664 items, exact search, single queries",
        harness.time_in_turns(
            {
                "inside": lambda: compiled(queries),
                "outside": lambda: index.search(queries, top_n)[0].numpy(),
            },
            repeats=200,
            warm_up=5,
        ),
        [harness.Target("outside", "inside", 1.5, at_most=True)],
    )


def searching(index: Index, queries: np.ndarray, top_n: int) -> Callable[[], object]:
    """A function that searches for one query after the other."""
    turns = itertools.cycle(tf.constant(queries[:, np.newaxis]))
    return lambda: index.search(next(turns), top_n)[0].numpy()


def unit(rows: np.ndarray) -> np.ndarray:
    """The rows, scaled to the length 1."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def compare(
    searches: Mapping[str, Search], queries: np.ndarray, batch_size: int, repeats: int, title: str
) -> bool:
    """Times the searches on batches of one size; returns whether the targets are met."""
    batches = [
        tf.constant(queries[first : first + batch_size])
        for first in range(0, len(queries) - batch_size + 1, batch_size)
    ]

    def call(search: Search) -> Callable[[], object]:
        turns = itertools.cycle(batches)
        return lambda: search(next(turns))

    seconds = harness.time_in_turns(
        {name: call(search) for name, search in searches.items()}, repeats, warm_up=2
    )
    column = 0 if batch_size == 1 else 1
    return harness.report(
        title,
        seconds,
        [
            harness.Target(BASELINE, kind, TARGETS[kind][column])
            for kind in searches
            if kind in TARGETS
        ],
    )


def main() -> int:
    """Prints recall and a table for single queries and batches; fails if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--top-n", type=int, default=100)
    parser.add_argument("--recall-target", type=float, default=0.95)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--centres", type=int, default=2_000)
    parser.add_argument(
        "--spread",
        type=float,
        default=0.75,
        help="standard deviation of the noise, relative to centres of length 1",
    )
    parser.add_argument("--kinds", nargs="+", choices=sorted(TARGETS), default=sorted(TARGETS))
    parser.add_argument("--single-repeats", type=int, default=50)
    parser.add_argument("--batch-repeats", type=int, default=5)
    parser.add_argument("--defaults-only", action="store_true", help="leave out tuned indexes")
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    met = measure_eager(arguments.dim, arguments.top_n, random)
    met &= measure_defaults(arguments.dim, arguments.top_n, random)
    if arguments.defaults_only:
        return 0 if met else 1
    centres = unit(random.standard_normal((arguments.centres, arguments.dim), np.float32))
    embeddings = clustered(arguments.items, centres, arguments.spread, random)
    queries = [clustered(NUM_QUERIES, centres, arguments.spread, random) for _ in range(3)]

    searches = {BASELINE: baseline_search(embeddings, arguments.top_n)}
    for kind in arguments.kinds:
        index, recall = tuned_index(
            kind, embeddings, queries, arguments.top_n, arguments.recall_target
        )
        reached = recall >= arguments.recall_target
        met &= reached
        print(
            f"{kind}: Recall@{arguments.top_n} {recall:.4f} on {NUM_QUERIES} other queries (at "
            f"least {arguments.recall_target:g}: {'met' if reached else 'MISSED'})\n",
            flush=True,
        )
        searches[kind] = compiled_search(index, arguments.top_n)
    where = f"of {arguments.items:,} items, D={arguments.dim}"
    top = f"Top {arguments.top_n} {where}"
    met &= compare(searches, queries[2], 1, arguments.single_repeats, f"{top}: single queries")
    met &= compare(
        searches,
        queries[2],
        arguments.batch_size,
        arguments.batch_repeats,
        f"{top}: batches of {arguments.batch_size}",
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
