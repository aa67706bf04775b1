"""A tiny synthetic log and a run trained on it, made once for all tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.common.files import lock
from tests.support.processes import run_step

# Few steps of small batches: seconds, and yet far better than popularity.
OPTIONS = (
    "--rank-kernel sigmoid --dim 16 --batch-size 64 --negatives-per-example 5 "
    "--learning-rate 0.01 --epochs 4 --steps-per-epoch 120 --monitor recall@20 --cutoffs 20 50"
).split()


@pytest.fixture(scope="session")
def tiny_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 800 users, as CSV."""

    def synthesize(folder: Path) -> None:
        run_step("synthesize", "--out", folder / "events.csv", "--users", 800, "--items", 600)

    folder = tmp_path_factory.mktemp("tiny") / "log"
    return made_once(folder, synthesize, tmp_path_factory) / "events.csv"


@pytest.fixture(scope="session")
def tiny_data(tiny_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log, prepared."""

    def prepare(out: Path) -> None:
        run_step("prepare", "--source", "csv", "--input", tiny_log, "--out", out)

    return made_once(tiny_log.parent.with_name("prepared"), prepare, tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_run(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run. Tests may add files to it, not change it."""

    def train(out: Path) -> None:
        run_step("train", "--data", tiny_data, "--out", out, *OPTIONS)

    return made_once(tiny_data.parent / "run", train, tmp_path_factory)


def made_once(folder: Path, make: Callable[[Path], None], factory: pytest.TempPathFactory) -> Path:
    """Makes a folder in one of the processes that run tests in parallel; the others copy it.

    Args:
      folder: folder of this process, which is returned.
      make: writes the folder.
      factory: gives all processes folders with a common parent.
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
