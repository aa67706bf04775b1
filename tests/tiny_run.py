"""What tests run: steps, programs, and a tiny synthetic log with a run trained on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipelines.__main__ import main

ROOT = Path(__file__).resolve().parent.parent

# Few steps of small batches: seconds, and yet far better than popularity.
OPTIONS = (
    "--rank-kernel sigmoid --dim 16 --batch-size 64 --negatives-per-example 5 "
    "--learning-rate 0.01 --epochs 4 --steps-per-epoch 120 --monitor recall@20 --cutoffs 20 50"
).split()


def run_step(*arguments: object) -> None:
    """Runs a step in this process; it must not fail."""
    assert main([str(argument) for argument in arguments]) == 0


def start_step(*arguments: object) -> subprocess.Popen[str]:
    """Starts a step in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipelines", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def python_output(
    *arguments: object, environment: Mapping[str, str | None] | None = None
) -> str:
    """What a fresh Python process with these arguments prints; it must not fail.

    Args:
      *arguments: of the interpreter.
      environment: variables that differ from those of this process; None for none.
    """
    variables: dict[str, str | None] = {**os.environ, "PYTHONPATH": str(ROOT)}
    variables.update(environment or {})
    finished = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={name: value for name, value in variables.items() if value is not None},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    return finished.stdout


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data of 800 users."""
    folder = tmp_path_factory.mktemp("tiny")
    log = folder / "events.csv"
    run_step("synthesize", "--out", log, "--users", 800, "--items", 600)
    run_step("prepare", "--source", "csv", "--input", log, "--out", folder / "prepared")
    return folder / "prepared"


@pytest.fixture(scope="session")
def tiny_run(tiny_data: Path) -> Path:
    """A finished run. Tests may add files to it, not change it."""
    run_step("train", "--data", tiny_data, "--out", tiny_data.parent / "run", *OPTIONS)
    return tiny_data.parent / "run"
