"""The cost of side features in ``prepare``: ``python -m benchmarks.prepare``.

The same log is prepared with ten feature columns, of its items, its users and its interactions, and
without any. The log has the columns in either case.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import harness

import numpy as np  # isort: skip
import pyarrow as pa  # isort: skip
import pyarrow.csv  # isort: skip

from pipelines.__main__ import main as run_step  # isort: skip

FEATURES = (
    ("--item-features", "brand:category,price:quantiles,tags:tags,released:age"),
    ("--user-features", "country:category,age:number,joined:weekday"),
    ("--context-features", "device:category,amount:quantiles,hour=time:hour"),
)


def write_inputs(folder: Path, num_rows: int, num_items: int, num_users: int) -> None:
    """Writes a log and tables of its items and users, with random values."""
    random = np.random.default_rng(0)

    def names(kind: str, count: int) -> pa.Array:
        return pa.array([f"{kind}-{number:07}" for number in range(count)])

    def one_of(kind: str, count: int, num_values: int) -> pa.Array:
        return names(kind, num_values).take(pa.array(random.integers(num_values, size=count)))

    items, users = names("item", num_items), names("user", num_users)
    popular = (num_items * random.random(num_rows) ** 3).astype(np.int64)
    tables = {
        "log": {
            "user": users.take(pa.array(random.integers(num_users, size=num_rows))),
            "item": items.take(pa.array(popular)),
            "time": pa.array(1_600_000_000 + np.sort(random.integers(10**8, size=num_rows))),
            "device": one_of("device", num_rows, 5),
            "amount": pa.array(np.round(100 * random.random(num_rows), 2)),
        },
        "items": {
            "item": items,
            "brand": one_of("brand", num_items, 500),
            "price": pa.array(np.round(random.lognormal(3, 1, num_items), 2)),
            "tags": pa.array(
                [
                    "|".join(f"tag-{tag}" for tag in row)
                    for row in random.integers(50, size=(num_items, 3))
                ]
            ),
            "released": pa.array(1_500_000_000 + random.integers(10**8, size=num_items)),
        },
        "users": {
            "user": users,
            "country": one_of("country", num_users, 100),
            "age": pa.array(random.integers(15, 90, num_users)),
            "joined": pa.array(1_500_000_000 + random.integers(10**8, size=num_users)),
        },
    }
    for name, columns in tables.items():
        options = pa.csv.WriteOptions(quoting_style="none")
        pa.csv.write_csv(pa.table(columns), folder / f"{name}.csv", options)


def contenders(folder: Path) -> dict[str, Callable[[], object]]:
    """The functions to time."""

    def prepare(*options: str) -> None:
        command = ["prepare", "--source", "csv", "--input", f"{folder}/log.csv"]
        command += ["--out", f"{folder}/prepared", "--overwrite", *options]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = run_step(command)
        if code:
            raise RuntimeError(f"prepare ended with the exit code {code}")

    tables = ["--items", f"{folder}/items.csv", "--users", f"{folder}/users.csv"]
    options = [word for option in FEATURES for word in option]
    return {"without features": prepare, "with ten": lambda: prepare(*tables, *options)}


def main() -> int:
    """Runs the benchmark; the exit code is 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interactions", type=int, default=10_000_000)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--users", type=int, default=300_000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder, args.interactions, args.items, args.users)
        seconds = harness.time_in_turns(contenders(folder), args.repeats, warm_up=0)
    met = harness.report(
        f"prepare: {args.interactions:,} interactions, {args.items:,} items and {args.users:,} "
        "users; four features of items, three of users, three of interactions",
        seconds,
        [harness.Target("with ten", "without features", 2.0, at_most=True)],
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
