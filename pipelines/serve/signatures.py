"""The inputs and outputs of a signature, and the check that values fit them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from .errors import invalid

# Signatures with these names run when a model is loaded; clients cannot call them.
INTERNAL = ("__saved_model_init_op", "__saved_model_train_op")
DEFAULT = "serving_default"


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """One input or output.

    Attributes:
      name: name in the signature.
      tensor: name in the graph.
      dtype: TensorFlow's type.
      shape: sizes, with None for a dimension of any size; None if the rank may be any too.
    """

    name: str
    tensor: str
    dtype: tf.DType
    shape: tuple[int | None, ...] | None

    @classmethod
    def from_proto(cls, name: str, info: Any) -> TensorSpec:
        """Reads a ``TensorInfo``."""
        shape = None
        if not info.tensor_shape.unknown_rank:
            shape = tuple(None if dim.size < 0 else dim.size for dim in info.tensor_shape.dim)
        return cls(name, info.name, tf.dtypes.as_dtype(info.dtype), shape)

    @property
    def has_rows(self) -> bool:
        """Whether the first dimension may have any size."""
        return self.shape is not None and len(self.shape) > 0 and self.shape[0] is None

    def describe_shape(self) -> str:
        """The shape in the usual notation.

        >>> TensorSpec("x", "x:0", tf.float32, (None, 3)).describe_shape()
        '[?, 3]'
        """
        if self.shape is None:
            return "of any rank"
        return "[" + ", ".join("?" if dim is None else str(dim) for dim in self.shape) + "]"

    @property
    def vector_size(self) -> int:
        """Number of values in a row, as far as it is known from the signature.

        >>> TensorSpec("x", "x:0", tf.float32, (None, None, 3)).vector_size
        3
        """
        return math.prod(size or 1 for size in (self.shape or ())[1:])

    def check(self, received: tf.DType, shape: tuple[int, ...]) -> None:
        """Checks the type and the shape of a value, before memory is allocated for it.

        Raises:
          RequestError: they are not those of this input.
        """
        if received != self.dtype:
            raise invalid(
                f"input '{self.name}' should be {self.dtype.name}. Received: {received.name}."
            )
        if self.shape is None:
            return
        fits = len(shape) == len(self.shape) and all(
            size is None or size == given for size, given in zip(self.shape, shape)
        )
        if not fits:
            raise invalid(
                f"input '{self.name}' should have shape {self.describe_shape()}. Received: "
                f"{list(shape)}."
            )


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function of a SavedModel.

    Attributes:
      name: name in the model.
      inputs: inputs by name.
      outputs: outputs by name.
      defaults: ``[1, ...]`` values of the inputs that a request may leave out, by name.
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    defaults: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_proto(cls, name: str, proto: Any) -> Signature:
        """Reads a ``SignatureDef``."""
        return cls(
            name,
            {key: TensorSpec.from_proto(key, proto.inputs[key]) for key in sorted(proto.inputs)},
            {key: TensorSpec.from_proto(key, proto.outputs[key]) for key in sorted(proto.outputs)},
            {key: tf.make_ndarray(proto.defaults[key]) for key in sorted(proto.defaults)},
        )

    @functools.cached_property
    def batchable(self) -> bool:
        """Whether rows of several requests can run together."""
        specs = [*self.inputs.values(), *self.outputs.values()]
        return bool(self.inputs) and all(spec.has_rows for spec in specs)

    def check_names(self, names: set[str]) -> None:
        """Checks that all inputs without a default are given, and no unknown ones.

        Raises:
          RequestError: an input is missing or unknown.
        """
        if names == set(self.inputs):
            return
        missing = sorted(set(self.inputs) - set(self.defaults) - names)
        unknown = sorted(names - set(self.inputs))
        if not missing and not unknown:
            return
        required = [name for name in self.inputs if name not in self.defaults]
        optional = f", and may get {', '.join(self.defaults)}" if self.defaults else ""
        raise invalid(
            f"signature '{self.name}' should get the inputs {', '.join(required)}{optional}."
            + (f" Missing: {', '.join(missing)}." if missing else "")
            + (f" Unknown: {', '.join(unknown)}." if unknown else "")
        )

    def with_defaults(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The inputs of a request that was checked, with those that it left out."""
        absent = [name for name in self.defaults if name not in inputs]
        if not absent:
            return dict(inputs)
        # An optional input may have too many rows; it is to blame then, not those that are absent.
        required = [value for name, value in inputs.items() if name not in self.defaults]
        counted = required or inputs.values()
        rows = max((value.shape[0] for value in counted if value.ndim), default=1)
        filled = {name: np.repeat(self.defaults[name], rows, axis=0) for name in absent}
        return {**inputs, **filled}

    def check(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Checks names, types and shapes of a request's inputs.

        Raises:
          RequestError: they are not those of this signature.
        """
        self.check_names(set(inputs))
        for name, value in inputs.items():
            self.inputs[name].check(tf.dtypes.as_dtype(value.dtype), value.shape)
