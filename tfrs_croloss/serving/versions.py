"""The folder of a model: a numbered subfolder for each version, as TensorFlow Serving expects.

A version is built in a hidden folder beside the others, on the same file system, and appears under
its number by one rename. Everything temporary is in the hidden folder: the next export removes what
a killed one has left.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import lock_descriptor

from tfrs_croloss.serving.errors import ExportError

_BUILDING = ".tmp-export-"
_REMOVED = ".old-"
_MAX_VERSION = 2**63 - 1
_CAN_OPEN_FOLDERS = os.name != "nt"


def model_versions(folder: Path) -> list[int]:
    """The version numbers in the folder of a model, ascending; empty if there is no folder."""
    return sorted(_folders(folder)) if folder.is_dir() else []


def _folders(folder: Path) -> dict[int, Path]:
    """The folder of each version. Servers know no numbers above an int64."""
    return {
        int(path.name): path
        for path in folder.iterdir()
        if path.name.isascii()
        and path.name.isdecimal()
        and int(path.name) <= _MAX_VERSION
        and path.is_dir()
    }


def check_folder(folder: Path) -> None:
    """Checks that versions can be written into a folder, which need not exist.

    Raises:
      ExportError: a file has that name.
    """
    if folder.exists() and not folder.is_dir():
        raise ExportError(f"`path` should be a folder. Received: {folder}, which is a file.")


@contextlib.contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """A hidden folder to build a version in, which is removed at the end.

    Args:
      folder: folder of the model, which is created if it is missing.

    Yields:
      A new folder in ``folder``, whose name nobody can guess. It is locked as long as this process
      lives; folders that nobody holds are leftovers, and are removed.
    """
    check_folder(folder)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    built, descriptor = _locked_subfolder(folder)
    try:
        yield built
    finally:
        shutil.rmtree(built, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)
        if is_new:
            # Stays unless it is empty, since nothing was published.
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextlib.contextmanager
def next_version(folder: Path) -> Iterator[int]:
    """The number after the newest version; other exports wait until it is used."""
    descriptor = os.open(folder, os.O_RDONLY) if _CAN_OPEN_FOLDERS else None
    try:
        if descriptor is not None:
            _lock(descriptor, wait=True)
        yield max([0, *model_versions(folder)]) + 1
    finally:
        if descriptor is not None:
            os.close(descriptor)


def publish(built: Path, version: Path) -> None:
    """Renames a complete folder to that of its version.

    Raises:
      ExportError: another export, on a file system without locks, has taken the number.
    """
    if os.path.lexists(version):
        raise ExportError(f"another export has written {version} in the meantime. Export again.")
    os.rename(built, version)


def remove_old_versions(folder: Path, keep: int) -> list[int]:
    """Removes all versions but the ``keep`` newest, and returns their numbers.

    Each folder is first renamed to a name that servers ignore, so that none reads half a model.
    """
    folders = _folders(folder)
    old = sorted(folders)[:-keep]
    for version in old:
        aside = folder / f"{_REMOVED}{version}-{secrets.token_hex(8)}"
        os.rename(folders[version], aside)
        _remove(aside)
    return old


def _locked_subfolder(folder: Path) -> tuple[Path, int | None]:
    while True:
        built = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=folder))
        if not _CAN_OPEN_FOLDERS:
            return built, None
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(built, os.O_RDONLY)
            # Another export may have taken the folder for a leftover before it was locked.
            if _lock(descriptor) is not False and built.exists():
                return built, descriptor
            os.close(descriptor)


def _remove_leftovers(folder: Path) -> None:
    if not _CAN_OPEN_FOLDERS:
        return
    for path in list(folder.iterdir()):
        if not path.name.startswith((_BUILDING, _REMOVED)) or path.is_symlink():
            continue
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            if _lock(descriptor):  # Otherwise a live export is, or may be, writing there.
                _remove(path)
        finally:
            os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _lock(descriptor: int, wait: bool = False) -> bool | None:
    """Whether this process holds the lock; None where the file system has no locks."""
    try:
        return lock_descriptor(descriptor, blocking=wait)
    except OSError:
        return None
