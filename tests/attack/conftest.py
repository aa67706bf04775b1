"""What attacks get: dice with a seed that is printed, a share of the time, and a server."""

from __future__ import annotations

import os
import random
import re
import secrets

import numpy as np
import pytest

from tests.pipelines.serve.conftest import saved  # noqa: F401
from tests.support.server_process import Server
from tests.support.serving_model import publish

SEED = int(os.environ.get("SEED") or secrets.randbelow(10**6))
# `make attack` ends the run after 600 s; starting processes takes some of them.
SECONDS = float(os.environ.get("SECONDS") or 360)

OPTIONS = {"--max-body-mb": 1, "--max-memory-mb": 256, "--header-seconds": 3, "--body-seconds": 3}
MAX_MEMORY = 256 << 20
# Signatures with inputs that they answer.
ORDINARY = {
    "serving_default": {"history": [["a"]]},
    "recommend": {"history": [["a"]], "top_n": np.array([1], np.int32)},
    "item_embedding": {"item_ids": ["a"]},
    "norm": {"query_embedding": np.array([[3.0, 4.0]], np.float32)},
    "mirror": {"data": ["a"], "flip": [True]},
    "scale": {"values": np.array([1, 2]), "factor": np.int64(3)},
    "batch_size": {"values": np.array([0.5], np.float32)},
}


def pytest_report_header() -> str:
    return f"attack: seed {SEED} (repeat with SEED={SEED}), {SECONDS:g} s in all (SECONDS)"


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """A random generator that depends on the seed and on the attack, not on the others."""
    print(f"SEED={SEED}")
    return random.Random(f"{SEED} {request.node.nodeid}")


@pytest.fixture
def seconds(request: pytest.FixtureRequest) -> float:
    """The time that an attack may take: an equal share for each that asks for one."""
    sharing = [item for item in request.session.items if "seconds" in item.fixturenames]
    return SECONDS / len(sharing)


@pytest.fixture(scope="module")
def server(saved, tmp_path_factory):  # noqa: F811
    """A server whose memory has bounds, and which is to have no fault of its own."""
    folder = tmp_path_factory.mktemp("attacked") / "books"
    folder.mkdir()
    publish(saved, folder, 7)
    running = Server(folder, *(word for pair in OPTIONS.items() for word in pair))
    # TensorFlow takes memory for a function when it first runs, which is not that of requests.
    for name, inputs in ORDINARY.items():
        listed = {key: np.array(value).tolist() for key, value in inputs.items()}
        assert running.post({"signature_name": name, "inputs": listed})[0] == 200, name
        running.predict(inputs, name)
    before = memory(running)
    yield running
    took = memory(running) - before
    assert running.stop() == 0
    # Connections have buffers of their own.
    assert took < MAX_MEMORY + 2048 * (64 << 10), f"{took >> 20} MiB"
    faults = [line for line in running.log if "Traceback" in line or "ERROR" in line]
    assert not faults, faults[:5]


@pytest.fixture
def still_answers(server):
    """Checks that those who mean well are answered after an attack."""
    yield
    assert server.post({"instances": [["a"]]})[0] == 200
    assert server.predict({"history": [["a"]]}).outputs["scores"].float_val[0] == 8.0
    assert server.get("/healthz")[0] == 200


def memory(server):
    """The most memory that the process has ever had, in bytes."""
    with open(f"/proc/{server.process.pid}/status") as file:
        return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", file.read())[1])
