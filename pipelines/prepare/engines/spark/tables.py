"""Tables of Spark as folders of Parquet files, each with a view of the table's name.

The folders are in the scratch folder, which all machines must see. The driver never collects data
of the size of the log: Spark sorts what the writer asks for into files, which are read in batches.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

BATCH_ROWS = 1 << 18


class SparkTables:
    """The tables of one Spark session; see ``Engine`` for the methods without a docstring.

    Args:
      session: session of this engine alone, since its settings and views are changed.
      folder: scratch folder on a file system that the driver and the executors share.
    """

    row = "row"

    def __init__(self, session: SparkSession, folder: Path):
        self.session = session
        self.folder = folder.resolve()
        self._versions = 0
        self._folders: dict[str, list[Path]] = {}

    def create(self, table: str, select: str) -> None:
        self.keep(table, self.session.sql(select))

    def keep(self, table: str, rows: DataFrame) -> None:
        """Writes rows to files and makes them the table ``table``."""
        path = self.write(table, rows)
        self.view(table, self.session.read.schema(rows.schema).parquet(url(path)), [path])

    def view(self, table: str, rows: DataFrame, folders: list[Path]) -> None:
        """Makes rows that are read from ``folders`` of this engine the table ``table``."""
        rows.createOrReplaceTempView(table)
        self._remove(table)
        self._folders[table] = folders

    def release(self, table: str) -> list[Path]:
        """Forgets a table; the caller takes over its folders, if any."""
        self.session.catalog.dropTempView(table)
        return self._folders.pop(table, [])

    def number(self, table: str, select: str, order: str, column: str) -> None:
        # A window over all rows would put them into one task. Instead many tasks sort the rows,
        # each task counts its own, and the rows of the preceding tasks are added.
        ordered = self.session.sql(f"SELECT * FROM ({select}) AS unordered ORDER BY {order}")
        serial = sf.monotonically_increasing_id().alias("serial")
        path = self.write(table, ordered.select("*", serial))
        before = itertools.accumulate(rows_of_tasks(path), initial=0)
        shifts = sf.array(*(sf.lit(count - (task << 33)) for task, count in enumerate(before)))
        number = sf.col("serial") + sf.get(shifts, sf.shiftright("serial", 33).cast("int"))
        rows = self.session.read.parquet(url(path))
        self.view(table, rows.select(*ordered.columns, number.cast("int").alias(column)), [path])

    def numbered(self, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        [path] = self._folders[table]
        yield from _read(path, columns)

    def count(self, table: str) -> int:
        return sum(sum(rows_of_tasks(path)) for path in self._folders[table])

    def drop(self, table: str) -> None:
        self.session.catalog.dropTempView(table)
        self._remove(table)

    def value(self, select: str) -> Any:
        [(value,)] = self.session.sql(select).collect()
        return value

    def batches(self, select: str) -> Iterator[pa.RecordBatch]:
        path = self.write("sorted", self.session.sql(select))
        yield from _read(path)
        shutil.rmtree(path)

    def progress(self) -> float:
        done = total = 0
        tracker = self.session.sparkContext.statusTracker()
        with contextlib.suppress(Exception):  # Spark may be shutting down.
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None:
                    done, total = done + info.numCompletedTasks, total + info.numTasks
        return 100 * done / total if total else -1.0

    def write(self, table: str, rows: DataFrame) -> Path:
        """Writes rows to a new folder, without a table."""
        self._versions += 1
        path = self.folder / f"{table}-{self._versions}"
        rows.write.parquet(url(path))
        return path

    def _remove(self, table: str) -> None:
        for path in self._folders.pop(table, []):
            shutil.rmtree(path)


def url(path: Path) -> str:
    """The URL of a local path, whatever the cluster's default file system is."""
    return f"file://{path}"


def _read(folder: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows that Spark has written, in its order."""
    for _, path in _parts(folder):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=BATCH_ROWS, columns=columns)


def rows_of_tasks(folder: Path) -> list[int]:
    """The number of rows that each task has written."""
    parts = _parts(folder)
    rows = [0] * (parts[-1][0] + 1 if parts else 0)
    for task, path in parts:
        rows[task] += pq.read_metadata(path).num_rows
    return rows


def _parts(folder: Path) -> list[tuple[int, Path]]:
    """The files of a folder in order, each with the number of the task that wrote it."""
    paths = folder.glob("part-*.parquet")
    return sorted((int(path.name.split("-")[1]), path) for path in paths)
