"""Memory needed to build an index from files of vectors: ``python -m benchmarks.indexing``.

Each index is built in its own process. The result is the peak resident memory above that of a
process that builds an index of a few items, as a multiple of the size of the table of vectors.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

from benchmarks import harness

import numpy as np  # isort: skip

from tfrs_croloss.indexes.tuning import KINDS, build_index  # isort: skip
from tfrs_croloss.indexes.vectors import VectorFiles, write_shard  # isort: skip

# The largest multiples of the table. ScaNN needs all vectors at once, and makes its own copies.
TARGETS = {"brute_force": 1.5, "partitioned": 1.5}
SOURCES = ("files", "array")
NUM_SHARDS = 8


def write_vectors(folder: str, num_items: int, dim: int) -> None:
    """Writes unit vectors around some centres, in shards."""
    centres = np.random.default_rng(0).standard_normal((1_000, dim), np.float32)

    def embed(first: int, last: int) -> np.ndarray:
        random = np.random.default_rng(first)
        rows = centres[random.integers(0, len(centres), last - first)]
        rows += 0.5 * random.standard_normal(rows.shape, np.float32)
        vectors: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return vectors

    for shard in range(NUM_SHARDS):
        write_shard(
            folder,
            shard,
            embed,
            num_shards=NUM_SHARDS,
            num_items=num_items,
            dim=dim,
            origin={"of": "benchmarks.indexing"},
        )


def build(kind: str, source: str, folder: str) -> None:
    """Builds an index, in a child process."""
    files = VectorFiles.open(folder)
    if source == "nothing":
        build_index(kind, files[:6_000])
    else:
        build_index(kind, files if source == "files" else np.asarray(files))


def compare(kind: str, folder: str, table: int) -> bool:
    """Prints the memory that a kind needs; returns whether the target is met."""
    peaks = {
        source: harness.peak_memory_of("benchmarks.indexing", "--build", kind, source, folder)
        for source in ("nothing", *SOURCES)
    }
    tables = {source: (peaks[source] - peaks["nothing"]) / table for source in SOURCES}
    print(
        f"{kind}: {tables['files']:.2f} tables from files, {tables['array']:.2f} with all vectors "
        f"loaded first, a ratio of {tables['files'] / tables['array']:.2f}",
        flush=True,
    )
    if kind not in TARGETS:
        print()
        return True
    return harness.check(f"{kind} from files, in tables", tables["files"], TARGETS[kind])


def main() -> int:
    """Prints the memory of each kind of index; fails if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=2_000_000)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=list(KINDS))
    parser.add_argument("--build", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.build:
        build(*arguments.build)
        return 0
    table = 4 * arguments.items * arguments.dim
    print(
        f"Building an index of {arguments.items:,} items, D={arguments.dim}: peak memory, in "
        f"tables of {table / 1e6:.0f} MB\n{harness.environment()}\n",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        write_vectors(folder, arguments.items, arguments.dim)
        met = [compare(kind, folder, table) for kind in arguments.kinds]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
