"""Retrieval tasks, which turn query and candidate vectors into a loss, in place of TFRS' task.

``Retrieval`` compares each query with the candidates of the batch, ``CatalogueRetrieval`` with
every item. Both are Keras layers, and under Keras 2 also ``tfrs.tasks.Task``.
``CandidateFrequencies`` and ``StreamingFrequencies`` tell ``Retrieval`` how likely each candidate
is to be drawn.
"""

from __future__ import annotations

from tfrs_croloss.tasks.catalogue import CatalogueRetrieval
from tfrs_croloss.tasks.frequencies import (
    CandidateFrequencies,
    StreamingFrequencies,
)
from tfrs_croloss.tasks.retrieval import Retrieval

__all__ = ["CandidateFrequencies", "CatalogueRetrieval", "Retrieval", "StreamingFrequencies"]
