"""Two-tower models for Keras' ``fit``: the model, its towers, and side features.

``TwoTowerModel`` joins a query tower and a candidate tower with a task; ``CatalogueModel`` ranks
against every item. ``HistoryTower`` and ``ItemTower`` are the paper's towers, ``UserTower``
is that of matrix factorisation, and ``Feature`` adds side features.
"""

from __future__ import annotations

from tfrs_croloss._keras import require_keras_2

require_keras_2("tfrs_croloss.models")

from tfrs_croloss.models.features import Feature  # noqa: E402
from tfrs_croloss.models.towers import (  # noqa: E402
    HistoryTower,
    ItemEmbedding,
    ItemTower,
    UserTower,
)
from tfrs_croloss.models.two_tower import (  # noqa: E402
    CatalogueModel,
    TwoTowerModel,
    unit_vectors,
)

__all__ = [
    "CatalogueModel",
    "Feature",
    "HistoryTower",
    "ItemEmbedding",
    "ItemTower",
    "TwoTowerModel",
    "UserTower",
    "unit_vectors",
]
