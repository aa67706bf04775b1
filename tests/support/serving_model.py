"""A small SavedModel with the signatures of a retrieval model, and a server process for it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    model_service_pb2_grpc,
    predict_pb2,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
)

from tests.support.tiny_run import ROOT

LIMIT = 5


class Echo(tf.Module):
    """Answers with what it was asked, so that a test sees whose answer it got.

    Args:
      version: Added to every score: tells which version has answered.
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
        """How many rows went through together; a negative value is an error."""
        check = tf.debugging.assert_non_negative(values, message="values should not be negative")
        with tf.control_dependencies([check]):
            return {"rows": tf.fill(tf.shape(values), tf.size(values)), "values": 2.0 * values}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="rounds")])
    def slow(self, rounds):
        """Takes the longer, the more rounds. A minimum with 0 keeps the work from being pruned."""
        work = tf.while_loop(
            lambda step, x: step < tf.reduce_max(rounds),
            lambda step, x: (step + 1, tf.tanh(tf.matmul(x, x))),
            (0, tf.zeros([128, 128]) + 0.001 * self.bonus),
        )[1]
        return {"done": rounds + tf.cast(tf.minimum(tf.reduce_sum(tf.abs(work)), 0.0), tf.int32)}


def publish(folder: Path, number: int, warm_up: list[list[str]] | None = None) -> None:
    """Writes a version aside and renames it, as export does."""
    module = Echo(float(number))
    aside = folder / f".tmp-{number}"
    tf.saved_model.save(
        module,
        str(aside),
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
    if warm_up is not None:
        write_warm_up(aside, warm_up)
    os.rename(aside, folder / str(number))


def write_warm_up(version: Path, history: list[list[str]]) -> None:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "any"
    request.inputs["history"].CopyFrom(tf.make_tensor_proto(history))
    record = prediction_log_pb2.PredictionLog(
        predict_log=prediction_log_pb2.PredictLog(request=request)
    )
    (version / "assets.extra").mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(version / "assets.extra/tf_serving_warmup_requests")) as writer:
        writer.write(record.SerializeToString())


def copy_version(folder: Path, source: int, number: int) -> None:
    """Publishes a copy of a version under another number."""
    aside = folder / f".tmp-{number}"
    shutil.copytree(folder / str(source), aside)
    os.rename(aside, folder / str(number))


class Server:
    """A ``serve`` process and clients of it."""

    def __init__(self, folder: Path, *options: object):
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "pipelines",
                "serve",
                "--model",
                str(folder),
                "--port",
                "0",
                "--grpc-port",
                "0",
                *map(str, options),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.log: list[str] = []
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, args=("stderr", self.log), daemon=True)
        self._reader.start()
        first = self.process.stdout.readline()
        found = re.search(r"http://[\d.]+:(\d+), gRPC [\d.]+:(\d+)", first)
        if not found:
            self.process.wait(30)
            self._reader.join(5)
            raise RuntimeError(first + "".join(self.log))
        self._lines.append(first)
        threading.Thread(target=self._read, args=("stdout", self._lines), daemon=True).start()
        self.name = folder.name
        self.port, self.grpc_port = int(found[1]), int(found[2])
        self.url = f"http://127.0.0.1:{self.port}"
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}")
        self.predictions = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)
        self.models = model_service_pb2_grpc.ModelServiceStub(self.channel)

    def _read(self, stream: str, lines: list[str]) -> None:
        for line in getattr(self.process, stream):
            lines.append(line)

    def greeting(self) -> str:
        """What it printed when it started, up to the example."""
        wait_for(lambda: any("curl" in line for line in self._lines))
        return "".join(self._lines)

    def get(self, path: str) -> tuple[int, object]:
        return self.send(urllib.request.Request(self.url + path))

    def post(self, body: object, path: str = ":predict") -> tuple[int, object]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send(urllib.request.Request(f"{self.url}/v1/models/{self.name}{path}", data))

    @staticmethod
    def send(request: urllib.request.Request) -> tuple[int, object]:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                status, text = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        return status, json.loads(text, parse_constant=refuse_constant)

    def metrics(self) -> str:
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as response:
            return response.read().decode()

    def metric(self, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.metrics(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def predict(self, inputs: dict[str, object], signature: str = "", **spec: object):
        request = predict_pb2.PredictRequest()
        request.model_spec.name = spec.get("name", self.name)
        request.model_spec.signature_name = signature
        if "version" in spec:
            request.model_spec.version.value = spec["version"]
        for key, value in inputs.items():
            request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
        request.output_filter.extend(spec.get("only", []))
        return self.predictions.Predict(request, timeout=60)

    def stop(self) -> int:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        self.channel.close()
        try:
            return self.process.wait(60)
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self._reader.join(5)


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Waits until something is so; a failure when it is not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def refuse_constant(text: str) -> None:
    raise AssertionError(f"not JSON: {text}")
