"""The shards of a matrix of vectors: data files that are complete or absent, and descriptions."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import lock_descriptor

from tfrs_croloss import _checks
from tfrs_croloss._replicas import BLOCK_SIZE, shard_rows

DTYPE = np.dtype("<f4")
FORMAT_VERSION = 1

_NAME = re.compile(r"vectors-\d{5,}-of-\d{5,}\.json")

Folder = str | os.PathLike[str]
Embed = Callable[[int, int], Any]


@dataclasses.dataclass(frozen=True)
class Shard:
    """The description of one shard.

    Attributes:
      path: path of the data file.
      shard: number of the shard, from 0.
      num_shards: number of shards of the matrix.
      first, last: the shard holds the rows from ``first`` up to, not including, ``last``.
      num_items: number of rows of the matrix.
      dim: number of columns of the matrix.
      bytes: size of the data file.
      sha256: checksum of the data file.
      origin: where the vectors come from; it is the same for all shards of a matrix.
      made_with: other records of the writer, which may differ between shards.
    """

    path: Path
    shard: int
    num_shards: int
    first: int
    last: int
    num_items: int
    dim: int
    bytes: int
    sha256: str
    origin: dict[str, Any]
    made_with: dict[str, Any]

    @property
    def description(self) -> Path:
        """Path of the description file."""
        return self.path.with_suffix(".json")

    def is_unchanged(self) -> bool:
        """Whether the data matches its checksum; reads all of it."""
        digest = hashlib.sha256()
        with open(self.path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest() == self.sha256

    def remove(self) -> None:
        """Removes the shard, its description first."""
        self.description.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


def write_shard(
    folder: Folder,
    shard: int,
    embed: Embed,
    *,
    num_shards: int,
    num_items: int,
    dim: int,
    origin: Mapping[str, Any],
    made_with: Mapping[str, Any] | None = None,
    block_size: int = BLOCK_SIZE,
    on_progress: Callable[[int, int], object] | None = None,
) -> bool:
    """Writes one shard, block by block, unless it already exists and matches its checksum.

    If the process is killed at any moment, the shard is either complete or absent, and the next
    call writes an incomplete one again.

    Args:
      folder: folder of all shards; it is created if needed.
      shard: number of the shard, from 0.
      embed: function of a first row and the row after the last that returns their vectors,
        ``[last - first, dim]``.
      num_shards: number of shards of the matrix.
      num_items: number of rows of the matrix.
      dim: number of columns of the matrix.
      origin: where the vectors come from, as JSON values. A shard of another origin is replaced.
      made_with: further records for the description; they never cause a shard to be replaced.
      block_size: number of rows held at a time. All blocks but the first of a shard start at
        multiples of it, however many shards there are.
      on_progress: called after each block with the number of rows written and to write.

    Returns:
      Whether the shard was written; False if it already existed.

    Raises:
      ValueError: an argument is out of range, the vectors have another shape, or another process
        is writing the shard.
    """
    num_shards, num_items, dim, block_size = _check_sizes(num_shards, num_items, dim, block_size)
    shard = _check_number(shard, num_shards)
    first, last = shard_rows(shard, num_shards, num_items)
    path = Path(folder) / f"vectors-{shard:05d}-of-{num_shards:05d}.npy"
    # As JSON returns it, with lists in place of tuples.
    stated = json.loads(json.dumps(dict(origin), allow_nan=False))
    wanted = (shard, num_shards, first, last, num_items, dim, stated)
    if _is_complete(path, wanted):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_name(f".tmp-{path.name}")) as (file, temporary):
        # Another process may have written it before we got the lock.
        if _is_complete(path, wanted):
            temporary.unlink(missing_ok=True)
            return False
        digest = _write_rows(file, embed, first, last, dim, block_size, on_progress)
        size = file.tell()
        # A description must never be beside data of another origin.
        path.with_suffix(".json").unlink(missing_ok=True)
        os.replace(temporary, path)
        _write_description(
            Shard(
                path,
                *wanted[:-1],
                bytes=size,
                sha256=digest,
                origin=stated,
                made_with=dict(made_with or {}),
            )
        )
    return True


def read_shards(folder: Folder) -> list[Shard]:
    """All shards with a description in a folder, in the order of their names.

    Raises:
      ValueError: a description is invalid.
    """
    path = Path(folder)
    if not path.is_dir():
        return []
    names = sorted(one.name for one in path.iterdir() if _NAME.fullmatch(one.name))
    return [_read_description(path / name) for name in names]


def _check_sizes(
    num_shards: int, num_items: int, dim: int, block_size: int
) -> tuple[int, int, int, int]:
    """The sizes as ints, which JSON can store."""
    whole = _checks.whole_number
    return (
        whole(
            "num_shards",
            num_shards,
            remedy="Pass the number of files of the matrix.",
        ),
        whole("num_items", num_items, remedy="Pass the number of rows of the matrix."),
        whole("dim", dim, remedy="Pass the number of columns of the matrix."),
        whole("block_size", block_size, remedy="Leave it out for the default."),
    )


def _check_number(shard: int, num_shards: int) -> int:
    if shard not in range(num_shards):
        raise ValueError(
            f"`shard` should be a whole number from 0 to {num_shards - 1}. Received: {shard!r}. "
            "Number the shards from 0, and pass the number of shards as `num_shards`."
        )
    return int(shard)


def _is_complete(path: Path, wanted: tuple[Any, ...]) -> bool:
    try:
        found = _read_description(path.with_suffix(".json"))
        check_data(found)
    except (OSError, ValueError):
        return False
    is_wanted = wanted == (
        found.shard,
        found.num_shards,
        found.first,
        found.last,
        found.num_items,
        found.dim,
        found.origin,
    )
    return is_wanted and found.is_unchanged()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Opens a file that no other process writes, and empties it."""
    while True:
        # All processes have to find the same name for the lock, so a link may wait there.
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        file = os.fdopen(os.open(path, flags, 0o666), "r+b")
        try:
            is_ours = lock_descriptor(file.fileno(), blocking=False)
        except OSError:  # A drive without locks: nothing is known of other processes.
            break
        if not is_ours:
            file.close()
            raise ValueError(
                f"another process is writing {path.name.removeprefix('.tmp-')} in {path.parent}. "
                "Wait until it has finished."
            )
        with contextlib.suppress(FileNotFoundError):
            # The process that held the lock may have renamed the file in between.
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                break
        file.close()
    with file:
        file.truncate()
        try:
            yield file, path
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _write_rows(
    file: BinaryIO,
    embed: Embed,
    first: int,
    last: int,
    dim: int,
    block_size: int,
    on_progress: Callable[[int, int], object] | None,
) -> str:
    """Writes the data of a shard to disk and returns its checksum."""
    header = {"descr": DTYPE.str, "fortran_order": False, "shape": (last - first, dim)}
    np.lib.format.write_array_header_1_0(file, header)
    file.seek(0)
    digest = hashlib.sha256(file.read())
    end = first
    while end < last:
        start, end = end, min((end // block_size + 1) * block_size, last)
        block = np.ascontiguousarray(embed(start, end), DTYPE)
        if block.shape != (end - start, dim):
            raise ValueError(
                f"`embed` should return vectors of the shape {(end - start, dim)} for the rows "
                f"{start} to {end}. Received: {block.shape}. Return one row for each number from "
                "the first up to, not including, the last, and pass the number of columns as `dim`."
            )
        digest.update(block.data)
        file.write(block.data)
        if on_progress is not None:
            on_progress(end - first, last - first)
    file.flush()
    os.fsync(file.fileno())
    return digest.hexdigest()


def _write_description(shard: Shard) -> None:
    record = {"format_version": FORMAT_VERSION, **dataclasses.asdict(shard)}
    del record["path"]
    name = f".tmp-{shard.description.name}-{secrets.token_hex(8)}"
    temporary = shard.description.with_name(name)
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            json.dump(record, file, indent=2, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, shard.description)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name != "nt":
        names = os.open(shard.path.parent, os.O_RDONLY)
        try:
            os.fsync(names)
        finally:
            os.close(names)


def _read_description(path: Path) -> Shard:
    fields = [one.name for one in dataclasses.fields(Shard) if one.name != "path"]
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format_version"] != FORMAT_VERSION:
            raise ValueError(f"its format version is {record['format_version']}")
        shard = Shard(path.with_suffix(".npy"), **{name: record[name] for name in fields})
        if path.name != f"vectors-{shard.shard:05d}-of-{shard.num_shards:05d}.json":
            raise ValueError("it describes another file")
        rows = shard_rows(shard.shard, shard.num_shards, shard.num_items)
        if rows != (shard.first, shard.last):
            raise ValueError(f"its rows should be {rows} and are {shard.first, shard.last}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} should describe a shard of vectors in format {FORMAT_VERSION}, but: {error}. "
            "Remove it and write the shard again."
        ) from error
    return shard


def check_data(shard: Shard) -> int:
    """Checks the data file against its description.

    Returns:
      The offset of the first row in the file.

    Raises:
      ValueError: the file is missing or differs from its description.
    """
    remedy = "Remove its description and write the shard again."
    size = shard.path.stat().st_size if shard.path.is_file() else None
    if size != shard.bytes:
        state = "is missing" if size is None else f"has {size}"
        raise ValueError(f"{shard.path} should have {shard.bytes} bytes and {state}. {remedy}")
    with open(shard.path, "rb") as file:
        try:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("it has another format version")
            found = np.lib.format.read_array_header_1_0(file)
        except Exception as error:  # Also those of the parser of its header, which is Python's.
            raise ValueError(
                f"{shard.path} should be a NumPy file of format 1.0, but: {error}. {remedy}"
            ) from error
        offset = file.tell()
    rows = shard.last - shard.first
    expected = ((rows, shard.dim), False, DTYPE)
    if found != expected or size != offset + rows * shard.dim * DTYPE.itemsize:
        raise ValueError(
            f"{shard.path} should hold (shape, column-major, dtype) {expected}. It holds "
            f"{found} in {size} bytes. {remedy}"
        )
    return offset
