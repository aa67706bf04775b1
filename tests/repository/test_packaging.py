"""The package as it is installed: one version, typed, with the command line ``croloss``."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

import tfrs_croloss
from tests.support.processes import ROOT


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


def packages(folder: Path) -> set[str]:
    return {
        str(path.parent.relative_to(ROOT)).replace(os.sep, ".")
        for path in folder.rglob("__init__.py")
    }


def test_every_folder_is_installed():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    installed = config["options"]["packages"].split()
    library, steps = packages(ROOT / "tfrs_croloss"), packages(ROOT / "pipelines")
    assert sorted(installed) == sorted(library | {f"tfrs_croloss_{name}" for name in steps})


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of what a build reads: setuptools leaves its working files where it builds."""
    folder = tmp_path_factory.mktemp("build") / "checkout"
    for name in ("tfrs_croloss", "pipelines"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def built(checkout: Path, kind: str) -> Path:
    """A wheel, by the ``kind`` of hook that pip calls: build_wheel or build_editable."""
    pytest.importorskip("setuptools.build_meta", reason="setuptools is not installed")
    program = f"import setuptools.build_meta as build; build.{kind}('built-{kind}')"
    subprocess.run([sys.executable, "-c", program], cwd=checkout, check=True, capture_output=True)
    (wheel,) = (checkout / f"built-{kind}").iterdir()
    return wheel


@pytest.fixture(scope="module")
def wheel(checkout):
    return built(checkout, "build_wheel")


def test_the_wheel_holds_the_library_and_the_pipelines_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"tfrs_croloss/py.typed", "tfrs_croloss/losses/croloss.py"} <= names
    assert {"tfrs_croloss_pipelines/__main__.py"} <= names
    tops = {name.split("/")[0] for name in names}
    assert tops == {
        "tfrs_croloss",
        "tfrs_croloss_pipelines",
        f"tfrs_croloss-{tfrs_croloss.__version__}.dist-info",
    }
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "pipelines").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {f"tfrs_croloss_{name}" for name in sources} <= names


PROGRESS = re.compile(r"\[\d/\d\] |index brute_force: ")
SERVER_LOG = re.compile(r"[\d-]{10} [\d:,]{12} INFO ")
LOG_LINES = re.compile(r"\.cc:\d+\]|absl|warning|deprecated|retracing", re.IGNORECASE)


class Environment:
    """An environment with nothing but a wheel, and the packages that this test runs with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, symlinks=os.name != "nt", with_pip=True)
        self._programs = folder / ("Scripts" if os.name == "nt" else "bin")
        (site_packages,) = folder.glob("[Ll]ib/**/site-packages")
        paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        # A path alone: what else is installed there as editable, such as a checkout, is not seen.
        # A user who has set nothing, outside of the checkout.
        variables = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        self._settings: dict[str, Any] = {"cwd": folder, "env": variables, "text": True}
        (site_packages / "dependencies.pth").write_text("\n".join(sorted(paths)) + "\n")

    def install(self, wheel: Path) -> None:
        options = ["--quiet", "--no-deps", "--no-index", "--force-reinstall"]
        self.run("python", "-m", "pip", "install", *options, "--no-warn-script-location", wheel)

    def start(self, program: str, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self._programs / program, *map(str, arguments)],
            **self._settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        finished = subprocess.run(
            [self._programs / program, *map(str, arguments)],
            **self._settings,
            capture_output=True,
            check=False,
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished

    def croloss(self, line: str) -> str:
        """What a command prints; on stderr it shows its own progress and nothing else."""
        finished = self.run("croloss", *line.split())
        assert [line for line in finished.stderr.splitlines() if not PROGRESS.match(line)] == []
        assert not LOG_LINES.search(finished.stdout)
        return finished.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("empty"))


@pytest.mark.slow
def test_croloss_from_the_wheel(environment, wheel):
    environment.install(wheel)
    origin = environment.run("python", "-c", "import tfrs_croloss; print(tfrs_croloss.__file__)")
    assert Path(origin.stdout.strip()).is_relative_to(environment.folder)
    croloss = environment.croloss
    assert "usage: croloss train" in croloss("train --help")
    croloss("synthesize --out events.csv --users 60 --items 50")
    printed = croloss("prepare --source csv --input events.csv --out prepared")
    assert "\n  croloss train --data prepared" in printed
    printed = croloss("train --data prepared --out run --dim 4 --batch-size 16 --max-steps 2")
    assert "\n  croloss evaluate --run run" in printed
    assert "\n  croloss export --run run" in croloss("evaluate --run run")
    assert "\n  croloss query --model model" in croloss("export --run run --out model --top-n 5")
    query = "query --model model --history item-00001 --top-n 3 --verbose"
    verbose = environment.run("croloss", *query.split())
    assert "item-" in verbose.stdout
    assert re.search(r"\.cc:\d+\] ", verbose.stderr)
    server = environment.start("croloss", *"serve --model model --port 0 --grpc-port 0".split())
    assert server.stdout is not None
    first = server.stdout.readline()
    found = re.search(r"http://[\d.]+:\d+", first)
    assert found, server.communicate()
    with urllib.request.urlopen(f"{found[0]}/v1/models/model", timeout=60) as answer:
        assert b"AVAILABLE" in answer.read()
    server.terminate()
    printed, shown = server.communicate()
    assert server.returncode == 0
    assert [line for line in shown.splitlines() if not SERVER_LOG.match(line)] == []
    assert not LOG_LINES.search(printed)


@pytest.mark.slow
def test_croloss_of_an_editable_checkout(environment, checkout):
    environment.install(built(checkout, "build_editable"))
    program = "import tfrs_croloss_pipelines as steps; print(steps.__path__[0])"
    origin = environment.run("python", "-c", program).stdout.strip()
    assert Path(origin) == checkout / "pipelines"
    assert "usage: croloss prepare" in environment.croloss("prepare --help")
