"""The versions of a model: which exist, which are served, and how a new one replaces an old one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import logging
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from tfrs_croloss.serving.manifest import MANIFEST, ManifestError, check_manifest

from ..export.versions import version_folders
from .batching import Batcher
from .counters import Counters
from .errors import Code, LoadError, RequestError
from .saved_model import SavedModel
from .settings import ServerSettings

log = logging.getLogger(__name__)

# Size and times of the last changes, of the content and of the file itself, by name.
Contents = dict[str, tuple[int, int, int]]

# An int64 has no more.
_MAX_DIGITS = 19
# Before the first version is loaded, the files of a model without a manifest are looked at twice,
# with at most this much time in between.
_STABLE_SECONDS = 1.0
# The status lists this many versions that are no longer served.
MAX_ENDED = 20


class State(enum.IntEnum):
    """The states of a version, with their names and values in ``ModelVersionStatus``."""

    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclasses.dataclass
class Version:
    """One version.

    Attributes:
      number: its number.
      path: its folder.
      state: its state.
      code: OK, or the reason why it could not be loaded.
      message: that reason in words.
      in_flight: number of requests that use it.
      model: the loaded version, while it is available or unloading.
      batcher: runs its requests, while it is available or unloading.
    """

    number: int
    path: Path
    state: State = State.LOADING
    code: Code = Code.OK
    message: str = ""
    in_flight: int = 0
    model: SavedModel = dataclasses.field(init=False, repr=False)
    batcher: Batcher = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.contents = contents_of(self.path)
        self.idle = asyncio.Event()
        self.idle.set()

    def start(self, model: SavedModel, batcher: Batcher) -> None:
        """Makes the version available."""
        self.model, self.batcher = model, batcher
        self.state = State.AVAILABLE

    def end(self, code: Code = Code.OK, message: str = "") -> None:
        """Releases the loaded model."""
        for name in ("model", "batcher"):
            self.__dict__.pop(name, None)
        self.state, self.code, self.message = State.END, code, message


class Model:
    """A folder of versions, of which the newest that can be loaded are served, from one event loop.

    Args:
      settings: settings of the server.
      executor: threads that run the model.
      counters: where loads and batches are counted.
    """

    def __init__(self, settings: ServerSettings, executor: Executor, counters: Counters):
        self.name = settings.name
        self.folder = settings.folder
        self._settings = settings
        self._executor = executor
        self._counters = counters
        self._versions: dict[int, Version] = {}
        # The files of versions without a manifest, at this refresh and at the one before.
        self._seen: dict[int, Contents] = {}
        self._seen_before: dict[int, Contents] = {}
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._unloading: set[asyncio.Task[None]] = set()

    def available(self) -> list[Version]:
        """The versions that are served, newest first."""
        found = [one for one in self._versions.values() if one.state is State.AVAILABLE]
        return sorted(found, key=lambda version: -version.number)

    def statuses(self, name: str, number: int | None = None) -> list[Version]:
        """All known versions, newest first, or the one with a given number.

        Raises:
          RequestError: there is no such model or version.
        """
        self._check_name(name)
        if number is None:
            return sorted(self._versions.values(), key=lambda version: -version.number)
        if number not in self._versions:
            raise self._no_version(number)
        return [self._versions[number]]

    def find(self, name: str, number: int | None = None) -> Version:
        """The newest version that is served, or the one with a given number.

        Raises:
          RequestError: there is no such model or version, or it is still loading.
        """
        self._check_name(name)
        available = self.available()
        if number is not None:
            available = [version for version in available if version.number == number]
            if not available:
                raise self._no_version(number)
        if not available:
            raise RequestError(Code.UNAVAILABLE, f"model '{name}' is being loaded. Try again.")
        return available[0]

    def number(self, text: str | None) -> int | None:
        """The number of a version, from its decimal digits.

        Raises:
          RequestError: it has too many digits for a version.
        """
        if text is None:
            return None
        if len(text) > _MAX_DIGITS:
            raise self._no_version(text[:_MAX_DIGITS] + "…")
        return int(text)

    @contextlib.contextmanager
    def use(self, name: str, number: int | None = None) -> Iterator[Version]:
        """What ``find`` finds; it stays loaded within the context.

        Raises:
          RequestError: there is no such model or version, or it is still loading.
        """
        version = self.find(name, number)
        version.in_flight += 1
        version.idle.clear()
        try:
            yield version
        finally:
            version.in_flight -= 1
            if not version.in_flight:
                version.idle.set()

    async def watch(self, seconds: float) -> None:
        """Looks for changes in the folder, until it is cancelled."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.refresh()
            except OSError as error:
                log.warning("cannot look for new versions in %s: %s", self.folder, error)
            except Exception:
                log.exception("looking for new versions failed; loaded versions are still served")

    async def refresh(self) -> None:
        """Loads the newest versions that are whole, then unloads the others.

        Versions that cannot be loaded are skipped, and tried again when their files change.
        """
        tried: set[int] = set()
        self._seen_before, self._seen = self._seen, {}
        while True:
            wanted = self._wanted(tried)
            missing = [number for number in wanted if not self._is_available(number)]
            if not missing:
                break
            # Once in a refresh, since files that are being copied change all the time.
            tried.add(missing[0])
            await self._load(missing[0], wanted[missing[0]])
        # An empty folder is more likely a mistake than a request to stop.
        if wanted:
            for version in self.available():
                if version.number not in wanted:
                    self._start_unloading(version)
        self._forget()

    async def start(self) -> None:
        """Loads the versions that are there when the server starts."""
        await self.refresh()
        if self._seen and not self.available():
            await asyncio.sleep(min(self._settings.poll_seconds, _STABLE_SECONDS))
            await self.refresh()

    async def close(self) -> None:
        """Unloads every version, when no request is running."""
        for version in self.available():
            self._start_unloading(version)
        await asyncio.gather(*self._unloading)
        await asyncio.get_running_loop().run_in_executor(None, self._loader.shutdown)

    def _check_name(self, name: str) -> None:
        if name != self.name:
            raise RequestError(
                Code.NOT_FOUND, f"there is no model '{name}'. This server has '{self.name}'."
            )

    def _no_version(self, number: int | str) -> RequestError:
        numbers = ", ".join(str(version.number) for version in self.available()) or "none yet"
        return RequestError(
            Code.NOT_FOUND, f"model '{self.name}' has no version {number}. Served: {numbers}."
        )

    def _is_available(self, number: int) -> bool:
        return number in self._versions and self._versions[number].state is State.AVAILABLE

    def _wanted(self, tried: set[int]) -> dict[int, Path]:
        """The newest versions that are whole and not known to be broken, newest first."""
        found = version_folders(self.folder)
        wanted: dict[int, Path] = {}
        for number in sorted(found, reverse=True):
            known = self._versions.get(number)
            if known is not None and known.state is State.UNLOADING:
                continue
            if not self._is_available(number):
                contents = contents_of(found[number])
                if number in tried or (
                    known is not None and known.code is not Code.OK and known.contents == contents
                ):
                    continue
                if not self._is_stable(number, contents):
                    continue
            wanted[number] = found[number]
            if len(wanted) == self._settings.keep_versions:
                break
        return wanted

    def _is_stable(self, number: int, contents: Contents) -> bool:
        """Whether a version may be whole: it has a manifest, or has not changed since last time."""
        if MANIFEST in contents:
            return True
        self._seen[number] = contents
        return self._seen_before.get(number) == contents

    async def _load(self, number: int, path: Path) -> None:
        version = self._versions[number] = Version(number, path)
        log.info("loading version %d from %s", number, path)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            model = await loop.run_in_executor(self._loader, _load_whole, path, version.contents)
        except LoadError as error:
            version.end(error.code, error.message)
            self._counters.loads.labels("failed").inc()
            serving = [other.number for other in self.available()]
            log.error(
                "version %d failed to load: %s (serving: %s)",
                number,
                error.message,
                ", ".join(map(str, serving)) or "none",
            )
            return
        version.start(
            model, Batcher(model, self._executor, self._settings.batching, self._counters)
        )
        self._counters.loads.labels("loaded").inc()
        self._counters.version.labels(self.name).set(self.available()[0].number)
        log.info(
            "version %d is ready: loaded in %.1f s, warm-up requests answered: %d",
            number,
            loop.time() - started,
            model.num_warmup_requests,
        )

    def _start_unloading(self, version: Version) -> None:
        version.state = State.UNLOADING
        if self.available():
            self._counters.version.labels(self.name).set(self.available()[0].number)
        task = asyncio.get_running_loop().create_task(self._unload(version))
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)

    async def _unload(self, version: Version) -> None:
        await version.idle.wait()
        model = version.model
        version.end()
        await asyncio.get_running_loop().run_in_executor(self._loader, model.close)
        log.info("version %d is unloaded", version.number)

    def _forget(self) -> None:
        found = version_folders(self.folder)
        ended = [one.number for one in self._versions.values() if one.state is State.END]
        for number in sorted(ended)[:-MAX_ENDED]:
            # A broken version that is forgotten while it is still there would be loaded again.
            if number not in found or self._versions[number].code is Code.OK:
                del self._versions[number]


def contents_of(folder: Path) -> Contents:
    """Size and last changes of each file in a folder, which tell whether it has changed."""
    contents = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            status = path.stat()
            name = path.relative_to(folder).as_posix()
            # A file that is renamed into place with the times of another has a ctime of its own.
            contents[name] = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return contents


def _load_whole(path: Path, contents: Contents) -> SavedModel:
    """Loads a version that is whole, as far as its manifest and its files tell.

    Raises:
      LoadError: it is not, or it cannot be loaded.
    """
    if MANIFEST in contents:
        try:
            check_manifest(path)
        except (ManifestError, OSError) as error:
            raise LoadError(Code.DATA_LOSS, str(error)) from error
    model = SavedModel(path)
    if contents_of(path) != contents:
        model.close()
        raise LoadError(Code.UNAVAILABLE, f"{path} changed while it was loaded.")
    return model
