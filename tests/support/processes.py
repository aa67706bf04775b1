"""Runs steps and programs, in this process or in a fresh one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pipelines.__main__ import main

ROOT = Path(__file__).resolve().parents[2]


def run_step(*arguments: object) -> None:
    """Runs a step in this process; it must not fail."""
    assert main([str(argument) for argument in arguments]) == 0


def start_step(*arguments: object, **environment: object) -> subprocess.Popen[str]:
    """Starts a step in a process of its own, with these variables added to its environment."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipelines", *map(str, arguments)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            **{name: str(value) for name, value in environment.items()},
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def python_output(
    *arguments: object,
    environment: Mapping[str, str | None] | None = None,
    folder: Path = ROOT,
    python: Path | str = sys.executable,
) -> str:
    """What a fresh Python process prints; it must not fail.

    Args:
      *arguments: arguments of the interpreter.
      environment: variables that differ from those of this process; None removes one.
      folder: working directory.
      python: interpreter.
    """
    variables: dict[str, str | None] = {**os.environ, "PYTHONPATH": str(ROOT)}
    variables.update(environment or {})
    finished = subprocess.run(
        [str(python), *map(str, arguments)],
        env={name: value for name, value in variables.items() if value is not None},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    return finished.stdout
