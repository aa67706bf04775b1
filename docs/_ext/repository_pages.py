"""Pages of the site that are files of the repository, and links from the site to such files.

The repository's own pages (the changelog, the results and so on) are written once, where readers of
the repository look for them. ``repository_pages`` maps pages of the site to these files; a link to
such a file becomes a link to its page, and a link to any other file outside of ``docs/`` becomes a
link into the repository on the web.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

_LIST = re.compile(r"^```\{toctree\}.*?^```$", flags=re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)(\[[^\]]*\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def _read(app: Sphinx, page: str, content: list[str]) -> None:
    """Replaces a page by the file that it stands for, with links that work on the site."""
    pages: dict[str, str] = app.config.repository_pages
    docs = Path(app.srcdir)
    root = docs.parent
    path = docs / f"{page}.md"
    origin = root / pages[page] if page in pages else path
    if not path.exists():
        return
    if page in pages:
        # A page may list subpages that the file does not mention.
        lists = "".join(_LIST.findall(content[0]))
        content[0] = f"{origin.read_text(encoding='utf-8')}\n{lists}"
        app.env.note_dependency(str(origin))
    homes = {(root / file).resolve(): docs / f"{name}.md" for name, file in pages.items()}

    def replaced(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        file = (origin.parent / target).resolve()
        home = homes.get(file, file)
        if image or docs in home.parents:
            return f"{image}{text}{os.path.relpath(home, path.parent)}{anchor or ''})"
        kind = "tree" if file.is_dir() else "blob"
        link = f"{app.config.repository_url}/{kind}/main/{file.relative_to(root).as_posix()}"
        return f"{text}{link}{anchor or ''})"

    # A number and its error stay on one line, in narrow tables too.
    content[0] = _LINK.sub(replaced, content[0]).replace(
        " ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Adds the two settings, and reads pages through ``_read``."""
    app.add_config_value("repository_pages", {}, "env")
    app.add_config_value("repository_url", "", "env")
    app.connect("source-read", _read)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
