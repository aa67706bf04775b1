"""Prepared data on disk: the layout of its folder, and the classes that read it.

::

    manifest.json         format version, configuration, statistics, versions, seed, checksums
    item_ids.txt          line i (from 0) is the string id of item i; item 0 is the most popular
    item_counts.npy       int64 [num_items], interactions of each item in the training split
    train/items.npy       int32 [num_interactions], item ids, user by user, in time order
    train/offsets.npy     int64 [num_users + 1], where each user's items begin and end
    train/user_ids.txt    line u is the string id of user u of the split
    valid/..., test/...   the same files, and
      history_lengths.npy int32 [num_users], length of each user's history; the remaining items
                          are the targets

Side features have files of their own, see ``features``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..common.files import read_json
from ..common.json_shapes import check_shape
from ..common.program import command
from ..errors import UserError
from .features import (
    BELONGINGS,
    CONTEXT,
    ITEM,
    USER,
    Column,
    FeatureSpec,
    check_column,
    check_vocabulary,
    column_folder,
    map_array,
    read_columns,
    read_specs,
    required_files,
)
from .verification import REMEDY, verify, verify_once

FORMAT_VERSION = 1
SPLITS = ("train", "valid", "test")
MANIFEST = "manifest.json"

_LAYOUT = (
    "item_ids.txt",
    "item_counts.npy",
    *(
        f"{split}/{name}"
        for split in SPLITS
        for name in ("items.npy", "offsets.npy", "user_ids.txt")
    ),
    *(f"{split}/history_lengths.npy" for split in SPLITS[1:]),
)


# The parts of a manifest that are read, if present. Features are checked where they are read.
_COUNTS = (
    "rows unwanted_rows bad_rows duplicates users items interactions filtered_users filtered_items "
    "filtered_interactions users_not_in_train items_not_in_train held_out_items "
    "held_out_interactions"
)
_MANIFEST_SHAPE = {
    "source": str,
    "order": str,
    "inputs": [{"path": str}],
    "config": dict,
    "files": {"*": {"bytes": int, "sha256": str}},
    "statistics": {
        **dict.fromkeys(_COUNTS.split(), int),
        "splits": {"*": {"*": int}},
        "bad_rows_by_kind": [{"file": str, "kind": str, "rows": int, "first_lines": list}],
        "side_tables": {"*": {"file": str, "*": int}},
    },
}


@dataclass(frozen=True)
class Split:
    """The users of one split. The arrays are memory-mapped and read-only.

    Attributes:
      name: ``train``, ``valid`` or ``test``.
      items: int32 ``[num_interactions]``, item ids, user by user, in time order.
      offsets: int64 ``[num_users + 1]``; the items of user u are
        ``items[offsets[u]:offsets[u + 1]]``.
      history_lengths: int32 ``[num_users]``, length of each user's history; the remaining items
        are targets. None for ``train``.
    """

    name: str
    items: np.ndarray
    offsets: np.ndarray
    history_lengths: np.ndarray | None
    _folder: Path
    _data: PreparedData | None = field(default=None, repr=False)

    @property
    def num_users(self) -> int:
        """Number of users."""
        return len(self.offsets) - 1

    def user_ids(self) -> list[str]:
        """The users' string ids, in order."""
        lines = _read_lines(self._folder / "user_ids.txt")
        if self._data is not None:
            verify_once(self._data)
        return lines

    def user_features(self) -> dict[str, Column]:
        """The features of the users, by name: row u belongs to user u."""
        return self._columns(USER)

    def context_features(self) -> dict[str, Column]:
        """The features of the interactions, by name: row i belongs to ``items[i]``."""
        return self._columns(CONTEXT)

    def _columns(self, of: str) -> dict[str, Column]:
        if self._data is None:
            return {}
        columns = read_columns(self._data.path, self._data.features(of), self.name)
        verify_once(self._data)
        return columns


@dataclass(frozen=True)
class PreparedData:
    """A folder written by ``prepare``.

    Attributes:
      path: the folder.
      manifest: content of its ``manifest.json``.
      item_counts: int64 ``[num_items]``, interactions of each item in the training split.
      verified: what identifies the files that were verified, for ``verification``.
    """

    path: Path
    manifest: dict[str, Any]
    item_counts: np.ndarray
    verified: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def trains_on_valid(self) -> bool:
        """Whether train has the interactions of valid, which then says nothing about a model."""
        return bool(self.manifest["config"].get("train_on_valid"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PreparedData:
        """Opens a prepared folder, whose files are verified unless they were before.

        Raises:
          UserError: the folder is missing, incomplete, damaged, or of another format version.
        """
        path = Path(path)
        if not path.exists():
            raise UserError(f"{path} does not exist. Run '{command('prepare')}' to create it.")
        if not (path / MANIFEST).is_file():
            raise UserError(
                f"{path} is not a folder of prepared data: no {MANIFEST}. Choose a folder that "
                f"'{command('prepare')}' has written."
            )
        manifest = read_json(path / MANIFEST, dict)
        version = manifest.get("format_version")
        if version != FORMAT_VERSION:
            raise UserError(
                f"{path} should have format version {FORMAT_VERSION}. Received: {version}. {REMEDY}"
            )
        check_shape(path / MANIFEST, manifest, _MANIFEST_SHAPE, REMEDY)
        _check_sizes(path, manifest)
        counts = map_array(path / "item_counts.npy", np.int64)
        data = cls(path, manifest, counts)
        verify_once(data)
        return data

    @property
    def num_items(self) -> int:
        """Number of items in the catalogue: ids are 0 to ``num_items - 1``."""
        return len(self.item_counts)

    def item_ids(self) -> list[str]:
        """The items' string ids; position i is item i."""
        lines = _read_lines(self.path / "item_ids.txt")
        verify_once(self)
        return lines

    def split(self, name: str) -> Split:
        """One of the splits ``train``, ``valid`` and ``test``.

        Raises:
          UserError: there is no such split, or files were exchanged for others that are damaged.
        """
        split = self.map_split(name)
        verify_once(self)
        return split

    def map_split(self, name: str) -> Split:
        """A split as it is on disk, for its verification."""
        if name not in SPLITS:
            raise UserError(f"split should be one of {', '.join(SPLITS)}. Received: {name!r}.")
        folder = self.path / name
        lengths = None
        if name != "train":
            lengths = map_array(folder / "history_lengths.npy", np.int32)
        items = map_array(folder / "items.npy", np.int32)
        offsets = map_array(folder / "offsets.npy", np.int64)
        return Split(name, items, offsets, lengths, folder, self)

    def features(self, of: str) -> dict[str, FeatureSpec]:
        """The features of ``item``, ``user`` or ``context``, by name, in the order of prepare."""
        return read_specs(self.path, self.manifest, of)

    def item_features(self) -> dict[str, Column]:
        """The features of the items, by name: row i belongs to item i."""
        columns = read_columns(self.path, self.features(ITEM))
        verify_once(self)
        return columns

    def verify(self) -> None:
        """Reads all files again, and checks them.

        Raises:
          UserError: a file has changed since it was written.
        """
        verify(self)

    def check_features(self) -> None:
        """Checks the numbers of all side features.

        Raises:
          UserError: a number is out of range, or there are too many or too few.
        """
        for of in BELONGINGS:
            specs = read_specs(self.path, self.manifest, of, vocabularies=False)
            for spec in specs.values():
                check_vocabulary(self.path, spec)
            for name in (None,) if of == ITEM else SPLITS:
                num_rows = self.num_items
                if name is not None:
                    split = self.map_split(name)
                    num_rows = split.num_users if of == USER else len(split.items)
                for column in read_columns(self.path, specs, name).values():
                    folder = self.path / column_folder(column.spec, name)
                    check_column(folder, column, num_rows)


def _check_sizes(path: Path, manifest: Mapping[str, Any]) -> None:
    files = manifest["files"]
    specs = (read_specs(path, manifest, of, vocabularies=False) for of in BELONGINGS)
    for name in (*_LAYOUT, *(file for group in specs for file in required_files(group, SPLITS))):
        if name not in files:
            raise UserError(f"{path / MANIFEST} should list {name} among its `files`. {REMEDY}")
    for name, entry in files.items():
        file = path / name
        size = file.stat().st_size if file.is_file() else None
        if size != entry["bytes"]:
            state = "is missing" if size is None else f"has {size} bytes"
            raise UserError(
                f"{path} is incomplete: {name} should have {entry['bytes']} bytes and {state}. "
                f"{REMEDY}"
            )


def _read_lines(path: Path) -> list[str]:
    # Not splitlines: it also splits at other characters, which ids may contain.
    return path.read_text(encoding="utf-8").split("\n")[:-1]
