"""What tests read in Markdown files: code blocks, links, headings and commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from pipelines.__main__ import STEPS
from tests.support.processes import ROOT

_FENCE = re.compile(r"^(```+|:::+)(.*?)\n(.*?)^\1\s*$", flags=re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_COMMAND = re.compile(r"^    (?:croloss|python -m pipelines) ((?:.*\\\n)*.*)$", flags=re.MULTILINE)


def pages() -> list[Path]:
    """All Markdown files of the repository that people read."""
    found = [
        ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
    ]
    for folder in ("docs", "results", "benchmarks", ".github"):
        found += sorted((ROOT / folder).rglob("*.md"))
    return [*found, ROOT / "saved_models" / "README.md"]


def name_of(path: Path) -> str:
    """A page's path in the repository."""
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    text = path.read_text(encoding="utf-8")
    return [body for _, kind, body in _FENCE.findall(text) if kind.strip() == language]


def links(path: Path) -> list[str]:
    """The targets of all links that are not code, those to the web left out."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    text = re.sub(r"``.+?``|`[^`\n]+`", "code", text)
    targets = _LINK.findall(text)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the documentation make them."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    made: set[str] = set()
    for heading in re.findall(r"^#+ (.+?)\s*$", text, flags=re.MULTILINE):
        kept = re.sub(r"[^\w\- ]", "", heading.lower())
        made.add(kept.replace(" ", "-"))
    return made


def commands(path: Path) -> list[list[str]]:
    """The pipelines' commands on lines of their own, and whole ones within the text."""
    text = path.read_text(encoding="utf-8")
    lines = [line.replace("\\\n", " ") for line in _COMMAND.findall(text)]
    lines += [line for line in _inline(text) if " --out " in line]
    return [shlex.split(line, comments=True) for line in lines]


def mentions(path: Path) -> list[list[str]]:
    """Parts of commands within the text, such as ``train --memory-size 8192``."""
    return [line.split() for line in _inline(path.read_text(encoding="utf-8"))]


def _inline(text: str) -> list[str]:
    steps = "|".join(STEPS)
    return re.findall(rf"`(?:croloss )?((?:{steps}) --[^`]+)`", _FENCE.sub("", text))
