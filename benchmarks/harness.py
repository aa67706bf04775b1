"""Times named functions in turns in one process, so that ratios are valid on a noisy machine."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # as in pipelines/__init__.py

PACKAGES = ("tensorflow", "tf-keras", "tensorflow-recommenders", "numpy")


@dataclasses.dataclass(frozen=True)
class Target:
    """A claim: ``slower`` takes at least (or at most) ``ratio`` times as long as ``faster``.

    Attributes:
      slower, faster: names of contenders.
      ratio: bound of the ratio of their times.
      at_most: whether it is an upper bound.
    """

    slower: str
    faster: str
    ratio: float
    at_most: bool = False


def time_in_turns(
    contenders: Mapping[str, Callable[[], object]], repeats: int = 5, warm_up: int = 1
) -> dict[str, list[float]]:
    """Times each contender once, then all of them again, and so on; returns the seconds.

    Args:
      contenders: functions without arguments, by name, which return only when they are done.
      repeats: number of timed calls of each.
      warm_up: number of calls of each before, which are not timed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(warm_up + repeats):
        for name, call in contenders.items():
            start = time.perf_counter()
            call()
            elapsed = time.perf_counter() - start
            if turn >= warm_up:
                seconds[name].append(elapsed)
    return seconds


def median_ratio(slower: Sequence[float], faster: Sequence[float]) -> float:
    """The median over turns of the ratio within a turn.

    >>> median_ratio([2.0, 9.0, 4.0], [1.0, 3.0, 1.0])
    3.0
    """
    return statistics.median(one / other for one, other in zip(slower, faster))


def environment() -> str:
    """Machine, device, versions and date, in two lines."""
    import tensorflow as tf

    gpus = [device.name for device in tf.config.list_physical_devices("GPU")]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    return (
        f"{_processor()}, {os.cpu_count()} cores, {', '.join(gpus) or 'no GPU'}; "
        f"{platform.system()}, Python {platform.python_version()}\n"
        f"{versions}; {datetime.date.today().isoformat()}"
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def report(
    title: str,
    seconds: Mapping[str, Sequence[float]],
    targets: Sequence[Target] = (),
    baseline: str | None = None,
) -> bool:
    """Prints a table and whether each target was met.

    Args:
      title: description of the measurement.
      seconds: result of `time_in_turns`.
      targets: claims to check.
      baseline: contender to which the table shows ratios; the first by default.

    Returns:
      Whether all targets were met.
    """
    first = baseline if baseline is not None else next(iter(seconds))
    print(f"{title}\n{environment()}\n")
    width = max(len(name) for name in seconds)
    print(f"{'':<{width}}  {'median ms':>10}  {'fastest ms':>10}  {'times ' + first:>14}")
    for name, values in seconds.items():
        print(
            f"{name:<{width}}  {1e3 * statistics.median(values):>10.1f}  "
            f"{1e3 * min(values):>10.1f}  {median_ratio(values, seconds[first]):>14.2f}"
        )
    print()
    met_all = True
    for target in targets:
        ratio = median_ratio(seconds[target.slower], seconds[target.faster])
        met = ratio <= target.ratio if target.at_most else ratio >= target.ratio
        met_all = met_all and met
        print(
            f"{target.slower} / {target.faster}: {ratio:.2f} "
            f"({'at most' if target.at_most else 'at least'} {target.ratio:g}: "
            f"{'met' if met else 'MISSED'})"
        )
    print(flush=True)
    return met_all


def check(what: str, value: float, at_most: float) -> bool:
    """Prints a value and whether it is within its bound; returns the latter."""
    met = value <= at_most
    print(f"{what}: {value:.2f} (at most {at_most:g}: {'met' if met else 'MISSED'})\n", flush=True)
    return met


def peak_memory_of(module: str, *arguments: str) -> int:
    """Peak resident memory, in bytes, of ``python -m module arguments`` in its own process.

    Raises:
      RuntimeError: the process fails; the error has the end of its messages.
    """
    # The child prints its own peak as the last line, since the parent only sees the maximum over
    # all children so far.
    program = (
        "import atexit, runpy, sys; sys.argv = sys.argv[1:]; "
        "from benchmarks import harness; "
        "atexit.register(lambda: print(harness.own_peak_memory())); "
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, module, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode != 0:
        raise RuntimeError(f"{module} failed: {finished.stderr[-2000:]}")
    return int(finished.stdout.split()[-1])


def own_peak_memory() -> int:
    """Peak resident memory of this process so far, in bytes."""
    try:
        # On Linux, getrusage includes the memory of the parent when it started this process.
        with open("/proc/self/status", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts in bytes, other systems in kibibytes.
    return peak if platform.system() == "Darwin" else peak * 1024
