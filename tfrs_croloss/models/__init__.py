"""Two-tower models for Keras' ``fit``: the model, its towers, and side features.

``TwoTowerModel`` joins a query tower and a candidate tower with a task; ``CatalogueModel`` ranks
against every item. ``HistoryTower`` and ``ItemTower`` are the paper's towers, ``UserTower``
is that of matrix factorisation, and ``ItemBias`` has biases of items. ``Feature`` and the classes
of the other kinds add side features, which ``FeatureEncoder`` encodes. ``SelfAttentionEncoder`` is
a layer that encodes sequences, in a history tower or any other model.
``RetrievalModel`` is the base of models of your own, in place of ``tfrs.Model``.
"""

from __future__ import annotations

from tfrs_croloss.models.base import RetrievalModel
from tfrs_croloss.models.bias import ItemBias
from tfrs_croloss.models.catalogue import CatalogueModel
from tfrs_croloss.models.features import (
    AgeFeature,
    Feature,
    FeatureEmbedding,
    FeatureEncoder,
    HourFeature,
    NumberFeature,
    QuantileFeature,
    SideFeature,
    TagsFeature,
    TextFeature,
    WeekdayFeature,
)
from tfrs_croloss.models.items import ItemEmbedding, ItemTower
from tfrs_croloss.models.self_attention import SelfAttentionEncoder
from tfrs_croloss.models.towers import HistoryTower, UserTower
from tfrs_croloss.models.two_tower import TwoTowerModel, unit_vectors

__all__ = [
    "AgeFeature",
    "CatalogueModel",
    "Feature",
    "FeatureEmbedding",
    "FeatureEncoder",
    "HistoryTower",
    "HourFeature",
    "ItemBias",
    "ItemEmbedding",
    "ItemTower",
    "NumberFeature",
    "QuantileFeature",
    "RetrievalModel",
    "SelfAttentionEncoder",
    "SideFeature",
    "TagsFeature",
    "TextFeature",
    "TwoTowerModel",
    "UserTower",
    "WeekdayFeature",
    "unit_vectors",
]
