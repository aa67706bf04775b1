"""Settings that have to precede the import of TensorFlow, and fixtures that many tests share."""

from __future__ import annotations

import gc
import logging
import os
import pathlib
from collections.abc import Callable, Mapping

import pytest

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # as in pipelines/__init__.py

from tests.support.processes import ROOT, python_output
from tests.support.tiny_run import tiny_data, tiny_log, tiny_run  # noqa: F401

# As in the console of a step: with many models in one process, TensorFlow warns of retracing.
logging.getLogger("tensorflow").setLevel(logging.ERROR)

# Programs that tests start, and helpers: nothing to collect, and slow to import.
collect_ignore = ["support"]

SHARED_DATA = ROOT.parent / "shared" / "data"


# Files and folders that take longest. They come first, so that no process is left with one of them
# when the others have nothing more to do. The first five take minutes when slow.
LONGEST = (
    "tests/tutorials/",
    "repository/test_tutorials.py",
    "train/test_distribution.py",
    "repository/test_docs.py",
    "repository/test_packaging.py",
    "pipelines/export/test_export.py",
    "serving/test_export.py",
    "train/test_train.py",
    "test_blockwise.py",
    "losses/test_losses.py",
    "losses/test_keras.py",
    "runs/test_keras_version.py",
    "experiments/",
    "metrics/test_metrics.py",
    "indexes/test_indexes.py",
    "test_keras_versions.py",
    "models/test_models.py",
    "test_self_attention.py",
    "test_readme.py",
    "test_one_definition.py",
    "test_score_range.py",
    "export/test_embed.py",
    "losses/test_learning.py",
    "tasks/test_replicas.py",
    "models/test_saving.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts what takes longest first."""

    def place(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next((n for n, name in enumerate(LONGEST) if name in path), len(LONGEST))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Spares the garbage collector what stays for good: TensorFlow, and all that was collected.

    Looking through it again and again takes a fourteenth of the time of the tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


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
