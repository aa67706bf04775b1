"""Set-up that has to come before TensorFlow is imported, and what several tests share."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """The folder of real data sets that lies beside some checkouts."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the real data sets are not beside this checkout (../shared/data)")
    return SHARED_DATA


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Runs a program in a fresh Python process and returns what it printed."""

    def run(program: str, environment: Mapping[str, str | None] | None = None) -> str:
        variables: dict[str, str | None] = {**os.environ, "PYTHONPATH": str(ROOT)}
        variables.update(environment or {})
        finished = subprocess.run(
            [sys.executable, "-c", program],
            env={name: value for name, value in variables.items() if value is not None},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr[-4000:]
        return finished.stdout

    return run
