"""Step ``serve``: answers requests over REST and gRPC, as TensorFlow Serving does.

``server`` starts and stops it; ``rest`` and ``grpc_service`` answer requests, which they receive by
``bodies`` and ``http_connections`` or ``grpc_messages``, within the memory of ``budget``. Versions
are found and loaded by ``versions``, and ``batching`` runs their ``saved_model``. ``settings`` and
``limits`` have the options.
"""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

from ..common.options import add_options, options_of, read_options
from ..common.program import command
from ..errors import UserError
from ..export.versions import newest_version
from .limits import Limits
from .settings import BatchSettings, ServerSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this step."""
    parser.add_argument("--model", required=True, help="folder of the model, with its versions")
    parser.add_argument("--name", help="name of the model in requests (name of its folder)")
    for settings in (ServerSettings, BatchSettings, Limits):
        add_options(parser, options_of(settings))


def run(args: argparse.Namespace) -> None:
    """Serves until the process gets SIGTERM or SIGINT."""
    folder = Path(args.model).resolve()
    settings = read_options(
        args,
        ServerSettings,
        folder=folder,
        name=args.name or folder.name,
        limits=read_options(args, Limits),
        batching=read_options(args, BatchSettings),
    )
    settings.limits.check_memory()
    if "/" in settings.name or ":" in settings.name or not settings.name:
        raise UserError(
            "--name should be a name without '/' and ':', which separate the parts of a request's "
            f"path. Received: {settings.name!r}."
        )
    if not folder.is_dir():
        raise UserError(
            f"--model {args.model} should be a folder. Run '{command('export')}' first."
        )
    newest_version(Path(args.model))
    # gRPC logs what clients do, a line for each message that it refuses: they could fill the disk.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Imported here, since '--help' and a wrong folder need no TensorFlow.
    from .server import serve

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    serve(settings)
