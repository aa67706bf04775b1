"""PredictionService, ModelService and the standard health service, over gRPC."""

from __future__ import annotations

import dataclasses
import errno
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from .counters import Counters
from .errors import Code, RequestError, invalid
from .limits import Limits
from .protos import fill, signature_map, to_inputs
from .signatures import DEFAULT
from .versions import Model

log = logging.getLogger(__name__)

SIGNATURE_FIELD = "signature_def"
_STATUS = {status.value[0]: status for status in grpc.StatusCode}


@dataclasses.dataclass(eq=False)
class GrpcApi(
    prediction_service_pb2_grpc.PredictionServiceServicer,
    model_service_pb2_grpc.ModelServiceServicer,
):
    """Answers gRPC requests.

    Attributes:
      model: the model that is served.
      limits: bounds on requests.
      counters: where requests are counted.
    """

    model: Model
    limits: Limits
    counters: Counters
    _health: Any = dataclasses.field(default_factory=health.aio.HealthServicer)

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
        server: grpc.aio.Server = grpc.aio.server(
            maximum_concurrent_rpcs=self.limits.max_in_flight,
            options=[
                ("grpc.max_receive_message_length", self.limits.max_body_bytes),
                ("grpc.max_send_message_length", -1),
                # Otherwise a second server would share the port, and nobody would notice.
                ("grpc.so_reuseport", 0),
            ],
        )
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(self, server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(self, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        try:
            bound = server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            # gRPC gives no reason. REST listens at this address already, so it is the port.
            raise OSError(errno.EADDRINUSE, "the port is in use") from error
        await server.start()

        async def close() -> None:
            await server.stop(drain_seconds)

        return bound, close

    async def set_healthy(self, is_healthy: bool) -> None:
        """Sets the answer of the health service."""
        status = health_pb2.HealthCheckResponse.SERVING
        if not is_healthy:
            status = health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", "tensorflow.serving.PredictionService"):
            await self._health.set(service, status)

    async def Predict(self, request: Any, context: Any) -> Any:
        """Runs a signature."""
        return await self._count_and_catch("predict", self._predict, request, context)

    async def GetModelMetadata(self, request: Any, context: Any) -> Any:
        """Returns the signatures of a version."""
        return await self._count_and_catch("metadata", self._metadata, request, context)

    async def GetModelStatus(self, request: Any, context: Any) -> Any:
        """Returns the states of versions."""
        return await self._count_and_catch("status", self._status, request, context)

    async def Classify(self, request: Any, context: Any) -> Any:
        """Not supported."""
        return await self._count_and_catch("other", _refuse, request, context)

    async def Regress(self, request: Any, context: Any) -> Any:
        """Not supported."""
        return await self._count_and_catch("other", _refuse, request, context)

    async def MultiInference(self, request: Any, context: Any) -> Any:
        """Not supported."""
        return await self._count_and_catch("other", _refuse, request, context)

    async def HandleReloadConfigRequest(self, request: Any, context: Any) -> Any:
        """Not supported."""
        return await self._count_and_catch("other", _refuse, request, context)

    async def _count_and_catch(
        self, kind: str, method: Callable[[Any], Awaitable[Any]], request: Any, context: Any
    ) -> Any:
        """Counts a request, and turns every error into a status."""
        started = time.perf_counter()
        code, message = Code.OK, ""
        gauge = self.counters.in_flight.labels("grpc")
        gauge.inc()
        try:
            return await method(request)
        except RequestError as error:
            code, message = error.code, error.message
        except Exception:
            log.exception("gRPC %s", kind)
            code, message = Code.INTERNAL, "internal error. See the log of the server."
        finally:
            gauge.dec()
            self.counters.observe("grpc", kind, code.name, time.perf_counter() - started)
        await context.abort(_STATUS[code.value], message)

    async def _predict(self, request: Any) -> Any:
        name, number = _model_spec(request)
        with self.model.use(name, number) as version:
            signature = version.model.signature(request.model_spec.signature_name)
            inputs = to_inputs(signature, request.inputs, self.limits)
            wanted = set(request.output_filter) or set(signature.outputs)
            if unknown := sorted(wanted - set(signature.outputs)):
                raise invalid(
                    f"output_filter should name outputs of signature '{signature.name}': "
                    f"{', '.join(signature.outputs)}. Received: {', '.join(unknown)}."
                )
            outputs = await version.batcher.run(signature, inputs)
            response = predict_pb2.PredictResponse()
            response.model_spec.name = name
            response.model_spec.version.value = version.number
            response.model_spec.signature_name = request.model_spec.signature_name or DEFAULT
            fill(response.outputs, {key: outputs[key] for key in wanted})
            return response

    async def _metadata(self, request: Any) -> Any:
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
            return response

    async def _status(self, request: Any) -> Any:
        name, number = _model_spec(request)
        response = get_model_status_pb2.GetModelStatusResponse()
        for version in self.model.statuses(name, number):
            status = response.model_version_status.add()
            status.version = version.number
            status.state = version.state.value
            status.status.error_code = version.code.value
            status.status.error_message = version.message
        return response


async def _refuse(request: Any) -> NoReturn:
    raise RequestError(Code.UNIMPLEMENTED, "not supported. Use Predict.")


def _model_spec(request: Any) -> tuple[str, int | None]:
    spec = request.model_spec
    if spec.WhichOneof("version_choice") == "version_label":
        raise RequestError(Code.NOT_FOUND, "version labels are not supported. Use version.")
    return spec.name, spec.version.value if spec.HasField("version") else None
