"""Progress on stderr: the phases of a step with their times, and a bar on a terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TextIO

from tqdm import tqdm


def progress_bar(total: int | None = None, *, done: int = 0, unit: str = "step") -> Any:
    """A bar on stderr with speed and remaining time; nothing if stderr is not a terminal.

    The bar disappears when it is closed. Print other lines inside
    ``with bar.external_write_mode(): …``, so that the bar stays below them.

    Args:
      total: number of units to do, if it is known.
      done: number of units that were done before.
      unit: name of the unit.

    Returns:
      A ``tqdm`` bar, to be closed or used as a context manager.
    """
    is_terminal = sys.stderr.isatty()
    # Some terminals, such as those of containers, do not know their size.
    width = os.get_terminal_size(sys.stderr.fileno()).columns if is_terminal else 0
    return tqdm(
        total=total,
        initial=done,
        unit=f" {unit}s",
        unit_scale=total is None,
        ncols=None if width else 79,
        nrows=None if width else 20,
        dynamic_ncols=width > 0,
        leave=False,
        file=sys.stderr,
        disable=not is_terminal,
    )


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
    """Prints one line per phase: its title, then its results and how long it took.

    On a terminal the line also counts the seconds, with a percentage where there is one.

    Args:
      total: number of phases to come, for ``[2/6]``.
      percentage: called now and then for the progress of the running phase; a negative number
        means unknown.
      stream: where to print; stderr by default.
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
          title: what is being done.

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
