"""The REST API of TensorFlow Serving, with health and metrics beside it."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiohttp import web
from google.protobuf.json_format import MessageToDict

from . import json_format
from .counters import CONTENT_TYPE, Metrics
from .errors import Code, RequestError
from .limits import Limits
from .protos import signature_map
from .versions import Model, Version

log = logging.getLogger(__name__)

BODY_SECONDS = 60.0
# Bodies and answers above these sizes are converted in a thread, so that others need not wait.
LARGE_BODY = 1 << 16
LARGE_ANSWER = 1 << 14

_PATH = re.compile(
    r"/v1/models/(?P<name>[^/:]+)"
    r"(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
    r"(?P<verb>/metadata|:[a-z]+)?"
)
_OTHER_VERBS = (":classify", ":regress")
_METRICS_PATHS = ("/metrics", "/monitoring/prometheus/metrics")

_Result = TypeVar("_Result")


class RestApi:
    """Answers HTTP requests.

    Args:
      model: What is served.
      limits: What one client may ask for.
      metrics: Where requests are counted.
    """

    def __init__(self, model: Model, limits: Limits, metrics: Metrics):
        self._model = model
        self._limits = limits
        self._metrics = metrics
        self._in_flight = 0
        self.stopping = False

    def application(self) -> web.Application:
        """What a runner of aiohttp takes."""
        app = web.Application(
            middlewares=[self._observe], client_max_size=self._limits.max_body_bytes
        )
        app.router.add_route("*", "/{path:.*}", self._dispatch)
        return app

    @web.middleware
    async def _observe(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Counts a request, and turns every error into an answer."""
        started = time.perf_counter()
        gauge = self._metrics.in_flight.labels("rest")
        self._in_flight += 1
        gauge.inc()
        try:
            if self._in_flight > self._limits.max_in_flight and _kind(request) == "predict":
                raise RequestError(Code.UNAVAILABLE, "too many requests. Try again later.")
            response = await handler(request)
        except RequestError as error:
            response = _error(error.http_status, error.message)
        except web.HTTPRequestEntityTooLarge:
            response = _error(
                413, f"the body should have at most {self._limits.max_body_bytes} bytes."
            )
        except web.HTTPException as error:
            response = _error(error.status, error.reason)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("%s %s", request.method, request.path)
            response = _error(500, "internal error; the server's log has more.")
        finally:
            self._in_flight -= 1
            gauge.dec()
        if self.stopping:
            response.force_close()
        self._metrics.observe(
            "rest", _kind(request), str(response.status), time.perf_counter() - started
        )
        return response

    async def _dispatch(self, request: web.Request) -> web.Response:
        kind = _kind(request)
        found = _PATH.fullmatch(request.path)
        if kind == "other":
            if found and found["verb"] in _OTHER_VERBS:
                raise RequestError(
                    Code.UNIMPLEMENTED, f"{found['verb']} is not offered. Use :predict."
                )
            raise RequestError(
                Code.NOT_FOUND, f"Malformed request: {request.method} {request.path[:200]}"
            )
        method = "POST" if kind == "predict" else "GET"
        if request.method != method and not (method == "GET" and request.method == "HEAD"):
            raise RequestError(
                Code.INVALID_ARGUMENT,
                f"{request.path[:200]} takes {method}. Received: {request.method}.",
                http_status=405,
            )
        if kind == "health":
            return self._health()
        if kind == "metrics":
            return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})
        assert found is not None
        if found["label"] is not None:
            raise RequestError(
                Code.NOT_FOUND, "versions have no labels here. Use /versions/NUMBER."
            )
        name, number = found["name"], int(found["version"]) if found["version"] else None
        if kind == "predict":
            return await self._predict(request, name, number)
        if kind == "metadata":
            return self._metadata(name, number)
        return _json(
            {
                "model_version_status": [
                    _status(version) for version in self._model.statuses(name, number)
                ]
            }
        )

    def _health(self) -> web.Response:
        available = self._model.available()
        if self.stopping or not available:
            return _json({"status": "stopping" if self.stopping else "loading"}, status=503)
        return _json({"status": "ok", "version": str(available[0].number)})

    def _metadata(self, name: str, number: int | None) -> web.Response:
        with self._model.use(name, number) as version:
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
        with self._model.use(name, number):
            pass  # An unknown model is refused before its body is read.
        body = await self._body(request)
        parsed = await _off_loop_if(len(body) > LARGE_BODY, json_format.parse, body)
        # The version is chosen now: while the body came in, a newer one may have taken over.
        with self._model.use(name, number) as version:
            signature = version.model.signature(parsed.signature_name)
            inputs = await _off_loop_if(
                len(body) > LARGE_BODY, json_format.to_inputs, signature, parsed
            )
            signature.check(inputs)
            self._limits.check(inputs)
            outputs = await version.batcher.run(signature, inputs)
            size = sum(value.size for value in outputs.values())
            answer = await _off_loop_if(
                size > LARGE_ANSWER, json_format.to_answer, outputs, parsed.rows
            )
            return web.Response(body=answer, content_type="application/json")

    async def _body(self, request: web.Request) -> bytes:
        if (request.content_length or 0) > self._limits.max_body_bytes:
            raise web.HTTPRequestEntityTooLarge(
                max_size=self._limits.max_body_bytes, actual_size=request.content_length or 0
            )
        try:
            return await asyncio.wait_for(request.read(), BODY_SECONDS)
        except asyncio.TimeoutError as error:
            raise RequestError(
                Code.DEADLINE_EXCEEDED, f"the body took more than {BODY_SECONDS:.0f} s.", 408
            ) from error
        except web.RequestPayloadError as error:
            raise RequestError(
                Code.INVALID_ARGUMENT, "the body is not in the encoding that its head names."
            ) from error


async def _off_loop_if(
    is_large: bool, function: Callable[..., _Result], *arguments: Any
) -> _Result:
    if not is_large:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


def _kind(request: web.Request) -> str:
    """What a request is about, in one of six words."""
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
