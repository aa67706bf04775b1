"""The inputs and outputs of a signature, and the check that values fit them."""

from __future__ import annotations

import dataclasses
import functools
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

    def check(self, value: np.ndarray) -> None:
        """Checks a value.

        Raises:
          RequestError: its type or shape is not that of this input.
        """
        received = tf.dtypes.as_dtype(value.dtype)
        if received != self.dtype:
            raise invalid(
                f"input '{self.name}' should be {self.dtype.name}. Received: {received.name}."
            )
        if self.shape is None:
            return
        fits = len(value.shape) == len(self.shape) and all(
            size is None or size == given for size, given in zip(self.shape, value.shape)
        )
        if not fits:
            raise invalid(
                f"input '{self.name}' should have shape {self.describe_shape()}. Received: "
                f"{list(value.shape)}."
            )


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function of a SavedModel.

    Attributes:
      name: name in the model.
      inputs: inputs by name.
      outputs: outputs by name.
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]

    @classmethod
    def from_proto(cls, name: str, proto: Any) -> Signature:
        """Reads a ``SignatureDef``."""
        return cls(
            name,
            {key: TensorSpec.from_proto(key, proto.inputs[key]) for key in sorted(proto.inputs)},
            {key: TensorSpec.from_proto(key, proto.outputs[key]) for key in sorted(proto.outputs)},
        )

    @functools.cached_property
    def batchable(self) -> bool:
        """Whether rows of several requests can run together."""
        specs = [*self.inputs.values(), *self.outputs.values()]
        return bool(self.inputs) and all(spec.has_rows for spec in specs)

    def check_names(self, names: set[str]) -> None:
        """Checks that all inputs are given, and no others.

        Raises:
          RequestError: an input is missing or unknown.
        """
        if names == set(self.inputs):
            return
        missing = sorted(set(self.inputs) - names)
        unknown = sorted(names - set(self.inputs))
        raise invalid(
            f"signature '{self.name}' should get the inputs {', '.join(self.inputs)}."
            + (f" Missing: {', '.join(missing)}." if missing else "")
            + (f" Unknown: {', '.join(unknown)}." if unknown else "")
        )

    def check(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Checks names, types and shapes of a request's inputs.

        Raises:
          RequestError: they are not those of this signature.
        """
        self.check_names(set(inputs))
        for name, value in inputs.items():
            self.inputs[name].check(value)
