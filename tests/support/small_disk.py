"""A disk that is soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A function that mounts a disk of some KiB, in place of the one before."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(size: int) -> Path:
        subprocess.run(["umount", place], capture_output=True, check=False)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", place]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a small disk needs the rights of root")
        return place

    try:
        yield mount
    finally:
        subprocess.run(["umount", place], capture_output=True, check=False)


def check_one_line(errors: str, place: Path) -> None:
    """Checks that a full disk is one line with the file and the remedy, and leaves nothing."""
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, errors
    assert "Traceback" not in errors and "unexpected" not in errors
    assert str(place) in lines[0] and "Free some space" in lines[0]
    assert ".tmp-" not in lines[0]
    assert not list(place.rglob(".tmp-*"))
