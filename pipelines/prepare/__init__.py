"""Step ``prepare``: turns a raw log into arrays that training maps into memory.

``sources`` says what can be read and ``rows`` how one file is read; ``engines`` run the SQL of
``tables``, which filters and splits the log. ``writer`` writes the arrays, ``features`` encodes
side features, and ``manifests`` describes the result.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from ..common.files import (
    atomic_folder,
    file_entries,
    installed_versions,
    read_json,
    write_json,
)
from ..common.ownership import check_outside
from ..common.progress import Phases
from ..data.features import CONTEXT, ITEM, USER
from ..data.prepared import FORMAT_VERSION, MANIFEST, SPLITS
from ..errors import UserError
from . import manifests, splits, tables, writer
from .arguments import add_arguments
from .cold_items import hold_out_items
from .engines.base import Engine, scalar
from .engines.duckdb import open_duckdb
from .features import options as feature_options
from .features.columns import RawFeatures, write_features
from .features.options import Request, columns_of
from .features.side_tables import open_table, read_table
from .features.spool import Spool
from .rows.readers import Reader
from .sources import SOURCES
from .sources.base import LEAVE_ONE_OUT, SPLIT_USERS, TIME, Source, SourceOptions
from .targets import count_targets

__all__ = ["add_arguments", "run"]

# Options that change the result; the others change how the work is done.
_CONFIGURATION = (
    "context_features",
    "core",
    "dedup",
    "drop_cold_targets",
    "drop_repeated_targets",
    "header",
    "history_share",
    "hold_out_items",
    "item_column",
    "item_features",
    "items",
    "items_id",
    "max_bad_rows",
    "min_item_count",
    "min_user_count",
    "seed",
    "separator",
    "source",
    "split",
    "split_at",
    "tfds_data_dir",
    "tfds_name",
    "time_column",
    "train_on_valid",
    "user_column",
    "user_features",
    "users",
    "users_id",
    "valid_share",
)


def run(args: argparse.Namespace) -> None:
    """Prepares a log."""
    for thing in ("min_item_count", "min_user_count"):
        if getattr(args, thing) is None:
            setattr(args, thing, SOURCES[args.source].min_count)
    if args.engine == "spark" and args.threads is not None:
        raise UserError(
            "--threads works with --engine duckdb only. Set the number of Spark threads on this "
            f"machine with --spark-master 'local[{args.threads}]'."
        )
    if not args.input and args.source != "movielens":
        raise UserError(f"--source {args.source} needs --input. Pass the file or folder to read.")
    if args.split_at is not None and args.split != TIME:
        raise UserError(
            "--split-at requires --split time. Received: --split "
            f"{args.split if _is_cut(args) else ':'.join(map(str, args.split))}. Leave one out."
        )
    requests = feature_options.requests(args)
    config = {name: getattr(args, name) for name in _CONFIGURATION}
    config["split"] = args.split if _is_cut(args) else ":".join(map(str, args.split))
    inputs = manifests.input_entries([*args.input, *filter(None, (args.items, args.users))])
    before = manifests.file_states(inputs)
    out = Path(args.out)
    tables_beside = {"--items": args.items, "--users": args.users}
    check_outside(out, {option: [Path(path)] for option, path in tables_beside.items() if path})
    if manifests.is_finished(out, config, inputs, args.overwrite):
        print(f"{out} already exists and was made from this input with these options.")
        manifests.print_summary(read_json(out / MANIFEST), out)
        return
    with atomic_folder(out, args.overwrite, manifests.check_ours) as folder:
        manifest = _prepare(args, requests, folder)
        # The files were read several times, by several readers.
        manifests.check_unchanged(inputs, before)
        manifest = {
            "format_version": FORMAT_VERSION,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "source": args.source,
            "inputs": inputs,
            "config": config,
            "seed": args.seed,
            **manifest,
            "engine": args.engine,
            "versions": installed_versions(),
            "files": file_entries(folder),
        }
        write_json(folder / MANIFEST, manifest)
    manifests.print_summary(manifest, out)


def _prepare(args: argparse.Namespace, requests: Sequence[Request], folder: Path) -> dict[str, Any]:
    """Writes all arrays into ``folder`` and returns the manifest entries that describe them."""
    options = tables.LogOptions(
        min_item_count=args.min_item_count,
        min_user_count=args.min_user_count,
        core=args.core,
        dedup=args.dedup,
        shares=(8, 1, 1) if _is_cut(args) else args.split,
        valid_share=args.valid_share,
        seed=args.seed,
        train_on_valid=args.train_on_valid,
    )
    work = folder / "work"
    work.mkdir()
    with _open_engine(args, work) as engine:
        phases = Phases(5, engine.progress)
        with phases.phase(f"reading {shlex.join(args.input) or args.tfds_name}") as results:
            source = SOURCES[args.source].open(_source_options(args, requests, work))
            side_readers = {**source.tables, **_side_readers(args, requests)}
            cut = _cut(args, source)
            bad_rows = engine.read(source.readers, args.max_bad_rows, phases.note)
            num_bad_rows = bad_rows.total
            side_tables = {
                of: read_table(of, reader, columns_of(requests, of), bad_rows)
                for of, reader in side_readers.items()
            }
            bad_rows.check(args.max_bad_rows)
            statistics: dict[str, Any] = _count_raw(engine)
            results.append(f"{statistics['rows']:,} rows")
        held = source.readers[0].extra_types
        with phases.phase("numbering users and items") as results:
            tables.encode(engine, args.dedup, keep_raw=bool(held))
            used = engine.count("log")
            statistics["duplicates"] = statistics["rows"] - statistics["unwanted_rows"] - used
            results.append(f"{statistics['raw_users']:,} users")
            results.append(f"{statistics['raw_items']:,} items")
        with phases.phase("filtering") as results:
            statistics["filter_rounds"] = tables.filter_log(engine, options)
            statistics["items"] = tables.number_items(engine)
            kept = engine.count("log")
            statistics["interactions"] = kept
            statistics["filtered_interactions"] = used - kept
            results.append(f"{kept:,} interactions left")
        with phases.phase("splitting"):
            if source.lacks_valid:
                tables.hold_out(engine, options)
            split = source.split
            if cut is not None:
                split = cut.kind
                statistics["split_times"] = splits.cut_sequences(engine, cut)
            dropped = tables.split_log(engine, split, options)
            if cut is not None:
                untrained = "n0 + n1 = 0" if args.train_on_valid else "n0 = 0"
                statistics["users_not_in_train"] = scalar(
                    engine, f"SELECT count(*) FROM shuffled WHERE {untrained}"
                )
            statistics["users"] = engine.count("shuffled")
            statistics["filtered_users"] = statistics["raw_users"] - statistics["users"]
            statistics["filtered_items"] = statistics["raw_items"] - statistics["items"]
        with phases.phase("writing"):
            writer.write_item_ids(engine, folder)
            statistics["splits"] = {}
            spools = {name: Spool(work / f"{name}.arrow", held) for name in SPLITS if held}
            for name in SPLITS:
                entry = writer.write_split(
                    engine, folder, name, split, options, args.history_share, spools.get(name)
                )
                statistics["splits"][name] = {**entry, "dropped_users": dropped[name]}
            kept_rows: dict[str, np.ndarray] = {}
            if args.hold_out_items is not None:
                found, entry, kept_rows["train"] = hold_out_items(
                    folder, args.hold_out_items, args.seed
                )
                statistics.update(found)
                statistics["splits"]["train"].update(entry)
            counts = writer.write_item_counts(folder, statistics["items"])
            for name in SPLITS[1:]:
                entry, kept_targets = count_targets(
                    folder / name, counts, args.drop_cold_targets, args.drop_repeated_targets
                )
                statistics["splits"][name].update(entry)
                if kept_targets is not None:
                    kept_rows[name] = kept_targets
            statistics["items_not_in_train"] = int((counts == 0).sum())
            features: dict[str, Any] = {}
            if requests:
                last = tables.last_time(engine, split, options)
                until = None if last is None else splits.in_seconds(last, source.readers)
                raw = RawFeatures(requests, side_tables, spools, kept_rows, until)
                features, found_tables = write_features(folder, raw, counts, args.threads)
                if found_tables:
                    statistics["side_tables"] = found_tables
    shutil.rmtree(work)
    return {
        "order": "time" if source.readers[0].has_time else "order of the file",
        **({"features": features} if features else {}),
        "statistics": {
            **statistics,
            "bad_rows": num_bad_rows,
            "bad_rows_by_kind": bad_rows.summary(),
        },
        "seconds": phases.seconds,
    }


def _side_readers(args: argparse.Namespace, requests: Sequence[Request]) -> dict[str, Reader]:
    """The readers of the tables beside the log, by what they describe."""
    found = {}
    for of in (ITEM, USER):
        path = getattr(args, f"{of}s")
        if path:
            id_column = getattr(args, f"{of}s_id") or getattr(args, f"{of}_column") or of
            found[of] = open_table(of, Path(path), id_column, columns_of(requests, of))
    return found


def _is_cut(args: argparse.Namespace) -> bool:
    """Whether every user's sequence is cut, instead of the users being split."""
    return args.split in (LEAVE_ONE_OUT, TIME)


def _cut(args: argparse.Namespace, source: Source) -> splits.Cut | None:
    """How the sequences are cut; None if the users are split, or the source is split already."""
    if not _is_cut(args):
        return None
    if source.split != SPLIT_USERS:
        raise UserError(
            f"--split {args.split} requires a log that is not split yet. Received: --source "
            f"{args.source}, whose files are the splits. Leave --split out, or read the files as "
            "one log with --source csv or tsv."
        )
    if args.split == LEAVE_ONE_OUT:
        return splits.Cut(args.split)
    points = args.split_at or splits.DEFAULT_POINTS
    return splits.Cut(args.split, splits.time_points(points, source.readers))


def _open_engine(args: argparse.Namespace, work: Path) -> AbstractContextManager[Engine]:
    if args.engine == "duckdb":
        return open_duckdb(work, args.memory_limit, args.threads)
    from .engines.spark.session import SparkOptions, require_spark

    require_spark()
    from .engines.spark.engine import open_spark

    options = SparkOptions(args.spark_master, dict(args.spark_conf), args.memory_limit)
    return open_spark(work, options)


def _source_options(
    args: argparse.Namespace, requests: Sequence[Request], scratch: Path
) -> SourceOptions:
    columns = {of: columns_of(requests, of) for of in (CONTEXT, ITEM, USER)}
    return SourceOptions(
        inputs=tuple(args.input),
        user_column=args.user_column,
        item_column=args.item_column,
        time_column=args.time_column,
        separator=args.separator,
        header=args.header,
        context_columns=columns[CONTEXT],
        item_columns=columns[ITEM],
        user_columns=columns[USER],
        tfds_name=args.tfds_name,
        tfds_data_dir=args.tfds_data_dir,
        scratch=scratch,
    )


def _count_raw(engine: Engine) -> dict[str, int]:
    rows = scalar(engine, "SELECT count(*) FROM raw")
    wanted = scalar(engine, "SELECT sum(num_rows) FROM user_names")
    return {
        "rows": rows,
        "unwanted_rows": rows - wanted,
        "raw_users": engine.count("user_names"),
        "raw_items": engine.count("item_names"),
    }
