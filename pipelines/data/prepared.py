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
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..common.files import read_json, sha256
from ..common.program import command
from ..errors import UserError

FORMAT_VERSION = 1
SPLITS = ("train", "valid", "test")
MANIFEST = "manifest.json"

_REMEDY = f"Run '{command('prepare')}' to create it again."


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

    @property
    def num_users(self) -> int:
        """Number of users."""
        return len(self.offsets) - 1

    def user_ids(self) -> list[str]:
        """The users' string ids, in order."""
        return _read_lines(self._folder / "user_ids.txt")


@dataclass(frozen=True)
class PreparedData:
    """A folder written by ``prepare``.

    Attributes:
      path: the folder.
      manifest: content of its ``manifest.json``.
      item_counts: int64 ``[num_items]``, interactions of each item in the training split.
    """

    path: Path
    manifest: dict[str, Any]
    item_counts: np.ndarray

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PreparedData:
        """Opens a prepared folder without reading the arrays.

        Raises:
          UserError: the folder is missing, incomplete, or of another format version.
        """
        path = Path(path)
        if not (path / MANIFEST).is_file():
            raise UserError(f"{path} is not a folder of prepared data: no {MANIFEST}. {_REMEDY}")
        manifest = read_json(path / MANIFEST)
        version = manifest.get("format_version") if isinstance(manifest, dict) else None
        if version != FORMAT_VERSION:
            raise UserError(
                f"{path} should have format version {FORMAT_VERSION}. Received: {version}. "
                f"{_REMEDY}"
            )
        for name, entry in manifest["files"].items():
            file = path / name
            size = file.stat().st_size if file.is_file() else None
            if size != entry["bytes"]:
                state = "is missing" if size is None else f"has {size} bytes"
                raise UserError(
                    f"{path} is incomplete: {name} should have {entry['bytes']} bytes and "
                    f"{state}. {_REMEDY}"
                )
        return cls(path, manifest, _map_array(path / "item_counts.npy"))

    @property
    def num_items(self) -> int:
        """Number of items in the catalogue: ids are 0 to ``num_items - 1``."""
        return len(self.item_counts)

    def item_ids(self) -> list[str]:
        """The items' string ids; position i is item i."""
        return _read_lines(self.path / "item_ids.txt")

    def split(self, name: str) -> Split:
        """One of the splits ``train``, ``valid`` and ``test``."""
        if name not in SPLITS:
            raise UserError(f"split should be one of {', '.join(SPLITS)}. Received: {name!r}.")
        folder = self.path / name
        lengths = None if name == "train" else _map_array(folder / "history_lengths.npy")
        items, offsets = (_map_array(folder / f"{array}.npy") for array in ("items", "offsets"))
        return Split(name, items, offsets, lengths, folder)

    def verify(self) -> None:
        """Compares every file with its checksum in the manifest.

        Raises:
          UserError: a file has changed since it was written.
        """
        for name, entry in self.manifest["files"].items():
            if sha256(self.path / name) != entry["sha256"]:
                raise UserError(f"{self.path / name} differs from its checksum. {_REMEDY}")


def _map_array(path: Path) -> np.ndarray:
    array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def _read_lines(path: Path) -> list[str]:
    # Not splitlines: it also splits at other characters, which ids may contain.
    return path.read_text(encoding="utf-8").split("\n")[:-1]
