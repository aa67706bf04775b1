"""The cost of a loss with its gradients, compared with TFRS: ``python -m benchmarks.losses``."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable

from benchmarks import harness

import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip
import tensorflow_recommenders as tfrs  # isort: skip

import tfrs_croloss  # isort: skip

SHAPES = ((512, 5632, 32), (4096, 4096, 64))
KERNELS = ("hinge", "sigmoid", "exponential", "softplus")
BASELINE, PRODUCTS = "TFRS softmax", "three bare products"
ON_SCORES = ", in TFRS' task"


def losses() -> dict[str, tfrs_croloss.losses.RetrievalLoss]:
    """A loss for every kernel, and for every kernel with every rank kernel of the paper."""
    named = {f"CRO {kernel}": tfrs_croloss.CROLoss(1.2, kernel, 10**6) for kernel in KERNELS}
    for rank_kernel, kernel in itertools.product(("sigmoid", "unit_step"), KERNELS):
        named[f"lambda {rank_kernel}/{kernel}"] = tfrs_croloss.LambdaCROLoss(
            1.2, rank_kernel, kernel, 10**6
        )
    return named


def contenders(num_queries: int, num_candidates: int, dim: int) -> dict[str, Callable[[], object]]:
    """The functions to time, on cosine scores times ten."""
    random = np.random.default_rng(0)
    queries, candidates = (
        tf.Variable(
            tf.math.l2_normalize(random.standard_normal((rows, dim), dtype=np.float32), axis=1)
        )
        for rows in (num_queries, num_candidates)
    )

    def step(task: tf.keras.layers.Layer) -> Callable[[], object]:
        @tf.function
        def forward_and_backward() -> tuple[tf.Tensor, list[tf.Tensor]]:
            with tf.GradientTape() as tape:
                loss = task(queries, candidates, compute_metrics=False)
            return loss, tape.gradient(loss, [queries, candidates])

        return lambda: forward_and_backward()[1][1][0, 0].numpy()

    @tf.function
    def products() -> tuple[tf.Tensor, tf.Tensor]:
        scores = tf.matmul(queries, candidates, transpose_b=True)
        return tf.matmul(scores, candidates), tf.matmul(scores, queries, transpose_a=True)

    return {
        BASELINE: step(tfrs.tasks.Retrieval(temperature=0.1)),
        PRODUCTS: lambda: products()[1][0, 0].numpy(),
        **{
            name: step(tfrs_croloss.tasks.Retrieval(loss, temperature=0.1))
            for name, loss in losses().items()
        },
        **{
            name + ON_SCORES: step(tfrs.tasks.Retrieval(loss, temperature=0.1))
            for name, loss in losses().items()
        },
    }


def main() -> int:
    """Prints a table for each shape; fails if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    met = True
    for shape in SHAPES:
        seconds = harness.time_in_turns(contenders(*shape), arguments.repeats, warm_up=3)
        targets = [
            harness.Target(name, other, ratio, at_most=True)
            for name in losses()
            for other, ratio in ((BASELINE, 1.0), (PRODUCTS, 2.5))
        ]
        title = "Forward and backward: {:,} queries, {:,} candidates, D={}".format(*shape)
        met &= harness.report(title, seconds, targets)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
