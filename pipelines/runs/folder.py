"""The folder of a training run: its configuration, and the lock that keeps others out."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..common.files import installed_versions, lock, read_json, sha256, write_json
from ..common.program import command
from ..data.prepared import MANIFEST, PreparedData
from ..errors import UserError
from .settings import TrainSettings

CONFIG = "config.json"
RESULT = "result.json"


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that has been configured, finished or not.

    Attributes:
      path: folder of the run.
      settings: settings that it is trained with.
      config: content of ``config.json``.
    """

    path: Path
    settings: TrainSettings
    config: dict[str, Any]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Opens the folder of a run."""
        path = Path(path)
        if not (path / CONFIG).is_file():
            raise UserError(
                f"{path} is not the folder of a training run: no {CONFIG}. Run "
                f"'{command('train')}' to make one."
            )
        config = read_json(path / CONFIG)
        return cls(path, TrainSettings.from_dict(config["settings"]), config)

    @property
    def result(self) -> dict[str, Any] | None:
        """The result of the run; None while it is not finished."""
        return read_json(self.path / RESULT) if (self.path / RESULT).is_file() else None

    def open_data(self, given: str | None = None) -> PreparedData:
        """The prepared data that the run was trained on.

        Args:
          given: folder of the data; by default the one in the configuration, relative to the run.
        """
        path = Path(given) if given else Path(os.path.normpath(self.path / self.config["data"]))
        if not path.is_dir():
            raise UserError(f"the run's data is not in {path}. Pass --data to say where it is.")
        data = PreparedData.load(path)
        if data_checksum(data) != self.config["data_checksum"]:
            raise UserError(
                f"{path} is not the data that {self.path} was trained on: its {MANIFEST} describes "
                "other files. Pass --data to say where that data is, or train again."
            )
        return data


def data_checksum(data: PreparedData) -> str:
    """A checksum that is equal for equal data, wherever and whenever it was prepared."""
    files = data.manifest["files"]
    listing = "".join(f"{name} {files[name]['sha256']}\n" for name in sorted(files))
    return hashlib.sha256(listing.encode()).hexdigest()


def training_differences(there: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The settings in which two records differ, in words, and whether their data differs.

    >>> old = {"settings": {"dim": 8, "seed": 1}, "data_checksum": "a"}
    >>> training_differences(old, {"settings": {"dim": 16, "seed": 1}, "data_checksum": "b"})
    ['dim: 8 there, 16 now', 'other data']

    Args:
      there: record that was found, with ``settings`` and ``data_checksum``; either may be missing.
      now: record of what is wanted.
    """
    old, new = there.get("settings", {}), now["settings"]
    found = [
        f"{name}: {old.get(name)!r} there, {new.get(name)!r} now"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
    if there.get("data_checksum") != now["data_checksum"]:
        found.append("other data")
    return found


def configure(
    path: Path,
    data: PreparedData,
    settings: TrainSettings,
    overwrite: bool,
    strategy: dict[str, Any] | None = None,
) -> Run:
    """The run in ``path``, new or to be continued.

    A run may continue with another number of replicas than it was started with, or with none, since
    its learning curve stays the same. With parameter servers it does not, so a run can neither
    switch to them nor from them.

    With ``overwrite`` an existing folder is set aside, as a sibling ``.replaced-NAME`` that stays
    until the new run is finished (see ``discard_replaced``).

    Raises:
      UserError: ``path`` holds something else, or a run with other settings or data.
    """
    config = {
        "settings": settings.as_dict(),
        "strategy": strategy or {"name": "none", "replicas": 1, "workers": 1, "shards": 1},
        "data": _relative(data.path, path),
        "data_checksum": data_checksum(data),
        "manifest_sha256": sha256(data.path / MANIFEST),
        "seed": settings.seed,
        "versions": installed_versions(),
    }
    if path.exists() and not path.is_dir():
        raise UserError(f"--out {path} should be a folder, but a file has that name.")
    if path.is_dir() and any(path.iterdir()):
        if overwrite:
            _set_aside(path)
        elif not (path / CONFIG).is_file():
            raise UserError(
                f"--out {path} exists and is not a training run. Choose another folder, or pass "
                "--overwrite to replace it."
            )
        else:
            return _existing(path, config)
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / CONFIG, config)
    return Run(path, settings, config)


def discard_replaced(path: Path) -> None:
    """Removes the run that ``path`` has replaced."""
    shutil.rmtree(_replaced(path), ignore_errors=True)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Keeps other processes from training in the folder.

    Raises:
      UserError: another process trains there.
    """
    with open(path / ".lock", "w") as file:
        if lock(file) is False:
            raise UserError(f"another process is training in {path}. Wait until it has finished.")
        yield


def _existing(path: Path, config: dict[str, Any]) -> Run:
    existing = read_json(path / CONFIG)
    differences = _differences(existing, config)
    if differences:
        raise UserError(
            f"--out {path} holds a run with other settings ({'; '.join(differences)}). Pass "
            "--overwrite to replace it, or choose another folder."
        )
    if existing["versions"] != config["versions"]:
        print(
            f"note: {path} was started with other versions of Python or of packages, see its "
            f"{CONFIG}; results may differ in the last digits.",
            file=sys.stderr,
        )
    return Run.load(path)


def _differences(existing: dict[str, Any], config: dict[str, Any]) -> list[str]:
    found = training_differences(existing, config)
    names = existing.get("strategy", {}).get("name", "none"), config["strategy"]["name"]
    if names[0] != names[1] and "parameter-server" in names:
        found.append(f"--strategy: {names[0]} there, {names[1]} now")
    return found


def _replaced(path: Path) -> Path:
    absolute = Path(os.path.abspath(path))
    return absolute.with_name(f".replaced-{absolute.name}")


def _set_aside(path: Path) -> None:
    # A replacement that was never finished is not worth keeping.
    if _replaced(path).exists():
        shutil.rmtree(path)
    else:
        os.rename(path, _replaced(path))


def _relative(target: Path, start: Path) -> str:
    try:
        return os.path.relpath(target, start)
    except ValueError:  # Another drive on Windows.
        return os.path.abspath(target)
