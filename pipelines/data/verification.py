"""Checks prepared data before anything is computed from it.

All files are read once: their bytes are compared with the checksums in the manifest, and their
numbers with what they may be. What was found good is remembered beside the data by the sizes and
times of the files, so that it is not read again until a file changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.files import json_sha256, read_json, sha256, write_json
from ..common.program import command
from ..errors import UserError

if TYPE_CHECKING:
    from .prepared import PreparedData, Split

VERIFIED = ".verified.json"
REMEDY = f"Run '{command('prepare')}' with --overwrite to create it again."

BLOCK = 1 << 22
_THREADS = 4


def verify_once(data: PreparedData) -> None:
    """Verifies the data, unless these very files were verified before.

    What was mapped or read before the call is then what was verified, if other files took the place
    of the first ones meanwhile.

    Raises:
      UserError: a file has changed since it was written, or holds numbers that it must not hold.
    """
    state = _state(data)
    if data.verified == state:
        return
    if not _is_remembered(data, state):
        verify(data)
        if _state(data) != state:
            raise UserError(
                f"{data.path} changed while it was verified. Run the same command again when "
                "nothing else writes there."
            )
        # A folder that cannot be written is verified whenever it is opened.
        with contextlib.suppress(OSError):
            write_json(data.path / VERIFIED, state)
    data.verified.update(state)


def _is_remembered(data: PreparedData, state: dict[str, Any]) -> bool:
    with contextlib.suppress(UserError):
        return bool(read_json(data.path / VERIFIED) == state)
    return False


def verify(data: PreparedData) -> None:
    """Compares every file with its checksum, and every number with its range.

    Raises:
      UserError: a file has changed since it was written, or holds numbers that it must not hold.
    """
    files = data.manifest["files"]
    with ThreadPoolExecutor(_THREADS) as threads:
        for name, checksum in zip(files, threads.map(sha256, map(data.path.joinpath, files))):
            if checksum != files[name]["sha256"]:
                raise UserError(f"{data.path / name} differs from its checksum. {REMEDY}")
    check_lines(data.path / "item_ids.txt", data.num_items)
    for name in ("train", "valid", "test"):
        _check_split(data.path / name, data.map_split(name), data.num_items)
    data.check_features()


def _state(data: PreparedData) -> dict[str, Any]:
    """What has to be the same for the files to be the same."""
    files = data.manifest["files"]
    found: dict[str, Any] = {"files": json_sha256(files)}
    if features := data.manifest.get("features"):
        found["features"] = json_sha256(features)
    for name in sorted(files):
        try:
            status = (data.path / name).stat()
        except OSError as error:
            raise UserError(f"{data.path / name}: {error.strerror}. {REMEDY}") from error
        # A copy with the times of the original has another time of its own.
        found[name] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return found


def _check_split(folder: Path, split: Split, num_items: int) -> None:
    items, offsets, lengths = split.items, split.offsets, split.history_lengths
    for block in _blocks(items):
        if len(block) and (block.min() < 0 or block.max() >= num_items):
            wrong = block[(block < 0) | (block >= num_items)][0]
            raise UserError(
                f"{folder / 'items.npy'} should hold item ids from 0 to {num_items - 1}. Received: "
                f"{wrong}. {REMEDY}"
            )
    check_offsets(folder / "offsets.npy", offsets, len(items), "items in items.npy")
    check_lines(folder / "user_ids.txt", split.num_users)
    if lengths is None:
        return
    path = folder / "history_lengths.npy"
    if len(lengths) != split.num_users:
        raise UserError(
            f"{path} should have one number for each of {split.num_users} users. Received: "
            f"{len(lengths)}. {REMEDY}"
        )
    for start in range(0, len(lengths), BLOCK):
        block = lengths[start : start + BLOCK]
        totals = np.diff(offsets[start : start + len(block) + 1])
        if np.any((block < 0) | (block > totals)):
            raise UserError(
                f"{path} should hold lengths of at most the number of a user's items. {REMEDY}"
            )


def _blocks(array: np.ndarray, overlap: int = 0) -> Iterator[np.ndarray]:
    for start in range(0, len(array), BLOCK):
        yield array[start : start + BLOCK + overlap]


def check_offsets(path: Path, offsets: np.ndarray, total: int, what: str) -> None:
    """Checks that offsets grow from 0 to a total.

    Args:
      path: their file, for the error.
      offsets: ``[num_rows + 1]`` integers.
      total: the last of them.
      what: what the total is the number of, for the error.

    Raises:
      UserError: they do not.
    """
    steps = (np.diff(block).min() for block in _blocks(offsets, overlap=1) if len(block) > 1)
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != total or min(steps, default=0) < 0:
        raise UserError(f"{path} should grow from 0 to {total}, the number of {what}. {REMEDY}")


def check_lines(path: Path, expected: int) -> None:
    """Checks the number of lines of a file.

    Raises:
      UserError: there are more or fewer.
    """
    count = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            count += block.count(b"\n")
    if count != expected:
        raise UserError(f"{path} should have {expected} lines. Received: {count}. {REMEDY}")
