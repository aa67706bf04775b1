"""Step ``synthesize``: writes a synthetic log (``user,item,time``) as CSV or Parquet.

On request it writes tables of the items and users beside it, with features that tell something of
what users choose.
"""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from .. import cli
from ..common.files import atomic_file
from ..common.progress import progress_bar
from ..errors import UserError
from .generator import SyntheticConfig, make_events, make_item_features, make_user_features

SCHEMA = pa.schema([("user", pa.string()), ("item", pa.string()), ("time", pa.int64())])
ITEM_SCHEMA = pa.schema(
    [
        ("item", pa.string()),
        ("genre", pa.string()),
        ("price", pa.float64()),
        ("tags", pa.string()),
        ("released", pa.int64()),
    ]
)
USER_SCHEMA = pa.schema([("user", pa.string()), ("segment", pa.string()), ("age", pa.int64())])

# The first row of each file, by its schema, which tells a file of this step from others.
_ROWS = {
    SCHEMA: r"user-\d+,item-\d+,\d+",
    ITEM_SCHEMA: r"item-\d+,genre-\d+,[0-9.]+,[a-z0-9|-]*,\d+",
    USER_SCHEMA: r"user-\d+,segment-\d+,\d+",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this step."""
    parser.add_argument("--out", required=True, help="file to write, .csv or .parquet")
    parser.add_argument(
        "--users",
        type=cli.positive,
        default=4_000,
        metavar="N",
        help="number of users (%(default)s)",
    )
    parser.add_argument(
        "--items",
        type=cli.positive,
        default=3_000,
        metavar="N",
        help="number of items (%(default)s)",
    )
    parser.add_argument(
        "--mean-length",
        type=cli.positive,
        default=25,
        metavar="N",
        help="mean number of interactions per user (%(default)s)",
    )
    parser.add_argument(
        "--seed", type=cli.count, default=0, metavar="N", help="random seed (%(default)s)"
    )
    for thing, columns in (("item", ITEM_SCHEMA), ("user", USER_SCHEMA)):
        parser.add_argument(
            f"--{thing}-table",
            metavar="FILE",
            help=f"table of the {thing}s to write beside the log, .csv or .parquet, with the "
            f"columns {', '.join(columns.names)} (none)",
        )
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")


def run(args: argparse.Namespace) -> None:
    """Writes the log."""
    out = Path(args.out)
    files = {"--out": (out, SCHEMA)}
    for option, name, schema in (
        ("--item-table", args.item_table, ITEM_SCHEMA),
        ("--user-table", args.user_table, USER_SCHEMA),
    ):
        if name:
            files[option] = Path(name), schema
    if args.items < 2:
        raise UserError(f"--items should be at least 2. Received: {args.items}.")
    paths = [path.resolve() for path, _ in files.values()]
    for option, (path, schema) in files.items():
        if path.suffix not in (".csv", ".parquet"):
            raise UserError(f"{option} should end in .csv or .parquet. Received: {path}.")
        if paths.count(path.resolve()) > 1:
            raise UserError(f"{option} should be a file of its own. Received: {path}.")
        if path.exists() and not args.overwrite:
            raise UserError(f"{option} {path} exists. Pass --overwrite to replace it.")
        if path.exists() and not _is_synthetic(path, schema):
            raise UserError(
                f"{option} {path} was not written by synthesize, so --overwrite does not replace "
                "it. Choose another name."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
    config = SyntheticConfig(
        num_users=args.users, num_items=args.items, mean_length=args.mean_length, seed=args.seed
    )
    user_names, item_names = (
        _names(kind, count) for kind, count in (("user", args.users), ("item", args.items))
    )
    rows = 0
    with _writer(out, SCHEMA) as writer, progress_bar(unit="row") as bar:
        for events in make_events(config):
            columns = [
                user_names.take(pa.array(events.users)),
                item_names.take(pa.array(events.items)),
                pa.array(events.times),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA))
            rows += len(events.users)
            bar.update(len(events.users))
    print(f"{out}: {rows:,} rows of {args.users:,} users and {args.items:,} items (synthetic)")
    if "--item-table" in files:
        _write_items(files["--item-table"][0], config, item_names)
    if "--user-table" in files:
        _write_users(files["--user-table"][0], config, user_names)


def _write_items(path: Path, config: SyntheticConfig, names: pa.Array) -> None:
    found = make_item_features(config)
    tags = [
        "|".join(f"tag-{number}" for number, is_there in enumerate(row) if is_there)
        for row in found.tags.tolist()
    ]
    columns = [
        names,
        _names("genre", int(found.genres.max()) + 1).take(pa.array(found.genres)),
        pa.array(found.prices.astype(float)),
        pa.array(tags, pa.string()),
        pa.array(found.released),
    ]
    with _writer(path, ITEM_SCHEMA) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=ITEM_SCHEMA))
    print(f"{path}: {len(names):,} items")


def _write_users(path: Path, config: SyntheticConfig, names: pa.Array) -> None:
    with _writer(path, USER_SCHEMA) as writer:
        for found in make_user_features(config):
            segments = _names("segment", int(found.segments.max()) + 1)
            columns = [
                names.take(pa.array(found.users)),
                segments.take(pa.array(found.segments)),
                pa.array(found.ages),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=USER_SCHEMA))
    print(f"{path}: {len(names):,} users")


def _is_synthetic(path: Path, schema: pa.Schema) -> bool:
    """Whether the first row of a file, if there is one, is one that this step writes."""
    if not path.is_file():
        return False
    try:
        if path.suffix == ".parquet":
            with pyarrow.parquet.ParquetFile(path) as file:
                if not file.schema_arrow.equals(schema):
                    return False
                rows = next(file.iter_batches(batch_size=1), pa.RecordBatch.from_pylist([], schema))
                lines = [",".join(map(str, row.values())) for row in rows.to_pylist()]
        else:
            with open(path, encoding="utf-8") as text:
                header, *lines = [text.readline(1000).rstrip("\n") for _ in range(2)]
                if header != ",".join(schema.names):
                    return False
    except (OSError, UnicodeDecodeError, pa.ArrowException):
        return False
    return all(re.fullmatch(f"({_ROWS[schema]})?", line) for line in lines)


def _names(kind: str, count: int) -> pa.Array:
    """Names such as ``item-00042``, all of the same length."""
    width = max(5, len(str(count - 1)))
    return pa.array((f"{kind}-{number:0{width}}" for number in range(count)), pa.string())


@contextlib.contextmanager
def _writer(out: Path, schema: pa.Schema) -> Iterator[Any]:
    with atomic_file(out) as temporary:
        if out.suffix == ".parquet":
            writer = pyarrow.parquet.ParquetWriter(temporary, schema)
        else:
            options = pyarrow.csv.WriteOptions(quoting_style="none", quoting_header="none")
            writer = pyarrow.csv.CSVWriter(temporary, schema, write_options=options)
        with writer:
            yield writer
