"""The list of a model's files, with sizes and checksums, so that a server can tell a whole copy.

A version that is copied by hand or over a network is visible before it is complete. The file
``MANIFEST.json`` is written last and says what belongs to the version:

    {"format": 1, "files": {"saved_model.pb": {"bytes": 5, "sha256": "…"}}}

It protects against half copies and damage, not against people: whoever can write the model can
write the manifest too.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["MANIFEST", "ManifestError", "check_manifest", "write_manifest"]

MANIFEST = "MANIFEST.json"
FORMAT = 1
_BLOCK = 1 << 20


class ManifestError(Exception):
    """A folder that is not what its manifest says, or a manifest that cannot be read."""


def write_manifest(folder: str | os.PathLike[str]) -> Path:
    """Writes the manifest of all files in a folder. Call it last.

    Args:
      folder: folder of a version; the files in its subfolders count too.

    Returns:
      The file ``MANIFEST.json``, which holds the old or the new text, never half.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "saved_model.pb").write_bytes(b"model")
    ...     _ = write_manifest(folder)
    ...     check_manifest(folder)
    ['saved_model.pb']
    """
    root = Path(folder)
    files = {
        name: {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for name, path in sorted(_files(root))
    }
    text = json.dumps({"format": FORMAT, "files": files}, indent=1) + "\n"
    final = root / MANIFEST
    # A name that nobody can guess, in a folder that others may write to.
    temporary = root / f".tmp-{secrets.token_hex(8)}"
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return final


def check_manifest(folder: str | os.PathLike[str]) -> list[str]:
    """Checks that every file of a folder's manifest is there, whole and unchanged.

    Sizes are compared first, since that costs nothing; then every file is read.

    Args:
      folder: folder of a version.

    Returns:
      The names of the files. Files that the manifest does not name are not looked at.

    Raises:
      FileNotFoundError: there is no manifest.
      ManifestError: a file is missing or differs; the message names it.
    """
    root = Path(folder)
    files = _read(root / MANIFEST)
    for name, expected in files.items():
        try:
            size = (root / name).stat().st_size
        except OSError as error:
            raise ManifestError(
                f"{root / name} cannot be read ({error.strerror}), but {MANIFEST} names it. "
                "Copy the version again."
            ) from error
        if size != expected["bytes"]:
            raise ManifestError(
                f"{root / name} should have {expected['bytes']} bytes, as {MANIFEST} says. "
                f"Received: {size}. Copy the version again."
            )
    for name, expected in files.items():
        try:
            found = _sha256(root / name)
        except OSError as error:
            raise ManifestError(f"{root / name} cannot be read: {error.strerror}.") from error
        if found != expected["sha256"]:
            raise ManifestError(
                f"{root / name} should have the SHA-256 checksum that {MANIFEST} says "
                f"({expected['sha256'][:12]}…). Received: {found[:12]}…. Copy the version again."
            )
    return list(files)


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """The name, with slashes, and the path of each file, without the manifest itself."""
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        if name != MANIFEST and path.is_file():
            yield name, path


def _read(path: Path) -> dict[str, Any]:
    """The files of a manifest, each with a size and a checksum, within the folder."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ManifestError(f"{path} cannot be read: {error}. Copy the version again.") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise ManifestError(f"{path} should have the format {FORMAT}. Received: {found!r:.40}.")
    files = value.get("files")
    if not isinstance(files, dict) or not files:
        raise ManifestError(f"{path} should name the files of the version. Received: none.")
    for name, entry in files.items():
        parts = name.split("/")
        if os.path.isabs(name) or "" in parts or ".." in parts or "\0" in name or "\\" in name:
            raise ManifestError(f"{path} should name files in its folder. Received: {name!r:.80}.")
        if (
            not isinstance(entry, dict)
            or type(entry.get("bytes")) is not int
            or not isinstance(entry.get("sha256"), str)
        ):
            raise ManifestError(
                f"{path} should give bytes and sha256 of each file. Received: neither for "
                f"{name!r:.80}."
            )
    return files


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
