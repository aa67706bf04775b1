"""From settings to a loss, a model and an optimizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.losses import RetrievalLoss
from tfrs_croloss.memory import CandidateMemory
from tfrs_croloss.models import (
    CatalogueModel,
    HistoryTower,
    ItemEmbedding,
    ItemTower,
    TwoTowerModel,
    UserTower,
)
from tfrs_croloss.optimizers import LazyAdam
from tfrs_croloss.tasks import CatalogueRetrieval, Retrieval

from ..errors import UserError
from .losses import LOSSES
from .settings import FINAL_RATE_SHARE, LAZY_FROM_ROWS, TrainSettings


def build_loss(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    """The loss for a catalogue of ``num_items``."""
    try:
        return LOSSES[settings.loss].build(settings, num_items)
    except ValueError as error:
        raise UserError(f"the loss cannot be built. {error}") from error


def build_model(
    settings: TrainSettings,
    num_items: int,
    item_counts: np.ndarray | None = None,
    num_users: int | None = None,
) -> TwoTowerModel:
    """The two towers with their task, with all variables created.

    Args:
      settings: settings of the run.
      num_items: size of the catalogue.
      item_counts: ``[num_items]`` interactions of each item in the training split; needed to train
        with in-batch negatives.
      num_users: number of users in the training split; needed by a matrix factorisation.
    """
    embedding = ItemEmbedding(num_items, settings.dim, seed=settings.seed)
    probabilities = None
    by_popularity = settings.in_batch_negatives or settings.memory_size
    if by_popularity and item_counts is not None:
        probabilities = item_counts / item_counts.sum()
    memory = None
    if settings.memory_size:
        memory = CandidateMemory(settings.memory_size, settings.dim)
    query_tower, query_inputs = _query_tower(settings, embedding, num_users)
    loss = build_loss(settings, num_items)
    if settings.whole_catalogue:
        model: TwoTowerModel = CatalogueModel(
            num_items,
            query_tower,
            ItemTower(embedding),
            CatalogueRetrieval(loss, temperature=settings.temperature),
            similarity=settings.similarity,
            query_inputs=query_inputs,
        )
    else:
        model = TwoTowerModel(
            query_tower,
            ItemTower(embedding),
            Retrieval(loss, temperature=settings.temperature),
            similarity=settings.similarity,
            in_batch_negatives=settings.in_batch_negatives,
            candidate_probabilities=probabilities,
            memory=memory,
            query_inputs=query_inputs,
        )
    history = tf.fill([1, settings.history_length], num_items)
    model.embed_queries({"history": history, "user": tf.constant([0])})
    model.embed_candidates({"item_id": tf.constant([0])})
    return model


def _query_tower(
    settings: TrainSettings, embedding: ItemEmbedding, num_users: int | None
) -> tuple[tf.keras.Model, str]:
    """The tower, and the column that it takes."""
    if settings.tower == "history":
        return HistoryTower(embedding, encoder=settings.encoder), "history"
    if num_users is None:
        raise UserError(
            "this step should have a model that knows users by their histories. Received: one of "
            "--tower matrix-factorization. Train with --tower history."
        )
    # Not the seed of the items: equal streams would make user i the twin of item i.
    return UserTower(num_users, settings.dim, seed=settings.seed + 1), "user"


def build_optimizer(
    settings: TrainSettings, num_items: int, total_steps: int
) -> tf.keras.optimizers.Optimizer:
    """Adam or LazyAdam, with the schedule of the learning rate."""
    name = settings.optimizer
    if name == "auto":
        name = "lazy-adam" if num_items >= LAZY_FROM_ROWS else "adam"
    kind = LazyAdam if name == "lazy-adam" else tf.keras.optimizers.Adam
    return kind(learning_rate=_schedule(settings, total_steps))


def _schedule(settings: TrainSettings, total_steps: int) -> Any:
    start = settings.learning_rate
    if settings.schedule == "cosine":
        return tf.keras.optimizers.schedules.CosineDecay(start, total_steps, alpha=FINAL_RATE_SHARE)
    if settings.schedule == "linear":
        return tf.keras.optimizers.schedules.PolynomialDecay(
            start, total_steps, start * FINAL_RATE_SHARE
        )
    if settings.schedule == "exponential":
        return tf.keras.optimizers.schedules.ExponentialDecay(start, total_steps, FINAL_RATE_SHARE)
    return start


def embed_histories(
    model: TwoTowerModel,
    histories: np.ndarray,
    numbers: np.ndarray | None = None,
    block_size: int = 1024,
) -> np.ndarray:
    """Query vectors ``[num_users, dim]``.

    Args:
      model: model that embeds the users.
      histories: ``[num_users, history_length]``, padded.
      numbers: ``[num_users]``, numbers of the users in the training split, for a matrix
        factorisation.
      block_size: number of users to embed at a time.
    """
    name, column = ("history", histories) if numbers is None else ("user", numbers)
    # Unlike `predict`, this leaves a strategy's other devices alone.
    blocks = [
        model.embed_query_block({name: tf.constant(column[first : first + block_size])}).numpy()
        for first in range(0, len(column), block_size)
    ]
    vectors: np.ndarray = np.concatenate(blocks)
    return vectors
