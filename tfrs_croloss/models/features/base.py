"""What all kinds of features have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow as tf

from tfrs_croloss import _checks

MISSING_INTEGER = -(2**63)
"""The raw integer that stands for a missing value."""

KINDS: dict[str, type[SideFeature]] = {}


@dataclasses.dataclass(frozen=True)
class SideFeature:
    """A feature of one kind; the subclasses are the kinds.

    Encoded values are the rows of a table, or standardised numbers:

    - int32 ``[batch]``: a row from 0 to ``num_rows - 1``, 0 if the value is missing or unknown;
    - int32 ``[batch, (values)]``, ragged, for several values in a field (``is_ragged``), whose
      vectors are summed and divided by the root of their number; that of no value is zero;
    - float32 ``[batch]`` if there is no table (``num_rows`` is None), NaN if the value is missing.

    Attributes:
      name: name of the input column.
      dim: size of the vectors.
    """

    kind: ClassVar[str]
    is_ragged: ClassVar[bool] = False

    name: str

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in vars(cls):
            KINDS[cls.kind] = cls

    def __post_init__(self) -> None:
        remedy = "Give the size of the embedding."
        _checks.whole_number("dim", self.width, remedy=remedy)

    @property
    def width(self) -> int:
        """Size of the vectors."""
        # Each kind has the field, as its last one.
        return int(vars(self)["dim"])

    @property
    def raw_dtype(self) -> tf.DType:
        """The type of raw values."""
        raise NotImplementedError

    @property
    def missing(self) -> Any:
        """The raw value that stands for a missing one: ``""``, NaN or ``MISSING_INTEGER``."""
        return {tf.string: "", tf.int64: MISSING_INTEGER}.get(self.raw_dtype, float("nan"))

    @property
    def num_rows(self) -> int | None:
        """Number of rows of the table; None for numbers, which have none."""
        raise NotImplementedError

    @property
    def encoded_dtype(self) -> tf.DType:
        """The type of encoded values."""
        return tf.float32 if self.num_rows is None else tf.int32

    def table(self) -> Any:
        """What ``encode`` looks values up in; None if it needs nothing."""
        return None

    def encode(self, column: tf.Tensor, table: Any) -> tf.Tensor | tf.RaggedTensor:
        """Encoded values of ``[batch]`` raw ones of the type ``raw_dtype``.

        Args:
          column: the raw values.
          table: what the method ``table`` returned.
        """
        raise NotImplementedError

    def checked(self, column: Any) -> tf.Tensor:
        """Raw values in the type that ``encode`` takes.

        Raises:
          ValueError: they are of another type or shape.
        """
        column = tf.convert_to_tensor(column)
        wanted, given = self.raw_dtype, column.dtype
        fits = wanted == given
        if wanted.is_floating:
            fits = given.is_floating or given.is_integer
        elif wanted.is_integer:
            fits = given.is_integer
        if not fits:
            kinds = {tf.string: "strings", tf.int64: "integers"}
            raise ValueError(
                f"Column {self.name!r} should hold {kinds.get(wanted, 'numbers')}, "
                f"{self._expectation}. Received: {given.name}."
            )
        if column.shape.rank not in (None, 1):
            raise ValueError(
                f"Column {self.name!r} should have one value for each row, of shape [batch]. "
                f"Received: shape {column.shape}."
            )
        return tf.cast(column, wanted) if wanted != tf.string else column

    @property
    def _expectation(self) -> str:
        """What the values are, in the words that follow their type in an error."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """The feature as a mapping that JSON can hold."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        listed = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }
        return {"kind": self.kind, **listed}


def feature_from_config(config: Mapping[str, Any]) -> SideFeature:
    """The inverse of ``get_config``; a configuration without a kind is that of a ``Feature``."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in config.items()
    }
    kind = _checks.one_of("kind", values.pop("kind", "category"), tuple(KINDS))
    return KINDS[kind](**values)
