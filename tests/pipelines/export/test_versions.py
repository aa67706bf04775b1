"""Which folders are versions of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.errors import UserError
from pipelines.export.versions import newest_version, version_folders
from tfrs_croloss.serving.versions import model_versions


def test_the_newest_version_is_a_folder_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no version of a model"):
        newest_version(tmp_path / "missing")
    for name in ("1", "002", str(2**63), "x"):
        (tmp_path / name).mkdir()
    assert sorted(version_folders(tmp_path)) == model_versions(tmp_path) == [1, 2]
    assert newest_version(tmp_path) == tmp_path / "002"
