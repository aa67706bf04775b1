"""From settings to a loss, a model and an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipelines.errors import UserError
from pipelines.settings import LAZY_FROM_ROWS, TrainSettings
from tfrs_croloss.losses import CROLoss, LambdaCROLoss, RetrievalLoss
from tfrs_croloss.memory import CandidateMemory
from tfrs_croloss.models import HistoryTower, ItemEmbedding, ItemTower, TwoTowerModel
from tfrs_croloss.optimizers import LazyAdam
from tfrs_croloss.tasks import Retrieval

_FINAL_SHARE = 0.01


def build_loss(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    """The loss for a catalogue of ``num_items``."""

    def kernel(name: str) -> str | Mapping[str, Any]:
        return {"name": "hinge", "margin": settings.margin} if name == "hinge" else name

    options: dict[str, Any] = {
        "alpha": settings.alpha,
        "kernel": kernel(settings.kernel),
        "num_items": num_items,
        "rank_estimate": settings.rank_estimate,
    }
    try:
        if settings.rank_kernel is None:
            return CROLoss(**options)
        return LambdaCROLoss(rank_kernel=kernel(settings.rank_kernel), **options)
    except ValueError as error:
        raise UserError(f"the loss cannot be built. {error}") from error


def build_model(
    settings: TrainSettings, num_items: int, item_counts: np.ndarray | None = None
) -> TwoTowerModel:
    """The paper's two towers with the task, its variables made.

    Args:
      settings: of the run.
      num_items: size of the catalogue.
      item_counts: ``[num_items]`` interactions of each item in the training split; needed to train
        with in-batch negatives.
    """
    embedding = ItemEmbedding(num_items, settings.dim, seed=settings.seed)
    probabilities = None
    by_popularity = settings.in_batch_negatives or settings.memory_size
    if by_popularity and item_counts is not None:
        probabilities = item_counts / item_counts.sum()
    memory = None
    if settings.memory_size:
        memory = CandidateMemory(settings.memory_size, settings.dim)
    model = TwoTowerModel(
        HistoryTower(embedding, encoder=settings.encoder),
        ItemTower(embedding),
        Retrieval(build_loss(settings, num_items), temperature=settings.temperature),
        similarity=settings.similarity,
        in_batch_negatives=settings.in_batch_negatives,
        candidate_probabilities=probabilities,
        memory=memory,
    )
    history = tf.fill([1, settings.history_length], num_items)
    model.embed_queries({"history": history})
    model.embed_candidates({"item_id": tf.constant([0])})
    return model


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
        return tf.keras.optimizers.schedules.CosineDecay(start, total_steps, alpha=_FINAL_SHARE)
    if settings.schedule == "linear":
        return tf.keras.optimizers.schedules.PolynomialDecay(
            start, total_steps, start * _FINAL_SHARE
        )
    if settings.schedule == "exponential":
        return tf.keras.optimizers.schedules.ExponentialDecay(start, total_steps, _FINAL_SHARE)
    return start


def embed_histories(
    model: TwoTowerModel, histories: np.ndarray, block_size: int = 1024
) -> np.ndarray:
    """Query vectors ``[num_users, dim]`` of padded histories ``[num_users, history_length]``."""
    vectors: np.ndarray = model.predict({"history": histories}, batch_size=block_size, verbose=0)
    return vectors
