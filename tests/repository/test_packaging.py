"""The package as it is installed: one version, typed, nothing imported that is not asked for."""

from __future__ import annotations

import configparser
import shutil
import zipfile

import pytest

import tfrs_croloss
from tests.support.tiny_run import ROOT


def test_the_version_lives_in_one_place():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    assert config["metadata"]["version"] == "attr: tfrs_croloss._version.__version__"
    assert f"## {tfrs_croloss.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_public_names_are_there():
    for name in tfrs_croloss.__all__:
        assert getattr(tfrs_croloss, name) is not None
        assert name in dir(tfrs_croloss)
    with pytest.raises(AttributeError, match="no attribute 'taks'"):
        tfrs_croloss.taks


def test_the_wheel_holds_the_library_and_nothing_else(tmp_path, monkeypatch):
    build = pytest.importorskip("setuptools.build_meta", reason="setuptools is not installed")
    # In a copy: setuptools leaves its working files where it builds.
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "tfrs_croloss", checkout / "tfrs_croloss")
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    monkeypatch.chdir(checkout)
    wheel = build.build_wheel(str(tmp_path), {"--build-option": ["--quiet"]})
    names = zipfile.ZipFile(tmp_path / wheel).namelist()
    assert "tfrs_croloss/py.typed" in names and "tfrs_croloss/losses/kernels.py" in names
    tops = {name.split("/")[0] for name in names}
    assert tops == {"tfrs_croloss", f"tfrs_croloss-{tfrs_croloss.__version__}.dist-info"}
