"""Starts the server, and stops it without dropping a request."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import json
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from aiohttp import web

from ..common.program import command
from ..errors import UserError
from .batching import Batcher, BatchSettings
from .counters import Metrics
from .grpc_service import GrpcApi
from .json_format import to_values
from .limits import TOP_N, Limits
from .rest import RestApi
from .saved_model import SavedModel
from .signatures import DEFAULT, Signature, TensorSpec
from .versions import Model

log = logging.getLogger(__name__)

_Close = Callable[[], Awaitable[None]]

# How long clients with open connections are told to close them, before that is done for them.
FAREWELL_SECONDS = 0.5
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b'Connection: close\r\nContent-Length: 34\r\n\r\n{"error": "too many connections."}'
)


@dataclasses.dataclass(frozen=True)
class ServerSettings:
    """All there is to choose.

    Attributes:
      folder: Folder of the model.
      name: What clients call it.
      host: Address to listen on.
      port: For REST; 0 takes a free one.
      grpc_port: For gRPC; 0 takes a free one.
      poll_seconds: How often to look for new versions.
      keep_versions: How many of the newest answer.
      drain_seconds: How long requests may take to finish when the server stops.
      limits: What one client may ask for.
      batching: How requests are put together.
    """

    folder: Path
    name: str
    host: str = "127.0.0.1"
    port: int = 8501
    grpc_port: int = 8500
    poll_seconds: float = 2.0
    keep_versions: int = 1
    drain_seconds: float = 30.0
    limits: Limits = Limits()
    batching: BatchSettings = BatchSettings()


def serve(settings: ServerSettings) -> None:
    """Serves until SIGTERM or SIGINT.

    Raises:
      UserError: A port is taken, or no version can be loaded.
    """
    asyncio.run(_serve(settings))


async def _serve(settings: ServerSettings) -> None:
    stop = asyncio.Event()
    _on_signals(stop)
    metrics = Metrics()
    threads = ThreadPoolExecutor(settings.batching.threads, thread_name_prefix="predict")
    model = Model(
        settings.name,
        settings.folder,
        lambda loaded: Batcher(loaded, threads, settings.batching, metrics),
        metrics,
        settings.keep_versions,
    )
    rest = RestApi(model, settings.limits, metrics)
    rpc = GrpcApi(model, settings.limits, metrics)
    await rpc.set_healthy(False)
    closers: list[_Close] = []
    try:
        port, close = await _listen_rest(rest, settings)
        closers.append(close)
        grpc_port, close = await _listen_grpc(rpc, settings)
        closers.append(close)
        if await _finishes_before(stop, model.refresh()):
            _check_loaded(model)
            await rpc.set_healthy(True)
            print(_greeting(settings, model, port, grpc_port), flush=True)
            await _finishes_before(stop, model.watch(settings.poll_seconds))
            log.info("stopping: requests that have begun are finished")
    finally:
        rest.stopping = True
        await rpc.set_healthy(False)
        await asyncio.gather(*(close() for close in closers))
        await model.close()
        threads.shutdown()


def _on_signals(stop: asyncio.Event) -> None:
    """The first signal asks to stop; a second one ends the process."""
    loop = asyncio.get_running_loop()

    def handle() -> None:
        stop.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, handle)


async def _finishes_before(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether ``work`` ended by itself; it is cancelled when ``stop`` comes first."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        task.result()
        return True
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return False


async def _listen_rest(api: RestApi, settings: ServerSettings) -> tuple[int, _Close]:
    """Opens the port of REST; returns its number and what closes it."""
    runner = web.AppRunner(
        api.application(), access_log=None, shutdown_timeout=settings.drain_seconds
    )
    await runner.setup()
    server = runner.server
    assert server is not None

    def connection() -> asyncio.BaseProtocol:
        if len(server.connections) >= settings.limits.max_connections:
            return _Refusal()
        return server()

    try:
        listener = await asyncio.get_running_loop().create_server(
            connection, settings.host, settings.port, backlog=1024
        )
    except OSError as error:
        await runner.cleanup()
        raise _cannot_listen(settings.host, settings.port, "--port", error) from error

    async def close() -> None:
        listener.close()
        if server.connections:
            await asyncio.sleep(FAREWELL_SECONDS)
        await runner.cleanup()

    return listener.sockets[0].getsockname()[1], close


class _Refusal(asyncio.Protocol):
    """Answers a connection that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(_BUSY)
        transport.close()


async def _listen_grpc(api: GrpcApi, settings: ServerSettings) -> tuple[int, _Close]:
    """Opens the port of gRPC; returns its number and what closes it."""
    server: grpc.aio.Server = api.server()
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        port = server.add_insecure_port(f"{host}:{settings.grpc_port}")
    except RuntimeError as error:
        taken = OSError(errno.EADDRINUSE, "it is in use, or is not an address of this machine")
        raise _cannot_listen(settings.host, settings.grpc_port, "--grpc-port", taken) from error
    await server.start()

    async def close() -> None:
        await server.stop(settings.drain_seconds)

    return port, close


def _cannot_listen(host: str, port: int, option: str, error: OSError) -> UserError:
    reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return UserError(
        f"cannot listen on {host}, port {port}: {reason}. Choose another with {option}."
    )


def _check_loaded(model: Model) -> None:
    if not model.available():
        reasons = [f"{one.number}: {one.message}" for one in model.statuses(model.name)]
        raise UserError(
            f"no version in {model.folder} can be served. "
            + (" ".join(reasons) or f"Run '{command('export')}' first.")
        )


def _greeting(settings: ServerSettings, model: Model, port: int, grpc_port: int) -> str:
    """Where the server is, what it offers, and a request to try."""
    version = model.available()[0]
    signatures = version.model.signatures
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    lines = [
        f"serving {model.name}, version {version.number}: REST http://{host}:{port}, gRPC "
        f"{host}:{grpc_port}"
    ]
    for signature in signatures.values():
        inputs = ", ".join(_describe(spec) for spec in signature.inputs.values())
        lines.append(f"  {signature.name}({inputs}) -> {', '.join(signature.outputs)}")
    chosen = signatures.get(DEFAULT) or next(iter(signatures.values()), None)
    if chosen is not None:
        body: dict[str, object] = {"instances": [_example(version.model, chosen)]}
        if chosen.name != DEFAULT:
            body = {"signature_name": chosen.name, **body}
        text = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")
        url = f"http://{host}:{port}/v1/models/{model.name}:predict"
        lines.append(f"try:\n  curl -d '{text}' {url}")
    return "\n".join(lines)


def _describe(spec: TensorSpec) -> str:
    return f"{spec.name}: {spec.dtype.name} {spec.describe_shape()}"


def _example(model: SavedModel, signature: Signature) -> dict[str, object]:
    """One instance: the first row of a warm-up request, or values that fit in type and shape."""
    for warmed, inputs in model.warmup_requests():
        if warmed == signature and all(value.ndim and len(value) for value in inputs.values()):
            return {name: to_values(name, value[:1])[0] for name, value in inputs.items()}
    return {name: _placeholder(spec) for name, spec in signature.inputs.items()}


def _placeholder(spec: TensorSpec) -> object:
    value: object = 1
    if spec.dtype.name == "string":
        value = "a"
    elif spec.dtype.is_bool:
        value = True
    elif spec.dtype.is_floating:
        value = 0.5
    elif spec.name == TOP_N:
        value = 10
    for size in reversed((spec.shape or ())[1:]):
        value = [value] * (2 if size is None else size)
    return value
