"""Requests that a server runs when it loads a model, so that no user waits for a slow first one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from tfrs_croloss.serving.recommender import Recommender
from tfrs_croloss.serving.round_trip import Request

WARMUP_FILE = Path("assets.extra") / "tf_serving_warmup_requests"


def write_warmup_requests(
    folder: Path, name: str, recommender: Recommender, requests: Sequence[Request]
) -> list[str]:
    """Writes the requests where TensorFlow Serving looks for them.

    Args:
      folder: folder of the SavedModel.
      name: name of the model.
      recommender: the model, for the types of the inputs.
      requests: signatures and their inputs.

    Returns:
      What was left out, and how to get it.
    """
    try:
        from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
    except ModuleNotFoundError:
        return [
            "There are no warm-up requests, since tensorflow-serving-api is not installed: pip "
            "install 'tfrs-croloss[pipelines]'. The first requests to a server are slow."
        ]
    signatures = recommender.signatures()
    file = folder / WARMUP_FILE
    file.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for signature, inputs in requests:
            specs = signatures[signature].structured_input_signature[1]
            request = predict_pb2.PredictRequest()
            request.model_spec.name = name
            request.model_spec.signature_name = signature
            for key, value in inputs.items():
                request.inputs[key].CopyFrom(tf.make_tensor_proto(value, specs[key].dtype))
            log = prediction_log_pb2.PredictionLog(
                predict_log=prediction_log_pb2.PredictLog(request=request)
            )
            writer.write(log.SerializeToString())
    return []
