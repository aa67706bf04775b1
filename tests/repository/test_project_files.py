"""Files for contributors and for tools: they parse, and say what the project says elsewhere."""

from __future__ import annotations

import configparser
import re
import shlex

import pytest

import tfrs_croloss
from tests.support.processes import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

METADATA = configparser.ConfigParser()
METADATA.read(ROOT / "setup.cfg", encoding="utf-8")
URLS = dict(
    line.split(" = ", 1) for line in METADATA["metadata"]["project_urls"].strip().splitlines()
)
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, flags=re.MULTILINE))


def load(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_citation_is_that_of_the_project():
    citation = load("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    assert citation["version"] == tfrs_croloss.__version__
    assert citation["license"] == METADATA["metadata"]["license"]
    assert citation["repository-code"] == URLS["Source"]
    [paper] = citation["references"]
    assert paper["type"] == "conference-paper" and URLS["Paper"].endswith(paper["doi"])


def test_the_addresses_belong_together():
    assert {"Source", "Documentation", "Changelog", "Issues", "Paper"} == URLS.keys()
    for name in ("Documentation", "Changelog", "Issues"):
        assert URLS[name].startswith(URLS["Source"] + "/")
        _, _, path = URLS[name].partition("/main/")
        assert (ROOT / path).exists()


def test_ci_runs_commands_that_developers_have_on_every_python():
    workflow = load(".github/workflows/ci.yml")
    jobs = workflow["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert {"bash .ci/run", "make docs"} <= set(commands)
    for command in commands:
        program, *words = shlex.split(command)
        if program == "make":
            assert set(words) <= TARGETS, command
        else:
            assert (ROOT / words[0]).is_file(), command
    pythons = jobs["test"]["strategy"]["matrix"]["python"]
    assert pythons == ["3.10", "3.11", "3.12", "3.13"]
    for version in pythons:
        assert (ROOT / "requirements" / f"py{version.replace('.', '')}.txt").is_file()
        assert f"Python :: {version}" in METADATA["metadata"]["classifiers"]
    # make takes the interpreter from the environment.
    assert "PYTHON ?=" in MAKEFILE
    for job in jobs.values():
        assert job["env"]["PYTHON"].startswith("python")


def _requirements(*extras):
    """The names that setup.cfg asks for; those with a marker may be left out."""
    lines = METADATA["options"]["install_requires"].splitlines() if not extras else []
    for extra in extras:
        lines += METADATA["options.extras_require"][extra].splitlines()
    plain = (line for line in lines if line and not line.startswith("#") and ";" not in line)
    return {re.split(r"[\[<>=]", line)[0].replace("_", "-").lower() for line in plain}


@pytest.mark.parametrize("version", ["310", "311", "312", "313"])
def test_every_pin_has_hashes_and_every_requirement_a_pin(version):
    pinned = {}
    for name in ("", "-spark", "-docs"):
        text = (ROOT / "requirements" / f"py{version}{name}.txt").read_text(encoding="utf-8")
        entries = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", text).strip())
        for entry in filter(None, entries):
            found = re.match(r"([a-z0-9.-]+)==\S+", entry)
            assert found, entry[:80]
            assert "--hash=sha256:" in entry, found[0]
            pinned.setdefault(name, set()).add(found[1])
    installed = _requirements() | _requirements("pipelines", "tune", "dev")
    assert installed <= pinned[""]
    assert _requirements("spark") <= pinned["-spark"]
    assert _requirements("docs") <= pinned.get("-docs", set()) | pinned[""]
    # The project is built with what is pinned, too.
    assert "setuptools" in pinned[""]


def test_make_installs_nothing_without_a_hash():
    installs = [line for line in MAKEFILE.splitlines() if "pip install" in line]
    assert installs[:2] == [
        "PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-deps",
        "UV := $(BIN)/uv pip install --quiet --no-deps --python $(BIN)/python",
    ]
    # The wheel is tried with the versions that are pinned, which the others have checked.
    assert all("--constraint $(PINS)" in line for line in installs[2:]) and len(installs) == 3
    options = re.findall(r"\$\((?:PIP|UV)\) (\S+)", MAKEFILE)
    assert len(options) == 4
    assert set(options) == {"--require-hashes", "--no-build-isolation"}


def test_what_ci_runs_are_targets():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    targets = re.findall(r"^make (.+)$", script, flags=re.MULTILINE)
    assert targets and set(targets) <= TARGETS


def test_pre_commit_runs_the_tools_of_make():
    hooks = load(".pre-commit-config.yaml")["repos"]
    assert [one["repo"] for one in hooks] == ["local"]
    entries = {hook["id"]: hook["entry"] for hook in hooks[0]["hooks"]}
    assert entries.keys() == {"ruff-format", "ruff-check", "mypy"}
    environment = re.search(r"^VENV \?= (\S+)$", MAKEFILE, flags=re.MULTILINE)
    for entry in entries.values():
        place, command = entry.split()[0].rsplit("/", 1)
        assert environment is not None and place == f"{environment[1]}/bin"
        assert f"$(BIN)/{command}" in MAKEFILE


@pytest.mark.parametrize("name", ["bug_report", "feature_request"])
def test_issue_forms_have_what_github_asks_for(name):
    form = load(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert {"name", "description", "body"} <= form.keys()
    ids = [field["id"] for field in form["body"]]
    assert len(set(ids)) == len(ids) >= 3
    for field in form["body"]:
        assert field["type"] in {"textarea", "input", "dropdown"} and field["attributes"]["label"]
