"""Every Python block of the README runs, one after the other, as a reader would paste them."""

from __future__ import annotations

import re

from tests.conftest import ROOT

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
