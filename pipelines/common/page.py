"""A page of headings, text, tables and pictures, as self-contained HTML and as Markdown."""

from __future__ import annotations

import base64
import dataclasses
import html
from collections.abc import Sequence
from pathlib import Path

from ..train.history import replace_file

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1a1a; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #888; }
td small { color: #666; display: block; }
td.best { background: #e8f3e8; }
img { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
h2 { margin-top: 2.5rem; }
"""


@dataclasses.dataclass(frozen=True)
class Heading:
    """Attributes: text; level, 2 or 3."""

    text: str
    level: int = 2


@dataclasses.dataclass(frozen=True)
class Text:
    """A paragraph. Attributes: text."""

    text: str


@dataclasses.dataclass(frozen=True)
class Field:
    """A cell of a table. Attributes: text; note, in small print below it; best, whether marked."""

    text: str
    note: str = ""
    best: bool = False


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table. Attributes: header; rows, each as long as the header."""

    header: Sequence[str]
    rows: Sequence[Sequence[Field]]


@dataclasses.dataclass(frozen=True)
class Picture:
    """Attributes: name, of its file; title, for who cannot see it; png, its content."""

    name: str
    title: str
    png: bytes


Block = Heading | Text | Grid | Picture


def write_page(folder: Path, title: str, blocks: Sequence[Block]) -> None:
    """Writes ``report.html``, ``report.md`` and the pictures that the latter shows."""
    for block in blocks:
        if isinstance(block, Picture):
            replace_file(folder / f"{block.name}.png", block.png)
    replace_file(folder / "report.md", markdown(title, blocks).encode())
    replace_file(folder / "report.html", web_page(title, blocks).encode())


def web_page(title: str, blocks: Sequence[Block]) -> str:
    """HTML that needs nothing else."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        f'<head><meta charset="utf-8"><title>{html.escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head>",
        "<body>",
        f"<h1>{html.escape(title)}</h1>",
        *(_html(block) for block in blocks),
        "</body>",
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def markdown(title: str, blocks: Sequence[Block]) -> str:
    """The same as Markdown, with the pictures beside it."""
    return "\n".join([f"# {title}", *(f"\n{_markdown(block)}" for block in blocks)]) + "\n"


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{html.escape(block.text)}</h{block.level}>"
    if isinstance(block, Text):
        return f"<p>{html.escape(block.text)}</p>"
    if isinstance(block, Picture):
        content = base64.b64encode(block.png).decode()
        return (
            f'<p><img alt="{html.escape(block.title, quote=True)}" '
            f'src="data:image/png;base64,{content}"></p>'
        )
    header = "".join(f"<th>{html.escape(cell)}</th>" for cell in block.header)
    rows = "\n".join(
        "<tr>" + "".join(_html_field(field) for field in row) + "</tr>" for row in block.rows
    )
    return (
        f'<div class="wide"><table><thead><tr>{header}</tr></thead>\n<tbody>\n{rows}\n</tbody>'
        "</table></div>"
    )


def _html_field(field: Field) -> str:
    text = html.escape(field.text)
    note = f"<small>{html.escape(field.note)}</small>" if field.note else ""
    return f'<td class="best"><b>{text}</b>{note}</td>' if field.best else f"<td>{text}{note}</td>"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    if isinstance(block, Text):
        return block.text
    if isinstance(block, Picture):
        return f"![{block.title}]({block.name}.png)"
    lines = [_row(block.header), _row(["---"] + ["---:"] * (len(block.header) - 1))]
    lines += [_row([_markdown_field(field) for field in row]) for row in block.rows]
    return "\n".join(lines)


def _markdown_field(field: Field) -> str:
    text = f"**{field.text}**" if field.best else field.text
    return f"{text} ({field.note})" if field.note else text


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
