"""The settings of the server. Loads no TensorFlow, so that ``--help`` is quick."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from ..common.options import Kind, Option, Real, Text, Whole
from .limits import Limits

_PORT = Whole(0, 65535)
_DURATION = Real(least=0.0, most=1e6)


def _batching(kind: Kind, default: Any, text: str) -> Any:
    return Option(kind, default, text, "batching").field


def _server(kind: Kind, default: Any, text: str) -> Any:
    return Option(kind, default, text, "server").field


@dataclasses.dataclass(frozen=True)
class BatchSettings:
    """How concurrent requests are run together; the help texts say what each field is."""

    max_batch: int = _batching(
        Whole(1), 64, "maximum number of rows in a batch; 1 turns batching off"
    )
    batch_wait_ms: float = _batching(
        _DURATION, 1.0, "milliseconds that the first request of a batch waits for others"
    )
    threads: int = _batching(
        Whole(1), max(2, os.cpu_count() or 1), "number of batches that run at the same time"
    )
    max_queue: int = _batching(
        Whole(1), 1024, "maximum number of waiting requests; others are refused with 503"
    )


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
    host: str = _server(Text(), "127.0.0.1", "address to listen on; 0.0.0.0 for all")
    port: int = _server(_PORT, 8501, "port for REST; 0 for any free port")
    grpc_port: int = _server(_PORT, 8500, "port for gRPC; 0 for any free port")
    health_port: int | None = Option(
        _PORT,
        None,
        "another port for /healthz and /metrics alone; 0 for any free port",
        "server",
        shown_default="none",
    ).field
    keep_versions: int = _server(Whole(1), 1, "number of versions to serve, the newest first")
    poll_seconds: float = _server(_DURATION, 2.0, "seconds between checks for new versions")
    drain_seconds: float = _server(
        _DURATION, 30.0, "seconds that running requests have to finish after SIGTERM"
    )
    limits: Limits = Limits()
    batching: BatchSettings = dataclasses.field(default_factory=BatchSettings)
