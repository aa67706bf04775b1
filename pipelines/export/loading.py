"""Loads exported models, with ScaNN's operations for those that need them."""

from __future__ import annotations

import importlib
import importlib.metadata
from pathlib import Path
from typing import Any

import tensorflow as tf
from packaging.requirements import Requirement

from ..errors import UserError

SCANN_OPS = "Scann>"


def load_model(path: Path) -> Any:
    """The SavedModel in ``path``.

    Raises:
      UserError: there is none that can be loaded.
    """
    try:
        return _load(path)
    except (OSError, tf.errors.OpError) as error:
        raise UserError(f"{path} is not a SavedModel that can be loaded: {error}") from error


def _load(path: Path) -> Any:
    try:
        return tf.saved_model.load(str(path))
    except (FileNotFoundError, tf.errors.NotFoundError) as error:
        # Loading is tried first: models without ScaNN should not need it.
        if SCANN_OPS not in str(error):
            raise
    import_scann_ops(str(path))
    return tf.saved_model.load(str(path))


def import_scann_ops(what: str) -> None:
    """Registers ScaNN's operations with TensorFlow.

    Raises:
      UserError: ScaNN is not installed, or was built for another TensorFlow.
    """
    try:
        importlib.import_module("scann.scann_ops.py.scann_ops")
    except (ImportError, OSError, tf.errors.OpError) as error:
        raise UserError(
            f"{what} has a ScaNN index, and ScaNN's operations cannot be loaded into TensorFlow "
            f"{tf.__version__} here: {error}. Install the versions that its export.json names, or "
            "export with --index partitioned."
        ) from error


def check_scann_version() -> None:
    """Compares the installed TensorFlow with the one that the installed ScaNN was built for.

    Raises:
      UserError: they do not belong together: indexes might crash, or be wrong.
    """
    for text in importlib.metadata.requires("scann") or ():
        needed = Requirement(text)
        if needed.name == "tensorflow" and tf.__version__ not in needed.specifier:
            raise UserError(
                f"ScaNN {importlib.metadata.version('scann')} was built for TensorFlow "
                f"{needed.specifier}, and {tf.__version__} is installed. Install a ScaNN that "
                "belongs to it, or export with --index partitioned."
            )
