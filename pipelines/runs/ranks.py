"""Ranks of a split's targets: what the library's metrics need for them, and those of a run.

Items of the user's history compete like all others, as in the paper, unless they are excluded. A
target that is excluded with the history can never be retrieved: it ranks behind the catalogue.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.losses import RetrievalSizeWeighting
from tfrs_croloss.metrics import RankingReport, ShardedCatalogue, evaluate
from tfrs_croloss.models import TwoTowerModel

from ..data.batches import EvaluationInput
from ..data.prepared import PreparedData
from ..errors import UserError
from .build import build_model, embed_histories
from .checkpoints import restore_best
from .distribution import Cluster
from .features import run_features
from .folder import Run
from .settings import TrainSettings


def evaluation_users(
    data: PreparedData, split: str, settings: TrainSettings, max_users: int | None = None
) -> EvaluationInput:
    """The users of a split, or the first ``max_users``, as a model of these settings takes them."""
    users = EvaluationInput.of(
        data.split(split), data.num_items, settings.history_length, max_users
    )
    if settings.tower == "history":
        features = run_features(settings, data)
        columns = features.query_columns(data.split(split), len(users.histories))
        return dataclasses.replace(users, columns=columns)
    numbers = user_numbers(data, split)[: len(users.histories)]
    return dataclasses.replace(users, numbers=numbers)


def expected_recall_alpha(settings: TrainSettings) -> float:
    """The alpha of expected recall: that of the loss, or the one that suits its retrieval size."""
    if settings.retrieval_size is None:
        return settings.alpha
    return RetrievalSizeWeighting(settings.retrieval_size).alpha


def with_validation(users: EvaluationInput, data: PreparedData) -> EvaluationInput:
    """Test users whose targets of the validation split count as seen, like their histories.

    Raises:
      UserError: the test users have no targets in the validation split.
    """
    valid = data.split("valid")
    assert valid.history_lengths is not None
    places = {name: place for place, name in enumerate(valid.user_ids())}
    found = [places.get(name) for name in data.split("test").user_ids()[: len(users.histories)]]
    if all(place is None for place in found):
        raise UserError(
            "--exclude-validation requires data whose test users also have validation pairs, "
            f"such as --source presplit writes. Received: {data.path}, whose users are split. "
            "Leave it out."
        )
    middles = valid.offsets[:-1] + valid.history_lengths
    none = valid.items[:0]
    targets = [
        none if place is None else valid.items[middles[place] : valid.offsets[place + 1]]
        for place in found
    ]
    lengths = [len(items) for items in targets]
    values = np.concatenate(targets)
    seen = tf.concat([users.seen, tf.RaggedTensor.from_row_lengths(values, lengths)], axis=1)
    return dataclasses.replace(users, seen=seen)


def user_numbers(data: PreparedData, split: str) -> np.ndarray:
    """``[num_users]`` int32: the number of each user of ``split`` in the training split.

    Raises:
      UserError: a user is not in the training split.
    """
    numbers = {name: number for number, name in enumerate(data.split("train").user_ids())}
    names = data.split(split).user_ids()
    unknown = [name for name in names if name not in numbers]
    if unknown:
        raise UserError(
            "--tower matrix-factorization requires data whose users are all in the training "
            "split, as 'prepare' writes with --source presplit or --split leave-one-out. "
            f"{len(unknown):,} of the {len(names):,} users of split '{split}' in {data.path} are "
            "not. Use --tower history."
        )
    return np.array([numbers[name] for name in names], np.int32)


def shared_catalogue(
    model: TwoTowerModel, num_items: int, strategy: tf.distribute.Strategy | None
) -> ShardedCatalogue | None:
    """The catalogue in parts over the replicas of a synchronous strategy; None for one replica.

    Args:
      model: model that was built under the strategy.
      num_items: size of the catalogue.
      strategy: strategy of the training; None stands for one replica.
    """
    if strategy is None or strategy.num_replicas_in_sync == 1:
        return None
    return ShardedCatalogue(
        strategy, lambda item_ids: model.embed_candidates({"item_id": item_ids}), num_items
    )


def catalogue_of(
    model: TwoTowerModel, num_items: int, shared: ShardedCatalogue | None = None
) -> tf.Tensor | ShardedCatalogue:
    """The item vectors to rank among: those that replicas share, or else all in one tensor."""
    return model.embed_catalogue(num_items) if shared is None else shared


def pairs_of(users: EvaluationInput, exclude_history: bool) -> dict[str, Any]:
    """Whose targets are ranked among which items, as arguments of the library's metrics.

    Args:
      users: users with their histories and targets.
      exclude_history: whether items of the history do not compete.
    """
    return {
        "query_rows": users.users,
        "excluded": users.seen if exclude_history else None,
        "excluded_positives": "miss",
    }


def trained_report(
    trained: Run,
    data: PreparedData,
    users: EvaluationInput,
    exclude_history: bool,
    cluster: Cluster | None = None,
    **options: Any,
) -> RankingReport:
    """The report of the users' targets by the best weights of a run.

    Args:
      trained: run.
      data: data of the run.
      users: users with their histories and targets.
      exclude_history: whether items of the history do not compete.
      cluster: processes that evaluate together; by default this one alone.
      **options: ``cutoffs`` and ``alpha`` of `tfrs_croloss.metrics.evaluate`.
    """
    cluster = cluster or Cluster()
    num_users = data.split("train").num_users
    with cluster.strategy.scope():
        features = run_features(trained.settings, data)
        model = build_model(
            trained.settings, data.num_items, num_users=num_users, features=features
        )
        restore_best(trained.path, model)
    shared = shared_catalogue(model, data.num_items, cluster.strategy)
    if shared is not None and cluster.is_chief:
        print(f"catalogue: {shared.num_items:,} items, shared by {shared.num_parts} replicas")
    return evaluate(
        embed_histories(model, users.histories, users.numbers, users.columns),
        catalogue_of(model, data.num_items, shared),
        users.targets,
        **pairs_of(users, exclude_history),
        **options,
    )


def ranks_by_chance(
    users: EvaluationInput, num_items: int, exclude_history: bool, seed: int
) -> np.ndarray:
    """Ranks ``[num_pairs]`` in a random order of the items for each user."""
    generator = np.random.default_rng(seed)
    competing = np.full(len(users.histories), num_items)
    is_excluded = np.zeros(len(users.targets), bool)
    if exclude_history:
        owners = users.seen.value_rowids().numpy()
        keys = np.unique(owners * num_items + users.seen.values.numpy())
        competing -= np.bincount(keys // num_items, minlength=len(competing))
        is_excluded = np.isin(users.users * num_items + users.targets, keys)
    # At least 1 for a user who has seen everything, whose targets are all excluded.
    ranks = generator.integers(1, np.maximum(competing, 1)[users.users] + 1)
    return np.where(is_excluded, num_items + 1, ranks)
