"""Side features that are written into a folder of prepared data by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.common.files import file_entries
from pipelines.data.prepared import MANIFEST, SPLITS, PreparedData
from pipelines.data.verification import VERIFIED

Rows = Sequence[Any]
"""Encoded values of one column: a number for each row, or a list of numbers for each row."""

# A feature of every kind: what it belongs to, its entry in the manifest and its vocabulary.
EXAMPLES: dict[str, tuple[str, dict[str, Any], list[str] | None]] = {
    "brand": (
        "item",
        {"kind": "category", "column": "brand", "vocabulary": 3, "integers": False},
        ["acme", "ajax", "öl & co"],
    ),
    "genres": (
        "item",
        {"kind": "tags", "column": "genres", "vocabulary": 4, "separator": "|"},
        ["drama", "comedy", "war", "musical"],
    ),
    "title": ("item", {"kind": "text", "column": "title", "buckets": 50}, None),
    "price": (
        "item",
        {"kind": "quantiles", "column": "price", "boundaries": [1.0, 2.5, 10.0]},
        None,
    ),
    "released": (
        "item",
        {
            "kind": "age",
            "column": "released",
            "until": 1_700_000_000,
            "mean": 5.0,
            "deviation": 2.0,
        },
        None,
    ),
    "country": (
        "user",
        {"kind": "category", "column": "country", "vocabulary": 2, "integers": True},
        ["49", "1"],
    ),
    "years": ("user", {"kind": "number", "column": "age", "mean": 40.0, "deviation": 10.0}, None),
    "device": (
        "context",
        {"kind": "category", "column": "device", "vocabulary": 2, "integers": False},
        ["phone", "desk"],
    ),
    "hour": ("context", {"kind": "hour", "column": "time"}, None),
    "day": ("context", {"kind": "weekday", "column": "time"}, None),
}

_CODES = {
    "brand": 4,
    "genres": 5,
    "title": 51,
    "price": 5,
    "country": 3,
    "device": 3,
    "hour": 25,
    "day": 8,
}


def write_feature(
    folder: Path,
    of: str,
    name: str,
    entry: Mapping[str, Any],
    columns: Mapping[str, Rows],
    vocabulary: Sequence[str] | None = None,
) -> None:
    """Writes one feature into prepared data, whose manifest then lists it.

    Args:
      folder: the prepared data.
      of: ``item``, ``user`` or ``context``.
      name: name of the feature.
      entry: its entry in the manifest; ``missing`` may be left out.
      columns: encoded values by split; for features of items, those of ``item``.
      vocabulary: values of a category or of tags.
    """
    if vocabulary is not None:
        target = folder / "features" / of / name
        target.mkdir(parents=True, exist_ok=True)
        (target / "vocabulary.txt").write_text("".join(f"{value}\n" for value in vocabulary))
    for place, rows in columns.items():
        parent = folder / "features" / of if of == "item" else folder / place / f"{of}_features"
        target = parent / name
        target.mkdir(parents=True, exist_ok=True)
        if entry["kind"] in ("tags", "text"):
            ends = np.cumsum([0, *map(len, rows)], dtype=np.int64)
            np.save(target / "offsets.npy", ends)
            rows = [value for row in rows for value in row]
        dtype = np.float32 if entry["kind"] in ("number", "age") else np.int32
        np.save(target / "values.npy", np.asarray(rows, dtype))
    manifest = json.loads((folder / MANIFEST).read_text())
    features = manifest.setdefault("features", {})
    features.setdefault(of, {})[name] = {"missing": 0, **entry}
    manifest["files"] = {
        file: value
        for file, value in file_entries(folder).items()
        if file not in (MANIFEST, VERIFIED)
    }
    (folder / MANIFEST).write_text(json.dumps(manifest))


def add_examples(folder: Path, names: Sequence[str] | None = None, seed: int = 0) -> PreparedData:
    """Adds features of every kind, with random values of which some are missing.

    Args:
      folder: prepared data without features.
      names: names of ``EXAMPLES``, or None for all of them.
      seed: seed of the values.
    """
    generator = np.random.default_rng(seed)
    data = PreparedData.load(folder)

    def rows(name: str, kind: str, count: int) -> Rows:
        if kind in ("number", "age"):
            numbers = generator.normal(size=count).astype(np.float32)
            numbers[generator.random(count) < 0.1] = np.nan
            return list(numbers)
        if kind in ("tags", "text"):
            lengths = generator.integers(0, 4, count)
            least = 1 if kind == "text" else 0
            return [generator.integers(least, _CODES[name], length) for length in lengths]
        return list(generator.integers(0, _CODES[name], count))

    for name in EXAMPLES if names is None else names:
        of, entry, vocabulary = EXAMPLES[name]
        sizes = {"item": data.num_items}
        if of != "item":
            splits = [data.split(split) for split in SPLITS]
            sizes = {
                split.name: split.num_users if of == "user" else len(split.items)
                for split in splits
            }
        columns = {place: rows(name, entry["kind"], size) for place, size in sizes.items()}
        write_feature(folder, of, name, entry, columns, vocabulary)
    return PreparedData.load(folder)
