"""A ``serve`` process, and clients that ask it over real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import re
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
    prediction_service_pb2_grpc,
)

from tests.support.processes import ROOT


class Server:
    """A running server. Its ports are free ones.

    Args:
      folder: folder of the model.
      *options: further options of ``serve``.
      **environment: variables that are added to its environment.
    """

    def __init__(self, folder: Path, *options: object, **environment: str):
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
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
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
        """What it printed when it was ready, all lines."""
        wait_for(lambda: any("Ctrl+C" in line for line in self._lines))
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
    """Waits until a condition holds, and fails if that takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition does not hold"
        time.sleep(0.02)


def refuse_constant(text: str) -> None:
    raise AssertionError(f"not JSON: {text}")
