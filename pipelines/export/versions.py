"""The folder of a model: a numbered subfolder for each version, as TensorFlow Serving expects."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ..common.program import command
from ..errors import UserError


def version_folders(folder: Path) -> dict[int, Path]:
    """The folder of each version by its number."""
    return {
        int(path.name): path
        for path in folder.iterdir()
        if path.name.isascii() and path.name.isdecimal() and path.is_dir()
    }


def model_versions(folder: Path) -> list[int]:
    """The version numbers in the folder of a model, ascending; empty if there is no folder."""
    return sorted(version_folders(folder)) if folder.is_dir() else []


def next_version(folder: Path) -> Path:
    """The folder of the version after the newest.

    Raises:
      UserError: ``folder`` is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} should be a folder, but a file has that name.")
    return folder / str(max([0, *model_versions(folder)]) + 1)


def newest_version(folder: Path) -> Path:
    """The folder of the newest version.

    Raises:
      UserError: there is none.
    """
    versions = model_versions(folder)
    if not versions:
        raise UserError(
            f"--model {folder} has no version of a model. Run '{command('export')}' first."
        )
    return folder / str(versions[-1])


def remove_old_versions(folder: Path, keep: int) -> list[int]:
    """Removes all versions but the ``keep`` newest, and returns their numbers.

    Each folder is first renamed to a name that servers ignore, so that none reads half a model.
    """
    old = model_versions(folder)[:-keep]
    for version in old:
        aside = folder / f".old-{version}"
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(folder / str(version), aside)
        shutil.rmtree(aside, ignore_errors=True)
    return old
