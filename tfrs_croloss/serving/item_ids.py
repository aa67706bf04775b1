"""Lists of ids as tables: from an id to its number, the place in the list, and back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

# What fills empty places in lists of ids.
PADDING: dict[tf.DType, Any] = {tf.string: "", tf.int64: -1}


def as_bytes(text: str) -> bytes:
    """The bytes of an id; ids that are not UTF-8 are kept as they are."""
    return text.encode("utf-8", "surrogateescape")


def as_list(ids: Any, argument: str) -> list[str] | list[int]:
    """Ids as a list of strings or of integers.

    >>> as_list(np.array([b"a", b"b"]), "ids"), as_list([3, 7], "ids")
    (['a', 'b'], [3, 7])

    Args:
      ids: ``[num]`` strings, bytes or integers, an array or a sequence.
      argument: name of the argument, for errors.
    """
    if isinstance(ids, (list, tuple)) and all(isinstance(one, (str, bytes)) for one in ids):
        # Not as an array: NumPy joins neither strings with bytes nor strings with numbers well.
        return [_as_text(one) for one in ids]
    array = ids.numpy() if isinstance(ids, tf.Tensor) else np.asarray(ids)
    if array.ndim != 1:
        raise ValueError(
            f"`{argument}` should have ids of shape [num]. Received: shape {list(array.shape)}."
        )
    if np.issubdtype(array.dtype, np.integer):
        return [int(one) for one in array]
    values = list(ids) if isinstance(ids, (list, tuple)) else array.tolist()
    if all(isinstance(one, (str, bytes)) for one in values):
        return [_as_text(one) for one in values]
    if all(isinstance(one, (int, np.integer)) for one in values) and array.dtype != bool:
        return [int(one) for one in values]
    other = next(one for one in values if not isinstance(one, (str, bytes)))
    raise ValueError(
        f"`{argument}` should have ids that are all strings or all integers. Received: {other!r}."
    )


def _as_text(one: str | bytes) -> str:
    return one.decode("utf-8", "surrogateescape") if isinstance(one, bytes) else str(one)


def check_ids(ids: Sequence[str] | Sequence[int], argument: str = "item_ids") -> None:
    """Checks that ids can be served: distinct, single lines, and not the padding."""
    for one in ids:
        if isinstance(one, str):
            if not one or "\n" in one or "\r" in one:
                raise ValueError(
                    f'`{argument}` should be single lines and not "", which is padding. '
                    f"Received: {one!r}."
                )
        elif one < 0:
            raise ValueError(
                f"`{argument}` should be at least 0, since -1 is padding. Received: {one}. Pass "
                "the ids as strings."
            )
    if len(set(ids)) < len(ids):
        seen: set[Any] = set()
        repeated = next(one for one in ids if one in seen or seen.add(one))  # type: ignore[func-returns-value]
        raise ValueError(
            f"`{argument}` should be distinct. Received: {len(ids)} ids, {len(set(ids))} of them "
            f"distinct; {repeated!r} is repeated."
        )


class IdTable(tf.Module):
    """The ids of a list and their numbers.

    The list is a file, which a SavedModel has as an asset: a constant of millions of ids would not
    fit into its graph.

    Args:
      ids: distinct strings, or distinct integers of at least 0.
      folder: folder for the file, which is needed until the module has been saved.
      file_name: name of the file.

    Attributes:
      size: number of ids, and the number that stands for all other ids.
      dtype: ``tf.string`` or ``tf.int64``.
      padding: what fills empty places in lists of ids: ``""`` or -1.
    """

    def __init__(
        self, ids: Sequence[str] | Sequence[int], folder: str | os.PathLike[str], file_name: str
    ) -> None:
        super().__init__(name="id_table")
        self.size = len(ids)
        self.dtype = tf.string if isinstance(ids[0], str) else tf.int64
        self.padding = PADDING[self.dtype]
        file = Path(folder) / file_name
        with open(file, "x", encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
            lines.writelines(f"{one}\n" for one in ids)
        number = tf.lookup.TextFileIndex.LINE_NUMBER
        # Integers are parsed from the first column, and strings may contain the delimiter.
        line = tf.lookup.TextFileIndex.WHOLE_LINE if self.dtype == tf.string else 0
        self._numbers = tf.lookup.StaticHashTable(
            tf.lookup.TextFileInitializer(str(file), self.dtype, line, tf.int64, number),
            default_value=self.size,
        )
        self._ids = tf.lookup.StaticHashTable(
            tf.lookup.TextFileInitializer(str(file), tf.int64, number, self.dtype, line),
            default_value=self.padding,
        )

    def numbers(self, ids: tf.Tensor) -> tf.Tensor:
        """The int64 numbers of ids, of the same shape; ``size`` for ids that are not listed."""
        return self._numbers.lookup(ids)

    def ids(self, numbers: tf.Tensor) -> tf.Tensor:
        """The ids of numbers, of the same shape; the padding for all other numbers."""
        return self._ids.lookup(tf.cast(numbers, tf.int64))
