"""Side features of users, items and interactions: one class for each kind of value.

A feature describes how raw values are encoded as small numbers, in TensorFlow, and how large their
vectors are. ``FeatureEncoder`` encodes columns, and ``FeatureEmbedding`` turns what is encoded
into vectors. A value that is missing is encoded, too.
"""

from __future__ import annotations

from tfrs_croloss.models.features.base import (
    MISSING_INTEGER,
    SideFeature,
    feature_from_config,
)
from tfrs_croloss.models.features.embedding import (
    FeatureEmbedding,
    FeatureEncoder,
    check_names,
    example_columns,
)
from tfrs_croloss.models.features.lists import TagsFeature, TextFeature
from tfrs_croloss.models.features.numbers import NumberFeature, QuantileFeature
from tfrs_croloss.models.features.times import AgeFeature, Cycle, HourFeature, WeekdayFeature
from tfrs_croloss.models.features.vocabulary import Feature

__all__ = [
    "MISSING_INTEGER",
    "AgeFeature",
    "Cycle",
    "Feature",
    "FeatureEmbedding",
    "FeatureEncoder",
    "HourFeature",
    "NumberFeature",
    "QuantileFeature",
    "SideFeature",
    "TagsFeature",
    "TextFeature",
    "WeekdayFeature",
    "check_names",
    "example_columns",
    "feature_from_config",
]
