"""Step ``train``: trains a two-tower model on prepared data, and writes the folder of a run.

::

    config.json            settings, seed, versions, and the checksum of the data
    history.csv, .json     one row for each validation
    learning_curves.png    plot of the history
    tensorboard/           history as TensorBoard scalars
    best/                  weights of the best validation
    checkpoints/           latest state, to continue from
    result.json            written at the end: why training stopped, and the best row

The same command continues an unfinished run. The result is that of a run without interruption: on a
CPU, weights and history are equal bit by bit.

``loop`` trains by ``model.fit`` (``asynchronous`` with parameter servers), ``validation`` measures
one row of the history, and ``history`` writes it.

With ``--strategy multi-worker`` every machine runs the same command, and only the chief writes. If
a process is lost, the others end with exit code 138; once all are started again, training goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from .. import cli
from ..common.files import json_sha256
from ..common.program import command
from ..data.prepared import PreparedData
from ..errors import UserError
from ..runs import distribution
from ..runs.command_line import add_settings, settings_of
from ..runs.folder import Run, data_checksum, open_run
from ..runs.settings import TrainSettings
from .loop import train

# What the chief reports to the other workers at the start.
_TRAIN, _FINISHED, _FAILED = range(3)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this step."""
    parser.add_argument("--data", required=True, help="folder of prepared data")
    parser.add_argument("--out", required=True, help="folder of the run, new or to be continued")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the run in --out if there is one"
    )
    parser.add_argument(
        "--checkpoint-steps",
        type=cli.positive,
        metavar="N",
        help="number of steps between checkpoints, besides those after validations (none)",
    )
    distribution.add_arguments(parser, "train")
    add_settings(parser)


def run(args: argparse.Namespace) -> None:
    """Trains a model."""
    settings = settings_of(args)
    distribution.check(settings, args.strategy, args.replicas)
    data = PreparedData.load(args.data)
    device = describe_device()
    with distribution.watched(args.strategy), contextlib.ExitStack() as held:
        cluster = distribution.connect(args.strategy, args.replicas)
        configured, is_finished = _begin(args, settings, data, cluster, held)
        if is_finished:
            print(f"{args.out} is finished already. Pass --overwrite to train it again.")
            result = configured.result
        else:
            print(device if args.strategy == "none" else f"{device}; {cluster.title}")
            result = train(configured, data, args.checkpoint_steps, cluster=cluster)
        # No worker leaves before the chief has written everything.
        cluster.numbers_of_all(0)
    if cluster.is_chief:
        assert result is not None
        _print_summary(configured, result, args.out, data.trains_on_valid)


def _begin(
    args: argparse.Namespace,
    settings: TrainSettings,
    data: PreparedData,
    cluster: distribution.Cluster,
    held: contextlib.ExitStack,
) -> tuple[Run, bool]:
    """Opens the run on the chief while the other workers wait; also returns whether it is finished.

    Args:
      args: options of the step.
      settings: settings of the run.
      data: data to train on.
      cluster: processes that take part.
      held: stack that receives the lock on the run's folder.
    """
    run = Run(Path(args.out), settings, {})
    status = _TRAIN
    failure: Exception | None = None
    if cluster.is_chief:
        try:
            run = held.enter_context(
                open_run(run.path, data, settings, args.overwrite, cluster.as_dict())
            )
            status = _TRAIN if run.result is None else _FINISHED
        except (ValueError, OSError) as error:
            status, failure = _FAILED, error
    shaping = [settings.as_dict(), data_checksum(data), args.checkpoint_steps]
    number = int(json_sha256(shaping)[:14], 16) * 4 + status
    numbers = cluster.numbers_of_all(number)
    if failure is not None:
        raise failure
    statuses = {other % 4 for other in numbers}
    if _FAILED in statuses:
        raise UserError("the chief cannot start training; see its own error message.")
    if len({other // 4 for other in numbers}) > 1:
        raise UserError(
            "all workers should have the same options and the same data. Received: different ones. "
            "Run the same command on every machine."
        )
    return run, _FINISHED in statuses


def describe_device() -> str:
    """Describes the device that TensorFlow uses; lets GPU memory grow as it is needed."""
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


def _print_summary(trained: Run, result: dict[str, Any], out: str, trains_on_valid: bool) -> None:
    best = result["best"]
    what = "validation, which is part of train" if trains_on_valid else "best validation"
    print(f"\n{out}: {result['stopped']}, {result['steps']:,} steps, {result['seconds']:.0f} s")
    print(f"{what}, at step {best['step']:,} (over {trained.settings.monitor_average}):")
    for name, value in best.items():
        if name.startswith("recall@"):
            print(f"  {name:<12} {value:.4f}")
    print(
        f"learning curves: {Path(out) / 'learning_curves.png'}\n\nNext:\n  "
        + command("evaluate", "--run", out)
    )
