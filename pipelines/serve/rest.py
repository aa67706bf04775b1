"""The REST API of TensorFlow Serving, and paths for health and metrics."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiohttp import web
from google.protobuf.json_format import MessageToDict

from . import json_format
from .counters import CONTENT_TYPE, Counters
from .errors import Code, RequestError
from .limits import Limits
from .protos import signature_map
from .versions import Model, Version

log = logging.getLogger(__name__)

BODY_SECONDS = 60.0
# Bodies and answers above these sizes are converted in a thread, so that other requests go on.
LARGE_BODY = 1 << 16
LARGE_ANSWER = 1 << 14
# How long clients have to close their connections before the server does.
CLOSE_SECONDS = 0.5
_TOO_MANY_CONNECTIONS = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b'Connection: close\r\nContent-Length: 34\r\n\r\n{"error": "too many connections."}'
)

_PATH = re.compile(
    r"/v1/models/(?P<name>[^/:]+)"
    r"(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
    r"(?P<verb>/metadata|:[a-z]+)?"
)
_OTHER_VERBS = (":classify", ":regress")
_METRICS_PATHS = ("/metrics", "/monitoring/prometheus/metrics")

_Result = TypeVar("_Result")


@dataclasses.dataclass(eq=False)
class RestApi:
    """Answers HTTP requests.

    Attributes:
      model: the model that is served.
      limits: bounds on requests.
      counters: where requests are counted.
      stopping: whether the server is about to stop, so that connections are closed.
    """

    model: Model
    limits: Limits
    counters: Counters
    stopping: bool = False
    _in_flight: int = 0

    async def listen(
        self, host: str, port: int, drain_seconds: float
    ) -> tuple[int, Callable[[], Awaitable[None]]]:
        """Opens a port.

        Args:
          host: address to listen on.
          port: number of the port; 0 for any free one.
          drain_seconds: how long requests have to finish when the port is closed.

        Returns:
          The number of the port, and the function that closes it.

        Raises:
          OSError: the port cannot be opened.
        """
        app = web.Application(
            middlewares=[self._count_and_catch], client_max_size=self.limits.max_body_bytes
        )
        app.router.add_route("*", "/{path:.*}", self._dispatch)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=drain_seconds)
        await runner.setup()
        server = runner.server
        assert server is not None

        def connection() -> asyncio.BaseProtocol:
            if len(server.connections) >= self.limits.max_connections:
                return _Refusal()
            return server()

        try:
            listener = await asyncio.get_running_loop().create_server(
                connection, host, port, backlog=1024
            )
        except OSError:
            await runner.cleanup()
            raise

        async def close() -> None:
            listener.close()
            if server.connections:
                await asyncio.sleep(CLOSE_SECONDS)
            await runner.cleanup()

        return listener.sockets[0].getsockname()[1], close

    @web.middleware
    async def _count_and_catch(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Counts a request, and turns every error into an answer."""
        started = time.perf_counter()
        gauge = self.counters.in_flight.labels("rest")
        self._in_flight += 1
        gauge.inc()
        try:
            if self._in_flight > self.limits.max_in_flight and _kind(request) == "predict":
                raise RequestError(Code.UNAVAILABLE, "too many requests. Try again later.")
            response = await handler(request)
        except RequestError as error:
            response = _error(error.http_status, error.message)
        except web.HTTPRequestEntityTooLarge:
            response = _error(
                413, f"the body should have at most {self.limits.max_body_bytes} bytes."
            )
        except web.HTTPException as error:
            response = _error(error.status, error.reason)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("%s %s", request.method, request.path)
            response = _error(500, "internal error. See the log of the server.")
        finally:
            self._in_flight -= 1
            gauge.dec()
        if self.stopping:
            response.force_close()
        self.counters.observe(
            "rest", _kind(request), str(response.status), time.perf_counter() - started
        )
        return response

    async def _dispatch(self, request: web.Request) -> web.Response:
        kind = _kind(request)
        found = _PATH.fullmatch(request.path)
        if kind == "other":
            if found and found["verb"] in _OTHER_VERBS:
                raise RequestError(
                    Code.UNIMPLEMENTED, f"{found['verb']} is not supported. Use :predict."
                )
            raise RequestError(
                Code.NOT_FOUND, f"Malformed request: {request.method} {request.path[:200]}"
            )
        method = "POST" if kind == "predict" else "GET"
        if request.method != method and not (method == "GET" and request.method == "HEAD"):
            raise RequestError(
                Code.INVALID_ARGUMENT,
                f"{request.path[:200]} should be sent with {method}. Received: {request.method}.",
                http_status=405,
            )
        if kind == "health":
            return self._health()
        if kind == "metrics":
            return web.Response(body=self.counters.text(), headers={"Content-Type": CONTENT_TYPE})
        assert found is not None
        if found["label"] is not None:
            raise RequestError(
                Code.NOT_FOUND, "version labels are not supported. Use /versions/NUMBER."
            )
        name, number = found["name"], int(found["version"]) if found["version"] else None
        if kind == "predict":
            return await self._predict(request, name, number)
        if kind == "metadata":
            return self._metadata(name, number)
        return _json(
            {
                "model_version_status": [
                    _status(version) for version in self.model.statuses(name, number)
                ]
            }
        )

    def _health(self) -> web.Response:
        available = self.model.available()
        if self.stopping or not available:
            return _json({"status": "stopping" if self.stopping else "loading"}, status=503)
        return _json({"status": "ok", "version": str(available[0].number)})

    def _metadata(self, name: str, number: int | None) -> web.Response:
        with self.model.use(name, number) as version:
            signatures = MessageToDict(
                signature_map(version.model),
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
            return _json(
                {
                    "model_spec": {
                        "name": name,
                        "signature_name": "",
                        "version": str(version.number),
                    },
                    "metadata": {"signature_def": signatures},
                }
            )

    async def _predict(self, request: web.Request, name: str, number: int | None) -> web.Response:
        self.model.find(name, number)  # An unknown model is refused before its body is read.
        body = await self._body(request)
        parsed = await _off_loop_if(len(body) > LARGE_BODY, json_format.parse, body)
        # The version is chosen now, since a newer one may have replaced it in the meantime.
        with self.model.use(name, number) as version:
            signature = version.model.signature(parsed.signature_name)
            inputs = await _off_loop_if(
                len(body) > LARGE_BODY, json_format.to_inputs, signature, parsed, self.limits
            )
            outputs = await version.batcher.run(signature, inputs)
            size = sum(value.size for value in outputs.values())
            answer = await _off_loop_if(
                size > LARGE_ANSWER, json_format.to_answer, outputs, parsed.rows
            )
            return web.Response(body=answer, content_type="application/json")

    async def _body(self, request: web.Request) -> bytes:
        if (request.content_length or 0) > self.limits.max_body_bytes:
            raise web.HTTPRequestEntityTooLarge(
                max_size=self.limits.max_body_bytes, actual_size=request.content_length or 0
            )
        try:
            return await asyncio.wait_for(request.read(), BODY_SECONDS)
        except asyncio.TimeoutError as error:
            raise RequestError(
                Code.DEADLINE_EXCEEDED, f"the body took longer than {BODY_SECONDS:.0f} s.", 408
            ) from error
        except web.RequestPayloadError as error:
            raise RequestError(
                Code.INVALID_ARGUMENT, "the body is not in the encoding that its header names."
            ) from error


class _Refusal(asyncio.Protocol):
    """Answers a connection above the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(_TOO_MANY_CONNECTIONS)
        transport.close()


async def _off_loop_if(
    is_large: bool, function: Callable[..., _Result], *arguments: Any
) -> _Result:
    if not is_large:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


def _kind(request: web.Request) -> str:
    """The kind of a request: metrics, health, predict, metadata, status or other."""
    if request.path in _METRICS_PATHS:
        return "metrics"
    if request.path == "/healthz":
        return "health"
    found = _PATH.fullmatch(request.path)
    verbs = {":predict": "predict", "/metadata": "metadata", None: "status"}
    return verbs.get(found["verb"], "other") if found else "other"


def _status(version: Version) -> dict[str, Any]:
    return {
        "version": str(version.number),
        "state": version.state.name,
        "status": {"error_code": version.code.name, "error_message": version.message},
    }


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        body=json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n",
        status=status,
        content_type="application/json",
    )


def _error(status: int, message: str) -> web.Response:
    response = _json({"error": message}, status)
    if status == 503:
        response.headers["Retry-After"] = "1"
    return response
