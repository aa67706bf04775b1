"""Step ``prepare``: a raw log becomes arrays that training maps into memory.

See ``sources`` for what is read, ``logtable`` for filters and splits, ``prepared`` for what is
written, and ``engine`` for what does the work.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .. import cli
from ..common.files import atomic_folder, installed_versions, read_json, write_json
from ..common.progress import Phases
from ..data.prepared import FORMAT_VERSION, MANIFEST, SPLITS, PreparedData
from ..errors import UserError
from . import tables, writer
from .engines.base import DEFAULT_MEMORY, Engine, scalar
from .engines.duckdb import open_duckdb
from .sources import SOURCES, open_source
from .sources.base import SourceOptions
from .summary import print_summary

# Options that change how the work is done, but not what comes out.
_NOT_CONFIGURATION = (
    "step",
    "run",
    "out",
    "input",
    "overwrite",
    "engine",
    "memory_limit",
    "threads",
    "spark_master",
    "spark_conf",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this step."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    width = max(map(len, SOURCES))
    parser.epilog = "sources (text may be gzip):\n" + "\n".join(
        f"  {name:{width}}  {kind.summary}" for name, kind in SOURCES.items()
    )
    parser.add_argument("--source", required=True, choices=SOURCES, help="format of the input")
    parser.add_argument(
        "--input", nargs="+", default=[], help="file or files (authors, presplit: the folder)"
    )
    parser.add_argument("--out", required=True, help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --out")

    columns = parser.add_argument_group("columns (csv, tsv, parquet, movielens)")
    columns.add_argument("--user-column", help="name, or number from 1 with --no-header")
    columns.add_argument("--item-column", help="the same for the item")
    columns.add_argument(
        "--time-column",
        help="the same for the time: numbers or ISO dates; 'none', or no column 'time' in the "
        "file: rows are in the order of time already",
    )
    columns.add_argument(
        "--separator", type=cli.separator, help="one character, or 'tab', 'space', 'comma'"
    )
    columns.add_argument(
        "--header",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether the first line names the columns",
    )
    columns.add_argument("--tfds-name", default="movielens/100k-ratings", help="%(default)s")
    columns.add_argument("--tfds-data-dir", help="data folder of tensorflow-datasets")

    filters = parser.add_argument_group("filters and split")
    for thing in ("item", "user"):
        filters.add_argument(
            f"--min-{thing}-count",
            type=cli.positive,
            help=f"leave out {thing}s with fewer interactions (default 5; taobao 20; authors and "
            "presplit 1); items first, then users",
        )
    filters.add_argument("--core", action="store_true", help="repeat both until nothing changes")
    filters.add_argument(
        "--dedup", action="store_true", help="keep a user's first interaction with each item"
    )
    filters.add_argument("--split", type=cli.shares, default="8:1:1", help="users (%(default)s)")
    filters.add_argument(
        "--history-share",
        type=cli.share,
        default=0.8,
        help="of the items of a valid or test user; the rest are targets (%(default)s)",
    )
    filters.add_argument(
        "--valid-share",
        type=cli.share,
        default=0.1,
        help="presplit without a valid file: share of each user's train pairs (%(default)s)",
    )
    filters.add_argument("--seed", type=int, default=0, help="of the shuffle (%(default)s)")
    filters.add_argument(
        "--max-bad-rows",
        type=cli.count,
        default=0,
        help="how many to leave out (%(default)s)",
    )

    engine = parser.add_argument_group("engine (the result is the same)")
    engine.add_argument(
        "--engine",
        choices=("duckdb", "spark"),
        default="duckdb",
        help="DuckDB for one machine, Apache Spark for a cluster (%(default)s)",
    )
    engine.add_argument(
        "--memory-limit",
        help=f"of DuckDB, or of the Java process that --engine spark starts ({DEFAULT_MEMORY})",
    )
    engine.add_argument("--threads", type=cli.positive, help="of DuckDB (all cores)")
    engine.add_argument(
        "--spark-master",
        default="local[*]",
        help="URL of a cluster, which must see the files of --input and the folder of --out "
        "under the same paths, or local[N] for N threads here (%(default)s)",
    )
    engine.add_argument(
        "--spark-conf",
        action="append",
        default=[],
        type=cli.setting,
        metavar="KEY=VALUE",
        help="a setting of Spark, such as spark.executor.memory=8g; may be given again",
    )


def run(args: argparse.Namespace) -> None:
    """Prepares a log."""
    for thing in ("min_item_count", "min_user_count"):
        if getattr(args, thing) is None:
            setattr(args, thing, SOURCES[args.source].min_count)
    if args.engine == "spark" and args.threads is not None:
        raise UserError(
            "--threads is for --engine duckdb. For Spark on this machine set the threads with "
            f"--spark-master 'local[{args.threads}]'."
        )
    if not args.input and args.source != "movielens":
        raise UserError(f"--source {args.source} needs --input: what to read.")
    config = {
        name: value for name, value in sorted(vars(args).items()) if name not in _NOT_CONFIGURATION
    }
    config["split"] = ":".join(map(str, args.split))
    inputs = _input_entries(args.input)
    out = Path(args.out)
    if _is_finished(out, config, inputs, args.overwrite):
        print(f"{out} is already there, made from this input with these options.")
        print_summary(read_json(out / MANIFEST), out)
        return
    with atomic_folder(out, overwrite=args.overwrite) as folder:
        manifest = _prepare(args, folder)
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
            "files": writer.file_entries(folder),
        }
        write_json(folder / MANIFEST, manifest)
    print_summary(manifest, out)


def _prepare(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Writes all arrays into ``folder``; returns what there is to say about them."""
    options = tables.LogOptions(
        min_item_count=args.min_item_count,
        min_user_count=args.min_user_count,
        core=args.core,
        dedup=args.dedup,
        shares=args.split,
        valid_share=args.valid_share,
        seed=args.seed,
    )
    work = folder / "work"
    work.mkdir()
    with _open_engine(args, work) as engine:
        phases = Phases(5, engine.progress)
        with phases.phase(f"reading {shlex.join(args.input) or args.tfds_name}") as results:
            source = open_source(args.source, _source_options(args, work))
            bad_rows = engine.read(source.readers, args.max_bad_rows, phases.note)
            statistics: dict[str, Any] = _count_raw(engine)
            results.append(f"{statistics['rows']:,} rows")
        with phases.phase("numbering users and items") as results:
            tables.encode(engine, args.dedup)
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
        with phases.phase("splitting") as results:
            if source.lacks_valid:
                tables.hold_out(engine, options)
            dropped = tables.split_log(engine, source.split, options)
            statistics["users"] = engine.count("shuffled")
            statistics["filtered_users"] = statistics["raw_users"] - statistics["users"]
            statistics["filtered_items"] = statistics["raw_items"] - statistics["items"]
        with phases.phase("writing") as results:
            writer.write_item_ids(engine, folder)
            statistics["splits"] = {}
            for name in SPLITS:
                entry = writer.write_split(engine, folder, name, source.split, args.history_share)
                statistics["splits"][name] = {**entry, "dropped_users": dropped[name]}
            counts = writer.write_item_counts(folder, statistics["items"])
            statistics["items_not_in_train"] = int((counts == 0).sum())
    shutil.rmtree(work)
    return {
        "order": "time" if source.readers[0].has_time else "order of the file",
        "statistics": {
            **statistics,
            "bad_rows": bad_rows.total,
            "bad_rows_by_kind": bad_rows.summary(),
        },
        "seconds": phases.seconds,
    }


def _open_engine(args: argparse.Namespace, work: Path) -> AbstractContextManager[Engine]:
    if args.engine == "duckdb":
        return open_duckdb(work, args.memory_limit, args.threads)
    from .engines.spark.session import SparkOptions, require_spark

    require_spark()
    from .engines.spark.engine import open_spark

    options = SparkOptions(args.spark_master, dict(args.spark_conf), args.memory_limit)
    return open_spark(work, options)


def _source_options(args: argparse.Namespace, scratch: Path) -> SourceOptions:
    return SourceOptions(
        inputs=tuple(args.input),
        user_column=args.user_column,
        item_column=args.item_column,
        time_column=args.time_column,
        separator=args.separator,
        header=args.header,
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


def _input_entries(inputs: list[str]) -> list[dict[str, object]]:
    """Name, size and time of every file that the inputs stand for, to recognise them again."""
    entries: list[dict[str, object]] = []
    for name in inputs:
        path = Path(name)
        if path.is_file():
            files = [path]
        elif path.is_dir():
            files = sorted(file for file in path.iterdir() if file.is_file())
        else:
            files = sorted(path.parent.glob(path.name + "_*"))
        for file in files:
            status = file.stat()
            entries.append(
                {"path": str(file), "bytes": status.st_size, "modified_ns": status.st_mtime_ns}
            )
    return entries


def _is_finished(
    out: Path, config: dict[str, Any], inputs: list[dict[str, object]], overwrite: bool
) -> bool:
    """Whether ``out`` holds the result of this very command.

    Raises:
      UserError: It holds something else that may not be replaced.
    """
    if not out.is_dir() or not any(out.iterdir()):
        return False
    if not (out / MANIFEST).is_file():
        raise UserError(
            f"--out {out} has files in it that were not made by prepare, so it is not replaced. "
            "Choose another folder."
        )
    if overwrite:
        return False
    manifest = PreparedData.load(out).manifest
    if manifest["config"] == config and manifest["inputs"] == inputs:
        return True
    same_inputs = manifest["inputs"] == inputs
    origin = "with other options" if same_inputs else "from another input, or one that has changed"
    raise UserError(
        f"--out {out} exists, made {origin}. Pass --overwrite to replace it, or choose another "
        "folder."
    )
