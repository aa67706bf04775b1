"""Loads exported models, with ScaNN's operations if they need them."""

from __future__ import annotations

import importlib
import importlib.metadata
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from packaging.requirements import Requirement
from tensorflow.core.protobuf import saved_model_pb2

from ..errors import UserError

_SCANN_PREFIX = "Scann>"


def load_model(path: Path) -> Any:
    """Loads the SavedModel in a folder.

    Raises:
      UserError: there is none, or it cannot be loaded.
    """
    try:
        if uses_scann(path):
            import_scann_ops(str(path))
        return tf.saved_model.load(str(path))
    except (OSError, DecodeError, tf.errors.OpError) as error:
        raise UserError(f"{path} is not a SavedModel that can be loaded: {error}") from error


def uses_scann(path: Path) -> bool:
    """Whether a SavedModel needs ScaNN's operations, by the operations in its graph.

    Raises:
      OSError: its file cannot be read.
      DecodeError: its file is not a SavedModel.
    """
    proto = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    for meta_graph in proto.meta_graphs:
        graph = meta_graph.graph_def
        for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
            if any(node.op.startswith(_SCANN_PREFIX) for node in nodes):
                return True
    return False


def import_scann_ops(what: str) -> None:
    """Registers ScaNN's operations with TensorFlow.

    Args:
      what: model or option that needs them, for the error.

    Raises:
      UserError: ScaNN is not installed, or was built for another TensorFlow.
    """
    try:
        importlib.import_module("scann.scann_ops.py.scann_ops")
    except (ImportError, OSError, tf.errors.OpError) as error:
        raise UserError(
            f"{what} needs ScaNN, whose operations cannot be loaded into TensorFlow "
            f"{tf.__version__}: {error}. Install ScaNN in the version that belongs to this "
            "TensorFlow (export.json of the model names both), or export with --index partitioned."
        ) from error


def check_scann_version() -> None:
    """Checks that the installed ScaNN was built for the installed TensorFlow.

    Raises:
      UserError: it was not, so that indexes might crash or be wrong.
    """
    for text in importlib.metadata.requires("scann") or ():
        needed = Requirement(text)
        if needed.name == "tensorflow" and tf.__version__ not in needed.specifier:
            raise UserError(
                f"ScaNN {importlib.metadata.version('scann')} was built for TensorFlow "
                f"{needed.specifier}, and {tf.__version__} is installed. Install a ScaNN that "
                "was built for it, or export with --index partitioned."
            )
