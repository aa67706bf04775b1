"""Which phase a job is in and how long each one took, on stderr."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TextIO


@contextlib.contextmanager
def _noticed_interruption() -> Iterator[None]:
    """Ends in KeyboardInterrupt if Ctrl-C was pressed, whatever else happens.

    An engine may lose the interruption, if it arrives while the engine cleans up, or report it as
    an error of its own.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = []
    before = signal.getsignal(signal.SIGINT)

    def notice(number: int, frame: FrameType | None) -> None:
        interrupted.append(number)
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGINT, notice)
    try:
        yield
    except Exception as error:
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt


class Phases:
    """Prints one line per phase: what it does, then what came of it and how long it took.

    On a terminal the line also counts the seconds, with a percentage where there is one.

    Args:
      total: Number of phases to come, for ``[2/6]``.
      percentage: Called now and then for the progress of the running phase; a negative number
        means unknown.
      stream: Where to print, stderr by default.
    """

    def __init__(
        self,
        total: int,
        percentage: Callable[[], float] | None = None,
        stream: TextIO | None = None,
    ):
        self.seconds: dict[str, float] = {}
        self._total = total
        self._percentage = percentage
        self._stream = sys.stderr if stream is None else stream

    @contextlib.contextmanager
    def phase(self, title: str) -> Iterator[list[str]]:
        """Runs one phase.

        Args:
          title: What is being done.

        Yields:
          A list; strings that are appended to it are printed as the result of the phase.
        """
        label = f"[{len(self.seconds) + 1}/{self._total}] {title} ..."
        results: list[str] = []
        start = time.monotonic()
        done = threading.Event()
        ticker = None
        if self._stream.isatty():
            ticker = threading.Thread(target=self._tick, args=(label, start, done), daemon=True)
            ticker.start()
        else:
            print(label, end="", file=self._stream, flush=True)
        ending = " stopped"
        try:
            with _noticed_interruption():
                yield results
            self.seconds[title] = round(time.monotonic() - start, 3)
            ending = f" {', '.join([*results, f'{self.seconds[title]:.1f} s'])}"
        finally:
            done.set()
            if ticker is not None:
                ticker.join()
                label = "\r\x1b[K" + label
            print(label + ending if ticker else ending, file=self._stream, flush=True)

    def note(self, text: str) -> None:
        """Adds a line to the running phase."""
        print(f"\n      {text} ...", end="", file=self._stream, flush=True)

    def _tick(self, label: str, start: float, done: threading.Event) -> None:
        while True:
            share = -1.0 if self._percentage is None else self._percentage()
            known = f" {share:.0f} %" if 0 <= share <= 100 else ""
            seconds = time.monotonic() - start
            print(f"\r\x1b[K{label}{known} {seconds:.0f} s", end="", file=self._stream, flush=True)
            if done.wait(0.5):
                return
