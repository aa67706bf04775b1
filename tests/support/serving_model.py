"""A small SavedModel with the signatures of a retrieval model."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

LIMIT = 5


class Echo(tf.Module):
    """Answers with its inputs, so that a test sees which request an answer belongs to.

    Args:
      version: added to every score, so that a test sees which version has answered.
    """

    def __init__(self, version: float):
        super().__init__()
        self.bonus = tf.Variable(version)

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.string, name="history")])
    def default(self, history):
        return self.answer(history, tf.fill([tf.shape(history)[0]], 2))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None], tf.string, name="history"),
            tf.TensorSpec([None], tf.int32, name="top_n"),
        ]
    )
    def recommend(self, history, top_n):
        return self.answer(history, top_n)

    def answer(self, history, top_n):
        largest = tf.reduce_max(top_n)
        check = tf.debugging.Assert(
            largest <= LIMIT, [f"top_n should be at most {LIMIT}. Received:", largest]
        )
        with tf.control_dependencies([check]):
            width = tf.maximum(largest, 0)
        lengths = tf.reduce_sum(tf.cast(history != "", tf.int32), axis=1)
        places = tf.range(width)
        shape = [tf.shape(history)[0], width]
        ids = tf.strings.join(
            [
                tf.broadcast_to(history[:, :1], shape),
                tf.broadcast_to(tf.strings.as_string(places), shape),
            ],
            "-",
        )
        scores = tf.cast(lengths, tf.float32)[:, None] - tf.cast(places, tf.float32)[None] * 0.25
        return {
            "item_ids": ids,
            "scores": scores + self.bonus,
            "num_results": tf.minimum(top_n, width),
            "is_default": lengths == 0,
        }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="item_ids")])
    def item_embedding(self, item_ids):
        length = tf.cast(tf.strings.length(item_ids), tf.float32)
        return {"embedding": tf.stack([length, length / 3.0], axis=1), "known": length > 0.0}

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="query_embedding")])
    def norm(self, query_embedding):
        return {"norm": tf.math.log(tf.reduce_sum(query_embedding**2, axis=1))}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="data"),
            tf.TensorSpec([None], tf.bool, name="flip"),
        ]
    )
    def mirror(self, data, flip):
        return {"data_bytes": data, "text": data, "flipped": tf.logical_not(flip)}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, name="values"),
            tf.TensorSpec([], tf.int64, name="factor"),
        ]
    )
    def scale(self, values, factor):
        return {"total": tf.reduce_sum(values) * factor}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="values")])
    def batch_size(self, values):
        """The number of rows in the batch; a negative value is an error."""
        check = tf.debugging.assert_non_negative(values, message="values should not be negative")
        with tf.control_dependencies([check]):
            return {"rows": tf.fill(tf.shape(values), tf.size(values)), "values": 2.0 * values}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="rounds")])
    def slow(self, rounds):
        """Takes time in proportion to the rounds. A minimum with 0 keeps the work in the graph."""
        work = tf.while_loop(
            lambda step, x: step < tf.reduce_max(rounds),
            lambda step, x: (step + 1, tf.tanh(tf.matmul(x, x))),
            (0, tf.zeros([128, 128]) + 0.001 * self.bonus),
        )[1]
        return {"done": rounds + tf.cast(tf.minimum(tf.reduce_sum(tf.abs(work)), 0.0), tf.int32)}


def save(version: Path) -> None:
    """Saves the model, without warm-up requests."""
    module = Echo(float(version.name))
    tf.saved_model.save(
        module,
        str(version),
        signatures={
            "serving_default": module.default,
            "recommend": module.recommend,
            "item_embedding": module.item_embedding,
            "norm": module.norm,
            "mirror": module.mirror,
            "scale": module.scale,
            "batch_size": module.batch_size,
            "slow": module.slow,
        },
    )


def publish(saved: Path, folder: Path, number: int, warm_up: list[Any] | None = None) -> None:
    """Writes a version aside and renames it, as export does.

    Args:
      saved: folder of a saved version, which is copied: tracing and saving takes seconds.
      folder: folder of the model.
      number: number of the new version, which it adds to every score.
      warm_up: history of its warm-up request.
    """
    aside = folder / f".tmp-{number}"
    shutil.copytree(saved, aside)
    prefix = str(aside / "variables" / "variables")
    checkpoint = tf.train.load_checkpoint(prefix)
    names = sorted(checkpoint.get_variable_to_dtype_map())
    values = [checkpoint.get_tensor(name) for name in names]
    (place,) = [place for place, name in enumerate(names) if name.startswith("bonus/")]
    values[place] = np.float32(number)
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=values
    )
    if warm_up is not None:
        write_warm_up(aside, warm_up)
    os.rename(aside, folder / str(number))


def write_warm_up(version: Path, history: list[Any]) -> None:
    """Writes a warm-up request of the default signature."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "any"
    request.inputs["history"].CopyFrom(tf.make_tensor_proto(history))
    record = prediction_log_pb2.PredictionLog(
        predict_log=prediction_log_pb2.PredictLog(request=request)
    )
    (version / "assets.extra").mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(version / "assets.extra/tf_serving_warmup_requests")) as writer:
        writer.write(record.SerializeToString())
