"""Step ``prepare``: turns a raw log into arrays that training maps into memory.

``sources`` says what can be read and ``rows`` how one file is read; ``engines`` run the SQL of
``tables``, which filters and splits the log. ``writer`` writes the arrays, and ``manifests``
describes them.
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
from ..data.prepared import FORMAT_VERSION, MANIFEST, SPLITS
from ..errors import UserError
from . import manifests, tables, writer
from .engines.base import DEFAULT_MEMORY, Engine, scalar
from .engines.duckdb import open_duckdb
from .sources import SOURCES
from .sources.base import SourceOptions

# Options that change the result; the others change how the work is done.
_CONFIGURATION = (
    "core",
    "dedup",
    "header",
    "history_share",
    "item_column",
    "max_bad_rows",
    "min_item_count",
    "min_user_count",
    "seed",
    "separator",
    "source",
    "split",
    "tfds_data_dir",
    "tfds_name",
    "time_column",
    "user_column",
    "valid_share",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this step."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    width = max(map(len, SOURCES))
    parser.epilog = "sources (text files may be gzipped):\n" + "\n".join(
        f"  {name:{width}}  {kind.summary}" for name, kind in SOURCES.items()
    )
    parser.add_argument(
        "--source", required=True, choices=SOURCES, help="format of the input, see below"
    )
    parser.add_argument(
        "--input",
        nargs="+",
        default=[],
        help="file or files to read; for authors and presplit, the folder with the files",
    )
    parser.add_argument("--out", required=True, help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --out")

    columns = parser.add_argument_group("columns (csv, tsv, parquet, movielens)")
    for thing, default in (
        ("user", "user; 1 with --no-header; user_id for movielens"),
        ("item", "item; 2 with --no-header; movie_id for movielens"),
    ):
        columns.add_argument(
            f"--{thing}-column",
            metavar="COLUMN",
            help=f"name of the {thing} column, or its number from 1 with --no-header ({default})",
        )
    columns.add_argument(
        "--time-column",
        metavar="COLUMN",
        help="name or number of the time column, which holds numbers or ISO dates; 'none' means "
        "that the rows are already in time order (time if the file has such a column, otherwise "
        "none; timestamp for movielens)",
    )
    columns.add_argument(
        "--separator",
        type=cli.separator,
        metavar="CHARACTER",
        help="separator between columns: one character, or 'tab', 'space' or 'comma' (comma for "
        "csv, tab for tsv, detected for presplit)",
    )
    columns.add_argument(
        "--header",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether the first line names the columns (on; detected for presplit)",
    )
    columns.add_argument(
        "--tfds-name",
        default=SourceOptions.tfds_name,
        metavar="NAME",
        help="name of the data set in tensorflow-datasets (%(default)s)",
    )
    columns.add_argument(
        "--tfds-data-dir",
        metavar="FOLDER",
        help="data folder of tensorflow-datasets (its own default)",
    )

    filters = parser.add_argument_group("filters and split")
    for thing in ("item", "user"):
        filters.add_argument(
            f"--min-{thing}-count",
            type=cli.positive,
            metavar="N",
            help=f"minimum number of interactions of {'an' if thing == 'item' else 'a'} {thing}; "
            "items are filtered first, then users (5; 20 for taobao; 1 for authors and presplit)",
        )
    filters.add_argument(
        "--core", action="store_true", help="repeat both filters until nothing changes"
    )
    filters.add_argument(
        "--dedup", action="store_true", help="keep only a user's first interaction with each item"
    )
    filters.add_argument(
        "--split",
        type=cli.shares,
        default="8:1:1",
        metavar="N:N:N",
        help="relative numbers of train, valid and test users (%(default)s)",
    )
    filters.add_argument(
        "--history-share",
        type=cli.share,
        default=0.8,
        metavar="X",
        help="share of a valid or test user's items that form the history; the rest are targets "
        "(%(default)s)",
    )
    filters.add_argument(
        "--valid-share",
        type=cli.share,
        default=0.1,
        metavar="X",
        help="share of each user's train pairs to hold out as valid, for presplit data without a "
        "valid file (%(default)s)",
    )
    filters.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the shuffle of users (%(default)s)",
    )
    filters.add_argument(
        "--max-bad-rows",
        type=cli.count,
        default=0,
        metavar="N",
        help="maximum number of unusable rows to leave out before giving up (%(default)s)",
    )

    engine = parser.add_argument_group("engine (the result is the same with either)")
    engine.add_argument(
        "--engine",
        choices=("duckdb", "spark"),
        default="duckdb",
        help="DuckDB for one machine, or Apache Spark for a cluster (%(default)s)",
    )
    engine.add_argument(
        "--memory-limit",
        metavar="SIZE",
        help="memory limit of DuckDB, or heap size of the Java process that --engine spark starts "
        f"({DEFAULT_MEMORY})",
    )
    engine.add_argument(
        "--threads", type=cli.positive, metavar="N", help="number of DuckDB threads (all cores)"
    )
    engine.add_argument(
        "--spark-master",
        default="local[*]",
        metavar="URL",
        help="URL of a Spark cluster, or local[N] for N threads on this machine; all machines of a "
        "cluster must see --input and --out under the same paths (%(default)s)",
    )
    engine.add_argument(
        "--spark-conf",
        action="append",
        default=[],
        type=cli.setting,
        metavar="KEY=VALUE",
        help="a Spark setting, such as spark.executor.memory=8g; may be repeated (none)",
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
    config = {name: getattr(args, name) for name in _CONFIGURATION}
    config["split"] = ":".join(map(str, args.split))
    inputs = manifests.input_entries(args.input)
    out = Path(args.out)
    if manifests.is_finished(out, config, inputs, args.overwrite):
        print(f"{out} already exists and was made from this input with these options.")
        manifests.print_summary(read_json(out / MANIFEST), out)
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
    manifests.print_summary(manifest, out)


def _prepare(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Writes all arrays into ``folder`` and returns the manifest entries that describe them."""
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
            source = SOURCES[args.source].open(_source_options(args, work))
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
        with phases.phase("splitting"):
            if source.lacks_valid:
                tables.hold_out(engine, options)
            dropped = tables.split_log(engine, source.split, options)
            statistics["users"] = engine.count("shuffled")
            statistics["filtered_users"] = statistics["raw_users"] - statistics["users"]
            statistics["filtered_items"] = statistics["raw_items"] - statistics["items"]
        with phases.phase("writing"):
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
