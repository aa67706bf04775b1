"""The model that the tests of the server share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import serving_model


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved version, to be read or published under any number."""
    version = tmp_path_factory.mktemp("saved") / "1"
    serving_model.save(version)
    return version
