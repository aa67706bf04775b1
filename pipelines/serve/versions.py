"""The versions of a model: which there are, which answer, and how they take turns."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..export.versions import version_folders
from .batching import Batcher
from .counters import Metrics
from .errors import Code, RequestError
from .saved_model import LoadError, SavedModel

log = logging.getLogger(__name__)

# Versions that are no longer served stay in the status, but not for ever.
MAX_ENDED = 20


class State(enum.IntEnum):
    """States of a version; names and values as in ``ModelVersionStatus``."""

    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclasses.dataclass
class Version:
    """One version.

    Attributes:
      number: Its name.
      path: Its folder.
      state: Where it is in its life.
      code: OK, or why it could not be loaded.
      message: The same in words.
      in_flight: Requests that use it.
    """

    number: int
    path: Path
    state: State = State.LOADING
    code: Code = Code.OK
    message: str = ""
    in_flight: int = 0

    def __post_init__(self) -> None:
        self.contents = _contents(self.path)
        self.idle = asyncio.Event()
        self.idle.set()
        self._loaded: tuple[SavedModel, Batcher] | None = None

    @property
    def model(self) -> SavedModel:
        """What is loaded."""
        assert self._loaded is not None, f"version {self.number} is not loaded"
        return self._loaded[0]

    @property
    def batcher(self) -> Batcher:
        """What runs requests."""
        assert self._loaded is not None, f"version {self.number} is not loaded"
        return self._loaded[1]

    def start(self, model: SavedModel, batcher: Batcher) -> None:
        """From now on it answers."""
        self._loaded = (model, batcher)
        self.state = State.AVAILABLE

    def end(self, code: Code = Code.OK, message: str = "") -> None:
        """From now on it is history."""
        self._loaded = None
        self.state, self.code, self.message = State.END, code, message


class Model:
    """A folder of versions, of which the newest that can be loaded answer.

    To be used from one event loop.

    Args:
      name: What clients call it.
      folder: Where the versions are, in folders whose names are numbers.
      make_batcher: Makes what runs the requests of a loaded version.
      metrics: Where loads are counted.
      keep_versions: How many of the newest answer.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        make_batcher: Callable[[SavedModel], Batcher],
        metrics: Metrics,
        keep_versions: int = 1,
    ):
        self.name = name
        self.folder = folder
        self._make_batcher = make_batcher
        self._metrics = metrics
        self._keep_versions = keep_versions
        self._versions: dict[int, Version] = {}
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._unloading: set[asyncio.Task[None]] = set()

    def available(self) -> list[Version]:
        """The versions that answer, newest first."""
        found = [one for one in self._versions.values() if one.state is State.AVAILABLE]
        return sorted(found, key=lambda version: -version.number)

    def statuses(self, name: str, number: int | None = None) -> list[Version]:
        """All known versions, or the one with a number, newest first.

        Raises:
          RequestError: There is no such model or version.
        """
        self._check_name(name)
        if number is None:
            return sorted(self._versions.values(), key=lambda version: -version.number)
        if number not in self._versions:
            raise self._no_version(number)
        return [self._versions[number]]

    @contextlib.contextmanager
    def use(self, name: str, number: int | None = None) -> Iterator[Version]:
        """A version that stays loaded within the context: the newest, or the one with a number.

        Raises:
          RequestError: There is no such model or version, or it does not answer yet.
        """
        self._check_name(name)
        available = self.available()
        if number is not None:
            available = [version for version in available if version.number == number]
            if not available:
                raise self._no_version(number)
        if not available:
            raise RequestError(Code.UNAVAILABLE, f"model '{name}' is being loaded. Try again.")
        version = available[0]
        version.in_flight += 1
        version.idle.clear()
        try:
            yield version
        finally:
            version.in_flight -= 1
            if not version.in_flight:
                version.idle.set()

    async def watch(self, seconds: float) -> None:
        """Looks for changes in the folder, for ever."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.refresh()
            except OSError as error:
                log.warning("cannot look for new versions in %s: %s", self.folder, error)
            except Exception:
                log.exception("looking for new versions failed; what is loaded goes on")

    async def refresh(self) -> None:
        """Loads the newest versions, then lets go of the others.

        Versions that cannot be loaded are passed over, and tried again when their files change.
        """
        while True:
            wanted = self._wanted()
            missing = [number for number in wanted if not self._is_available(number)]
            if not missing:
                break
            await self._load(missing[0], wanted[missing[0]])
        # An empty folder is more often a mistake than a wish to stop.
        if wanted:
            for version in self.available():
                if version.number not in wanted:
                    self._start_unloading(version)
        self._forget()

    async def close(self) -> None:
        """Closes every version. Nothing may be running."""
        for version in self.available():
            self._start_unloading(version)
        await asyncio.gather(*self._unloading)
        await asyncio.get_running_loop().run_in_executor(None, self._loader.shutdown)

    def _check_name(self, name: str) -> None:
        if name != self.name:
            raise RequestError(
                Code.NOT_FOUND, f"there is no model '{name}' here. The model is '{self.name}'."
            )

    def _no_version(self, number: int) -> RequestError:
        numbers = ", ".join(str(version.number) for version in self.available()) or "none yet"
        return RequestError(
            Code.NOT_FOUND, f"model '{self.name}' has no version {number}. Served: {numbers}."
        )

    def _is_available(self, number: int) -> bool:
        return number in self._versions and self._versions[number].state is State.AVAILABLE

    def _wanted(self) -> dict[int, Path]:
        """The newest versions that are not known to be broken, newest first."""
        found = version_folders(self.folder)
        wanted: dict[int, Path] = {}
        for number in sorted(found, reverse=True):
            known = self._versions.get(number)
            broken = known is not None and known.code is not Code.OK
            if broken and known is not None and known.contents == _contents(found[number]):
                continue
            if known is not None and known.state is State.UNLOADING:
                continue
            wanted[number] = found[number]
            if len(wanted) == self._keep_versions:
                break
        return wanted

    async def _load(self, number: int, path: Path) -> None:
        version = self._versions[number] = Version(number, path)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            model = await loop.run_in_executor(self._loader, SavedModel, path)
        except LoadError as error:
            version.end(error.code, error.message)
            self._metrics.loads.labels("failed").inc()
            serving = [other.number for other in self.available()]
            log.error(
                "version %d failed to load: %s (serving: %s)",
                number,
                error.message,
                ", ".join(map(str, serving)) or "none",
            )
            return
        version.start(model, self._make_batcher(model))
        self._metrics.loads.labels("loaded").inc()
        self._metrics.version.labels(self.name).set(self.available()[0].number)
        log.info(
            "version %d answers: loaded in %.1f s, %d warm-up requests",
            number,
            loop.time() - started,
            model.num_warmup_requests,
        )

    def _start_unloading(self, version: Version) -> None:
        version.state = State.UNLOADING
        if self.available():
            self._metrics.version.labels(self.name).set(self.available()[0].number)
        task = asyncio.get_running_loop().create_task(self._unload(version))
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)

    async def _unload(self, version: Version) -> None:
        await version.idle.wait()
        model = version.model
        version.end()
        await asyncio.get_running_loop().run_in_executor(self._loader, model.close)
        log.info("version %d is closed", version.number)

    def _forget(self) -> None:
        found = version_folders(self.folder)
        ended = [one.number for one in self._versions.values() if one.state is State.END]
        for number in sorted(ended)[:-MAX_ENDED]:
            # A broken version that is still there would be loaded again, were it forgotten.
            if number not in found or self._versions[number].code is Code.OK:
                del self._versions[number]


def _contents(folder: Path) -> tuple[int, int, int]:
    """Number, bytes and last change of the files in a folder: equal as long as nothing changes."""
    count = size = changed = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            status = path.stat()
            count, size = count + 1, size + status.st_size
            changed = max(changed, status.st_mtime_ns)
    return count, size, changed
