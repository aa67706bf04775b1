"""Starting Apache Spark, and what can go wrong on the way.

Spark is an extra: this module imports it only when it is asked for.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ....errors import UserError
from ..base import DEFAULT_MEMORY, megabytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_SECONDS = 10

# How SQL reads text, times and names: the same as in DuckDB, whatever the cluster's defaults are.
_DIALECT = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.maxRecordsPerFile": "0",
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
}


@dataclass(frozen=True)
class SparkOptions:
    """Where Spark runs.

    Attributes:
      master: ``local[N]``, or the URL of a cluster.
      settings: Spark's own, by name.
      memory: Heap of the Java process that is started here, such as ``2GB``, or None.
    """

    master: str = "local[*]"
    settings: Mapping[str, str] = field(default_factory=dict)
    memory: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether all work is done in the process that is started here."""
        return self.master.startswith("local") and not self.master.startswith("local-cluster")


def require_spark() -> None:
    """Checks that Spark can be started.

    Raises:
      UserError: pyspark or Java is not installed.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise UserError(
            "--engine spark needs pyspark, which is not installed. Install the extra 'spark': "
            "pip install 'tfrs-croloss[pipelines,spark]'"
        )
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if java is None:
        place = f"JAVA_HOME={home}" if home else "PATH"
        raise UserError(
            f"--engine spark needs Java 17 or newer, and there is no java in {place}. Install it, "
            "and let JAVA_HOME name its folder."
        )


@contextlib.contextmanager
def open_session(options: SparkOptions, folder: Path) -> Iterator[SparkSession]:
    """A session of its own, of the Spark that runs in this process or of a new one.

    Args:
      options: Where Spark runs.
      folder: For the messages of Java.

    Raises:
      UserError: Spark does not start, or another one runs already.
    """
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        if running.sparkContext.master != options.master:
            raise UserError(
                f"Spark runs in this process with the master {running.sparkContext.master}. "
                f"Stop it, or pass this as --spark-master instead of {options.master}."
            )
        yield _own_session(running, options)
        return
    session = _start(options, folder / "spark.log")
    try:
        yield _own_session(session, options)
    finally:
        session.stop()


def _own_session(session: SparkSession, options: SparkOptions) -> SparkSession:
    own = session.newSession()
    for name, text in {**options.settings, **_DIALECT}.items():
        # The others are set when Spark starts.
        if own.conf.isModifiable(name):
            own.conf.set(name, text)
    return own


def _start(options: SparkOptions, messages: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    _check_reachable(options.master)
    settings = {
        "spark.driver.memory": f"{megabytes(options.memory or DEFAULT_MEMORY)}m",
        "spark.ui.enabled": str(not options.is_local).lower(),
        "spark.ui.showConsoleProgress": "false",
        **options.settings,
    }
    builder = SparkSession.builder.master(options.master).appName("prepare")
    for name, text in settings.items():
        builder = builder.config(name, text)
    try:
        with _standard_error_into(messages):
            return builder.getOrCreate()
    except Exception as error:
        raise UserError(
            f"Spark did not start with --spark-master {options.master}: "
            f"{_reason(error, messages)}. Check the master, --spark-conf and --memory-limit, and "
            "that java is version 17 or newer."
        ) from error


def _check_reachable(master: str) -> None:
    """Tries to connect, because Spark itself takes a minute to give up.

    Raises:
      UserError: None of the masters of a standalone cluster answers.
    """
    if not master.startswith("spark://"):
        return
    reasons = []
    for place in master.removeprefix("spark://").split(","):
        try:
            address = urlsplit(f"//{place}")
            host, port = address.hostname, address.port or 7077
            socket.create_connection((host or "", port), CONNECT_SECONDS).close()
            return
        except (OSError, ValueError) as error:
            reasons.append(f"{place}: {error}")
    raise UserError(
        f"--spark-master {master} cannot be reached ({'; '.join(reasons)}). Check the URL and "
        "that the cluster is up, or use local[*] for this machine."
    )


@contextlib.contextmanager
def _standard_error_into(path: Path) -> Iterator[None]:
    """Lets processes that are started meanwhile write their messages to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(path, "ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _reason(error: Exception, messages: Path) -> str:
    """What to tell about a failed start: Java's last words, or Python's."""
    lines = []
    if messages.exists():
        lines = messages.read_text(encoding="utf-8", errors="replace").splitlines()
    telling = [line for line in lines if "Error" in line or "Exception" in line]
    return (telling or [first_line(error)])[0].strip().rstrip(".")


def first_line(error: BaseException) -> str:
    """The first line of the root cause of an error of Spark."""
    cause = getattr(error, "java_exception", None)
    text = str(error)
    if cause is not None:
        while cause.getCause() is not None:
            cause = cause.getCause()
        text = str(cause.toString())
    return (text.strip().splitlines() or [type(error).__name__])[0].rstrip(".")
