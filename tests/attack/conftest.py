"""What every attack gets: dice with a seed that is printed, and a share of the time."""

from __future__ import annotations

import os
import random
import secrets

import pytest

from tests.pipelines.serve.conftest import saved  # noqa: F401

SEED = int(os.environ.get("SEED") or secrets.randbelow(10**6))
# `make attack` ends the run after 600 s; starting processes takes some of them.
SECONDS = float(os.environ.get("SECONDS") or 360)


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
