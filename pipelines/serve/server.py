"""Starts the server, and stops it when all running requests are answered."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import json
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..common.program import command
from ..errors import UserError
from .budget import Budget
from .counters import Counters
from .grpc_service import GrpcApi
from .json_format import to_values
from .limits import TOP_N, Limits
from .rest import RestApi
from .saved_model import SavedModel
from .settings import ServerSettings
from .signatures import DEFAULT, Signature, TensorSpec
from .versions import Model

log = logging.getLogger(__name__)

# Files, threads' pipes and models, besides connections.
OTHER_FILES = 256


def serve(settings: ServerSettings) -> None:
    """Serves until SIGTERM or SIGINT.

    Raises:
      UserError: a port is in use, or no version can be loaded.
    """
    asyncio.run(_serve(settings))


async def _serve(settings: ServerSettings) -> None:
    stop = asyncio.Event()
    _on_signals(stop)
    counters = Counters()
    threads = ThreadPoolExecutor(settings.batching.threads, thread_name_prefix="predict")
    model = Model(settings, threads, counters)
    limits = _within_open_files(settings.limits)
    budget = Budget(limits.budget_bytes, counters)
    rest = RestApi(model, limits, counters, budget)
    rpc = GrpcApi(model, limits, counters, budget)
    host, drain = settings.host, settings.drain_seconds
    address = f"[{host}]" if ":" in host else host
    closers: list[Callable[[], Awaitable[None]]] = []
    try:
        with _names_the_option(host, settings.port, "--port"):
            port, close = await rest.listen(host, settings.port, drain)
        closers.append(close)
        with _names_the_option(host, settings.grpc_port, "--grpc-port"):
            grpc_port, close = await rpc.listen(address, settings.grpc_port, drain)
        closers.append(close)
        if settings.health_port is not None:
            with _names_the_option(host, settings.health_port, "--health-port"):
                health_port, close = await rest.listen(
                    host, settings.health_port, drain, monitoring=True
                )
            closers.append(close)
            log.info("health and metrics: http://%s:%d", address, health_port)
        if await _finishes_before(stop, model.start()):
            _check_loaded(model)
            rpc.set_healthy(True)
            print(_greeting(model, f"{address}:{port}", f"{address}:{grpc_port}"), flush=True)
            await _finishes_before(stop, model.watch(settings.poll_seconds))
        log.info("stopping: no new connections, running requests have %g s to finish", drain)
    finally:
        rest.stopping = True
        rpc.set_healthy(False, is_stopping=True)
        await asyncio.gather(*(close() for close in closers))
        await model.close()
        threads.shutdown()
    log.info("stopped")


def _within_open_files(limits: Limits) -> Limits:
    """Allows the process as many open files as its connections need, or fewer connections."""
    try:
        import resource
    except ImportError:  # Windows
        return limits
    wanted = 2 * limits.max_connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    if soft >= wanted:
        return limits
    fewer = max(1, (soft - OTHER_FILES) // 2)
    log.warning(
        "--max-connections is %d in place of %d, since the process may have %d open files "
        "(ulimit -n)",
        fewer,
        limits.max_connections,
        soft,
    )
    return dataclasses.replace(limits, max_connections=fewer)


@contextlib.contextmanager
def _names_the_option(host: str, port: int, option: str) -> Iterator[None]:
    """Turns the error of a port that cannot be opened into one that says what to change."""
    try:
        yield
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        reason = "it is in use" if in_use else error.strerror or str(error)
        raise UserError(
            f"cannot listen on {host}, port {port}: {reason}. Choose another with {option}."
        ) from error


def _on_signals(stop: asyncio.Event) -> None:
    """The first signal asks the server to stop; a second one ends the process at once."""
    loop = asyncio.get_running_loop()

    def handle() -> None:
        stop.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, handle)


async def _finishes_before(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether ``work`` finished before ``stop`` was set; otherwise it is cancelled."""
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


def _check_loaded(model: Model) -> None:
    if not model.available():
        reasons = [f"{one.number}: {one.message}" for one in model.statuses(model.name)]
        raise UserError(
            f"no version in {model.folder} can be served. "
            + (" ".join(reasons) or f"Run '{command('export')}' first.")
        )


def _greeting(model: Model, rest: str, rpc: str) -> str:
    """Where the server listens, the signatures of the model, and a request to try.

    Args:
      model: the model that is served.
      rest: host and port of REST.
      rpc: host and port of gRPC.
    """
    version = model.available()[0]
    signatures = version.model.signatures
    lines = [
        f"serving {model.name}, version {version.number}: REST http://{rest}, gRPC {rpc}",
        "signatures:",
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
        lines.append(f"try:\n  curl -d '{text}' http://{rest}/v1/models/{model.name}:predict")
    lines.append("Ctrl+C stops the server.")
    return "\n".join(lines)


def _describe(spec: TensorSpec) -> str:
    return f"{spec.name}: {spec.dtype.name} {spec.describe_shape()}"


def _example(model: SavedModel, signature: Signature) -> dict[str, object]:
    """An instance: the first row of a warm-up request, or values of the right type and shape."""
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
