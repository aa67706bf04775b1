"""What tests run: steps, programs, and a tiny synthetic log with a run trained on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pipelines.__main__ import main
from pipelines.common.files import lock

ROOT = Path(__file__).resolve().parents[2]

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
    *arguments: object,
    environment: Mapping[str, str | None] | None = None,
    folder: Path = ROOT,
) -> str:
    """What a fresh Python process with these arguments prints; it must not fail.

    Args:
      *arguments: of the interpreter.
      environment: variables that differ from those of this process; None for none.
      folder: to run in.
    """
    variables: dict[str, str | None] = {**os.environ, "PYTHONPATH": str(ROOT)}
    variables.update(environment or {})
    finished = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={name: value for name, value in variables.items() if value is not None},
        cwd=folder,
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

    def prepare(out: Path) -> None:
        run_step("synthesize", "--out", log, "--users", 800, "--items", 600)
        run_step("prepare", "--source", "csv", "--input", log, "--out", out)

    return made_once(folder / "prepared", prepare, tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_run(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run. Tests may add files to it, not change it."""

    def train(out: Path) -> None:
        run_step("train", "--data", tiny_data, "--out", out, *OPTIONS)

    return made_once(tiny_data.parent / "run", train, tmp_path_factory)


def made_once(folder: Path, make: Callable[[Path], None], factory: pytest.TempPathFactory) -> Path:
    """A folder that one of the processes that test at the same time makes, and the others copy.

    Args:
      folder: of this process; is returned.
      make: makes it.
      factory: whose folders of all processes have one parent.
    """
    if os.name == "nt" or "PYTEST_XDIST_WORKER" not in os.environ:
        make(folder)
        return folder
    shared = factory.getbasetemp().parent / f"shared-{folder.name}"
    with open(shared.with_suffix(".lock"), "w") as file:
        lock(file, wait=True)
        if shared.exists():
            shutil.copytree(shared, folder)
        else:
            make(folder)
            shutil.copytree(folder, shared.with_suffix(".begun"))
            shared.with_suffix(".begun").rename(shared)
    return folder
