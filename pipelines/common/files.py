"""Result folders that are complete or absent, and the small files in them.

A step writes into a temporary sibling of its result and renames it once everything is written. A
reader never sees half a result, and a run that is killed leaves the last good result in place.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from filelock import lock_descriptor

from ..errors import UserError

PACKAGES = (
    "numpy",
    "tensorflow",
    "keras",
    "tf-keras",
    "tensorflow-recommenders",
    "tensorflow-datasets",
    "duckdb",
    "pyarrow",
    "pyspark",
    "scann",
    "tfrs_croloss",
)

_CAN_OPEN_FOLDERS = os.name != "nt"
_AT_CURRENT_FOLDER = -100
_RENAME_EXCHANGE = 2


@contextlib.contextmanager
def atomic_folder(
    path: str | os.PathLike[str],
    overwrite: bool = False,
    check: Callable[[Path], None] | None = None,
) -> Iterator[Path]:
    """A folder to write into that appears under its name when it is complete.

    Args:
      path: where the finished folder will be; missing parents are created.
      overwrite: whether a folder that exists and is not empty may be replaced. It stays as it is
        until the new one is complete.
      check: raises an error if what is in ``path`` may not be replaced. It is asked at the end,
        since hours may have passed in which somebody has used the folder.

    Yields:
      The temporary folder, a hidden sibling ``.tmp-NAME-…`` on the same file system. It is
      removed on an error. Leftovers of runs that were killed are removed as well.

    Raises:
      UserError: ``path`` is not empty and ``overwrite`` is False, or ``path`` is not a folder.
    """
    final = Path(os.path.abspath(path))
    with sibling_folder(final) as folder:
        _check_replaceable(final, overwrite)
        yield folder
        _check_replaceable(final, overwrite)
        if check is not None:
            check(Path(path))
        put_in_place(folder, final)


@contextlib.contextmanager
def sibling_folder(final: Path) -> Iterator[Path]:
    """A temporary folder beside ``final``, an absolute path, whose missing parents are created.

    It is locked while it is used, and removed at the end with whatever it holds then. Leftovers of
    runs that were killed are removed as well.
    """
    with naming(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        _clean_up(final)
        folder, descriptor = _locked_sibling(final)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if descriptor is not None:
                os.close(descriptor)


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file to write that appears under its name when it is complete.

    Args:
      path: where the finished file will be; it holds the old or the new content, never half.

    Yields:
      The temporary file to write, a hidden sibling on the same file system. It is removed on an
      error.
    """
    path = Path(path)
    with naming(path):
        # A new name that nobody can guess: a link that waits under a known one would be followed.
        descriptor, name = tempfile.mkstemp(prefix=f".tmp-{path.name}-", dir=path.parent)
        os.close(descriptor)
        temporary = Path(name)
        try:
            temporary.chmod(0o666 & ~_umask())
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Gives errors of the disk a name: those without one, or with one that is temporary."""
    try:
        yield
    except OSError as error:
        is_temporary = ".tmp-" in str(error.filename or "")
        if error.errno is not None and (error.filename is None or is_temporary):
            error.filename, error.filename2 = os.fspath(path), None
        raise


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file that holds the old or the new content, never half."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes ``value`` as indented JSON; ``path`` holds the old or the new text, never half."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    replace_file(path, text.encode())


class Record(dict[str, Any]):
    """An object of a JSON file; a key that is missing is an error that names the file."""

    path: Path

    def __missing__(self, key: str) -> Any:
        raise UserError(f"{self.path} has no `{key}`, so it is damaged. Create it again.")


def read_json(path: str | os.PathLike[str], kind: type = object) -> Any:
    """Reads a JSON file.

    Args:
      path: the file.
      kind: required type of the value, such as ``dict`` or ``list``.

    Returns:
      The value; every object in it is a ``Record``.

    Raises:
      UserError: the file is missing, is not JSON, or holds a value of another type.
    """
    path = Path(path)

    def record(pairs: list[tuple[str, Any]]) -> Record:
        found = Record(pairs)
        found.path = path
        return found

    try:
        value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=record)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} should be a JSON file: {error}. Create it again.") from error
    if not isinstance(value, kind):
        required = {"dict": "an object", "list": "a list"}[kind.__name__]
        raise UserError(
            f"{path} should hold {required}. Received: {type(value).__name__}. Create it again."
        )
    return value


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that shape a result, without importing them.

    Packages that are not installed are left out.

    >>> {"python", "numpy", "duckdb"} <= set(installed_versions())
    True
    """
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def sha256(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file's bytes, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def file_entries(folder: Path) -> dict[str, dict[str, object]]:
    """Size and checksum of every file below ``folder``, by its path relative to it."""
    return {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": sha256(path),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def json_sha256(value: Any) -> str:
    """The SHA-256 of a JSON value, whatever the order of its keys, as 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def lock(file: IO[Any] | int, *, wait: bool = False) -> bool | None:
    """Locks an open file or folder for this process, until it is closed.

    Args:
      file: an open file, or the descriptor of a file or folder.
      wait: whether to wait while another process holds the lock.

    Returns:
      Whether this process holds the lock; None where the file system has no locks, as on some
      network drives, so that other processes are neither detected nor kept out.
    """
    descriptor = file if isinstance(file, int) else file.fileno()
    try:
        return lock_descriptor(descriptor, blocking=wait)
    except OSError:
        return None


@contextlib.contextmanager
def locked_file(path: Path) -> Iterator[bool | None]:
    """Creates a file if needed, and locks it; yields what ``lock`` returns.

    The file is opened without following links, and its content is not changed. If the file has
    been moved away by the time that it is locked, the lock is worth nothing: False is yielded.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags, 0o666)
    try:
        is_ours = lock(descriptor)
        if is_ours and not _is_at(descriptor, path):
            is_ours = False
        yield is_ours
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def _check_replaceable(final: Path, overwrite: bool) -> None:
    if not os.path.lexists(final):
        return
    if not final.is_dir():
        raise UserError(f"the output {final} should be a folder, but a file has that name.")
    if not overwrite and any(final.iterdir()):
        raise UserError(
            f"the output folder {final} already exists; another process may have written it "
            "in the meantime. Run the same command again, or choose another folder."
        )


def _locked_sibling(final: Path) -> tuple[Path, int | None]:
    """A new temporary folder, locked for as long as this process lives."""
    while True:
        prefix = f".tmp-{final.name}-{os.getpid()}-"
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=final.parent))
        folder.chmod(0o777 & ~_umask())
        if not _CAN_OPEN_FOLDERS:
            return folder, None
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY)
            # Another run may have taken the folder for a leftover before it was locked.
            if lock(descriptor) is not False and folder.exists():
                return folder, descriptor
            os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def put_in_place(folder: Path, final: Path) -> None:
    """Renames ``folder`` to ``final``; afterwards ``folder`` is what was there before, if any."""
    if not final.exists() or not any(final.iterdir()):
        if os.name == "nt" and final.exists():
            final.rmdir()
        os.rename(folder, final)
        return
    if _exchange(folder, final):
        return
    # No atomic exchange here: for a moment only the name `.old-…` exists, see _clean_up.
    old = final.with_name(f".old-{final.name}")
    os.rename(final, old)
    os.rename(folder, final)
    os.rename(old, folder)


def _exchange(first: Path, second: Path) -> bool:
    """Swaps two names in one atomic operation, where system and file system can."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    status = renameat2(
        _AT_CURRENT_FOLDER,
        os.fsencode(first),
        _AT_CURRENT_FOLDER,
        os.fsencode(second),
        _RENAME_EXCHANGE,
    )
    return bool(status == 0)


def _clean_up(final: Path) -> None:
    """Removes the temporary folders of dead runs, and brings back a result in mid-rename."""
    old = final.with_name(f".old-{final.name}")
    if old.is_dir():
        if final.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(old, final)
    if not _CAN_OPEN_FOLDERS:  # Leftovers of killed runs stay until someone removes them.
        return
    prefix = f".tmp-{final.name}-"
    for leftover in final.parent.iterdir():
        rest = leftover.name[len(prefix) :].split("-")
        is_ours = leftover.name.startswith(prefix) and len(rest) == 2 and rest[0].isdigit()
        if not is_ours or not leftover.is_dir() or leftover.is_symlink():
            continue
        try:
            descriptor = os.open(leftover, os.O_RDONLY)
        except OSError:
            continue
        try:
            if lock(descriptor):  # Otherwise a live run is, or may be, writing there.
                shutil.rmtree(leftover, ignore_errors=True)
        finally:
            os.close(descriptor)
