"""The engine for logs that one machine cannot sort: Apache Spark, on a cluster or in local mode.

A table is a folder of Parquet files in the scratch folder, which all machines must see, with a
view of its name. Nothing of the size of the log is ever collected: what the writer asks for is
sorted by Spark into files, and read from there a batch at a time.
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
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ....errors import UserError
from ...rows.bad_rows import BadRows
from ...rows.readers import Reader
from ..base import Note
from . import log
from .session import SparkOptions, first_line, open_session

BATCH_ROWS = 1 << 18

_PROBE_TASKS = 64


class SparkEngine:
    """Tables of one Spark session.

    Args:
      session: For this engine alone: its settings and views are changed.
      folder: Scratch folder, on a file system that driver and executors share.
    """

    row = "row"

    def __init__(self, session: SparkSession, folder: Path):
        self.session = session
        self.folder = folder.resolve()
        self._versions = 0
        self._folders: dict[str, list[Path]] = {}

    def read(self, readers: Sequence[Reader], max_bad_rows: int, note: Note) -> BadRows:
        return log.read_log(self, readers, max_bad_rows, note)

    def create(self, table: str, select: str) -> None:
        self.keep(table, self.session.sql(select))

    def keep(self, table: str, rows: DataFrame) -> None:
        """Writes rows to files, and lets ``table`` be their name."""
        path = self._write(table, rows)
        self.view(table, self.session.read.schema(rows.schema).parquet(url(path)), [path])

    def view(self, table: str, rows: DataFrame, folders: list[Path]) -> None:
        """Lets ``table`` be the name of rows that are read from ``folders`` of this engine."""
        rows.createOrReplaceTempView(table)
        self._remove(table)
        self._folders[table] = folders

    def release(self, table: str) -> list[Path]:
        """Forgets a table; its folders, if any, are from now on the business of the caller."""
        self.session.catalog.dropTempView(table)
        return self._folders.pop(table, [])

    def number(self, table: str, select: str, order: str, column: str) -> None:
        # A window over all rows would put them into one task. Instead the rows are sorted over
        # many tasks, each counts its own, and the rows of the tasks before are added.
        ordered = self.session.sql(f"SELECT * FROM ({select}) AS unordered ORDER BY {order}")
        serial = sf.monotonically_increasing_id().alias("serial")
        path = self._write(table, ordered.select("*", serial))
        before = itertools.accumulate(_rows_of_tasks(path), initial=0)
        shifts = sf.array(*(sf.lit(count - (task << 33)) for task, count in enumerate(before)))
        number = sf.col("serial") + sf.get(shifts, sf.shiftright("serial", 33).cast("int"))
        rows = self.session.read.parquet(url(path))
        self.view(table, rows.select(*ordered.columns, number.cast("int").alias(column)), [path])

    def numbered(self, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        [path] = self._folders[table]
        yield from _read(path, columns)

    def count(self, table: str) -> int:
        return sum(sum(_rows_of_tasks(path)) for path in self._folders[table])

    def drop(self, table: str) -> None:
        self.session.catalog.dropTempView(table)
        self._remove(table)

    def value(self, select: str) -> Any:
        [(value,)] = self.session.sql(select).collect()
        return value

    def batches(self, select: str) -> Iterator[pa.RecordBatch]:
        path = self._write("sorted", self.session.sql(select))
        yield from _read(path)
        shutil.rmtree(path)

    def progress(self) -> float:
        done = total = 0
        tracker = self.session.sparkContext.statusTracker()
        with contextlib.suppress(Exception):  # Spark may be going away.
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None:
                    done, total = done + info.numCompletedTasks, total + info.numTasks
        return 100 * done / total if total else -1.0

    def check_shared(self, master: str) -> None:
        """Raises unless what all executors write arrives in the folder of the driver.

        Raises:
          UserError: The folder is on a disk of this machine alone.
        """
        path = self._write("probe", self.session.range(0, _PROBE_TASKS, 1, _PROBE_TASKS))
        if sum(_rows_of_tasks(path)) != _PROBE_TASKS:
            raise UserError(
                f"the machines of --spark-master {master} do not write to the folder of --out: "
                "--out and --input should be on a file system that all of them see under the "
                "same path."
            )
        shutil.rmtree(path)

    def _write(self, table: str, rows: DataFrame) -> Path:
        self._versions += 1
        path = self.folder / f"{table}-{self._versions}"
        rows.write.parquet(url(path))
        return path

    def _remove(self, table: str) -> None:
        for path in self._folders.pop(table, []):
            shutil.rmtree(path)


def url(path: Path) -> str:
    """A path of the machine's own file system, whatever the cluster's default one is."""
    return f"file://{path}"


@contextlib.contextmanager
def open_spark(folder: Path, options: SparkOptions) -> Iterator[SparkEngine]:
    """An engine with its tables in ``folder``, and Spark's own errors made plain.

    Raises:
      UserError: Spark does not start, or fails at its work.
    """
    with open_session(options, folder) as session:
        engine = SparkEngine(session, folder)
        try:
            if not options.is_local:
                engine.check_shared(options.master)
            yield engine
        except (Py4JError, PySparkException) as error:
            reason = first_line(error)
            remedy = (
                "Raise --memory-limit, or spark.executor.memory with --spark-conf."
                if "OutOfMemory" in reason
                else "Check that the cluster is up, and that it sees --input and --out."
            )
            raise UserError(f"Spark failed: {reason}. {remedy}") from error


def _read(folder: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """What Spark has written, in its order."""
    for _, path in _parts(folder):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=BATCH_ROWS, columns=columns)


def _rows_of_tasks(folder: Path) -> list[int]:
    """How many rows each task has written."""
    parts = _parts(folder)
    rows = [0] * (parts[-1][0] + 1 if parts else 0)
    for task, path in parts:
        rows[task] += pq.read_metadata(path).num_rows
    return rows


def _parts(folder: Path) -> list[tuple[int, Path]]:
    """The files of a folder in order, with the numbers of the tasks that wrote them."""
    paths = folder.glob("part-*.parquet")
    return sorted((int(path.name.split("-")[1]), path) for path in paths)
