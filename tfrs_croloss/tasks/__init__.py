"""Retrieval tasks, which turn query and candidate vectors into a loss, in place of TFRS' task.

``Retrieval`` compares each query with the candidates of the batch, ``CatalogueRetrieval`` with
every item. Both are Keras layers and ``tfrs.tasks.Task``.
"""

from __future__ import annotations

from tfrs_croloss._keras import require_keras_2

require_keras_2("tfrs_croloss.tasks")

from tfrs_croloss.tasks.catalogue import CatalogueRetrieval  # noqa: E402
from tfrs_croloss.tasks.retrieval import Retrieval  # noqa: E402

__all__ = ["CatalogueRetrieval", "Retrieval"]
