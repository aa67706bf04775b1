"""PredictionService, ModelService and the standard health service, over gRPC."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    predict_pb2,
)

from .budget import Budget, Lease
from .counters import Counters
from .errors import Code, RequestError, invalid
from .grpc_health import SERVICE as HEALTH
from .grpc_health import Health
from .grpc_messages import Messages
from .json_format import answer_bytes
from .limits import PARSED, Limits
from .protos import check_messages, fill, signature_map, to_inputs
from .signatures import DEFAULT
from .threads import LARGE_BODY, off_loop_if
from .versions import Model

log = logging.getLogger(__name__)

SIGNATURE_FIELD = "signature_def"
# After SIGTERM, calls that clients have sent by then are accepted for this long.
ACCEPT_SECONDS = 0.5
# Calls of one connection at a time; the client holds back the others.
MAX_STREAMS = 256
_STATUS = {status.value[0]: status for status in grpc.StatusCode}
_NOT_OFFERED = {
    "tensorflow.serving.PredictionService": ("Classify", "Regress", "MultiInference"),
    "tensorflow.serving.ModelService": ("HandleReloadConfigRequest",),
}

_Method = Callable[[Any, Lease], Awaitable[Any]]


@dataclasses.dataclass(eq=False)
class GrpcApi:
    """Answers gRPC requests.

    Attributes:
      model: the model that is served.
      limits: bounds on requests.
      counters: where requests are counted.
      budget: memory of requests.
    """

    model: Model
    limits: Limits
    counters: Counters
    budget: Budget
    _in_flight: int = 0
    _refusing: bool = False

    def __post_init__(self) -> None:
        self._messages = Messages(self.limits)
        self._health = Health()

    async def listen(
        self, host: str, port: int, drain_seconds: float
    ) -> tuple[int, Callable[[], Awaitable[None]]]:
        """Opens a port.

        Args:
          host: address to listen on, in brackets if it is of IPv6.
          port: number of the port; 0 for any free one.
          drain_seconds: how long requests have to finish when the port is closed.

        Returns:
          The number of the port, and the function that closes it.

        Raises:
          OSError: the port cannot be opened.
        """
        server: grpc.aio.Server = grpc.aio.server(options=_options(self.limits))
        server.add_generic_rpc_handlers(tuple(self._handlers()))
        try:
            bound = server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            # gRPC gives no reason. REST listens at this address already, so it is the port.
            raise OSError(errno.EADDRINUSE, "the port is in use") from error
        await server.start()
        loop = asyncio.get_running_loop()
        sweep = loop.create_task(self._messages.sweep())

        async def close() -> None:
            # gRPC cancels what it has received but not yet handed over, so it is handed over first.
            end = loop.time() + drain_seconds
            await asyncio.sleep(min(ACCEPT_SECONDS, drain_seconds))
            self._refusing = True
            while self._in_flight and loop.time() < end:
                await asyncio.sleep(0.02)
            await server.stop(max(0.0, end - loop.time()) if self._in_flight else ACCEPT_SECONDS)
            sweep.cancel()

        return bound, close

    def set_healthy(self, is_healthy: bool, is_stopping: bool = False) -> None:
        """Sets the answer of the health service."""
        self._health.set(is_healthy, is_stopping)

    def _handlers(self) -> list[Any]:
        """The methods by service. Messages come and go as if each were the first of a stream."""
        prediction, model = _NOT_OFFERED
        methods: dict[str, dict[str, Any]] = {
            prediction: {
                "Predict": self._method("predict", predict_pb2.PredictRequest, self._predict),
                "GetModelMetadata": self._method(
                    "metadata", get_model_metadata_pb2.GetModelMetadataRequest, self._metadata
                ),
            },
            model: {
                "GetModelStatus": self._method(
                    "status", get_model_status_pb2.GetModelStatusRequest, self._status
                )
            },
            HEALTH: {
                "Check": self._method("health", health_pb2.HealthCheckRequest, self._check_health),
                "Watch": grpc.stream_stream_rpc_method_handler(
                    self._watch_health, response_serializer=_serialize
                ),
            },
        }
        for service, names in _NOT_OFFERED.items():
            for name in names:
                methods[service][name] = self._method("other", None, _refuse)
        return [
            grpc.method_handlers_generic_handler(service, handlers)
            for service, handlers in methods.items()
        ]

    def _method(self, kind: str, request_type: Any, method: _Method) -> Any:
        async def answer(_: Any, context: Any) -> None:
            code, message = Code.OK, ""
            started = time.perf_counter()
            gauge = self.counters.in_flight.labels("grpc")
            gauge.inc()
            self._in_flight += 1
            try:
                return await self._run(kind, request_type, method, context)
            except RequestError as error:
                code, message = error.code, error.message
            except asyncio.CancelledError:
                code = Code.CANCELLED
                self.counters.hang_ups.labels("grpc").inc()
                raise
            except Exception:
                log.exception("gRPC %s", kind)
                code, message = Code.INTERNAL, "internal error. See the log of the server."
            finally:
                self._in_flight -= 1
                gauge.dec()
                self.counters.observe("grpc", kind, code.name, time.perf_counter() - started)
            await context.abort(_STATUS[code.value], message)

        return grpc.stream_stream_rpc_method_handler(answer, response_serializer=_serialize)

    async def _run(self, kind: str, request_type: Any, method: _Method, context: Any) -> None:
        """Receives the message and answers it. Message and lease end together, with this frame."""
        with self.budget.lease() as lease:
            if request_type is None:
                await method(None, lease)
                return
            self._check_room(kind)
            response = await method(await self._receive(context, request_type, lease), lease)
            await self._send(context, response, lease)

    async def _send(self, context: Any, response: Any, lease: Lease) -> None:
        """Sends the answer. It takes memory until the client has read it, or is given up.

        Raises:
          CancelledError: the client has gone, or does not read. gRPC then ends the call at once; an
            error would wait behind the answer.
        """
        sending = asyncio.ensure_future(context.write(response))
        try:
            with self.budget.waiting_for_client(lease, sending.cancel):
                await asyncio.wait({sending}, timeout=self.limits.body_seconds)
        finally:
            sending.cancel()
        if not sending.done() or sending.cancelled() or sending.exception():
            raise asyncio.CancelledError

    def _check_room(self, kind: str) -> None:
        if kind == "health":
            return
        if self._refusing:
            raise RequestError(Code.UNAVAILABLE, "the server is stopping.")
        if self._in_flight > self.limits.max_in_flight:
            raise RequestError(Code.RESOURCE_EXHAUSTED, "too many requests. Try again later.")

    async def _receive(self, context: Any, request_type: Any, lease: Lease) -> Any:
        message = await self._messages.receive(context)
        lease.resize(PARSED * len(message))
        try:
            request = request_type.FromString(message)
        except DecodeError as error:
            raise invalid(f"the message should be a {request_type.DESCRIPTOR.name}.") from error
        return request

    async def _predict(self, request: Any, lease: Lease) -> Any:
        name, number = _model_spec(request)
        with self.model.use(name, number) as version:
            signature = version.model.signature(request.model_spec.signature_name)
            num_values = check_messages(signature, request.inputs, self.limits)
            wanted = set(request.output_filter) or set(signature.outputs)
            if unknown := sorted(wanted - set(signature.outputs)):
                raise invalid(
                    f"output_filter should name outputs of signature '{signature.name}': "
                    f"{', '.join(signature.outputs)}. Received: {', '.join(unknown)}."
                )
            size = lease.held // PARSED
            # The message holds as many values as it should, so it is no larger than its tensors.
            lease.resize(4 * size + version.model.input_bytes(num_values))
            inputs = await off_loop_if(
                size > LARGE_BODY, to_inputs, signature, request.inputs, self.limits
            )
            outputs = await version.batcher.run(signature, inputs)
        outputs = {key: outputs[key] for key in wanted}
        lease.add_in_any_case(answer_bytes(outputs))
        response = predict_pb2.PredictResponse()
        response.model_spec.name = name
        response.model_spec.version.value = version.number
        response.model_spec.signature_name = request.model_spec.signature_name or DEFAULT
        fill(response.outputs, outputs)
        return response

    async def _metadata(self, request: Any, lease: Lease) -> Any:
        name, number = _model_spec(request)
        if list(request.metadata_field) != [SIGNATURE_FIELD]:
            raise invalid(
                f"metadata_field should be ['{SIGNATURE_FIELD}']. Received: "
                f"{list(request.metadata_field)}."
            )
        with self.model.use(name, number) as version:
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            response.model_spec.name = name
            response.model_spec.version.value = version.number
            response.metadata[SIGNATURE_FIELD].Pack(signature_map(version.model))
        lease.add_in_any_case(response.ByteSize())
        return response

    async def _status(self, request: Any, lease: Lease) -> Any:
        name, number = _model_spec(request)
        response = get_model_status_pb2.GetModelStatusResponse()
        for version in self.model.statuses(name, number):
            status = response.model_version_status.add()
            status.version = version.number
            status.state = version.state.value
            status.status.error_code = version.code.value
            status.status.error_message = version.message
        return response

    async def _check_health(self, request: Any, lease: Lease) -> Any:
        return self._health.check(request)

    async def _watch_health(self, _: Any, context: Any) -> AsyncIterator[Any]:
        try:
            with self.budget.lease() as lease:
                request = await self._receive(context, health_pb2.HealthCheckRequest, lease)
            async for response in self._health.watch(request):
                yield response
        except RequestError as error:
            await context.abort(_STATUS[error.code.value], error.message)


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        # Otherwise a second server would share the port, and nobody would notice.
        ("grpc.so_reuseport", 0),
        # A packed message could be a thousand times larger than the limit once it is unpacked.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.max_concurrent_streams", min(MAX_STREAMS, limits.max_in_flight)),
        ("grpc.max_allowed_incoming_connections", limits.max_connections),
        ("grpc.server_handshake_timeout_ms", _milliseconds(limits.header_seconds)),
        ("grpc.max_connection_idle_ms", _milliseconds(limits.idle_seconds)),
        # A client that has gone without a word is noticed.
        ("grpc.keepalive_time_ms", _milliseconds(limits.body_seconds)),
        ("grpc.keepalive_timeout_ms", _milliseconds(limits.header_seconds)),
        # Otherwise the window of a message that nobody has asked for yet would grow to megabytes.
        ("grpc.http2.bdp_probe", 0),
    ]


def _milliseconds(seconds: float) -> int:
    return min(int(1000 * seconds) + 1, 2**31 - 1)


def _serialize(message: Any) -> bytes:
    return bytes(message.SerializeToString())


async def _refuse(request: Any, lease: Lease) -> NoReturn:
    raise RequestError(Code.UNIMPLEMENTED, "not supported. Use Predict.")


def _model_spec(request: Any) -> tuple[str, int | None]:
    spec = request.model_spec
    if spec.WhichOneof("version_choice") == "version_label":
        raise RequestError(Code.NOT_FOUND, "version labels are not supported. Use version.")
    return spec.name, spec.version.value if spec.HasField("version") else None
