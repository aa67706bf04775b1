"""The cost of the training input compared with training itself: ``python -m benchmarks.input``.

Input that is gathered while ``fit`` computes should cost next to nothing, so ``fit`` is timed with
the real input and with the same batches from memory, and the input is timed alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import harness

import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

from pipelines.runs.build import build_model, build_optimizer  # isort: skip
from pipelines.data.batches import TrainingInput  # isort: skip
from pipelines.data.prepared import Split  # isort: skip
from pipelines.runs.settings import TrainSettings  # isort: skip


def random_split(num_interactions: int, num_items: int, seed: int = 0) -> Split:
    """Random users with 5 to 95 items each, whose popularity has a long tail."""
    random = np.random.default_rng(seed)
    lengths = random.integers(5, 96, num_interactions // 50)
    items = (num_items * random.random(int(lengths.sum()), np.float32) ** 3).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Split("train", np.minimum(items, num_items - 1), offsets, None, Path())


def contenders(
    split: Split, num_items: int, settings: TrainSettings, steps: int
) -> dict[str, Callable[[], object]]:
    """The functions to time, each with ``steps`` steps."""
    source = TrainingInput(split, num_items, settings.window_options)
    model = build_model(settings, num_items)
    model.compile(build_optimizer(settings, num_items, steps))
    # Both are built once, as in a training run, since building traces a function for about 0.1 s.
    gathered = source.dataset(0, steps)
    in_memory = source.dataset(0, steps).cache()
    for _ in in_memory:
        pass

    def read() -> None:
        for _ in gathered:
            pass

    def fit(dataset: tf.data.Dataset) -> None:
        model.fit(dataset, steps_per_epoch=steps, verbose=0)

    return {
        "input alone": read,
        "fit": lambda: fit(gathered),
        "fit, batches in memory": lambda: fit(in_memory),
    }


def main() -> int:
    """Runs the benchmark; the exit code is 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interactions", type=int, default=10_000_000)
    parser.add_argument("--items", type=int, default=1_700_000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    split = random_split(args.interactions, args.items)
    settings = TrainSettings(rank_kernel="sigmoid", batch_size=args.batch_size)
    seconds = harness.time_in_turns(
        contenders(split, args.items, settings, args.steps), repeats=args.repeats
    )
    met = harness.report(
        f"{args.steps} steps of {args.batch_size} examples, history of {settings.history_length}, "
        f"{settings.negatives_per_example} negatives each, {len(split.items):,} interactions, "
        f"{args.items:,} items",
        seconds,
        [
            harness.Target("fit", "input alone", 5.0),
            harness.Target("fit", "fit, batches in memory", 1.2, at_most=True),
        ],
    )
    for name in seconds:
        rate = args.steps * args.batch_size / statistics.median(seconds[name])
        print(f"{name}: {rate:,.0f} examples/s")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
