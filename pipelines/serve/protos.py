"""Converts between tensors and the messages of ``tensorflow-serving-api``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import get_model_metadata_pb2

from .errors import invalid
from .limits import Limits
from .saved_model import SavedModel
from .signatures import Signature

# The typed field of a TensorProto, as TensorFlow Serving fills it: clients without TensorFlow
# read it without unpacking bytes.
_FIELDS = {
    "float32": "float_val",
    "float64": "double_val",
    "int8": "int_val",
    "int16": "int_val",
    "int32": "int_val",
    "uint8": "int_val",
    "uint16": "int_val",
    "int64": "int64_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
    "bool": "bool_val",
    "object": "string_val",
}


def signature_map(model: SavedModel) -> Any:
    """The ``SignatureDefMap`` of a model."""
    message = get_model_metadata_pb2.SignatureDefMap()
    for name, signature in model.signature_defs.items():
        message.signature_def[name].CopyFrom(signature)
    return message


def to_inputs(
    signature: Signature, messages: Mapping[str, Any], limits: Limits
) -> dict[str, np.ndarray]:
    """The tensors of a request, checked against the signature and the limits.

    Raises:
      RequestError: they do not fit the signature, or exceed a limit.
    """
    if set(messages) != set(signature.inputs):
        signature.check_names(set(messages))
    # One value can stand for a whole tensor, so a short message may ask for much memory.
    limits.check_shapes({name: _shape(name, message) for name, message in messages.items()})
    inputs = {name: _to_array(name, message) for name, message in messages.items()}
    signature.check(inputs)
    limits.check(inputs)
    return inputs


def fill(messages: Any, outputs: Mapping[str, np.ndarray]) -> None:
    """Puts outputs into the map of tensors of a response."""
    for name in sorted(outputs):
        messages[name].CopyFrom(to_proto(outputs[name]))


def to_proto(value: np.ndarray) -> Any:
    """The ``TensorProto`` of an output."""
    field = _FIELDS.get(value.dtype.name)
    if field is None:
        return tf.make_tensor_proto(value)
    proto = tf.make_tensor_proto(np.empty((0,), value.dtype))
    proto.tensor_shape.CopyFrom(tf.TensorShape(value.shape).as_proto())
    getattr(proto, field).extend(value.ravel().tolist())
    return proto


def _shape(name: str, proto: Any) -> tuple[int, ...]:
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if proto.tensor_shape.unknown_rank or any(size < 0 for size in shape):
        raise invalid(f"input '{name}' should have a known shape. Received: {list(shape)}.")
    return shape


def _to_array(name: str, proto: Any) -> np.ndarray:
    try:
        return tf.make_ndarray(proto)
    except (TypeError, ValueError, OverflowError) as error:
        raise invalid(f"input '{name}' is not a tensor: {error}.") from error
