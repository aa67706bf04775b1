"""What ``--overwrite`` may replace: a result of the same step, with nothing else in it.

Every step that replaces a result asks here, before anything is moved. A folder that the step did
not write, one that also holds files of somebody else, and one that holds the input of the step are
refused.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from .files import read_json

_SHOWN_NAMES = 3

# Files that a process was writing when it was killed.
LEFTOVERS = (".tmp-*", "*/.tmp-*")


@dataclass(frozen=True)
class Kind:
    """A kind of result folder.

    Attributes:
      title: what it is, with its article.
      record: name of the JSON file that every such folder has.
      keys: keys of that file by which it is recognised.
      names: function of the content of that file that returns patterns of the paths of all files
        in the folder, relative to it.
    """

    title: str
    record: str
    keys: tuple[str, ...]
    names: Callable[[Mapping[str, Any]], Iterable[str]]


def check_replaceable(folder: Path, kind: Kind, inputs: Mapping[str, Iterable[Path]]) -> None:
    """Checks that a folder may be replaced by a result of the same kind.

    Args:
      folder: existing folder.
      kind: what it should be.
      inputs: files and folders that the step reads, by the option that names them.

    Raises:
      UserError: it is something else, or it holds something else as well.
    """
    check_outside(folder, inputs)
    refused = "so --overwrite does not replace it. Choose another folder."
    try:
        record = read_json(folder / kind.record)
    except UserError as error:
        reason = str(error).rstrip(".") if (folder / kind.record).exists() else f"no {kind.record}"
        raise UserError(f"--out {folder} is not {kind.title} ({reason}), {refused}") from error
    missing = [key for key in kind.keys if not isinstance(record, dict) or key not in record]
    if missing:
        raise UserError(
            f"--out {folder} is not {kind.title} ({kind.record} has no {missing[0]!r}), {refused}"
        )
    patterns = [kind.record, *LEFTOVERS, *kind.names(record)]
    foreign = sorted(
        name
        for name in _files(folder)
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    )
    if foreign:
        shown = ", ".join(foreign[:_SHOWN_NAMES]) + (", …" if foreign[_SHOWN_NAMES:] else "")
        raise UserError(
            f"--out {folder} holds files that do not belong to {kind.title} ({shown}), so "
            "--overwrite does not replace it. Move them away, or choose another folder."
        )


def check_outside(folder: Path, inputs: Mapping[str, Iterable[Path]]) -> None:
    """Checks that what a step reads is not in the folder that it writes.

    Raises:
      UserError: an input is the folder itself or in it.
    """
    place = folder.resolve()
    for option, paths in inputs.items():
        for path in paths:
            found = path.resolve()
            if found == place or place in found.parents:
                raise UserError(
                    f"--out {folder} holds {option} {path}, which the step reads, so it is not "
                    "written. Choose another folder."
                )


def _files(folder: Path) -> Iterable[str]:
    """The relative paths of everything but folders; links are not followed."""
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in [*files, *links]:
            yield Path(place, name).relative_to(folder).as_posix()
