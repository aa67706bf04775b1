"""The folder of a model: a numbered subfolder for each version, as TensorFlow Serving expects."""

from __future__ import annotations

from pathlib import Path

from ..common.program import command
from ..errors import UserError

MAX_VERSION = 2**63 - 1


def version_folders(folder: Path) -> dict[int, Path]:
    """The folder of each version by its number. Numbers above an int64 are no versions."""
    return {
        int(path.name): path
        for path in folder.iterdir()
        if path.name.isascii()
        and path.name.isdecimal()
        and int(path.name) <= MAX_VERSION
        and path.is_dir()
    }


def model_versions(folder: Path) -> list[int]:
    """The version numbers in the folder of a model, ascending; empty if there is no folder."""
    return sorted(version_folders(folder)) if folder.is_dir() else []


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
