"""Two-tower models for Keras' ``fit``: the model, its towers, and side features.

``TwoTowerModel`` joins a query tower and a candidate tower with a task; ``CatalogueModel`` ranks
against every item. ``HistoryTower``, ``UserTower`` and ``ItemTower`` are the paper's towers, and
``Feature`` adds side features to them.
"""

from __future__ import annotations

from tfrs_croloss._keras import require_keras_2

require_keras_2("tfrs_croloss.models")

from tfrs_croloss.models.features import Feature  # noqa: E402
from tfrs_croloss.models.towers import HistoryTower, ItemEmbedding, ItemTower  # noqa: E402
from tfrs_croloss.models.two_tower import TwoTowerModel, unit_vectors  # noqa: E402

__all__ = [
    "Feature",
    "HistoryTower",
    "ItemEmbedding",
    "ItemTower",
    "TwoTowerModel",
    "unit_vectors",
]
