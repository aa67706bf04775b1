"""A server that is started for a few requests over REST, and stopped afterwards.

Loads no TensorFlow: the server is a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from ..errors import UserError

_START_SECONDS = 300.0
_REQUEST_SECONDS = 60.0
_STOP_SECONDS = 60.0
_LISTENS = re.compile(r"REST (http://\S+?),")
# Requests to this machine never go through a proxy.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class Server:
    """A running server.

    Args:
      address: its address, such as ``http://127.0.0.1:8501``.
      name: name of its model.

    Attributes:
      url: address of the model.
    """

    def __init__(self, address: str, name: str) -> None:
        self._address = address
        self.url = f"{address}/v1/models/{urllib.parse.quote(name)}"

    def check_health(self) -> None:
        """Checks that the server says it can answer."""
        self._get_or_post(f"{self._address}/healthz", None)

    def predict(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of a signature, by name.

        Args:
          signature: name of the signature.
          inputs: JSON values by name, each with a row for each query.
        """
        body = json.dumps({"signature_name": signature, "inputs": inputs}).encode()
        outputs = json.loads(self._get_or_post(f"{self.url}:predict", body))["outputs"]
        return outputs if isinstance(outputs, dict) else {"output": outputs}

    def _get_or_post(self, url: str, body: bytes | None) -> bytes:
        try:
            with _open(url, body, timeout=_REQUEST_SECONDS) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            with contextlib.suppress(ValueError, KeyError, TypeError):
                text = json.loads(text)["error"]
            raise UserError(f"{url} answers with status {error.code}: {text}") from error
        except OSError as error:
            raise UserError(f"{url} does not answer: {error}") from error


@contextlib.contextmanager
def temporary_server(model: Path) -> Iterator[Server]:
    """Starts ``serve`` on a free port of the loopback interface, and stops it at the end.

    Args:
      model: folder of the model, with its versions.

    Raises:
      UserError: the server does not start; the error has its last message.
    """
    package = __package__ or ""
    # The folder that holds this package, wherever the working directory is.
    root = str(Path(__file__).resolve().parents[package.count(".") + 1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    options = ["--model", str(model), "--port", "0", "--grpc-port", "0"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", f"{package}.child", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
        )
        try:
            server = Server(_address(process, log), model.resolve().name)
            server.check_health()
            yield server
        finally:
            _stop(process)


def _address(process: subprocess.Popen[str], log: IO[bytes]) -> str:
    """Waits until the server says where it listens."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    deadline = time.monotonic() + _START_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        try:
            line = lines.get(timeout=left)
        except queue.Empty:
            break
        if line is None:
            process.wait(_STOP_SECONDS)
            log.seek(0)
            messages = log.read().decode(errors="replace").strip().splitlines()
            reason = messages[-1] if messages else f"exit code {process.returncode}"
            raise UserError(f"the server did not start. {reason.removeprefix('error: ')}")
        if found := _LISTENS.search(line):
            return found[1]
    raise UserError(f"the server did not start within {_START_SECONDS:g} seconds.")


def _stop(process: subprocess.Popen[str]) -> None:
    """Asks the server to stop, waits, and ends it if it does not."""
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
