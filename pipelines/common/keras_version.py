"""The option ``--keras``: which Keras a step runs on, decided before TensorFlow is imported."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ..errors import UserError

STEPS = ("train", "evaluate", "embed", "export")
"""The steps that have the option."""
VERSIONS = ("2", "3")
VARIABLE = "TF_USE_LEGACY_KERAS"


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the option to a step."""
    parser.add_argument(
        "--keras",
        choices=VERSIONS,
        help=f"version of Keras to run on; results are the same ({VARIABLE} of the environment, or "
        "2 if TensorFlow Recommenders is installed)",
    )


def choose(step: str | None, arguments: Sequence[str]) -> None:
    """Sets the environment to what the option says; other values are left to the parser.

    Raises:
      UserError: TensorFlow has been imported with the other version.
    """
    if step not in STEPS:
        return
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--keras", nargs="?")
    version = parser.parse_known_args(list(arguments))[0].keras
    if version not in VERSIONS:
        return
    if "tensorflow" in sys.modules and version != running():
        raise UserError(
            f"--keras should be {running()} here, since TensorFlow is running with it already. "
            f"Received: {version}. Start a new process."
        )
    os.environ[VARIABLE] = "1" if version == "2" else "0"


def running() -> str:
    """The version that this process runs, ``"2"`` or ``"3"``; imports TensorFlow."""
    import tensorflow as tf

    # Keras 2 of the package tf-keras has no version in tf.keras.
    return str(getattr(tf.keras, "__version__", "2"))[0]
