"""The console of a step: its own lines, a progress bar on a terminal, and nothing else."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from pipelines.__main__ import STEPS, main
from pipelines.common import console, progress
from tests.support.processes import ROOT, run_step

pty = pytest.importorskip("pty", reason="there are no pseudo-terminals here")

# A user who has set nothing.
CLEAN = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}

REMARK = "W0000 00:00:1763409600.123456    4242 loop_optimizer.cc:933] Skipping loop optimization"


def python(program: str, **keywords) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        **{"cwd": ROOT, "env": CLEAN, "text": True, "capture_output": True, **keywords},
    )


def quiet(program: str, **keywords) -> subprocess.CompletedProcess[str]:
    begin = "from pipelines.common import console; console.quiet_tensorflow()\n"
    return python(begin + "import os, signal, sys\n" + program, **keywords)


@pytest.mark.parametrize(
    "line",
    [
        REMARK,
        "I0000 00:00:1763409600.123456 4242 tensorflow/core/a.cc:1] x",
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "2026-11-17 10:11:12.131415: I tensorflow/core/platform/cpu_feature_guard.cc:210] x",
        "2026-11-17 10:11:12.131415: W external/local_xla/xla/x.h:3] x",
        "2026-11-17 10:11:12.131415: E external/xla/cuda_platform.cc:51] failed call to cuInit",
    ],
)
def test_remarks(line):
    assert console.is_remark(line.encode() + b"\n")


@pytest.mark.parametrize(
    "line",
    [
        "error: --alpha should be at least 0. Received: -1.",
        "Traceback (most recent call last):",
        '  File "x.cc:1] ", line 1, in <module>',
        "F0000 00:00:1763409600.123456 4242 tensorflow/core/a.cc:1] Check failed: x",
        "E0000 00:00:1763409600.123456 4242 tensorflow/core/a.cc:1] x",
        "2026-11-17 10:11:12.131415: E tensorflow/core/distributed_runtime/a.cc:1] x",
        "2026-11-17 10:11:12.131415: F tensorflow/core/a.cc:1] x",
        "2026-11-17: I was here",
        "Will W0000 be shown?",
        "",
    ],
)
def test_what_is_no_remark(line):
    assert not console.is_remark(line.encode() + b"\n")


# Abseil logs a line here that no environment variable silences.
SESSION = """
import tensorflow as tf
import warnings
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    session.run(tf.constant(1.0) + 1.0)
tf.get_logger().warning("a remark of TensorFlow's")
warnings.warn_explicit("old", DeprecationWarning, "x.py", 1)
print("ours", file=sys.stderr)
warnings.warn("the model collapses", UserWarning)
tf.get_logger().error("an error of TensorFlow's")
"""


@pytest.mark.slow
def test_tensorflow_is_quiet_but_for_its_errors():
    loud = python("import sys\n" + SESSION)
    assert loud.returncode == 0, loud.stderr
    assert re.search(r"^I0000 .*\.cc:\d+\] ", loud.stderr, re.MULTILINE)
    assert "a remark of TensorFlow's" in loud.stderr
    shown = quiet(SESSION)
    assert shown.returncode == 0
    assert shown.stderr == (
        "ours\nwarning: the model collapses\nERROR:tensorflow:an error of TensorFlow's\n"
    )


def test_tracebacks_and_last_words_are_shown():
    program = f"os.write(2, b'{REMARK}\\n'); os.write(2, b'last words\\n'); "
    aborted = quiet(program + "os.abort()")
    assert aborted.returncode == -signal.SIGABRT
    assert aborted.stderr == "last words\n"
    failed = quiet(program + "raise KeyError('a slip')")
    assert failed.returncode == 1
    assert "Traceback" in failed.stderr and "KeyError: 'a slip'" in failed.stderr
    # The traceback may quote the program itself.
    lines = failed.stderr.splitlines()
    assert "last words" in lines and REMARK not in lines


def test_nothing_is_lost_when_a_process_is_told_to_stop():
    program = "print('ours', file=sys.stderr); os.write(2, b'half a line'); os.kill({}, {})"
    for whom in ("os.getpid()", "0"):
        number = int(signal.SIGTERM)
        stopped = quiet(program.format(whom, number), start_new_session=True)
        assert stopped.returncode == -number
        assert stopped.stderr == "ours\nhalf a line"


def test_much_output_while_the_interpreter_is_busy():
    """A filter inside of the process would never get its turn, and the pipe would be full."""
    program = "import ctypes; write = ctypes.PyDLL(None).write\n"
    program += "for _ in range(3000): write(2, b'x' * 99 + b'\\n', 100)"
    finished = quiet(program, timeout=60)
    assert finished.stderr == ("x" * 99 + "\n") * 3000


@pytest.mark.parametrize(
    ("arguments", "level", "expected"),
    [
        (["train"], None, True),
        (["train"], "3", True),
        (["train", "--verbose"], None, False),
        (["train"], "0", False),
    ],
)
def test_who_wants_remarks_gets_them(arguments, level, expected, monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    assert console.is_quiet(arguments) is expected


@pytest.mark.parametrize("step", STEPS)
def test_every_step_has_the_option_verbose(step, capsys):
    with pytest.raises(SystemExit):
        main([step, "--help"])
    assert "--verbose" in capsys.readouterr().out


class Terminal:
    """A pseudo-terminal that remembers what was written to it."""

    def __init__(self) -> None:
        self._ours, self.descriptor = os.openpty()
        self._shown = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # The other end is closed.
            while content := os.read(self._ours, 65536):
                self._shown += content

    def shown(self) -> str:
        """All of it, when everyone who writes to it has closed it."""
        self._reader.join()
        os.close(self._ours)
        return self._shown.decode()


def test_the_filter_leaves_the_terminal_to_python():
    terminal = Terminal()
    quiet(
        "print(sys.stderr.isatty(), file=sys.stderr); os.write(2, b'x\\n')",
        stderr=terminal.descriptor,
        stdout=subprocess.DEVNULL,
        capture_output=False,
    )
    os.close(terminal.descriptor)
    assert sorted(terminal.shown().split()) == ["True", "x"]


OUR_LINES = re.compile(
    r"computing on the .*|CROLoss .*|[\d,]+ examples of .*|step +\d+ .*|.*: all steps done, .*|"
    r"best validation, .*|  recall@\d+ .*|learning curves: .*|Next:|  python -m pipelines .*|"
)


def test_no_progress_bar_without_a_terminal(capsys):
    with progress.progress_bar(2) as bar:
        bar.update(2)
    assert capsys.readouterr().err == ""


def test_train_has_a_progress_bar_on_a_terminal(tiny_data, tmp_path, monkeypatch, capfd):
    sizes = "--dim 4 --batch-size 32 --max-steps 20 --steps-per-epoch 10 --max-validation-users 20"
    terminal = Terminal()
    with monkeypatch.context() as patched, os.fdopen(terminal.descriptor, "w") as stream:
        patched.setattr(sys, "stderr", stream)
        run_step("train", "--data", tiny_data, "--out", tmp_path / "run", *sizes.split())
    shown = terminal.shown()
    printed = capfd.readouterr()
    lines = printed.out.splitlines()
    assert [line for line in lines if not OUR_LINES.fullmatch(line)] == []
    assert sum(line.startswith("step ") for line in lines) == 2
    assert printed.err == ""
    # Steps done and to do, time left, speed and loss.
    bar = r" \d+/20 \[\d\d:\d\d<\d\d:\d\d, +[\d.]+ ?(steps/s|s/ steps), loss \d\.\d+\]"
    assert re.search(bar, shown)
    # The bar is gone in the end, and nothing was shown beside it.
    *states, last = re.sub(r"\x1b\[[A-Z]", "", shown).strip("\r").split("\r")
    assert {state.strip() for state in states if "/20 [" not in state} <= {""}
    assert last.strip() == ""
