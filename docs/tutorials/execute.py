"""Runs the notebooks of this folder from top to bottom, and writes their outputs into them.

``make tutorials`` runs all of them; ``python docs/tutorials/execute.py 5_sequences`` runs one.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

FOLDER = Path(__file__).resolve().parent
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
_SECONDS_PER_CELL = 900
# What native libraries log, with the line that comes before the first.
_NATIVE_LOG = re.compile(r"^(?:[IWE]\d{4} |WARNING: All log messages before absl).*\n?", flags=re.M)


def execute(notebook: Any) -> Any:
    """Runs all cells of a notebook in a fresh kernel, and returns the notebook with new outputs.

    Args:
      notebook: as `nbformat` reads it; it is changed in place.

    Raises:
      nbclient.exceptions.CellExecutionError: a cell has failed.
    """
    client = NotebookClient(
        notebook,
        timeout=_SECONDS_PER_CELL,
        startup_timeout=_SECONDS_PER_CELL,
        kernel_name="python3",
        # Else the outputs would depend on how fast the kernel prints.
        coalesce_streams=True,
        record_timing=False,
        resources={"metadata": {"path": str(FOLDER)}},
    )
    paths = [str(FOLDER.parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with tempfile.TemporaryDirectory() as sockets:
        # Files in place of ports, which everybody on this machine could read.
        manager = client.create_kernel_manager()
        manager.transport, manager.ip = "ipc", str(Path(sockets) / "kernel")
        client.execute(env=environment)
    # What tells machines and editors apart is no part of the notebook.
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {
                "display_name": "Python 3",
                "language": "python",
                "name": "python3",
            },
            "language_info": {"name": "python"},
        }
    )
    for number, cell in enumerate(notebook.cells, start=1):
        cell.id = f"cell-{number}"
        cell.metadata = nbformat.from_dict({})
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                output.text = _NATIVE_LOG.sub("", output.text)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("text") != ""]
    return notebook


def main(arguments: list[str] | None = None) -> int:
    """Runs the notebooks that are named, or all; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = [path.stem for path in NOTEBOOKS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(names)}")
    chosen = parser.parse_args(arguments).names or names
    for name in chosen:
        if name not in names:
            parser.error(f"NAME should be one of {', '.join(names)}. Received: {name}.")
    for name in chosen:
        path, started = FOLDER / f"{name}.ipynb", time.monotonic()
        notebook = nbformat.read(path, as_version=4)
        try:
            execute(notebook)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # without colours
            print(f"error: {path.name} has failed and stays as it was.\n{plain}", file=sys.stderr)
            return 1
        nbformat.write(notebook, path)
        seconds, size = time.monotonic() - started, path.stat().st_size
        print(f"{path.name}: {seconds:.0f} s, {size / 1024:.0f} KB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
