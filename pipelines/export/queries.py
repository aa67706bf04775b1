"""The queries of a run's model, as `tfrs_croloss.serving.export` takes them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.models import FeatureEncoder, TwoTowerModel
from tfrs_croloss.serving import History, KnownIds, WithDefault

from ..data.batches import EvaluationInput
from ..data.prepared import PreparedData
from ..runs.build import embed_histories
from ..runs.features import RunFeatures
from ..runs.ranks import evaluation_users
from ..runs.settings import TrainSettings
from .raw_values import raw_column


@dataclasses.dataclass(frozen=True)
class Queries:
    """The queries of a run, in the form of requests, and the model that embeds them.

    Attributes:
      model: function of a mapping with the query features.
      tracked: module that owns the variables of ``model``.
      features: the query features whose values are ids, or may be left out.
      examples: queries of users of the validation split.
      check_examples: queries of users of the test split.
      example: options of ``query`` for one of them.
    """

    model: Callable[[Mapping[str, tf.Tensor]], tf.Tensor]
    tracked: tf.Module
    features: dict[str, History | KnownIds | WithDefault]
    examples: dict[str, Any]
    check_examples: dict[str, Any]
    example: tuple[str, str]


class RawQueries(tf.Module):
    """Queries whose features have raw values, which are encoded as they were in training.

    Args:
      model: model whose query tower takes encoded features.
      features: the features of the run.
    """

    def __init__(self, model: TwoTowerModel, features: RunFeatures) -> None:
        super().__init__(name="raw_queries")
        self._encoder = FeatureEncoder(list(features.query.values()))
        self._tower = model.query_tower
        # A bound method is not tracked: the tower is all that it needs.
        self._embed = functools.partial(model.embed_queries)

    def __call__(self, features: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Vectors ``[batch, dim]`` of histories and raw features."""
        return self._embed({"history": features["history"], **self._encoder(features)})


class TrainedUsers(tf.Module):
    """Users by their numbers; any other number is the average user.

    Args:
      model: matrix factorisation.
      num_users: number of users that it was trained on.
    """

    def __init__(self, model: TwoTowerModel, num_users: int) -> None:
        super().__init__(name="trained_users")
        vectors = embed_histories(model, np.empty(0), np.arange(num_users))
        average = vectors.mean(axis=0, keepdims=True)
        self._vectors = tf.Variable(np.concatenate([vectors, average]), trainable=False)

    def __call__(self, features: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Vectors ``[batch, dim]``; items score for the average user as they do on average."""
        return tf.gather(tf.convert_to_tensor(self._vectors), features["user"])


def run_queries(
    model: TwoTowerModel,
    settings: TrainSettings,
    data: PreparedData,
    features: RunFeatures,
    num_users: int,
    item_ids: list[str],
) -> Queries:
    """The queries of a run's model: histories of items, or ids of the users it was trained on.

    Args:
      model: model with the weights of the run.
      settings: settings of the run.
      data: data of the run.
      features: side features of the run.
      num_users: maximum number of example users of each split.
      item_ids: ids of the items, those of the data first.
    """
    valid, test = (
        evaluation_users(data, split, settings, num_users) for split in ("valid", "test")
    )
    if settings.tower == "history":
        # The padding of a history is one past the last item.
        names = np.array([*item_ids[: data.num_items], ""], object)

        def examples(users: EvaluationInput) -> dict[str, Any]:
            raw = {
                name: raw_column(feature, users.columns[name])
                for name, feature in features.query.items()
            }
            return {"history": names[users.histories], **raw}

        raw_queries = RawQueries(model, features) if features.query else None
        optional = {name: WithDefault(one.missing) for name, one in features.query.items()}
        return Queries(
            model=raw_queries or model.embed_queries,
            tracked=raw_queries or model.query_tower,
            features={"history": History(settings.history_length), **optional},
            examples=examples(valid),
            check_examples=examples(test),
            example=("--history", ",".join(item_ids[:2])),
        )
    trained = data.split("train").user_ids()
    names = np.array(trained, object)
    tower = TrainedUsers(model, len(trained))
    return Queries(
        model=tower,
        tracked=tower,
        features={"user": KnownIds(trained)},
        examples={"user": names[valid.numbers]},
        check_examples={"user": names[test.numbers]},
        example=("--user", trained[0]),
    )
