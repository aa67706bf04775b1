"""The command line of ``prepare``."""

from __future__ import annotations

import argparse

from .. import cli
from . import splits
from .engines.base import DEFAULT_MEMORY
from .features import options as feature_options
from .sources import SOURCES
from .sources.base import SourceOptions


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

    columns = parser.add_argument_group("columns (csv, tsv, parquet, movielens; sequences)")
    for thing, default in (
        (
            "user",
            "user; 1 with --no-header; user_id for movielens; 1 for sequences whose lines begin "
            "with the user's id, otherwise the number of the line",
        ),
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
        type=splits.split_option,
        default="8:1:1",
        metavar="SPLIT",
        help="relative numbers of train, valid and test users, such as 8:1:1; or leave-one-out: "
        "each user's last item is the test target, the one before it the valid target, and the "
        "others are for training; or time: --split-at divides the log at the same two points for "
        "all users (%(default)s)",
    )
    filters.add_argument(
        "--split-at",
        nargs=2,
        metavar="TIME",
        help="for --split time, where valid and test begin: two times in the format of the log, or "
        "two percentages of its interactions (80%% 90%%)",
    )
    for kind, meaning in (
        ("cold", "have no interaction in train"),
        ("repeated", "the user has chosen before"),
    ):
        filters.add_argument(
            f"--drop-{kind}-targets",
            action="store_true",
            help=f"leave out valid and test targets that {meaning}; they are counted in any case "
            "(off)",
        )
    filters.add_argument(
        "--hold-out-items",
        type=cli.share,
        metavar="X",
        help="share of the items whose interactions are left out of train, chosen by --seed, so "
        "that they are cold in valid and test (none)",
    )
    filters.add_argument(
        "--history-share",
        type=cli.share,
        default=0.8,
        metavar="X",
        help="share of a valid or test user's items that form the history, if users are split; the "
        "rest are targets (%(default)s)",
    )
    filters.add_argument(
        "--valid-share",
        type=cli.share,
        default=0.1,
        metavar="X",
        help="share of each user's train pairs to hold out as valid, for presplit data without a "
        "valid file; rounded down, but at least one pair (%(default)s)",
    )
    filters.add_argument(
        "--train-on-valid",
        action="store_true",
        help="also put the interactions of valid into train, for a last training before export or "
        "test, with settings that were chosen without them (off)",
    )
    filters.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the shuffle of users, and of --hold-out-items (%(default)s)",
    )
    filters.add_argument(
        "--max-bad-rows",
        type=cli.count,
        default=0,
        metavar="N",
        help="maximum number of unusable rows to leave out before giving up (%(default)s)",
    )

    feature_options.add_arguments(parser)

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
        "--threads", type=cli.positive, metavar="N", help="number of threads (all cores)"
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
