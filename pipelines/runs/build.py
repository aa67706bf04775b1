"""From settings to a loss, a model and an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.losses import CROLoss, LambdaCROLoss, RetrievalLoss, baselines
from tfrs_croloss.memory import CandidateMemory
from tfrs_croloss.models import HistoryTower, ItemEmbedding, ItemTower, TwoTowerModel
from tfrs_croloss.optimizers import LazyAdam
from tfrs_croloss.tasks import CatalogueRetrieval, Retrieval

from ..errors import UserError
from .factorization import CatalogueModel, UserTower
from .settings import LAZY_FROM_ROWS, TrainSettings

_FINAL_SHARE = 0.01

# A step may build several models, each of which traces its functions anew: no reason to warn.
tf.get_logger().addFilter(
    lambda record: "triggered tf.function retracing" not in record.getMessage()
)


def build_loss(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    """The loss for a catalogue of ``num_items``."""
    try:
        rival = _rival(settings, num_items)
        return _rank_loss(settings, num_items) if rival is None else rival
    except ValueError as error:
        raise UserError(f"the loss cannot be built. {error}") from error


def _rank_loss(settings: TrainSettings, num_items: int) -> RetrievalLoss:
    def kernel(name: str) -> str | Mapping[str, Any]:
        return {"name": "hinge", "margin": settings.margin} if name == "hinge" else name

    options: dict[str, Any] = {
        "alpha": settings.alpha,
        "kernel": kernel(settings.kernel),
        "num_items": num_items,
        "rank_estimate": settings.rank_estimate,
    }
    if settings.retrieval_size is not None:
        options["retrieval_size"] = settings.retrieval_size
    if settings.rank_kernel is None:
        return CROLoss(**options)
    return LambdaCROLoss(rank_kernel=kernel(settings.rank_kernel), **options)


def _rival(settings: TrainSettings, num_items: int) -> RetrievalLoss | None:
    """The loss, if it is not of the CROLoss family."""
    if settings.loss in ("bce", "gbce"):
        calibration = settings.calibration if settings.loss == "gbce" else 0.0
        return baselines.BinaryCrossEntropy(calibration, num_items, name=settings.loss)
    if settings.loss == "psl":
        # Half of it brings differences of cosines into the range that the activations are for.
        temperature = settings.temperature / 2.0
        return baselines.PairwiseSoftmaxLoss(settings.activation, temperature, num_items)
    if settings.loss == "bsl":
        return baselines.BilateralSoftmax(settings.negative_exponent, num_items)
    if settings.loss == "sl_at_k":
        assert settings.retrieval_size is not None
        # The loss sees scores that the task has divided by the temperature.
        weight_temperature = settings.weight_temperature / settings.temperature
        return baselines.SoftmaxAtK(settings.retrieval_size, weight_temperature, num_items)
    return None


def build_model(
    settings: TrainSettings,
    num_items: int,
    item_counts: np.ndarray | None = None,
    num_users: int | None = None,
) -> TwoTowerModel:
    """The paper's two towers with the task, its variables made.

    Args:
      settings: of the run.
      num_items: size of the catalogue.
      item_counts: ``[num_items]`` interactions of each item in the training split; needed to train
        with in-batch negatives.
      num_users: in the training split; needed by a matrix factorisation.
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
    return UserTower(num_users, settings.dim, settings.seed), "user"


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
    model: TwoTowerModel,
    histories: np.ndarray,
    numbers: np.ndarray | None = None,
    block_size: int = 1024,
) -> np.ndarray:
    """Query vectors ``[num_users, dim]``.

    Args:
      model: what embeds.
      histories: ``[num_users, history_length]``, padded.
      numbers: ``[num_users]``, of the users in the training split, for a matrix factorisation.
      block_size: users at a time.
    """
    name, column = ("history", histories) if numbers is None else ("user", numbers)
    # Unlike `predict`, this leaves a strategy's other devices alone.
    blocks = [
        model.embed_query_block({name: tf.constant(column[first : first + block_size])}).numpy()
        for first in range(0, len(column), block_size)
    ]
    vectors: np.ndarray = np.concatenate(blocks)
    return vectors
