"""The cost of the training input compared with training itself: ``python -m benchmarks.input``.

Input that is gathered while ``fit`` computes should cost next to nothing, so ``fit`` is timed with
the real input and with the same batches from memory, and the input is timed alone: for one example
per position, and for whole sequences, of which every position is trained on, with side features of
the users and of the interactions.
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
from pipelines.data.batches import ExampleColumns  # isort: skip
from pipelines.data.features import CATEGORY, NUMBER, Column, FeatureSpec  # isort: skip
from pipelines.data.prepared import Split  # isort: skip
from pipelines.data.sequences import training_input  # isort: skip
from pipelines.runs.features import RunFeatures, library_feature  # isort: skip
from pipelines.runs.settings import TrainSettings  # isort: skip
from tfrs_croloss.models import SideFeature  # isort: skip

_VALUES = 100


def random_split(num_interactions: int, num_items: int, seed: int = 0) -> Split:
    """Random users with 5 to 95 items each, whose popularity has a long tail."""
    random = np.random.default_rng(seed)
    lengths = random.integers(5, 96, num_interactions // 50)
    items = (num_items * random.random(int(lengths.sum()), np.float32) ** 3).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Split("train", np.minimum(items, num_items - 1), offsets, None, Path())


def random_features(split: Split) -> tuple[RunFeatures, ExampleColumns]:
    """A category and a number of each user, and of each interaction, with random values."""
    random = np.random.default_rng(1)
    features: dict[str, dict[str, SideFeature]] = {}
    columns: dict[str, dict[str, Column]] = {}
    for of, size in (("user", split.num_users), ("context", len(split.items))):
        specs = [
            FeatureSpec(
                of,
                f"{of}_category",
                CATEGORY,
                "",
                {"integers": False},
                tuple(f"value {value}" for value in range(_VALUES)),
            ),
            FeatureSpec(of, f"{of}_number", NUMBER, "", {"mean": 0.0, "deviation": 1.0}),
        ]
        features[of] = {spec.name: library_feature(spec, 8) for spec in specs}
        values = (
            random.integers(0, 1 + _VALUES, size, np.int32),
            random.standard_normal(size, np.float32),
        )
        columns[of] = {spec.name: Column(spec, each) for spec, each in zip(specs, values)}
    return (
        RunFeatures(user=features["user"], context=features["context"]),
        ExampleColumns(user=columns["user"], context=columns["context"]),
    )


def contenders(
    split: Split, num_items: int, settings: TrainSettings, steps: int, with_features: bool = False
) -> dict[str, Callable[[], object]]:
    """The functions to time, each with ``steps`` steps."""
    features, columns = random_features(split) if with_features else (None, None)
    source = training_input(split, num_items, settings.window_options, columns)
    model = build_model(settings, num_items, features=features)
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
    # About as many positions in a batch, with as many negatives.
    sequences = TrainSettings(
        rank_kernel="sigmoid",
        encoder="transformer",
        min_history=1,
        history_length=50,
        batch_size=max(args.batch_size // 32, 1),
        negatives_per_example=32 * settings.negatives_per_example,
    )
    met = True
    for title, own, with_features in (
        (f"examples, history of {settings.history_length}", settings, False),
        (f"sequences of {sequences.history_length} with four features", sequences, True),
    ):
        seconds = harness.time_in_turns(
            contenders(split, args.items, own, args.steps, with_features), repeats=args.repeats
        )
        met &= harness.report(
            f"{args.steps} steps of {own.batch_size} {title}, {own.negatives_per_example} "
            f"negatives each, {len(split.items):,} interactions, {args.items:,} items",
            seconds,
            [
                harness.Target("fit", "input alone", 5.0),
                harness.Target("fit", "fit, batches in memory", 1.2, at_most=True),
            ],
        )
        for name in seconds:
            rate = args.steps * own.batch_size / statistics.median(seconds[name])
            print(f"{name}: {rate:,.0f} examples/s")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
