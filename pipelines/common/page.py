"""A page of headings, text, tables and pictures, as self-contained HTML and as Markdown."""

from __future__ import annotations

import base64
import dataclasses
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2

from .files import replace_file

_TEMPLATE = "report.html.jinja"


@dataclasses.dataclass(frozen=True)
class Heading:
    """A heading.

    Attributes:
      text: what it says.
      level: 2 or 3.
    """

    text: str
    level: int = 2


@dataclasses.dataclass(frozen=True)
class Text:
    """A paragraph.

    Attributes:
      text: what it says.
    """

    text: str


@dataclasses.dataclass(frozen=True)
class Field:
    """A cell of a table.

    Attributes:
      text: its content.
      note: a remark in small print below it.
      best: whether it is highlighted.
    """

    text: str
    note: str = ""
    best: bool = False


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
      header: names of the columns.
      rows: cells, as many in each row as in the header.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Field]]


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture.

    Attributes:
      name: name of its file, without ``.png``.
      title: description for readers who cannot see it.
      png: content of the file.
    """

    name: str
    title: str
    png: bytes

    @property
    def base64(self) -> str:
        """The content as text, for a page that needs no other file."""
        return base64.b64encode(self.png).decode()


Block = Heading | Text | Grid | Picture


def write_page(folder: Path, title: str, blocks: Sequence[Block]) -> None:
    """Writes ``report.html``, ``report.md`` and the pictures that the latter shows."""
    for block in blocks:
        if isinstance(block, Picture):
            replace_file(folder / f"{block.name}.png", block.png)
    replace_file(folder / "report.md", markdown(title, blocks).encode())
    replace_file(folder / "report.html", web_page(title, blocks).encode())


def web_page(title: str, blocks: Sequence[Block]) -> str:
    """The page as HTML that needs no other file."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    named = [(type(block).__name__, block) for block in blocks]
    return templates.get_template(_TEMPLATE).render(title=title, blocks=named)


def markdown(title: str, blocks: Sequence[Block]) -> str:
    """The page as Markdown, which refers to the files of its pictures."""
    return "\n".join([f"# {title}", *(f"\n{_markdown(block)}" for block in blocks)]) + "\n"


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], align: str | None = None
) -> str:
    r"""A table in Markdown.

    Args:
      header: names of the columns.
      rows: cells, as many in each row as in the header.
      align: a letter per column, ``l`` or ``r``; by default all but the first are right-aligned.

    >>> print(markdown_table(["loss", "recall"], [["a|b", "0.5"]]))
    | loss | recall |
    | --- | ---: |
    | a\|b | 0.5 |
    """
    align = "l" + "r" * (len(header) - 1) if align is None else align
    rule = ["---:" if letter == "r" else "---" for letter in align]
    return "\n".join(_row(cells) for cells in [header, rule, *rows])


def picture(figure: Any) -> bytes:
    """A Matplotlib figure as PNG."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    return content.getvalue()


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    if isinstance(block, Text):
        return block.text
    if isinstance(block, Picture):
        return f"![{block.title}]({block.name}.png)"
    return markdown_table(block.header, [[_markdown_field(cell) for cell in r] for r in block.rows])


def _markdown_field(field: Field) -> str:
    text = f"**{field.text}**" if field.best else field.text
    return f"{text} ({field.note})" if field.note else text


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
