"""Matrix factorisation, and training against the whole catalogue, as parts of the same model.

A matrix factorisation has one vector for each training user instead of a tower over the history, so
it can only answer for users that it was trained on: data whose pairs, not users, are split.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.models import TwoTowerModel
from tfrs_croloss.models.two_tower import Features
from tfrs_croloss.tasks import CatalogueRetrieval
from tfrs_croloss.tasks._candidates import CandidateFilter

from ..data.prepared import PreparedData
from ..errors import UserError

_PROBED_QUERIES = 64


class UserTower(tf.keras.Model):
    """A row of a table for each training user: ``[batch]`` numbers to ``[batch, dim]`` vectors.

    Args:
      num_users: in the training split.
      dim: of the vectors.
      seed: of the normal distribution that the table starts from.
    """

    def __init__(self, num_users: int, dim: int, seed: int) -> None:
        super().__init__(name="user_tower")
        # Not the seed of the items: equal streams would make user i the twin of item i.
        start = tf.keras.initializers.RandomNormal(stddev=0.05, seed=seed + 1)
        self._table = tf.keras.layers.Embedding(
            num_users, dim, embeddings_initializer=start, name="table"
        )

    def call(self, users: tf.Tensor) -> tf.Tensor:
        """The users' vectors."""
        return self._table(users)


class CatalogueModel(TwoTowerModel):
    """Two towers whose loss ranks each positive against every item, not against a sample.

    Args:
      num_items: size of the catalogue.
      query_tower, candidate_tower, options: as in ``TwoTowerModel``; the task is a
        ``CatalogueRetrieval``.
    """

    def __init__(
        self,
        num_items: int,
        query_tower: tf.keras.Model,
        candidate_tower: tf.keras.Model,
        task: CatalogueRetrieval,
        **options: Any,
    ) -> None:
        super().__init__(query_tower, candidate_tower, task, **options)
        self._num_items = num_items

    def compute_loss(self, features: Features, training: bool = False) -> tf.Tensor:
        """The task's loss on a batch of features."""
        return self.task(
            self.embed_queries(features, training=training),
            self._catalogue(training),
            features["item_id"],
            known_positive_items=features.get("known_item_ids"),
            compute_metrics=not training,
        )

    def scored_batch(
        self, features: Features, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """As in ``TwoTowerModel``, for the first queries of the batch: positives, then all items.

        Only what is watched in training comes through here, so a part of the batch is enough, and
        the scores of large catalogues fit into memory.
        """
        features = {name: column[:_PROBED_QUERIES] for name, column in features.items()}
        positives = features["item_id"]
        catalogue = self._catalogue(training)
        ids = tf.concat([positives, tf.range(self._num_items, dtype=positives.dtype)], axis=0)
        candidates = tf.concat([tf.gather(catalogue, positives), catalogue], axis=0)
        num_queries, num_candidates = tf.shape(positives)[0], tf.size(ids)
        mask = tf.logical_or(
            tf.eye(num_queries, num_candidates, dtype=tf.bool),
            tf.range(num_candidates)[tf.newaxis, :] >= num_queries,
        )
        known = features.get("known_item_ids")
        allowed = CandidateFilter(num_queries, num_candidates, mask, ids, True, known)
        queries = self.embed_queries(features, training=training)
        return queries, candidates, ids, allowed.considered(0, num_queries)

    def _catalogue(self, training: bool) -> tf.Tensor:
        return self.embed_candidates({"item_id": tf.range(self._num_items)}, training=training)


def user_numbers(data: PreparedData, split: str) -> np.ndarray:
    """``[num_users]`` int32: the number of each user of ``split`` in the training split.

    Raises:
      UserError: somebody is not there.
    """
    numbers = {name: number for number, name in enumerate(data.split("train").user_ids())}
    names = data.split(split).user_ids()
    unknown = [name for name in names if name not in numbers]
    if unknown:
        raise UserError(
            "--tower matrix-factorization should have data whose users are all in the training "
            f"split, such as --source presplit makes. {len(unknown):,} of the {len(names):,} users "
            f"of split '{split}' in {data.path} are not. Use --tower history."
        )
    return np.array([numbers[name] for name in names], np.int32)
