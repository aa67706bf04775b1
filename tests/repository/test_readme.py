"""Every Python block of the README runs, one after the other, as a reader would paste them."""

from __future__ import annotations

import re
import shlex

import pytest

from pipelines.__main__ import STEPS, build_parser
from tests.support.processes import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_blocks_run(run_python):
    blocks = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    program = "\n".join(blocks) + "\nprint('ran')\n"
    assert run_python(program, {"TF_USE_LEGACY_KERAS": None}).strip().endswith("ran")


def test_links_to_files_lead_somewhere():
    for target in re.findall(r"\]\((?!https?://|#)([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, flags=re.MULTILINE))
    mentioned = set(re.findall(r"\bmake (?:PYTHON=\S+ )?([a-z][a-z-]+)(?=[`\s])", README))
    named = {
        word for word in mentioned if f"`make {word}" in README or f"    make {word}" in README
    }
    assert {"demo", "test"} <= named
    assert named <= targets, named - targets


def commands():
    """The pipelines' commands in the README: those on lines of their own, and those in tables."""
    lines = re.findall(r"^    python -m pipelines (.+)$", README, flags=re.MULTILINE)
    steps = "|".join(STEPS)
    lines += re.findall(rf"`((?:{steps}) --[^`]+)`", README)
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_the_commands_have_options_that_exist(command):
    complete = {"train": ["--data", "x", "--out", "y"]}.get(command[0], [])
    parsed = build_parser(command[0]).parse_args(command + complete)
    assert parsed.step == command[0]
