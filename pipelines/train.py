"""Step ``train``: fits the two-tower model to prepared data, into the folder of a run.

::

    config.json            settings, seed, versions, and which data
    history.csv, .json     one row for each validation
    learning_curves.png    the same as a picture
    tensorboard/           the same as TensorBoard scalars
    best/                  the weights of the best validation
    checkpoints/           the latest state, to continue from
    result.json            when the run is finished: why it ended, and its best row

The same command on the folder of an unfinished run goes on where it was, and ends as if nothing had
happened: on a CPU with the same weights and history, bit for bit.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from pipelines import arguments
from pipelines.prepared import PreparedData
from pipelines.rundir import Run, configure, exclusive
from pipelines.settings import TrainSettings, add_settings
from pipelines.training import train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this step."""
    parser.add_argument("--data", required=True, help="folder of prepared data")
    parser.add_argument("--out", required=True, help="folder of the run, new or to be continued")
    parser.add_argument(
        "--overwrite", action="store_true", help="begin anew, even if --out is there"
    )
    parser.add_argument(
        "--checkpoint-steps",
        type=arguments.positive,
        help="save after so many steps as well (after each validation only)",
    )
    add_settings(parser)


def run(args: argparse.Namespace) -> None:
    """Trains a model."""
    settings = TrainSettings.from_args(args)
    data = PreparedData.load(args.data)
    configured = configure(Path(args.out), data, settings, args.overwrite)
    with exclusive(configured.path):
        result = configured.result
        if result is not None:
            print(f"{args.out} is finished already; --overwrite would train it anew.")
        else:
            print(describe_device())
            result = train(configured, data, args.checkpoint_steps)
    _print_summary(configured, result, args.out)


def describe_device() -> str:
    """What TensorFlow will compute on, prepared to share its memory."""
    devices = tf.config.list_physical_devices("GPU")
    for device in devices:
        try:
            tf.config.experimental.set_memory_growth(device, True)
        except RuntimeError:  # Already in use.
            pass
    if not devices:
        return f"computing on the CPU ({os.cpu_count()} cores)"
    details = tf.config.experimental.get_device_details(devices[0])
    more = f", the first of {len(devices)}" if len(devices) > 1 else ""
    return f"computing on the GPU ({details.get('device_name', devices[0].name)}{more})"


def _print_summary(trained: Run, result: dict[str, Any], out: str) -> None:
    best = result["best"]
    print(f"\n{out}: {result['stopped']}, {result['steps']:,} steps, {result['seconds']:.0f} s")
    print(f"best validation, at step {best['step']:,} (over {trained.settings.monitor_average}):")
    for name, value in best.items():
        if name.startswith("recall@"):
            print(f"  {name:<12} {value:.4f}")
    print(
        f"learning curves: {Path(out) / 'learning_curves.png'}\n\n"
        f"Next:\n  python -m pipelines evaluate --run {out}"
    )
