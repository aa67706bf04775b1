"""PredictionService, ModelService and the standard health service, over gRPC."""

from __future__ import annotations

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

from .counters import Metrics
from .errors import Code, RequestError, invalid
from .limits import Limits
from .protos import signature_map, to_array, to_proto
from .signatures import DEFAULT
from .versions import Model

log = logging.getLogger(__name__)

SIGNATURE_FIELD = "signature_def"
_STATUS = {status.value[0]: status for status in grpc.StatusCode}


class GrpcApi(
    prediction_service_pb2_grpc.PredictionServiceServicer,
    model_service_pb2_grpc.ModelServiceServicer,
):
    """Answers gRPC requests.

    Args:
      model: What is served.
      limits: What one client may ask for.
      metrics: Where requests are counted.
    """

    def __init__(self, model: Model, limits: Limits, metrics: Metrics):
        self._model = model
        self._limits = limits
        self._metrics = metrics
        self._health = health.aio.HealthServicer()

    def server(self) -> grpc.aio.Server:
        """A server with all services, without a port yet."""
        server = grpc.aio.server(
            maximum_concurrent_rpcs=self._limits.max_in_flight,
            options=[
                ("grpc.max_receive_message_length", self._limits.max_body_bytes),
                ("grpc.max_send_message_length", -1),
                # Otherwise a second server would share the port, and nobody would notice.
                ("grpc.so_reuseport", 0),
            ],
        )
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(self, server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(self, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        return server

    async def set_healthy(self, is_healthy: bool) -> None:
        """What the health service answers."""
        status = health_pb2.HealthCheckResponse.SERVING
        if not is_healthy:
            status = health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", "tensorflow.serving.PredictionService"):
            await self._health.set(service, status)

    async def Predict(self, request: Any, context: Any) -> Any:
        """Runs a signature."""
        return await self._answer("predict", self._predict, request, context)

    async def GetModelMetadata(self, request: Any, context: Any) -> Any:
        """The signatures of a version."""
        return await self._answer("metadata", self._metadata, request, context)

    async def GetModelStatus(self, request: Any, context: Any) -> Any:
        """The states of versions."""
        return await self._answer("status", self._status, request, context)

    async def Classify(self, request: Any, context: Any) -> Any:
        """Not offered."""
        return await self._answer("other", _refuse, request, context)

    async def Regress(self, request: Any, context: Any) -> Any:
        """Not offered."""
        return await self._answer("other", _refuse, request, context)

    async def MultiInference(self, request: Any, context: Any) -> Any:
        """Not offered."""
        return await self._answer("other", _refuse, request, context)

    async def HandleReloadConfigRequest(self, request: Any, context: Any) -> Any:
        """Not offered."""
        return await self._answer("other", _refuse, request, context)

    async def _answer(
        self, kind: str, method: Callable[[Any], Awaitable[Any]], request: Any, context: Any
    ) -> Any:
        """Counts a request, and turns every error into a status."""
        started = time.perf_counter()
        code, message = Code.OK, ""
        gauge = self._metrics.in_flight.labels("grpc")
        gauge.inc()
        try:
            return await method(request)
        except RequestError as error:
            code, message = error.code, error.message
        except Exception:
            log.exception("gRPC %s", kind)
            code, message = Code.INTERNAL, "internal error; the server's log has more."
        finally:
            gauge.dec()
            self._metrics.observe("grpc", kind, code.name, time.perf_counter() - started)
        await context.abort(_STATUS[code.value], message)

    async def _predict(self, request: Any) -> Any:
        name, number = _model_spec(request)
        with self._model.use(name, number) as version:
            signature = version.model.signature(request.model_spec.signature_name)
            signature.check_names(set(request.inputs))
            inputs = {
                key: to_array(key, value, self._limits) for key, value in request.inputs.items()
            }
            signature.check(inputs)
            self._limits.check(inputs)
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
            for key in sorted(wanted):
                response.outputs[key].CopyFrom(to_proto(outputs[key]))
            return response

    async def _metadata(self, request: Any) -> Any:
        name, number = _model_spec(request)
        if list(request.metadata_field) != [SIGNATURE_FIELD]:
            raise invalid(
                f"metadata_field should be ['{SIGNATURE_FIELD}']. Received: "
                f"{list(request.metadata_field)}."
            )
        with self._model.use(name, number) as version:
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            response.model_spec.name = name
            response.model_spec.version.value = version.number
            response.metadata[SIGNATURE_FIELD].Pack(signature_map(version.model))
            return response

    async def _status(self, request: Any) -> Any:
        name, number = _model_spec(request)
        response = get_model_status_pb2.GetModelStatusResponse()
        for version in self._model.statuses(name, number):
            status = response.model_version_status.add()
            status.version = version.number
            status.state = version.state.value
            status.status.error_code = version.code.value
            status.status.error_message = version.message
        return response


async def _refuse(request: Any) -> NoReturn:
    raise RequestError(Code.UNIMPLEMENTED, "not offered here. Use Predict.")


def _model_spec(request: Any) -> tuple[str, int | None]:
    spec = request.model_spec
    if spec.WhichOneof("version_choice") == "version_label":
        raise RequestError(Code.NOT_FOUND, "versions have no labels here. Use version.")
    return spec.name, spec.version.value if spec.HasField("version") else None
