"""Runs benchmarks, one after the other: ``python -m benchmarks``, or ``make bench``."""

from __future__ import annotations

import argparse
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
    parser = argparse.ArgumentParser(
        description="Runs benchmarks, each in a process of its own, with their own defaults. "
        "'python -m benchmarks.NAME --help' lists the options of one."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(MODULES)} (all of these)"
    )
    names = parser.parse_args().names
    if unknown := set(names) - set(MODULES):
        parser.error(f"unknown benchmarks: {', '.join(sorted(unknown))}")
    failed = [
        name
        for name in names or MODULES
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
    ]
    print(f"failed or missed a target: {', '.join(failed)}" if failed else "all targets met")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
