"""Side features of prepared data: what each of them is, and the columns that hold it encoded.

::

    features/item/NAME/values.npy         row i belongs to item i
    SPLIT/user_features/NAME/values.npy   row u belongs to user u of the split
    SPLIT/context_features/NAME/values.npy   aligned with SPLIT/items.npy
    .../NAME/offsets.npy                  int64 [num_rows + 1], beside values of tags and of text:
                                          those of row r are values[offsets[r]:offsets[r + 1]]
    features/item|user|context/NAME/vocabulary.txt   of categories and tags, one value per line

The manifest says in ``features[of][NAME]`` which kind a feature has, and how its raw values are
encoded. Whole numbers are int32, and 0 stands for a value that is missing or unknown; a row without
tags or words has no numbers at all. Other numbers are float32, and NaN if they are missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from .verification import BLOCK, REMEDY, check_lines, check_offsets

ITEM, USER, CONTEXT = "item", "user", "context"
BELONGINGS = (ITEM, USER, CONTEXT)
"""What a feature may belong to."""

CATEGORY, TAGS, NUMBER, QUANTILES = "category", "tags", "number", "quantiles"
HOUR, WEEKDAY, AGE, TEXT = "hour", "weekday", "age", "text"
KINDS = (CATEGORY, TAGS, NUMBER, QUANTILES, HOUR, WEEKDAY, AGE, TEXT)

RESERVED = frozenset(
    (
        "allowed_ids",
        "excluded_ids",
        "history",
        "item",
        "item_id",
        "known_item_ids",
        "negative_item_id",
        "query",
        "query_embedding",
        "query_positions",
        "sample_weight",
        "top_n",
        "user",
    )
)
"""Names that no feature may have, since batches and requests have other values of these names."""

MAX_WORDS = 32
"""Number of words of a text that are used, the first ones."""

TIMES = (HOUR, WEEKDAY, AGE)
"""Kinds whose raw values are times."""

_RAGGED = (TAGS, TEXT)
_FLOAT = (NUMBER, AGE)
_WITH_VOCABULARY = (CATEGORY, TAGS)


@dataclass(frozen=True)
class FeatureSpec:
    """What a feature is, and how its raw values are encoded.

    Attributes:
      of: what it belongs to: ``item``, ``user`` or ``context``.
      name: its name, which is an identifier.
      kind: one of ``KINDS``.
      column: name of the column in the log or the side table.
      options: all else that the manifest says, such as the ``boundaries`` of quantiles.
      vocabulary: the values of a category or of tags, where value i is encoded as i + 1; None for
        other kinds.
    """

    of: str
    name: str
    kind: str
    column: str
    options: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: tuple[str, ...] | None = None

    @property
    def is_ragged(self) -> bool:
        """Whether a row has any number of values."""
        return self.kind in _RAGGED

    @property
    def is_float(self) -> bool:
        """Whether the encoded values are float32, and not int32."""
        return self.kind in _FLOAT

    @property
    def has_vocabulary(self) -> bool:
        """Whether the values are counted by a vocabulary."""
        return self.kind in _WITH_VOCABULARY

    @property
    def num_codes(self) -> int | None:
        """Encoded values are whole numbers below this, 0 included; None if they are float32."""
        if self.is_float:
            return None
        if self.has_vocabulary:
            return int(self.options["vocabulary"]) + 1
        if self.kind == QUANTILES:
            return len(self.options["boundaries"]) + 2
        if self.kind == TEXT:
            return int(self.options["buckets"]) + 1
        return {HOUR: 25, WEEKDAY: 8}[self.kind]


@dataclass(frozen=True)
class Column:
    """The encoded values of a feature. The arrays are memory-mapped and read-only.

    Attributes:
      spec: the feature.
      values: int32 or float32; ``[num_rows]``, or the values of all rows if a row has several.
      offsets: int64 ``[num_rows + 1]`` if a row has any number of values, and None otherwise.
    """

    spec: FeatureSpec
    values: np.ndarray
    offsets: np.ndarray | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.values) if self.offsets is None else len(self.offsets) - 1


def column_folder(spec: FeatureSpec, split: str | None = None) -> str:
    """The folder of a feature's values within the prepared data: of a split, unless of items."""
    if spec.of == ITEM:
        return f"features/{ITEM}/{spec.name}"
    return f"{split}/{spec.of}_features/{spec.name}"


def vocabulary_file(spec: FeatureSpec) -> str:
    """The file of a feature's vocabulary within the prepared data."""
    return f"features/{spec.of}/{spec.name}/vocabulary.txt"


def read_specs(
    path: Path, manifest: Mapping[str, Any], of: str, vocabularies: bool = True
) -> dict[str, FeatureSpec]:
    """The features of items, of users or of interactions, by name.

    Args:
      path: folder of the prepared data.
      manifest: its manifest.
      of: ``item``, ``user`` or ``context``.
      vocabularies: whether to read the vocabularies, too.

    Raises:
      UserError: the manifest says something that ``prepare`` does not write.
    """
    if of not in BELONGINGS:
        raise UserError(f"of should be one of {', '.join(BELONGINGS)}. Received: {of!r}.")
    entries = manifest.get("features") or {}
    found = entries.get(of, {}) if isinstance(entries, Mapping) else None
    if not isinstance(found, Mapping) or not set(entries) <= set(BELONGINGS):
        raise UserError(
            f"{path / 'manifest.json'} should list `features` of {', '.join(BELONGINGS)}, by name. "
            f"{REMEDY}"
        )
    specs = {}
    for name, entry in found.items():
        if not name.isidentifier() or not isinstance(entry, Mapping) or not _is_spec(entry):
            raise UserError(
                f"{path / 'manifest.json'} should say how the {of} feature {name!r} is "
                f"encoded. Received: {entry!r}. {REMEDY}"
            )
        options = {key: value for key, value in entry.items() if key not in ("kind", "column")}
        spec = FeatureSpec(of, name, entry["kind"], entry["column"], options)
        if vocabularies and spec.has_vocabulary:
            # Not splitlines: it also splits at other characters, which values may contain.
            lines = (path / vocabulary_file(spec)).read_text(encoding="utf-8").split("\n")[:-1]
            spec = FeatureSpec(of, name, spec.kind, spec.column, options, tuple(lines))
        specs[name] = spec
    return specs


def read_columns(
    path: Path, specs: Mapping[str, FeatureSpec], split: str | None = None
) -> dict[str, Column]:
    """The columns of features that belong to items, or to a split.

    Args:
      path: folder of the prepared data.
      specs: the features.
      split: ``train``, ``valid`` or ``test`` for features of users and of interactions.

    Raises:
      UserError: a file is no array of the right type.
    """
    columns = {}
    for name, spec in specs.items():
        folder = path / column_folder(spec, split)
        values = map_array(folder / "values.npy", np.float32 if spec.is_float else np.int32)
        offsets = map_array(folder / "offsets.npy", np.int64) if spec.is_ragged else None
        columns[name] = Column(spec, values, offsets)
    return columns


def map_array(path: Path, dtype: type[np.number]) -> np.ndarray:
    """Maps an array of one dimension into memory.

    Raises:
      UserError: the file holds something else.
    """
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # Also those of the parser of its header, which is Python's.
        raise UserError(f"{path} should be a NumPy array, but: {error}. {REMEDY}") from error
    if array.ndim != 1 or array.dtype != dtype:
        raise UserError(
            f"{path} should hold a row of {np.dtype(dtype).name}. Received: {array.dtype.name} of "
            f"the shape {array.shape}. {REMEDY}"
        )
    return array


def required_files(specs: Mapping[str, FeatureSpec], splits: tuple[str, ...]) -> Iterator[str]:
    """The files that features have within the prepared data."""
    for spec in specs.values():
        if spec.has_vocabulary:
            yield vocabulary_file(spec)
        for split in (None,) if spec.of == ITEM else splits:
            folder = column_folder(spec, split)
            yield f"{folder}/values.npy"
            if spec.is_ragged:
                yield f"{folder}/offsets.npy"


def check_vocabulary(path: Path, spec: FeatureSpec) -> None:
    """Checks that a vocabulary has as many values as the manifest says.

    Raises:
      UserError: it has not.
    """
    if spec.has_vocabulary:
        check_lines(path / vocabulary_file(spec), int(spec.options["vocabulary"]))


def check_column(folder: Path, column: Column, num_rows: int) -> None:
    """Checks the numbers of a column.

    Args:
      folder: its folder, for the error.
      column: the column.
      num_rows: the number of rows that it should have.

    Raises:
      UserError: a number is out of range, or there are too many or too few.
    """
    path = folder / "values.npy"
    values, offsets, spec = column.values, column.offsets, column.spec
    if offsets is not None:
        check_offsets(folder / "offsets.npy", offsets, len(values), "numbers in values.npy")
    if column.num_rows != num_rows:
        wrong = path if offsets is None else folder / "offsets.npy"
        raise UserError(
            f"{wrong} should have {num_rows} rows. Received: {column.num_rows}. {REMEDY}"
        )
    least = 1 if spec.kind == TEXT else 0
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        if spec.num_codes is None:
            if np.isinf(block).any():
                raise UserError(f"{path} should hold finite numbers, or NaN. {REMEDY}")
        elif block.min() < least or block.max() >= spec.num_codes:
            wrong_value = block[(block < least) | (block >= spec.num_codes)][0]
            raise UserError(
                f"{path} should hold whole numbers from {least} to {spec.num_codes - 1}. Received: "
                f"{wrong_value}. {REMEDY}"
            )


def _is_spec(entry: Mapping[str, Any]) -> bool:
    """Whether an entry of the manifest has all that its kind needs."""
    kind, column = entry.get("kind"), entry.get("column")
    if kind not in KINDS or not isinstance(column, str) or not _is_count(entry.get("missing")):
        return False
    if kind == CATEGORY:
        return _is_count(entry.get("vocabulary")) and isinstance(entry.get("integers"), bool)
    if kind == TAGS:
        separator = entry.get("separator")
        return _is_count(entry.get("vocabulary")) and isinstance(separator, str) and separator != ""
    if kind == TEXT:
        return _is_count(entry.get("buckets")) and entry["buckets"] > 0
    if kind == QUANTILES:
        bounds = entry.get("boundaries")
        return (
            isinstance(bounds, list)
            and all(map(_is_finite, bounds))
            and all(low < high for low, high in zip(bounds, bounds[1:]))
        )
    if kind in _FLOAT:
        needed = ("mean", "deviation", *(("until",) if kind == AGE else ()))
        return all(_is_finite(entry.get(name)) for name in needed) and entry["deviation"] > 0
    return True


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 - 1


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
