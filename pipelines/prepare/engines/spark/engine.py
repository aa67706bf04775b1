"""The engine for logs that one machine cannot sort: Apache Spark, on a cluster or in local mode."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from ....errors import UserError
from ...rows.bad_rows import BadRows
from ...rows.readers import Reader
from ..base import Note, check_any_rows, create_names
from .log import read_raw
from .session import SparkOptions, first_line, open_session
from .tables import SparkTables, rows_of_tasks

_PROBE_TASKS = 64


class SparkEngine(SparkTables):
    """The tables of one Spark session, with a log read into them."""

    def read(self, readers: Sequence[Reader], max_bad_rows: int, note: Note) -> BadRows:
        bad_rows = read_raw(self, readers, max_bad_rows, note)
        create_names(self)
        check_any_rows(self, readers, bad_rows)
        return bad_rows

    def check_shared(self, master: str) -> None:
        """Checks that the driver sees the files that all executors write.

        Raises:
          UserError: the folder is on a disk that only this machine sees.
        """
        path = self.write("probe", self.session.range(0, _PROBE_TASKS, 1, _PROBE_TASKS))
        if sum(rows_of_tasks(path)) != _PROBE_TASKS:
            raise UserError(
                f"the machines of --spark-master {master} do not share the folder of --out with "
                "this one. Put --out and --input on a file system that all of them see under the "
                "same path."
            )
        shutil.rmtree(path)


@contextlib.contextmanager
def open_spark(folder: Path, options: SparkOptions) -> Iterator[SparkEngine]:
    """Opens an engine with its tables in ``folder``, and turns Spark's errors into user errors.

    Raises:
      UserError: Spark does not start, or fails while it works.
    """
    with open_session(options, folder) as session:
        engine = SparkEngine(session, folder)
        try:
            if not options.is_local:
                engine.check_shared(options.master)
            yield engine
        except (Py4JError, PySparkException) as error:
            raise UserError(
                f"Spark failed: {first_line(error)}. Check that the cluster is up and sees --input "
                "and --out. If it ran out of memory, raise --memory-limit, or "
                "spark.executor.memory with --spark-conf."
            ) from error
