"""One version of a model, loaded by the rules of TensorFlow Serving's own loader.

Each version has a session, and so tables, variables and resources, of its own: two versions whose
resources carry one name do not meet, and closing the session gives the memory back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from ..errors import UserError
from ..export.loading import SCANN_OPS, import_scann_ops
from ..export.warmup import WARMUP_FILE
from .errors import Code, RequestError, first_line, from_model
from .signatures import DEFAULT, INTERNAL, Signature

MAX_WARMUP_RECORDS = 1000


class LoadError(Exception):
    """A version that cannot be served.

    Args:
      code: What kind of error.
      message: What is wrong with it.
    """

    def __init__(self, code: Code, message: str):
        super().__init__(message)
        self.code = code
        self.message = message


class SavedModel:
    """A SavedModel that is ready to run.

    Args:
      path: Folder of the version.

    Raises:
      LoadError: It cannot be loaded, or does not answer its own warm-up requests.
    """

    def __init__(self, path: Path):
        self.path = path
        if SCANN_OPS in _operations(path):
            _load_scann_ops(path)
        graph = tf.Graph()
        self._session = tf.compat.v1.Session(graph=graph)
        try:
            with graph.as_default():
                proto = tf.compat.v1.saved_model.load(self._session, ["serve"], str(path))
            # Internal signatures stay in the metadata, as with TensorFlow Serving.
            self.signature_defs = dict(proto.signature_def)
            self.signatures = {
                name: Signature.from_proto(name, self.signature_defs[name])
                for name in sorted(self.signature_defs)
                if name not in INTERNAL
            }
            self._tensors = {
                spec.tensor: graph.get_tensor_by_name(spec.tensor)
                for signature in self.signatures.values()
                for spec in (*signature.inputs.values(), *signature.outputs.values())
            }
            graph.finalize()
            self.num_warmup_requests = self._warm_up()
        except LoadError:
            self.close()
            raise
        except Exception as error:
            self.close()
            code = Code.INTERNAL
            if isinstance(error, tf.errors.OpError) and error.error_code in list(Code):
                code = Code(error.error_code)
            raise LoadError(code, f"{path} cannot be loaded: {first_line(error)}") from error

    def signature(self, name: str) -> Signature:
        """A signature by name; the empty name is the default one.

        Raises:
          RequestError: There is no such signature.
        """
        found = self.signatures.get(name or DEFAULT)
        if found is None:
            raise RequestError(
                Code.INVALID_ARGUMENT,
                f"signature_name should be one of {', '.join(self.signatures)}. Received: "
                f"'{name or DEFAULT}'.",
            )
        return found

    def run(self, signature: Signature, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a signature on inputs that it has checked. Threads may do so at the same time.

        Raises:
          RequestError: The model refuses the inputs, or fails.
        """
        feeds = {
            self._tensors[signature.inputs[name].tensor]: value for name, value in inputs.items()
        }
        fetches = {name: self._tensors[spec.tensor] for name, spec in signature.outputs.items()}
        try:
            outputs = self._session.run(fetches, feeds)
        except (tf.errors.OpError, ValueError, TypeError, RuntimeError) as error:
            raise from_model(error) from error
        return {
            name: np.asarray(value, signature.outputs[name].dtype.as_numpy_dtype)
            for name, value in outputs.items()
        }

    def close(self) -> None:
        """Gives the memory back. Nothing may be running."""
        self._session.close()

    def warmup_requests(self) -> Iterator[tuple[Signature, dict[str, np.ndarray]]]:
        """The ``Predict`` requests that were exported with the model."""
        path = self.path / WARMUP_FILE
        if not path.is_file():
            return
        records = tf.data.TFRecordDataset(str(path)).take(MAX_WARMUP_RECORDS)
        for record in records.as_numpy_iterator():
            log = prediction_log_pb2.PredictionLog.FromString(record)
            if log.HasField("predict_log"):
                request = log.predict_log.request
                signature = self.signature(request.model_spec.signature_name)
                inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
                signature.check(inputs)
                yield signature, inputs

    def _warm_up(self) -> int:
        count = 0
        try:
            for signature, inputs in self.warmup_requests():
                self.run(signature, inputs)
                count += 1
        except RequestError as error:
            raise LoadError(
                error.code, f"{self.path} does not answer its warm-up request: {error.message}"
            ) from error
        return count


def _operations(path: Path) -> set[str]:
    """Types of operations in a SavedModel; those of ScaNN as their common prefix."""
    file = path / "saved_model.pb"
    if not file.is_file():
        raise LoadError(Code.NOT_FOUND, f"{path} has no saved_model.pb.")
    try:
        proto: Any = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    except Exception as error:  # protobuf's own DecodeError has moved between versions
        raise LoadError(Code.INVALID_ARGUMENT, f"{file} is not a SavedModel: {error}") from error
    names: set[str] = set()
    for meta_graph in proto.meta_graphs:
        nodes = [meta_graph.graph_def.node]
        nodes += [function.node_def for function in meta_graph.graph_def.library.function]
        names.update(node.op for group in nodes for node in group)
    return {SCANN_OPS if name.startswith(SCANN_OPS) else name for name in names}


def _load_scann_ops(path: Path) -> None:
    """Registers the operations of ScaNN, if the process does not have them yet."""
    try:
        import_scann_ops(str(path))
    except UserError as error:
        raise LoadError(Code.UNIMPLEMENTED, str(error)) from error
