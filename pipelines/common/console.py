"""A quiet console: a step prints its own lines, and TensorFlow's remarks are left out.

Three sources are silenced, each in its own way: Python's warnings and loggers by their settings,
TensorFlow's C++ log by an environment variable, and the lines that this variable does not reach
(Abseil's ``W0000 …``, and complaints on machines without a GPU) by a filter on the stderr of the
process. Errors of TensorFlow are still shown.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# At this level and above, TensorFlow logs errors only.
_ERRORS = "2"

_SEVERITY = rb"(?:(?P<absl>[IWE])\d{4} \d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: (?P<tsl>[IWE]) )"
_PLACE = rb"[^\]\n]*?(?P<file>[\w./+-]+\.(?:cc|h|cpp|inc)):\d+\] "
_LOG_LINE = re.compile(_SEVERITY + _PLACE)
# Logged as errors by every TensorFlow with CUDA on a machine without a GPU.
_NO_GPU = re.compile(rb"cuda_platform|cuda_executor|cuda_dnn|cuda_blas|cuda_fft|cuda_diagnostics")
_PREAMBLES = (
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    b"To enable the following instructions:",
)
_WARNING_MODULES = r"(tensorflow|tf_keras|keras|google|scann|pyspark|optuna|numpy|absl)\b"


def is_quiet(arguments: Sequence[str]) -> bool:
    """Whether a step should leave TensorFlow's remarks out.

    Args:
      arguments: the command line, with or without ``--verbose``. A user who has set TensorFlow's
        log level to show remarks wants to see them as well.
    """
    return "--verbose" not in arguments and os.environ.get(_LOG_LEVEL, _ERRORS) not in ("0", "1")


def quiet_tensorflow() -> None:
    """Hides TensorFlow's remarks in this process; to be called before TensorFlow is imported."""
    os.environ.setdefault(_LOG_LEVEL, _ERRORS)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    if not sys.warnoptions:
        for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        warnings.filterwarnings("ignore", module=_WARNING_MODULES)
    # Where in the code a warning arises says nothing to the user of a command.
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    _filter_stderr()


def quiet_abseil() -> None:
    """Hides the remarks of Abseil's Python logger, which takes a moment to import."""
    with contextlib.suppress(ModuleNotFoundError):
        from absl import logging as absl_logging

        absl_logging.set_verbosity(absl_logging.ERROR)


def _filter_stderr() -> None:
    """Sends whatever is not written by Python to stderr through a filter for TensorFlow's remarks.

    Python's own ``sys.stderr`` still writes to the terminal directly: tracebacks, messages and
    progress bars are not delayed, and not lost if the process is killed. The filter is a process
    of its own, and not a thread, since C++ code may write while it holds the interpreter's lock,
    and since the last words of a process that crashes should be shown. It ends when the last
    process that could write to it has ended.
    """
    if not hasattr(os, "fork") or sys.stderr is None:  # Windows, or started without a stderr.
        return
    terminal = os.dup(2)
    sys.stderr.flush()
    sys.stdout.flush()
    read_end, write_end = os.pipe()
    # The filter inherits blocked signals: a process that is being stopped may have more to say.
    blocked = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    if os.fork() == 0:
        os.close(write_end)
        _forward(read_end, terminal)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(read_end)
    os.dup2(write_end, 2)
    os.close(write_end)
    sys.stderr = os.fdopen(
        terminal, "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace"
    )


def is_remark(line: bytes) -> bool:
    """Whether a line is a remark in the log of TensorFlow's C++ code, and not an error.

    >>> is_remark(b"W0000 00:00:1763409600.123456    4242 loop_optimizer.cc:933] Skipping loop")
    True
    >>> is_remark(b"E0000 00:00:1763409600.123456    4242 grpc_server.cc:1] Cannot bind")
    False
    >>> is_remark(b"error: --alpha should be at least 0. Received: -1.")
    False
    """
    found = _LOG_LINE.match(line)
    if found is None:
        return line.startswith(_PREAMBLES)
    is_error = (found["absl"] or found["tsl"]) == b"E"
    return not is_error or _NO_GPU.search(found["file"]) is not None


def _forward(source: int, target: int) -> NoReturn:
    """Copies lines from one descriptor to another, without remarks, until there are no more."""
    try:
        for standard in (0, 1, 2):
            os.close(standard)
        with open(source, "rb") as lines, open(target, "wb", buffering=0) as terminal:
            for line in lines:
                if not is_remark(line):
                    terminal.write(line)
    finally:
        os._exit(0)
