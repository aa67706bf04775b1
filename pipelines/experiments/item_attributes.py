"""Attributes of items, as the literature on sequences publishes them: ``{item: [attribute, …]}``.

``prepare`` reads tables, so the JSON becomes a table with a row for each item.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from pathlib import Path

from ..common.files import naming, replace_file
from ..errors import UserError

COLUMN = "attributes"
"""Name of the column, and of the feature."""


def write_attribute_table(source: Path, table: Path) -> None:
    """Writes the table, unless it is there already.

    Args:
      source: a JSON object from items to lists of attributes; a name that ends in .gz is
        compressed.
      table: the CSV file to write.

    Raises:
      UserError: the file is damaged, or holds something else.
    """
    with naming(source):
        content = source.read_bytes()
    try:
        found = json.loads(gzip.decompress(content) if source.suffix == ".gz" else content)
    except (ValueError, EOFError, RecursionError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{source} should be a JSON file: {error}. Fetch it again, or take it out of the "
            "folder to go without attributes."
        ) from error
    if not isinstance(found, dict) or not found:
        raise _wrong(source, "no item" if found == {} else type(found).__name__)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["item", COLUMN])
    for item, attributes in found.items():
        if not isinstance(attributes, list) or not all(map(_is_plain, attributes)):
            raise _wrong(source, f"{json.dumps(attributes)[:60]} for item {item!r}")
        writer.writerow([item, "|".join(map(str, attributes))])
    new = text.getvalue().encode()
    # A file that is written anew would look like other data to `prepare`.
    if not table.is_file() or table.read_bytes() != new:
        table.parent.mkdir(parents=True, exist_ok=True)
        replace_file(table, new)


def _is_plain(attribute: object) -> bool:
    if isinstance(attribute, bool):
        return False
    if isinstance(attribute, str):
        return attribute.isprintable() and attribute.strip() != "" and "|" not in attribute
    return isinstance(attribute, int)


def _wrong(source: Path, received: str) -> UserError:
    return UserError(
        f"{source} should hold an object of items and their attributes, each a list of numbers or "
        f"of printable texts without |. Received: {received}. Correct it, or take it out of the "
        "folder."
    )
