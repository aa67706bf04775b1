"""Describes the features that were asked for, and writes their encoded columns."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...data.features import (
    BELONGINGS,
    CONTEXT,
    ITEM,
    FeatureSpec,
    column_folder,
    vocabulary_file,
)
from ...data.prepared import SPLITS
from ..writer import Append, open_flat_array
from .encoding import Raw, encode
from .fitting import fit
from .options import Request, columns_of
from .side_tables import SideTable, read_ids
from .spool import Spool


class Blocks:
    """Raw values in blocks of rows, which can be read again and again."""

    def __init__(self, read: Callable[[], Iterator[Raw]]):
        self._read = read

    def __iter__(self) -> Iterator[Raw]:
        return self._read()


@dataclasses.dataclass(frozen=True)
class RawFeatures:
    """Where the raw values of all features are.

    Attributes:
      requests: the features.
      tables: side tables by what they describe.
      spools: raw values of the interactions, by split.
      kept_rows: for each split of which some interactions were left out, those that were not.
      until: last time of the training part in seconds, or None.
    """

    requests: Sequence[Request]
    tables: Mapping[str, SideTable]
    spools: Mapping[str, Spool]
    kept_rows: Mapping[str, np.ndarray]
    until: float | None


def write_features(
    folder: Path, raw: RawFeatures, item_counts: np.ndarray, threads: int | None = None
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Writes the columns of all features, several at a time.

    Args:
      folder: the prepared data, with all else in it.
      raw: the raw values.
      item_counts: ``[num_items]`` interactions of each item in the training split.
      threads: number of features at a time; by default that of the processor's cores.

    Returns:
      The entries of the features in the manifest, and statistics of the side tables.
    """
    places = {of: _places(folder, table) for of, table in raw.tables.items()}

    def entry(request: Request) -> dict[str, Any]:
        return _write_feature(folder, request, raw, places, item_counts)

    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        written = pool.map(entry, raw.requests)
        entries: dict[str, dict[str, Any]] = {of: {} for of in BELONGINGS}
        for request, found in zip(raw.requests, written):
            entries[request.of][request.name] = found
    statistics = {of: _statistics(table, places[of]) for of, table in raw.tables.items()}
    return {of: found for of, found in entries.items() if found}, statistics


def _write_feature(
    folder: Path,
    request: Request,
    raw: RawFeatures,
    places: Mapping[str, Mapping[str | None, np.ndarray]],
    item_counts: np.ndarray,
) -> dict[str, Any]:
    """Writes the columns of a feature, and returns its entry in the manifest."""
    parts = _parts(request, raw, places)
    if request.of == ITEM:
        trained = places[ITEM][None][item_counts > 0]
        training = Blocks(partial(raw.tables[ITEM].blocks, request.column, trained))
    else:
        training = parts["train"]
    spec = fit(request, training, raw.until)
    counts = {"missing": 0, "unreadable": 0, "unknown": 0}
    for split, blocks in parts.items():
        for name, count in _write_column(folder / column_folder(spec, split), spec, blocks):
            counts[name] += count
    if spec.vocabulary is not None:
        path = folder / vocabulary_file(spec)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{value}\n" for value in spec.vocabulary)
    return {
        "kind": spec.kind,
        "column": spec.column,
        "inferred": request.kind is None,
        **counts,
        **spec.options,
    }


def _places(folder: Path, table: SideTable) -> dict[str | None, np.ndarray]:
    """For items, or for the users of each split, their places in the side table."""
    if table.of == ITEM:
        return {None: table.rows_of(read_ids(folder / "item_ids.txt"))}
    return {split: table.rows_of(read_ids(folder / split / "user_ids.txt")) for split in SPLITS}


def _parts(
    request: Request,
    raw: RawFeatures,
    places: Mapping[str, Mapping[str | None, np.ndarray]],
) -> dict[str | None, Blocks]:
    """The raw values of a feature, by split; those of items have no split."""
    if request.of == CONTEXT:
        column = columns_of(raw.requests, CONTEXT).index(request.column)
        return {
            split: Blocks(partial(raw.spools[split].blocks, column, raw.kept_rows.get(split)))
            for split in SPLITS
        }
    table = raw.tables[request.of]
    return {
        split: Blocks(partial(table.blocks, request.column, rows))
        for split, rows in places[request.of].items()
    }


def _write_column(folder: Path, spec: FeatureSpec, blocks: Blocks) -> Iterator[tuple[str, int]]:
    """Writes a column, and yields counts of what was found in it."""
    folder.mkdir(parents=True, exist_ok=True)
    dtype = np.float32 if spec.is_float else np.int32
    values_path, lengths_path = folder / "values.part", folder / "lengths.part"
    with contextlib.ExitStack() as files:
        write_values, write_lengths = (
            Append(files.enter_context(open(path, "wb")), np.dtype(kind).newbyteorder("<"))
            for path, kind in ((values_path, dtype), (lengths_path, np.int64))
        )
        for raw in blocks:
            encoded = encode(spec, raw)
            write_values(encoded.values)
            if encoded.lengths is not None:
                write_lengths(encoded.lengths)
            yield "missing", encoded.missing
            yield "unreadable", encoded.unreadable
            yield "unknown", encoded.unknown
    with (
        open(values_path, "rb") as source,
        open_flat_array(folder / "values.npy", write_values.written, dtype) as values,
    ):
        shutil.copyfileobj(source, values.file, 1 << 20)
        values.written = write_values.written
    values_path.unlink()
    if spec.is_ragged:
        lengths = np.fromfile(lengths_path, "<i8")
        with open_flat_array(folder / "offsets.npy", len(lengths) + 1, np.int64) as offsets:
            offsets(np.concatenate([[0], np.cumsum(lengths)]))
    lengths_path.unlink()


def _statistics(table: SideTable, places: Mapping[str | None, np.ndarray]) -> dict[str, Any]:
    found = np.unique(np.concatenate(list(places.values())))
    num_used = int((found >= 0).sum())
    return {
        "file": table.name,
        "rows": table.num_rows,
        "repeated_ids": table.num_rows - len(table.ids),
        "ids_not_in_log": len(table.ids) - num_used,
        f"{table.of}s_without_a_row": sum(int((rows < 0).sum()) for rows in places.values()),
    }


def print_features(manifest: Mapping[str, Any]) -> None:
    """Prints the features in a manifest, with their kinds, and what is wrong with their values."""
    features = manifest.get("features") or {}
    if not features:
        return
    print(f"\n{'feature':24}{'of':10}{'kind':24}{'missing':>12}{'unreadable':>12}{'unknown':>12}")
    for of in BELONGINGS:
        for name, entry in features.get(of, {}).items():
            kind = _kind_text(entry) + (", inferred" if entry.get("inferred") else "")
            counts = "".join(
                f"{entry.get(key, 0):>12,}" for key in ("missing", "unreadable", "unknown")
            )
            print(f"{name:24}{of:10}{kind:24}{counts}")
    for of, table in manifest["statistics"].get("side_tables", {}).items():
        print(
            f"{table['file']}: {table['rows']:,} rows; {table['repeated_ids']:,} with a "
            f"repeated id, of which the first is used; {table['ids_not_in_log']:,} ids are not in "
            f"the prepared log; {table[f'{of}s_without_a_row']:,} {of}s have no row"
        )


def _kind_text(entry: Mapping[str, Any]) -> str:
    size = entry.get("vocabulary")
    return str(entry["kind"]) + ("" if size is None else f" of {size:,}")
