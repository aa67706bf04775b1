"""Time and memory of the exact loss over a whole catalogue: ``python -m benchmarks.catalogue``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from benchmarks import harness

import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

import tfrs_croloss  # isort: skip

DIM = 32
BOOKS, TAOBAO = (256, 313_966), (512, 1_708_530)
Step = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], list[tf.Tensor]]


def loss() -> tfrs_croloss.losses.RetrievalLoss:
    """The paper's best loss for large catalogues that all forms here can compute."""
    return tfrs_croloss.LambdaCROLoss(1.0, "sigmoid", "softplus")


def fused(queries: tf.Tensor, items: tf.Tensor, positives: tf.Tensor) -> list[tf.Tensor]:
    """The library's loss, which is computed block by block."""
    task = tfrs_croloss.tasks.CatalogueRetrieval(loss(), temperature=0.1)
    with tf.GradientTape() as tape:
        tape.watch([queries, items])
        value = task(queries, items, positives)
    return tape.gradient(value, [queries, items])


def plain(queries: tf.Tensor, items: tf.Tensor, positives: tf.Tensor) -> list[tf.Tensor]:
    """The formula in plain TensorFlow, differentiated automatically."""
    with tf.GradientTape() as tape:
        tape.watch([queries, items])
        scores = tf.matmul(queries, items, transpose_b=True) / 0.1
        gaps = scores - tf.gather(scores, positives, batch_dims=1)[:, tf.newaxis]
        others = 1.0 - tf.one_hot(positives, tf.shape(items)[0])
        rank = 1.0 + tf.reduce_sum(others * tf.sigmoid(gaps), axis=1)
        soft_rank = 1.0 + tf.reduce_sum(others * tf.math.softplus(gaps), axis=1)
        value = tf.reduce_mean(tf.stop_gradient(1.0 / rank) * soft_rank)
    return tape.gradient(value, [queries, items])


def products(queries: tf.Tensor, items: tf.Tensor, positives: tf.Tensor) -> list[tf.Tensor]:
    """Three matrix products in blocks of the same size, and nothing else."""
    most = tfrs_croloss.losses._blockwise.most_rows(items, None)
    size = int(tfrs_croloss.losses._blockwise.rows_per_block(tf.shape(queries)[0], most))
    item_part, query_parts = tf.zeros_like(items), []
    for first in range(0, queries.shape[0], size):
        block = queries[first : first + size]
        scores = tf.matmul(block, items, transpose_b=True)
        query_parts.append(tf.matmul(scores, items))
        item_part += tf.matmul(scores, block, transpose_a=True)
    return [tf.concat(query_parts, axis=0), item_part]


FORMS: dict[str, Step] = {"fused": fused, "plain": plain, "blocked products": products}


def problem(num_queries: int, num_items: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Random unit vectors, and a positive for each query."""
    random = np.random.default_rng(0)
    queries, items = (
        tf.math.l2_normalize(random.standard_normal((rows, DIM), dtype=np.float32), axis=1)
        for rows in (num_queries, num_items)
    )
    return queries, items, tf.constant(random.integers(0, num_items, num_queries), tf.int32)


def call(form: str, num_queries: int, num_items: int) -> Callable[[], object]:
    """A call of one form on its own random problem."""
    arguments = problem(num_queries, num_items)
    # The products are few and large, so that running them eagerly makes no difference.
    step = FORMS[form] if form == "blocked products" else tf.function(FORMS[form])
    return lambda: step(*arguments)[1][0, 0].numpy()


def extra_memory(form: str, num_queries: int, num_items: int) -> float:
    """All bytes that a step takes beyond the embeddings, measured in its own process."""
    peaks = [
        harness.peak_memory_of(
            "benchmarks.catalogue",
            "--form",
            form,
            "--shape",
            str(num_queries),
            str(num_items),
            "--calls",
            str(calls),
        )
        for calls in (0, 2)
    ]
    return peaks[1] - peaks[0]


def main() -> int:
    """Prints the tables; fails if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--form", choices=FORMS, help="run only this form, to measure its peak memory"
    )
    parser.add_argument("--shape", type=int, nargs=2)
    parser.add_argument("--calls", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.form:
        step = call(arguments.form, *arguments.shape)
        for _ in range(arguments.calls):
            step()
        return 0
    met = harness.report(
        "Exact loss: {:,} queries, {:,} items, D=32".format(*BOOKS),
        harness.time_in_turns({name: call(name, *BOOKS) for name in FORMS}, arguments.repeats),
        [harness.Target("fused", "plain", 0.4, at_most=True)],
    )
    ours, theirs = (extra_memory(form, *BOOKS) for form in ("fused", "plain"))
    print(f"extra memory: fused {ours / 1e9:.2f} GB, plain {theirs / 1e9:.2f} GB")
    met &= harness.check("fused / plain, extra memory", ours / theirs, 0.2)
    large = {name: call(name, *TAOBAO) for name in ("fused", "blocked products")}
    smaller = call("fused", TAOBAO[0], TAOBAO[1] // 10)
    met &= harness.report(
        "Exact loss: {:,} queries, {:,} items, D=32".format(*TAOBAO),
        harness.time_in_turns({**large, "fused, a tenth of the items": smaller}, arguments.repeats),
        [
            harness.Target("fused", "blocked products", 1.6, at_most=True),
            harness.Target("fused", "fused, a tenth of the items", 10.5, at_most=True),
        ],
    )
    extra = extra_memory("fused", *TAOBAO)
    met &= harness.check("fused, extra memory in GB", extra / 1e9, 1.2)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
