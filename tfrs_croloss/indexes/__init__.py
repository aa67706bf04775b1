"""Top-N indexes over item embeddings: exact search, a partitioned index, and ScaNN.

``BruteForceIndex`` and ``PartitionedIndex`` consist of plain TensorFlow operations that any server
can load; ``ScannIndex`` is the fastest and needs ScaNN's operations. ``tuning`` finds settings that
reach a target recall, and ``vectors`` keeps the embeddings of large catalogues in files.
"""

from __future__ import annotations

from tfrs_croloss.indexes import tuning, vectors
from tfrs_croloss.indexes.base import BruteForceIndex, Index
from tfrs_croloss.indexes.partitioned import PartitionedIndex
from tfrs_croloss.indexes.scann import ScannIndex, ScannUnavailable
from tfrs_croloss.indexes.tuning import RecallNotReached, build_index, measure, tune
from tfrs_croloss.indexes.vectors import VectorFiles, read_shards, write_shard

__all__ = [
    "BruteForceIndex",
    "Index",
    "PartitionedIndex",
    "RecallNotReached",
    "ScannIndex",
    "ScannUnavailable",
    "VectorFiles",
    "build_index",
    "measure",
    "read_shards",
    "tune",
    "tuning",
    "vectors",
    "write_shard",
]
