"""Finds the versions of a model, as `tfrs_croloss.serving.versions` does, without TensorFlow."""

from __future__ import annotations

from pathlib import Path

from ..common.program import command
from ..errors import UserError

_MAX_VERSION = 2**63 - 1


def version_folders(folder: Path) -> dict[int, Path]:
    """The folder of each version by its number. Numbers above an int64 are no versions."""
    return {
        int(path.name): path
        for path in folder.iterdir()
        if path.name.isascii()
        and path.name.isdecimal()
        and int(path.name) <= _MAX_VERSION
        and path.is_dir()
    }


def newest_version(folder: Path) -> Path:
    """The folder of the newest version.

    Raises:
      UserError: there is none.
    """
    versions = version_folders(folder) if folder.is_dir() else {}
    if not versions:
        raise UserError(
            f"--model {folder} has no version of a model. Run '{command('export')}' first."
        )
    return versions[max(versions)]
