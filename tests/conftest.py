"""Settings that have to precede the import of TensorFlow, and fixtures that many tests share."""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Callable, Mapping

import pytest

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tests.support.processes import ROOT, python_output
from tests.support.tiny_run import tiny_data, tiny_run  # noqa: F401

# As in the console of a step: with many models in one process, TensorFlow warns of retracing.
logging.getLogger("tensorflow").setLevel(logging.ERROR)

SHARED_DATA = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """The folder of real data sets, if there is one beside the checkout."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the real data sets are not beside this checkout (../shared/data)")
    return SHARED_DATA


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Runs a program in a fresh Python process and returns what it printed."""

    def run(program: str, environment: Mapping[str, str | None] | None = None) -> str:
        return python_output("-c", program, environment=environment)

    return run
