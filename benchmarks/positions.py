"""Training on all positions in one pass against one example per position.

``python -m benchmarks.positions`` trains the same self-attention tower on the same sequences with
``--positions sequences`` and with ``--positions all``, and compares positions per second.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import harness

import numpy as np  # isort: skip

from pipelines.data.prepared import Split  # isort: skip
from pipelines.data.sequences import training_input  # isort: skip
from pipelines.runs.build import build_model, build_optimizer  # isort: skip
from pipelines.runs.settings import TrainSettings  # isort: skip

ONE_PASS, ONE_EACH = "one pass for all positions", "one example per position"


def random_sequences(num_users: int, length: int, num_items: int, seed: int = 0) -> Split:
    """Random users with ``length + 1`` items each, whose popularity has a long tail."""
    random = np.random.default_rng(seed)
    items = (num_items * random.random(num_users * (length + 1)) ** 3).astype(np.int32)
    offsets = np.arange(num_users + 1, dtype=np.int64) * (length + 1)
    return Split("train", items, offsets, None, Path())


def contenders(
    split: Split, num_items: int, settings: TrainSettings, num_positions: int
) -> dict[str, Callable[[], object]]:
    """Functions that train on ``num_positions`` positions each, in batches of equal size."""
    length, batch_size = settings.history_length, settings.batch_size
    steps = num_positions // (batch_size * length)
    found: dict[str, Callable[[], object]] = {}
    for name, own in (
        (
            ONE_PASS,
            dataclasses.replace(settings, positions="sequences", negatives_per_example=length),
        ),
        # As many positions, and as many negatives, in a batch.
        (
            ONE_EACH,
            dataclasses.replace(
                settings,
                positions="all",
                batch_size=batch_size * length,
                negatives_per_example=1,
            ),
        ),
    ):
        source = training_input(split, num_items, own.window_options)
        model = build_model(own, num_items)
        model.compile(build_optimizer(own, num_items, steps))
        # The dataset is built once, as in a training run.
        found[name] = functools.partial(
            model.fit, source.dataset(0, steps), steps_per_epoch=steps, verbose=0
        )
    return found


def main() -> int:
    """Runs the benchmark; the exit code is 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--users", type=int, default=2_000)
    parser.add_argument("--items", type=int, default=12_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="sequences per step (32)")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    settings = TrainSettings(
        loss="softmax",
        encoder="transformer",
        blocks=args.blocks,
        dim=args.dim,
        history_length=args.length,
        min_history=1,
        batch_size=args.batch_size,
    )
    num_positions = args.steps * args.batch_size * args.length
    split = random_sequences(args.users, args.length, args.items)
    seconds = harness.time_in_turns(
        contenders(split, args.items, settings, num_positions), repeats=args.repeats
    )
    met = harness.report(
        f"{num_positions:,} positions of sequences of {args.length} items, {args.blocks} blocks of "
        f"{args.dim} dimensions, {args.batch_size * args.length:,} positions and as many shared "
        "negatives in a batch",
        seconds,
        [harness.Target(ONE_EACH, ONE_PASS, 5.0)],
    )
    for name in seconds:
        print(f"{name}: {num_positions / statistics.median(seconds[name]):,.0f} positions/s")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
