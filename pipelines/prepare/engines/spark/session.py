"""Starts Apache Spark, with clear errors if it does not start.

Spark is an optional dependency, so this module imports it only when a session is opened.
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

# Spark's SQL reads text, times and names as DuckDB's does, whatever the cluster's defaults are.
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
      settings: Spark's own settings, by name.
      memory: heap size of the Java process that is started here, such as ``2GB``, or None for the
        default.
    """

    master: str = "local[*]"
    settings: Mapping[str, str] = field(default_factory=dict)
    memory: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether the Java process that is started here does all the work."""
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
            f"--engine spark needs Java 17 or newer, and there is no java in {place}. Install it "
            "and set JAVA_HOME to its folder."
        )


@contextlib.contextmanager
def open_session(options: SparkOptions, folder: Path) -> Iterator[SparkSession]:
    """Opens a new session, on the Spark that already runs in this process or on a new one.

    Args:
      options: where Spark runs.
      folder: folder for Java's messages.

    Raises:
      UserError: Spark does not start, or already runs with another master.
    """
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        if running.sparkContext.master != options.master:
            raise UserError(
                "Spark already runs in this process with the master "
                f"{running.sparkContext.master}. Stop it, or pass that master as --spark-master "
                f"instead of {options.master}."
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
        # The other settings are applied when Spark starts.
        if own.conf.isModifiable(name):
            own.conf.set(name, text)
    # A setting of the Parquet reader, which Spark passes on without knowing it.
    own.conf.set("parquet.page.verify-checksum.enabled", "true")
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
    """Tries to connect, since Spark itself takes a minute to give up.

    Raises:
      UserError: no master of a standalone cluster answers.
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
    """Redirects the standard error of processes that are started meanwhile to a file."""
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
    """The line that explains a failed start: from Java's messages, or else from Python's error.

    Java reports a failed start as text only. The text chooses the line that is shown, and nothing
    else.
    """
    lines = []
    if messages.exists():
        lines = messages.read_text(encoding="utf-8", errors="replace").splitlines()
    telling = [line for line in lines if "Error" in line or "Exception" in line]
    return (telling or [first_line(error)])[0].strip().rstrip(".")


def first_line(error: BaseException) -> str:
    """The first line of the root cause of a Spark error."""
    cause = getattr(error, "java_exception", None)
    text = str(error)
    if cause is not None:
        while cause.getCause() is not None:
            cause = cause.getCause()
        text = str(cause.toString())
    return (text.strip().splitlines() or [type(error).__name__])[0].rstrip(".")
