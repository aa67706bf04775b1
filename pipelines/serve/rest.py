"""The REST API of TensorFlow Serving, and paths for health and metrics."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from google.protobuf.json_format import MessageToDict

from . import json_format
from .bodies import receive_body
from .budget import Budget, Lease
from .counters import CONTENT_TYPE, Counters
from .errors import Code, RequestError
from .http_connections import Connection, Connections, error_response, json_response
from .limits import Limits
from .protos import signature_map
from .threads import LARGE_ANSWER, LARGE_BODY, off_loop_if
from .versions import Model, Version

log = logging.getLogger(__name__)

# How long clients have to close their connections before the server does.
CLOSE_SECONDS = 0.5
# The status in the metrics of a request whose client has gone.
_GONE = 499
_MONITORING = ("health", "metrics")
# The connection is closed after other methods: where a body ends is not clear with all of them, and
# what follows CONNECT is not HTTP.
_METHODS = ("GET", "HEAD", "POST")

_PATH = re.compile(
    r"/v1/models/(?P<name>[^/:]+)"
    r"(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
    r"(?P<verb>/metadata|:[a-z]+)?"
)
_OTHER_VERBS = (":classify", ":regress")
_METRICS_PATHS = ("/metrics", "/monitoring/prometheus/metrics")


@dataclasses.dataclass(eq=False)
class RestApi:
    """Answers HTTP requests.

    Attributes:
      model: the model that is served.
      limits: bounds on requests.
      counters: where requests are counted.
      budget: memory of requests.
      stopping: whether the server is about to stop, so that connections are closed.
    """

    model: Model
    limits: Limits
    counters: Counters
    budget: Budget
    stopping: bool = False
    _in_flight: int = 0

    async def listen(
        self, host: str, port: int, drain_seconds: float, monitoring: bool = False
    ) -> tuple[int, Callable[[], Awaitable[None]]]:
        """Opens a port.

        Args:
          host: address to listen on.
          port: number of the port; 0 for any free one.
          drain_seconds: how long requests have to finish when the port is closed.
          monitoring: whether the port is for health and metrics alone.

        Returns:
          The number of the port, and the function that closes it.

        Raises:
          OSError: the port cannot be opened.
        """
        loop = asyncio.get_running_loop()
        handler = functools.partial(self._answer, monitoring)
        connections = Connections(handler, self.limits, self.counters)
        listener = await loop.create_server(connections.accept, host, port, backlog=1024)
        sweep = loop.create_task(connections.sweep())

        async def close() -> None:
            listener.close()
            if connections.open:
                await asyncio.sleep(CLOSE_SECONDS)
            connections.pre_shutdown()
            await connections.shutdown(drain_seconds)
            sweep.cancel()

        return listener.sockets[0].getsockname()[1], close

    async def _answer(self, monitoring: bool, request: web.BaseRequest) -> web.StreamResponse:
        """Counts a request, and turns every error into an answer."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        started = time.perf_counter()
        gauge = self.counters.in_flight.labels("rest")
        kind = "other"
        self._in_flight += 1
        gauge.inc()
        try:
            with connection.request(), self.budget.lease() as lease:
                kind = _kind(request)
                if monitoring and kind not in _MONITORING:
                    kind = "other"
                response: web.StreamResponse
                try:
                    response = await self._dispatch(request, kind, lease)
                except RequestError as error:
                    response = error_response(error.http_status, error.message)
                except (ConnectionError, asyncio.CancelledError):
                    raise
                except Exception:
                    log.exception("%s %s", request.method, request.path)
                    response = error_response(500, "internal error. See the log of the server.")
                if self.stopping or request.method not in _METHODS:
                    response.force_close()
                # The memory is held until the client has received the answer, or gives way.
                with (
                    connection.sending(self.limits.body_seconds),
                    self.budget.waiting_for_client(lease, connection.end),
                ):
                    await response.prepare(request)
                    await response.write_eof()
                    await request.writer.drain()
        except ConnectionError:
            response = web.Response(status=_GONE)
        finally:
            self._in_flight -= 1
            gauge.dec()
        self.counters.observe("rest", kind, str(response.status), time.perf_counter() - started)
        return response

    async def _dispatch(self, request: web.BaseRequest, kind: str, lease: Lease) -> web.Response:
        if kind == "predict" and self._in_flight > self.limits.max_in_flight:
            raise RequestError(Code.UNAVAILABLE, "too many requests. Try again later.")
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
        name, number = found["name"], self.model.number(found["version"])
        if kind == "predict":
            return await self._predict(request, name, number, lease)
        if kind == "metadata":
            return self._metadata(name, number)
        return json_response(
            {
                "model_version_status": [
                    _status(version) for version in self.model.statuses(name, number)
                ]
            }
        )

    def _health(self) -> web.Response:
        available = self.model.available()
        if self.stopping or not available:
            return json_response({"status": "stopping" if self.stopping else "loading"}, status=503)
        return json_response({"status": "ok", "version": str(available[0].number)})

    def _metadata(self, name: str, number: int | None) -> web.Response:
        with self.model.use(name, number) as version:
            signatures = MessageToDict(
                signature_map(version.model),
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
            return json_response(
                {
                    "model_spec": {
                        "name": name,
                        "signature_name": "",
                        "version": str(version.number),
                    },
                    "metadata": {"signature_def": signatures},
                }
            )

    async def _predict(
        self, request: web.BaseRequest, name: str, number: int | None, lease: Lease
    ) -> web.Response:
        self.model.find(name, number)  # An unknown model is refused before its body is read.
        body = await receive_body(request, self.limits, self.budget, lease)
        size = len(body)
        lease.resize(size + json_format.parsed_bytes(body))
        parsed = await off_loop_if(size > LARGE_BODY, json_format.parse, body)
        del body
        # The version is chosen now, since a newer one may have replaced it in the meantime.
        with self.model.use(name, number) as version:
            signature = version.model.signature(parsed.signature_name)
            inputs = await off_loop_if(
                size > LARGE_BODY, json_format.to_inputs, signature, parsed, self.limits
            )
            rows, num_values = parsed.rows, sum(value.size for value in inputs.values())
            del parsed
            lease.resize(size + version.model.input_bytes(num_values))
            outputs = await version.batcher.run(signature, inputs)
        del inputs
        lease.add_in_any_case(json_format.answer_bytes(outputs))
        num_values = sum(value.size for value in outputs.values())
        answer = await off_loop_if(num_values > LARGE_ANSWER, json_format.to_answer, outputs, rows)
        return web.Response(body=answer, content_type="application/json")


def _kind(request: web.BaseRequest) -> str:
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
