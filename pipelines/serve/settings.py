"""The settings of the server. Loads no TensorFlow, so that ``--help`` is quick."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from .limits import Limits
from .options import duration, option, port_number


@dataclasses.dataclass(frozen=True)
class BatchSettings:
    """How concurrent requests are run together; the help texts say what each field is."""

    max_batch: int = option(64, "maximum number of rows in a batch; 1 turns batching off")
    batch_wait_ms: float = option(
        1.0, "milliseconds that the first request of a batch waits for others", duration
    )
    threads: int = option(
        lambda: max(2, os.cpu_count() or 1), "number of batches that run at the same time"
    )
    max_queue: int = option(1024, "maximum number of waiting requests; others are refused with 503")


@dataclasses.dataclass(frozen=True)
class ServerSettings:
    """Everything that can be chosen; the help texts say what the other fields are.

    Attributes:
      folder: folder of the model.
      name: name of the model in requests.
      limits: bounds on requests.
      batching: how concurrent requests are run together.
    """

    folder: Path
    name: str
    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 for all", str)
    port: int = option(8501, "port for REST; 0 for any free port", port_number)
    grpc_port: int = option(8500, "port for gRPC; 0 for any free port", port_number)
    keep_versions: int = option(1, "number of versions to serve, the newest first")
    poll_seconds: float = option(2.0, "seconds between checks for new versions", duration)
    drain_seconds: float = option(
        30.0, "seconds that running requests have to finish after SIGTERM", duration
    )
    limits: Limits = Limits()
    batching: BatchSettings = dataclasses.field(default_factory=BatchSettings)
