"""One version of a model, loaded as TensorFlow Serving loads it.

Each version has a session of its own, with its own tables, variables and resources. So two versions
may use the same names, and closing the session frees the memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import prediction_log_pb2

from tfrs_croloss.serving.warmup import WARMUP_FILE

from ..errors import UserError
from ..export.loading import import_scann_ops, uses_scann
from .errors import Code, LoadError, RequestError
from .signatures import DEFAULT, INTERNAL, Signature

MAX_WARMUP_RECORDS = 1000
# A string in Python and in TensorFlow, and its number.
_VALUE_BYTES = 96


# Codes for which the input is to blame. Any other is a fault of the model or of the machine.
_BLAMES_INPUT = {Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE}


class SavedModel:
    """A SavedModel that is ready to run.

    Args:
      path: folder of the version.

    Raises:
      LoadError: it cannot be loaded, or fails on its own warm-up requests.
    """

    def __init__(self, path: Path):
        self.path = path
        _load_operations(path)
        graph = tf.Graph()
        self._session = tf.compat.v1.Session(graph=graph)
        try:
            with graph.as_default():
                proto = tf.compat.v1.saved_model.load(self._session, ["serve"], str(path))
            # The metadata has internal signatures too, as in TensorFlow Serving.
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
            self._width = max(
                (
                    spec.vector_size
                    for signature in self.signatures.values()
                    for spec in (*signature.inputs.values(), *signature.outputs.values())
                ),
                default=1,
            )
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
        """The signature of a name; the empty name stands for the default signature.

        Raises:
          RequestError: there is no such signature.
        """
        found = self.signatures.get(name or DEFAULT)
        if found is None:
            raise RequestError(
                Code.INVALID_ARGUMENT,
                f"signature_name should be one of {', '.join(self.signatures)}. Received: "
                f"'{name or DEFAULT}'.",
            )
        return found

    def input_bytes(self, num_values: int) -> int:
        """Memory that the inputs of a request take in a run, from above.

        Each value, such as the id of an item, may be replaced by a vector of the model's width.
        """
        return num_values * (_VALUE_BYTES + 4 * self._width)

    def run(self, signature: Signature, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a signature on inputs that were checked. Several threads may do so at a time.

        Raises:
          RequestError: the model rejects the inputs, or fails.
        """
        feeds = {
            self._tensors[signature.inputs[name].tensor]: value for name, value in inputs.items()
        }
        fetches = {name: self._tensors[spec.tensor] for name, spec in signature.outputs.items()}
        try:
            outputs = self._session.run(fetches, feeds)
        except (tf.errors.OpError, ValueError, TypeError, RuntimeError) as error:
            code = Code.INTERNAL
            if isinstance(error, tf.errors.OpError) and error.error_code in _BLAMES_INPUT:
                code = Code(error.error_code)
            raise RequestError(code, first_line(error)) from error
        return {
            name: np.asarray(value, signature.outputs[name].dtype.as_numpy_dtype)
            for name, value in outputs.items()
        }

    def close(self) -> None:
        """Frees the memory, when no request is running."""
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
                error.code, f"{self.path} fails on its warm-up request: {error.message}"
            ) from error
        return count


def first_line(error: Exception) -> str:
    r"""The informative line of a TensorFlow error, without the names of nodes, for clients to read.

    TensorFlow gives a code, on which decisions are made, and a text of many lines. This function
    only shortens the text.

    >>> first_line(ValueError("2 root error(s) found.\n  (0) INVALID_ARGUMENT: assertion failed: "
    ...                       "[top_n should be at most 5. Received:] [7]\n\t [[{{node a}}]]"))
    'top_n should be at most 5. Received: 7'
    """
    text = error.message if isinstance(error, tf.errors.OpError) else str(error)
    for line in text.splitlines():
        line = re.sub(r"^\s*(\(\d+\) )?([A-Z_]+: )?", "", line)
        line = re.sub(r"\s*\[\[\{\{.*|^Graph execution error:|^Detected at node.*", "", line)
        line = line.strip()
        if line and not re.fullmatch(r"\d+ root error\(s\) found\.", line):
            return _assertion(line)
    return type(error).__name__


def _assertion(line: str) -> str:
    """The message of ``tf.debugging.assert_…`` without the brackets around its parts."""
    found = re.fullmatch(r"assertion failed: \[(.*)\]", line)
    if not found:
        return line
    parts = found[1].split("] [")
    if len(parts) > 1 and parts[0] and parts[1].startswith("Condition "):
        parts = parts[:1]
    return " ".join(part.strip() for part in parts if part.strip())


def _load_operations(path: Path) -> None:
    """Registers the operations of ScaNN, if the model needs them."""
    try:
        if uses_scann(path):
            import_scann_ops(str(path))
    except FileNotFoundError as error:
        raise LoadError(Code.NOT_FOUND, f"{path} has no saved_model.pb.") from error
    except DecodeError as error:
        raise LoadError(
            Code.INVALID_ARGUMENT, f"{path / 'saved_model.pb'} is not a SavedModel: {error}"
        ) from error
    except UserError as error:
        raise LoadError(Code.UNIMPLEMENTED, str(error)) from error
