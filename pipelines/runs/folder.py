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

from ..common import keras_version
from ..common.files import installed_versions, locked_file, read_json, sha256, write_json
from ..common.json_shapes import check_shape
from ..common.ownership import Kind, check_outside, check_replaceable
from ..common.program import command
from ..data.prepared import MANIFEST, PreparedData
from ..errors import UserError
from .settings import TrainSettings

CONFIG = "config.json"
RESULT = "result.json"
LOCK = ".lock"

# The parts of the two files that are read, if they are present.
_CONFIG_SHAPE = {
    "settings": dict,
    "strategy": {"name": str},
    "data": str,
    "data_checksum": str,
    "keras": str,
    "versions": dict,
}
_RESULT_SHAPE = {
    "stopped": str,
    "steps": int,
    "seconds": float,
    "best": {"step": int, "*": float},
}

# All that the steps write into the folder of a run.
RUN = Kind(
    "a training run",
    CONFIG,
    ("settings", "data", "data_checksum"),
    lambda config: (
        LOCK,
        RESULT,
        "history.csv",
        "history.json",
        "learning_curves.png",
        "log.txt",
        "recall.json",
        "recall_curves.png",
        "report.md",
        "tensorboard/*",
        "best/*",
        "checkpoints/*",
        "baselines/*",
    ),
)


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
        if not path.exists():
            raise UserError(f"{path} does not exist. Run '{command('train')}' to create it.")
        if not (path / CONFIG).is_file():
            raise UserError(
                f"{path} is not the folder of a training run: no {CONFIG}. Choose a folder that "
                f"'{command('train')}' has written."
            )
        config = read_json(path / CONFIG, dict)
        check_shape(path / CONFIG, config, _CONFIG_SHAPE, "Train again.")
        return cls(path, TrainSettings.from_dict(config["settings"]), config)

    @property
    def result(self) -> dict[str, Any] | None:
        """The result of the run; None while it is not finished."""
        path = self.path / RESULT
        if not path.is_file():
            return None
        result: dict[str, Any] = read_json(path, dict)
        check_shape(path, result, _RESULT_SHAPE, "Train again.")
        return result

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


@contextlib.contextmanager
def open_run(
    path: Path,
    data: PreparedData,
    settings: TrainSettings,
    overwrite: bool = False,
    strategy: dict[str, Any] | None = None,
) -> Iterator[Run]:
    """The run in ``path``, new or to be continued; other processes are kept out in the meantime.

    A run may continue with another number of replicas than it was started with, or with none, since
    its learning curve stays the same. With parameter servers it does not, so a run can neither
    switch to them nor from them.

    With ``overwrite`` an existing run is set aside, as a sibling ``.replaced-NAME`` that stays
    until the new run is finished (see ``discard_replaced``). Its lock is taken before it is moved.

    Raises:
      UserError: ``path`` holds something else, or a run with other settings or data, or another
        process trains there.
    """
    config = {
        "settings": settings.as_dict(),
        "strategy": strategy or {"name": "none", "replicas": 1, "workers": 1, "shards": 1},
        "data": _relative(data.path, path),
        "data_checksum": data_checksum(data),
        "manifest_sha256": sha256(data.path / MANIFEST),
        "seed": settings.seed,
        "keras": keras_version.running(),
        "versions": installed_versions(),
    }
    if path.exists() and not path.is_dir():
        raise UserError(f"--out {path} should be a folder, but a file has that name.")
    _bring_back(path)
    if not overwrite and _is_in_use(path) and not (path / CONFIG).is_file():
        raise UserError(f"--out {path} exists and is not a training run. Choose another folder.")
    inputs = {"--data": [data.path]}
    if overwrite and _is_in_use(path):
        # Before the lock, since a folder of something else is left as it is, without a lock file.
        check_replaceable(path, RUN, inputs)
    check_outside(path, inputs)
    with contextlib.ExitStack() as held:
        path.mkdir(parents=True, exist_ok=True)
        held.enter_context(exclusive(path))
        if overwrite and _is_in_use(path):
            check_replaceable(path, RUN, inputs)
            _set_aside(path)
            path.mkdir()
            held.enter_context(exclusive(path))
        for leftover in path.glob(".tmp-*"):
            if leftover.is_file() and not leftover.is_symlink():
                leftover.unlink()
        if (path / CONFIG).is_file():
            run = _existing(path, config)
        else:
            write_json(path / CONFIG, config)
            run = Run(path, settings, config)
        yield run


def discard_replaced(path: Path) -> None:
    """Removes the run that ``path`` has replaced."""
    shutil.rmtree(_replaced(path), ignore_errors=True)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Keeps other processes from training in the folder.

    Raises:
      UserError: another process trains there.
    """
    with locked_file(path / LOCK) as is_ours:
        if is_ours is False:
            raise UserError(f"another process is training in {path}. Wait until it has finished.")
        yield


def _existing(path: Path, config: dict[str, Any]) -> Run:
    run = Run.load(path)
    # Settings that came after the run was started have their defaults in it.
    existing = {**run.config, "settings": run.settings.as_dict()}
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
    return run


def _differences(existing: dict[str, Any], config: dict[str, Any]) -> list[str]:
    found = training_differences(existing, config)
    names = existing.get("strategy", {}).get("name", "none"), config["strategy"]["name"]
    if names[0] != names[1] and "parameter-server" in names:
        found.append(f"--strategy: {names[0]} there, {names[1]} now")
    # Each Keras saves the state of optimizers in its own way.
    versions = existing.get("keras", "2"), config["keras"]
    if versions[0] != versions[1]:
        found.append(f"--keras: {versions[0]} there, {versions[1]} now")
    return found


def _replaced(path: Path) -> Path:
    absolute = Path(os.path.abspath(path))
    return absolute.with_name(f".replaced-{absolute.name}")


def _is_in_use(path: Path) -> bool:
    """Whether a folder holds more than what a run leaves that was killed at its very start."""
    names = (entry.name for entry in path.iterdir()) if path.is_dir() else ()
    return any(name != LOCK and not name.startswith(".tmp-") for name in names)


def _set_aside(path: Path) -> None:
    if not _replaced(path).exists():
        os.rename(path, _replaced(path))
    elif (path / RESULT).is_file():
        # A finished run, which was stopped before it could discard the one that it replaced.
        discard_replaced(path)
        os.rename(path, _replaced(path))
    else:
        # A replacement that was never finished is not worth keeping.
        shutil.rmtree(path)


def _bring_back(path: Path) -> None:
    """Undoes a replacement that was interrupted after the old run was set aside."""
    if not path.exists() and _replaced(path).is_dir():
        os.rename(_replaced(path), path)
        print(f"note: {path} was set aside by an interrupted --overwrite, and is back.")


def _relative(target: Path, start: Path) -> str:
    try:
        return os.path.relpath(target, start)
    except ValueError:  # Another drive on Windows.
        return os.path.abspath(target)
