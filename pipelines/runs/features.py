"""The side features that a run is trained with: from prepared columns to those of the library."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.models import (
    AgeFeature,
    Feature,
    HourFeature,
    NumberFeature,
    QuantileFeature,
    SideFeature,
    TagsFeature,
    TextFeature,
    WeekdayFeature,
)

from ..data.batches import ExampleColumns
from ..data.columns import Encoded, as_tensors, gathered
from ..data.features import BELONGINGS, ITEM, MAX_WORDS, Column, FeatureSpec
from ..data.prepared import PreparedData, Split
from ..errors import UserError
from .feature_settings import ALL, NONE
from .settings import TrainSettings


@dataclasses.dataclass(frozen=True)
class RunFeatures:
    """The features of a run, by name.

    Attributes:
      item, user, context: what each feature is.
      item_columns: encoded values of the items.
      trained_items: ``[num_items]`` booleans: which items have interactions in the training split;
        None if all have, or if there are no item features.
    """

    item: Mapping[str, SideFeature] = dataclasses.field(default_factory=dict)
    user: Mapping[str, SideFeature] = dataclasses.field(default_factory=dict)
    context: Mapping[str, SideFeature] = dataclasses.field(default_factory=dict)
    item_columns: Mapping[str, Column] = dataclasses.field(default_factory=dict)
    trained_items: np.ndarray | None = None

    @property
    def query(self) -> dict[str, SideFeature]:
        """The features of the query: those of the user, and of the context."""
        return {**self.user, **self.context}

    def item_values(self) -> dict[str, tf.Tensor | tf.RaggedTensor | np.ndarray]:
        """The encoded values of all items, as ``ItemTower`` takes them."""
        return {
            name: np.asarray(column.values)
            if column.offsets is None
            else tf.RaggedTensor.from_row_splits(
                np.asarray(column.values), np.asarray(column.offsets)
            )
            for name, column in self.item_columns.items()
        }

    def example_columns(self, split: Split) -> ExampleColumns:
        """What the batches of the training split have besides items."""
        negatives = None
        if self.trained_items is not None:
            negatives = np.flatnonzero(self.trained_items).astype(np.int32)
        return ExampleColumns(
            _chosen(split.user_features(), self.user),
            _chosen(split.context_features(), self.context),
            negatives,
        )

    def query_columns(self, split: Split, num_users: int) -> dict[str, Encoded]:
        """The columns of the first users of a split: their features, and their first target's.

        Args:
          split: validation or test split.
          num_users: number of users.
        """
        if not self.query:
            return {}
        assert split.history_lengths is not None
        firsts = np.asarray(split.offsets[:num_users]) + split.history_lengths[:num_users]
        # A user without targets is asked about as after the last item.
        firsts = np.clip(firsts, 0, np.maximum(np.asarray(split.offsets[1 : num_users + 1]) - 1, 0))
        of_users = as_tensors(_chosen(split.user_features(), self.user))
        of_targets = as_tensors(_chosen(split.context_features(), self.context))
        return {
            **gathered(of_users, tf.range(num_users)),
            **gathered(of_targets, tf.constant(firsts)),
        }


def run_features(settings: TrainSettings, data: PreparedData) -> RunFeatures:
    """The features that a run with these settings has on prepared data.

    Raises:
      UserError: a feature was not prepared, or the model does not take any.
    """
    chosen = {of: _selected(settings, data, of) for of in BELONGINGS}
    if settings.tower != "history":
        prepared = [f"--{of}-features {NONE}" for of in BELONGINGS if chosen[of]]
        if prepared:
            raise UserError(
                f"--tower {settings.tower} cannot be combined with side features, since it has a "
                f"vector for each user and nothing else. Received: {data.path}, which has some. "
                f"Pass {' '.join(prepared)}, or use --tower history."
            )
    features = {
        of: {name: library_feature(spec, _dim(settings, of)) for name, spec in specs.items()}
        for of, specs in chosen.items()
    }
    trained = None
    if features["item"] and not np.all(data.item_counts):
        trained = np.asarray(data.item_counts) > 0
    return RunFeatures(
        **features,
        item_columns=_chosen(data.item_features(), features["item"]),
        trained_items=trained,
    )


def describe(features: RunFeatures) -> str:
    """A line for each of items, users and context that has features; empty if none has."""
    lines = []
    for of in BELONGINGS:
        kinds = [f"{name} ({one.kind})" for name, one in getattr(features, of).items()]
        if kinds:
            lines.append(f"\n{of} features: {', '.join(kinds)}")
    if features.trained_items is not None:
        cold = int(np.sum(~features.trained_items))
        lines.append(f"\n{cold:,} items without training interactions, embedded by their features")
    return "".join(lines)


def library_feature(spec: FeatureSpec, dim: int) -> SideFeature:
    """The feature of the library that encodes as prepare does."""
    name, options = spec.name, spec.options
    kinds: dict[str, Any] = {
        "category": lambda: Feature(name, _values(spec), dim),
        "tags": lambda: TagsFeature(name, spec.vocabulary or (), options["separator"], dim),
        "text": lambda: TextFeature(name, options["buckets"], MAX_WORDS, dim),
        "number": lambda: NumberFeature(name, options["mean"], options["deviation"], dim),
        "quantiles": lambda: QuantileFeature(name, tuple(options["boundaries"]), dim),
        "hour": lambda: HourFeature(name, dim),
        "weekday": lambda: WeekdayFeature(name, dim),
        "age": lambda: AgeFeature(
            name, options["until"], options["mean"], options["deviation"], dim
        ),
    }
    feature: SideFeature = kinds[spec.kind]()
    return feature


def _dim(settings: TrainSettings, of: str) -> int:
    if of == ITEM:
        return settings.item_feature_dim or settings.dim
    return settings.feature_dim


def _values(spec: FeatureSpec) -> Any:
    vocabulary = spec.vocabulary or ()
    return tuple(map(int, vocabulary)) if spec.options["integers"] else vocabulary


def _selected(settings: TrainSettings, data: PreparedData, of: str) -> dict[str, FeatureSpec]:
    wanted = getattr(settings, f"{of}_features")
    if wanted == NONE:
        return {}
    prepared = data.features(of)
    names = list(prepared) if wanted == ALL else wanted.split(",")
    unknown = [name for name in names if name not in prepared]
    if unknown:
        raise UserError(
            f"--{of}-features should name prepared features: "
            f"{', '.join(prepared) or f'{data.path} has none'}. Received: {', '.join(unknown)}. "
            f"Prepare the data with --{of}-features, or leave them out."
        )
    # A vocabulary without values is that of a column which is empty in the training part.
    return {name: prepared[name] for name in names if prepared[name].num_codes != 1}


def _chosen(columns: Mapping[str, Column], names: Mapping[str, Any]) -> dict[str, Column]:
    return {name: columns[name] for name in names}
