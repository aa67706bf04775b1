"""Converts between tensors and the messages of ``tensorflow-serving-api``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import get_model_metadata_pb2

from .errors import invalid
from .limits import MAX_RANK, Limits
from .saved_model import SavedModel
from .signatures import Signature, TensorSpec

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
    "string": "string_val",
}
# Fields that are read only, and how many of their values make one value of the tensor.
_OTHER_FIELDS = {
    "float16": ("half_val", 1),
    "bfloat16": ("half_val", 1),
    "complex64": ("scomplex_val", 2),
    "complex128": ("dcomplex_val", 2),
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
    check_messages(signature, messages, limits)
    inputs = {name: _to_array(name, message) for name, message in messages.items()}
    signature.check(inputs)
    limits.check(inputs)
    return signature.with_defaults(inputs)


def check_messages(signature: Signature, messages: Mapping[str, Any], limits: Limits) -> int:
    """Checks the tensors of a request before memory is allocated for them.

    Returns:
      The number of values.

    Raises:
      RequestError: they do not fit the signature, exceed a limit, or do not have as many values as
        their shapes say. (TensorFlow lets one value stand for a tensor of any size.)
    """
    signature.check_names(set(messages))
    shapes = {name: _shape(name, message) for name, message in messages.items()}
    for name, message in messages.items():
        signature.inputs[name].check(_dtype(name, message), shapes[name])
    total = limits.check_shapes(shapes)
    for name, message in messages.items():
        _check_count(signature.inputs[name], message, math.prod(shapes[name]))
    return total


def fill(messages: Any, outputs: Mapping[str, np.ndarray]) -> None:
    """Puts outputs into the map of tensors of a response."""
    for name in sorted(outputs):
        messages[name].CopyFrom(to_proto(outputs[name]))


def to_proto(value: np.ndarray) -> Any:
    """The ``TensorProto`` of an output."""
    field = _FIELDS.get("string" if value.dtype.kind == "O" else value.dtype.name)
    if field is None:
        return tf.make_tensor_proto(value)
    proto = tf.make_tensor_proto(np.empty((0,), value.dtype))
    proto.tensor_shape.CopyFrom(tf.TensorShape(value.shape).as_proto())
    getattr(proto, field).extend(value.ravel().tolist())
    return proto


def _shape(name: str, proto: Any) -> tuple[int, ...]:
    # Before anything is computed from them: the product of a million sizes takes minutes.
    if (rank := len(proto.tensor_shape.dim)) > MAX_RANK:
        raise invalid(
            f"input '{name}' should have at most {MAX_RANK} dimensions. Received: {rank}."
        )
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if proto.tensor_shape.unknown_rank or any(size < 0 for size in shape):
        raise invalid(f"input '{name}' should have a known shape. Received: {list(shape)}.")
    return shape


def _dtype(name: str, proto: Any) -> tf.DType:
    try:
        return tf.dtypes.as_dtype(proto.dtype)
    except TypeError as error:
        raise invalid(
            f"input '{name}' should have a type of TensorFlow. Received: {proto.dtype}."
        ) from error


def _check_count(spec: TensorSpec, proto: Any, expected: int) -> None:
    field, each = _FIELDS.get(spec.dtype.name), 1
    if field is None:
        if spec.dtype.name not in _OTHER_FIELDS:
            raise invalid(f"input '{spec.name}' is {spec.dtype.name}, which cannot be sent.")
        field, each = _OTHER_FIELDS[spec.dtype.name]
    if proto.tensor_content and field != "string_val":
        received = len(proto.tensor_content)
        expected, unit = expected * spec.dtype.size, "bytes in tensor_content"
    else:
        received = len(getattr(proto, field))
        expected, unit = expected * each, f"values in {field}"
    if received != expected:
        raise invalid(
            f"input '{spec.name}' should have {expected} {unit}, as its shape says. Received: "
            f"{received}."
        )


def _to_array(name: str, proto: Any) -> np.ndarray:
    try:
        return tf.make_ndarray(proto)
    except (TypeError, ValueError, OverflowError) as error:
        raise invalid(f"input '{name}' is not a tensor: {error}.") from error
