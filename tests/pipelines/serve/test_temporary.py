"""A server that is started for a few requests, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from pipelines.errors import UserError
from pipelines.serve.temporary import temporary_server
from tests.support.processes import ROOT
from tests.support.serving_model import publish


@pytest.fixture
def folder(saved, tmp_path):
    path = tmp_path / "books"
    path.mkdir()
    publish(saved, path, 3)
    return path


def test_it_answers_and_then_it_is_gone(folder):
    with temporary_server(folder) as server:
        assert server.url.startswith("http://127.0.0.1:")
        answer = server.predict("recommend", {"history": [["a", "b"]], "top_n": [1]})
        assert answer["item_ids"] == [["a-0"]] and answer["num_results"] == [1]
        assert server.predict("norm", {"query_embedding": [[1, 0]]}) == {"output": [0.0]}
        with pytest.raises(UserError, match="status 400: .*top_n should be at most 5"):
            server.predict("recommend", {"history": [["a"]], "top_n": [6]})
    with pytest.raises(OSError):
        urllib.request.urlopen(server.url, timeout=5)


def test_a_server_that_does_not_start_says_why(tmp_path):
    with pytest.raises(UserError, match="did not start.*has no version"):
        with temporary_server(tmp_path):
            pass


PROGRAM = """
import signal, sys, time
from pathlib import Path
# A shell that starts the tests in the background lets their processes ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
from pipelines.serve.temporary import temporary_server
with temporary_server(Path(sys.argv[1])) as server:
    print(server.url, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_does_not_outlive_its_parent(folder, number):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    url = process.stdout.readline().strip()
    assert urllib.request.urlopen(url, timeout=10).status == 200
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    child = int(children.read_text().split()[0]) if children.exists() else None
    process.send_signal(number)
    process.wait(60)
    process.stdout.close()
    deadline = time.monotonic() + 60
    with pytest.raises(OSError):
        while time.monotonic() < deadline:
            urllib.request.urlopen(url, timeout=5)
            time.sleep(0.2)
    while child is not None and time.monotonic() < deadline and Path(f"/proc/{child}").exists():
        time.sleep(0.2)
    assert child is None or not Path(f"/proc/{child}").exists()
