"""Step ``serve``: answers requests over REST and gRPC, as TensorFlow Serving does."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

from .. import cli
from ..common.program import command
from ..errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this step."""
    parser.add_argument("--model", required=True, help="folder of the model, with its versions")
    parser.add_argument("--name", help="what clients call the model (the folder's name)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all (%(default)s)"
    )
    parser.add_argument(
        "--port", type=_port, default=8501, help="port of REST; 0 takes a free one (%(default)s)"
    )
    parser.add_argument(
        "--grpc-port", type=_port, default=8500, help="port of gRPC; the same (%(default)s)"
    )
    versions = parser.add_argument_group("versions")
    versions.add_argument(
        "--poll-seconds",
        type=_seconds,
        default=2.0,
        help="how often to look for new versions (%(default)s)",
    )
    versions.add_argument(
        "--keep-versions",
        type=cli.positive,
        default=1,
        help="how many of the newest versions answer (%(default)s)",
    )
    batches = parser.add_argument_group("batches")
    batches.add_argument(
        "--max-batch",
        type=cli.positive,
        default=64,
        help="rows that run together; 1 switches batching off (%(default)s)",
    )
    batches.add_argument(
        "--batch-wait-ms",
        type=_seconds,
        default=1.0,
        help="how long a request waits for others (%(default)s)",
    )
    batches.add_argument(
        "--threads",
        type=cli.positive,
        default=max(2, os.cpu_count() or 1),
        help="batches that run at the same time (%(default)s)",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--max-body-mb",
        type=cli.positive,
        default=8,
        help="size of a request (%(default)s)",
    )
    limits.add_argument(
        "--max-rows", type=cli.positive, default=1024, help="rows of a request (%(default)s)"
    )
    limits.add_argument(
        "--max-top-n",
        type=cli.positive,
        help="largest value of an input named top_n (what the model allows)",
    )
    limits.add_argument(
        "--max-queue",
        type=cli.positive,
        default=1024,
        help="requests that may wait; more are refused with 503 (%(default)s)",
    )
    limits.add_argument(
        "--max-in-flight",
        type=cli.positive,
        default=1024,
        help="requests at the same time in each protocol (%(default)s)",
    )
    limits.add_argument(
        "--max-connections",
        type=cli.positive,
        default=2048,
        help="open HTTP connections (%(default)s)",
    )
    limits.add_argument(
        "--drain-seconds",
        type=_seconds,
        default=30.0,
        help="how long requests may take to finish after SIGTERM (%(default)s)",
    )


def run(args: argparse.Namespace) -> None:
    """Serves until it is told to stop."""
    folder = Path(args.model).resolve()
    if not folder.is_dir():
        raise UserError(
            f"--model {args.model} should be a folder. Run '{command('export')}' first."
        )
    if not any(path.name.isdecimal() for path in folder.iterdir()):
        raise UserError(
            f"--model {args.model} has no version of a model. Run '{command('export')}' first."
        )
    # Here, not above: '--help' and a wrong folder need no TensorFlow.
    import tensorflow as tf

    from .batching import BatchSettings
    from .limits import Limits
    from .server import ServerSettings, serve

    tf.get_logger().setLevel("ERROR")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    serve(
        ServerSettings(
            folder=folder,
            name=args.name or folder.name,
            host=args.host,
            port=args.port,
            grpc_port=args.grpc_port,
            poll_seconds=args.poll_seconds,
            keep_versions=args.keep_versions,
            drain_seconds=args.drain_seconds,
            limits=Limits(
                max_body_bytes=args.max_body_mb << 20,
                max_rows=args.max_rows,
                max_top_n=args.max_top_n,
                max_in_flight=args.max_in_flight,
                max_connections=args.max_connections,
                max_queue=args.max_queue,
            ),
            batching=BatchSettings(
                max_rows=args.max_batch,
                wait_seconds=args.batch_wait_ms / 1000,
                max_queue=args.max_queue,
                threads=args.threads,
            ),
        )
    )


def _port(text: str) -> int:
    number = cli.count(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"should be at most 65535. Received: {text!r}")
    return number


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"should be a number from 0 up. Received: {text!r}")
    return value
