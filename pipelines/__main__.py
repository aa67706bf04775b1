"""The command line: ``python -m pipelines STEP …``.

A step is a folder or module of this package with two functions, ``add_arguments(parser)`` and
``run(args)``. Only the requested step is imported, so that steps without TensorFlow start at once.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence

from .cli import Parser
from .common import console, keras_version
from .common.failures import explain, report
from .common.program import PROGRAM
from .errors import LostWorkerError

# Above 128; the Kubeflow Training Operator reserves this code for errors to be retried.
LOST_WORKER = 138

STEPS: dict[str, tuple[str, str]] = {
    "synthesize": (".synthesize", "make a synthetic interaction log of any size"),
    "prepare": (".prepare", "turn a raw log into arrays that training maps into memory"),
    "train": (".train", "train a two-tower model on prepared data"),
    "evaluate": (".evaluate", "measure exact Recall@N of a trained model"),
    "embed": (".export.embed", "write the item vectors of a large catalogue in shards"),
    "export": (".export", "write a trained model as a SavedModel for serving"),
    "query": (".query", "ask an exported model for recommendations"),
    "reproduce": (".experiments.reproduce", "reproduce the paper's tables and figures"),
    "compare": (".experiments.compare", "compare losses on equal terms"),
    "tune": (".experiments.tune", "search for the best loss and its settings"),
    "serve": (".serve", "answer requests over REST and gRPC, as TensorFlow Serving does"),
}


def build_parser(step: str | None) -> argparse.ArgumentParser:
    """The parser of all steps, with the arguments of ``step`` alone.

    Args:
      step: name of the step to run, or None for an overview.

    Raises:
      ModuleNotFoundError: the step's module, or a package that it needs, is not installed.
    """
    parser = Parser(
        prog=PROGRAM,
        description="From a raw interaction log to a retrieval model that can be served.",
        epilog=f"'{PROGRAM} STEP --help' explains one step.",
    )
    subparsers = parser.add_subparsers(dest="step", metavar="STEP", required=True)
    for name, (module_name, summary) in STEPS.items():
        subparser = subparsers.add_parser(
            name, help=summary, description=summary[0].upper() + summary[1:] + "."
        )
        if name == step:
            module = importlib.import_module(module_name, __package__)
            module.add_arguments(subparser)
            if name in keras_version.STEPS:
                keras_version.add_argument(subparser)
            subparser.add_argument(
                "--verbose", action="store_true", help="also show TensorFlow's log"
            )
            subparser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one step.

    Args:
      argv: arguments after the program's name; by default those of the process, whose console is
        then kept quiet unless ``--verbose`` is among them. Without any, the steps are listed.

    Returns:
      The exit code: 0, 2 after an error, 130 after an interruption, 138 when another process
      of the cluster is gone and all of them should be restarted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    step = next((argument for argument in arguments if not argument.startswith("-")), None)
    is_quiet = argv is None and console.is_quiet(arguments)
    if is_quiet:
        console.quiet_tensorflow()
    args = argparse.Namespace()
    try:
        keras_version.choose(step, arguments)
        args = build_parser(step).parse_args(arguments)
        if is_quiet:
            console.quiet_abseil()
        args.run(args)
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        return _fail(
            f"step '{step}' needs the module '{error.name}', which is not installed. Install the "
            "package with its extra: pip install 'tfrs-croloss[pipelines]'; 'tune' also needs the "
            "extra tune, and --engine spark the extra spark."
        )
    except LostWorkerError as error:
        return _fail(str(error), LOST_WORKER)
    except KeyboardInterrupt:
        print(
            "\ninterrupted: nothing was lost. Finished results are in place, and the same command "
            "can be run again.",
            file=sys.stderr,
        )
        return 130
    except Exception as error:
        folder = getattr(args, "out", None) or getattr(args, "run_folder", None)
        return _fail(explain(error, folder) or report(error))
    return 0


def _fail(message: str, code: int = 2) -> int:
    try:
        sys.stdout.flush()
    except OSError:  # Nobody reads it, or its disk is full: the interpreter would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with contextlib.suppress(OSError):
        print(f"error: {message}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
