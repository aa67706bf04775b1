"""Checks the cost model of docs/guide/scaling.md: ``python -m benchmarks.scaling``.

- Time of a step: four coefficients are fitted to some shapes and predict the others.
- Bytes between replicas: two processes train over the loopback interface, whose counters are read.
- Memory: the size of the tables of training is compared with the growth of the process.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable

from benchmarks import harness

import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

import tfrs_croloss  # isort: skip
from tfrs_croloss import models, optimizers, tasks  # isort: skip

ROOT = pathlib.Path(__file__).resolve().parents[1]
HISTORY = 20


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a training step.

    Attributes:
      batch: number of examples in the global batch.
      negatives: number of negatives that the batch shares.
      dim: dimension of the embeddings.
      items: number of items in the catalogue.
    """

    batch: int
    negatives: int
    dim: int
    items: int = 200_000

    @property
    def candidates(self) -> int:
        """Number of items that each query is compared with."""
        return self.batch + self.negatives

    @property
    def rows(self) -> int:
        """Number of rows of the table that a step reads and writes gradients for."""
        return self.batch * HISTORY + self.candidates

    def terms(self) -> np.ndarray:
        """The terms of the time of a step: a constant, products, scores and rows."""
        scores = self.batch * self.candidates
        return np.array([1.0, scores * self.dim, scores, self.rows * self.dim])


FITTED = (
    Shape(128, 1_280, 32),
    Shape(256, 2_560, 32),
    Shape(512, 5_120, 32),
    Shape(512, 2_560, 64),
    Shape(1_024, 5_120, 32),
    Shape(256, 5_120, 128),
    Shape(128, 10_240, 64),
)
PREDICTED = (
    Shape(384, 3_840, 32),
    Shape(512, 5_120, 64),
    Shape(1_024, 10_240, 32),
    Shape(512, 5_120, 32, items=1_700_000),
)


def bytes_between_replicas(shape: Shape, replicas: int) -> float:
    """The bytes that all replicas together send in one step, with four bytes per number.

    Candidates with their ids and a flag are sent to all replicas; their gradients are summed in a
    ring; the rows of the table's gradient are sent to all replicas with their 8-byte row numbers;
    the dense layer's gradient is summed in a ring.
    """
    others = replicas - 1
    gathered = others * shape.candidates * (4 * shape.dim + 8)
    returned = 2 * others * shape.candidates * 4 * shape.dim
    table = others * shape.rows * (4 * shape.dim + 8)
    dense = 2 * others * 4 * (shape.dim + 1) * shape.dim
    return gathered + returned + table + dense


def bytes_of_tables(shape: Shape) -> float:
    """The bytes of the table and its two moments, with four bytes per number."""
    return 3.0 * 4.0 * shape.items * shape.dim


def step_function(shape: Shape) -> Callable[[], float]:
    """A function that takes one step of the model that ``train`` builds."""
    loss = tfrs_croloss.LambdaCROLoss(1.0, num_items=shape.items)
    embedding = models.ItemEmbedding(shape.items, shape.dim)
    model = models.TwoTowerModel(
        models.HistoryTower(embedding),
        models.ItemTower(embedding),
        tasks.Retrieval(loss, temperature=0.1),
    )
    model.compile(optimizers.LazyAdam(0.02))
    random = np.random.default_rng(0)
    sizes = {"history": (shape.batch, HISTORY), "item_id": (shape.batch,)}
    sizes["negative_item_id"] = (shape.negatives,)
    batch = {
        name: tf.constant(random.integers(0, shape.items, size), tf.int32)
        for name, size in sizes.items()
    }
    step = tf.function(lambda: model.train_step(batch)["loss"])
    return lambda: float(step())


def check_time(repeats: int) -> bool:
    """Prints predicted and measured times; returns whether all are within a third."""
    shapes = [*FITTED, *PREDICTED]
    seconds = harness.time_in_turns(
        {str(number): step_function(shape) for number, shape in enumerate(shapes)},
        repeats,
        warm_up=2,
    )
    measured = np.array([np.median(seconds[str(number)]) for number in range(len(shapes))])
    terms = np.array([shape.terms() for shape in shapes])
    count = len(FITTED)
    coefficients = _fit(terms[:count] / measured[:count, np.newaxis])
    predicted = terms @ coefficients
    names = ("s per step", "s per multiply-add", "s per score", "s per number of a row")
    for name, value in zip(names, coefficients):
        print(f"{name:<34} {value:.3g}")
    print(f"\n{'batch':>6} {'negatives':>9} {'dim':>4} {'items':>10} {'ms':>8} {'model':>8}")
    for number, shape in enumerate(shapes):
        print(
            f"{shape.batch:>6} {shape.negatives:>9,} {shape.dim:>4} {shape.items:>10,} "
            f"{1e3 * measured[number]:>8.1f} {1e3 * predicted[number]:>8.1f}"
            + ("" if number < count else "  not fitted")
        )
    errors = np.abs(predicted / measured - 1.0)[count:]
    print(f"largest error on shapes that were not fitted: {errors.max():.0%} (at most 33%)\n")
    return bool(errors.max() <= 1 / 3)


def _fit(terms: np.ndarray) -> np.ndarray:
    """Non-negative coefficients with ``terms @ coefficients`` close to 1."""
    active = list(range(terms.shape[1]))
    while True:
        values = np.linalg.lstsq(terms[:, active], np.ones(len(terms)), rcond=None)[0]
        if (values >= 0).all():
            coefficients = np.zeros(terms.shape[1])
            coefficients[active] = values
            return coefficients
        del active[int(np.argmin(values))]


def check_bytes(shape: Shape) -> bool:
    """Prints predicted and counted bytes per step; returns whether they are within a third."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        _pipelines("synthesize", "--out", folder / "log.csv", "--users", 2_000, "--items", 1_500)
        _pipelines(
            "prepare", "--source", "csv", "--input", folder / "log.csv", "--out", folder / "data"
        )
        counted = [_loopback_bytes(folder, shape, steps) for steps in (20, 120)]
    per_step = (counted[1] - counted[0]) / 100
    expected = bytes_between_replicas(shape, 2)
    print(
        f"two processes, batch {shape.batch}, {shape.negatives:,} negatives, dim {shape.dim}: "
        f"{per_step / 1e6:.2f} MB per step counted, {expected / 1e6:.2f} predicted (within 33%)\n"
    )
    return abs(per_step / expected - 1.0) <= 1 / 3


def _loopback_bytes(folder: pathlib.Path, shape: Shape, steps: int) -> int:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    before = _received()
    processes = []
    for kind in ("chief", "worker"):
        cluster = {"chief": addresses[:1], "worker": addresses[1:]}
        config = {"cluster": cluster, "task": {"type": kind, "index": 0}}
        processes.append(
            subprocess.Popen(
                [
                    *_command("train", "--strategy", "multi-worker"),
                    *map(str, ("--data", folder / "data", "--out", folder / f"run-{steps}")),
                    *map(str, ("--batch-size", shape.batch, "--dim", shape.dim)),
                    *("--negatives-per-example", str(shape.negatives // shape.batch)),
                    *("--optimizer", "lazy-adam", "--rank-kernel", "sigmoid"),
                    *("--max-steps", str(steps), "--steps-per-epoch", str(steps)),
                ],
                cwd=ROOT,
                env={**os.environ, "TF_CONFIG": json.dumps(config)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    for process in processes:
        _, errors = process.communicate(timeout=900)
        if process.returncode:
            raise RuntimeError(errors[-2000:])
    return _received() - before


def _received() -> int:
    for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    raise RuntimeError("there is no loopback interface whose bytes can be counted")


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pipelines", *arguments]


def _pipelines(*arguments: object) -> None:
    command = _command(*map(str, arguments))
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


def check_memory(shape: Shape) -> bool:
    """Prints predicted and measured memory growth; returns whether they are within a third."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = step_function(shape)
    step()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    expected = bytes_of_tables(shape)
    print(
        f"{shape.items:,} items, dim {shape.dim}: {grown / 1e9:.2f} GB more after a step, "
        f"{expected / 1e9:.2f} predicted (within 33%)\n"
    )
    return abs(grown / expected - 1.0) <= 1 / 3


def main() -> int:
    """Prints all three comparisons; fails if the cost model is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    print(harness.environment() + "\n")
    # Memory comes first, since memory that is freed later could be reused unnoticed.
    met = check_memory(Shape(256, 2_560, 64, items=2_000_000))
    met &= check_time(arguments.repeats)
    met &= check_bytes(Shape(256, 2_560, 32))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
