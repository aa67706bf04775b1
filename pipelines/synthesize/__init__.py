"""Step ``synthesize``: writes a synthetic log (``user,item,time``) as CSV or Parquet."""

from __future__ import annotations

import argparse
import contextlib
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
from .generator import SyntheticConfig, make_events

SCHEMA = pa.schema([("user", pa.string()), ("item", pa.string()), ("time", pa.int64())])


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
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def run(args: argparse.Namespace) -> None:
    """Writes the log."""
    out = Path(args.out)
    if args.items < 2:
        raise UserError(f"--items should be at least 2. Received: {args.items}.")
    if out.suffix not in (".csv", ".parquet"):
        raise UserError(f"--out should end in .csv or .parquet. Received: {out}.")
    if out.exists() and not args.overwrite:
        raise UserError(f"--out {out} exists. Pass --overwrite to replace it.")
    out.parent.mkdir(parents=True, exist_ok=True)
    config = SyntheticConfig(
        num_users=args.users, num_items=args.items, mean_length=args.mean_length, seed=args.seed
    )
    user_names, item_names = (
        _names(kind, count) for kind, count in (("user", args.users), ("item", args.items))
    )
    rows = 0
    with _writer(out) as writer, progress_bar(unit="row") as bar:
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


def _names(kind: str, count: int) -> pa.Array:
    """Names such as ``item-00042``, all of the same length."""
    width = max(5, len(str(count - 1)))
    return pa.array((f"{kind}-{number:0{width}}" for number in range(count)), pa.string())


@contextlib.contextmanager
def _writer(out: Path) -> Iterator[Any]:
    with atomic_file(out) as temporary:
        if out.suffix == ".parquet":
            writer = pyarrow.parquet.ParquetWriter(temporary, SCHEMA)
        else:
            options = pyarrow.csv.WriteOptions(quoting_style="none", quoting_header="none")
            writer = pyarrow.csv.CSVWriter(temporary, SCHEMA, write_options=options)
        with writer:
            yield writer
