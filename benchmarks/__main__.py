"""Runs all benchmarks, one after the other: ``python -m benchmarks``, or ``make bench``."""

from __future__ import annotations

import subprocess
import sys

MODULES = (
    "losses",
    "catalogue",
    "step",
    "evaluation",
    "optimizer",
    "accidental_hits",
    "prepare",
    "input",
    "positions",
    "index",
    "indexing",
    "scaling",
)


def main() -> int:
    """Runs each benchmark in its own process, so that none inherits another's memory."""
    failed = [
        name
        for name in MODULES
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
    ]
    print(f"failed or missed a target: {', '.join(failed)}" if failed else "all targets met")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
