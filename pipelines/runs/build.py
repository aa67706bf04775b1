"""From settings to a loss, a model and an optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.losses import RetrievalLoss
from tfrs_croloss.memory import CandidateMemory
from tfrs_croloss.models import (
    CatalogueModel,
    HistoryTower,
    ItemBias,
    ItemEmbedding,
    ItemTower,
    SelfAttentionEncoder,
    TwoTowerModel,
    UserTower,
)
from tfrs_croloss.models.features import example_columns
from tfrs_croloss.optimizers import LazyAdam
from tfrs_croloss.tasks import CatalogueRetrieval, Retrieval

from ..errors import UserError
from .features import RunFeatures
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
    features: RunFeatures | None = None,
) -> TwoTowerModel:
    """The two towers with their task, with all variables created.

    Args:
      settings: settings of the run.
      num_items: size of the catalogue.
      item_counts: ``[num_items]`` interactions of each item in the training split; needed to train
        with in-batch negatives.
      num_users: number of users in the training split; needed by a matrix factorisation.
      features: side features of the run; none by default.
    """
    features = features or RunFeatures()
    embedding = ItemEmbedding(num_items, settings.dim, settings.stddev, settings.seed)
    probabilities = None
    by_popularity = settings.in_batch_negatives or settings.memory_size
    if by_popularity and item_counts is not None:
        probabilities = item_counts / item_counts.sum()
    memory = None
    if settings.memory_size:
        memory = CandidateMemory(settings.memory_size, settings.dim + settings.item_bias)
    item_bias = ItemBias(num_items) if settings.item_bias else None
    item_tower = _item_tower(settings, embedding, features)
    # The tower itself only where it adds to the rows: runs without features keep their checkpoints.
    items = item_tower if features.item else embedding
    query_tower, query_inputs = _query_tower(settings, items, num_users, features)
    loss = build_loss(settings, num_items)
    if settings.whole_catalogue:
        model: TwoTowerModel = CatalogueModel(
            num_items,
            query_tower,
            item_tower,
            CatalogueRetrieval(loss, temperature=settings.temperature),
            similarity=settings.similarity,
            item_bias=item_bias,
            weight_decay=settings.weight_decay,
            query_inputs=query_inputs,
            trained_items=features.trained_items,
        )
    else:
        model = TwoTowerModel(
            query_tower,
            item_tower,
            Retrieval(loss, temperature=settings.temperature),
            similarity=settings.similarity,
            item_bias=item_bias,
            weight_decay=settings.weight_decay,
            in_batch_negatives=settings.in_batch_negatives,
            candidate_probabilities=probabilities,
            memory=memory,
            query_inputs=query_inputs,
        )
    history = tf.fill([1, settings.history_length], num_items)
    query = example_columns(list(features.query.values()), encoded=True)
    model.embed_queries({"history": history, "user": tf.constant([0]), **query})
    model.embed_candidates({"item_id": tf.constant([0])})
    return model


def _query_tower(
    settings: TrainSettings,
    items: ItemEmbedding | ItemTower,
    num_users: int | None,
    features: RunFeatures,
) -> tuple[tf.keras.Model, str | Sequence[str]]:
    """The tower, and the column or columns that it takes."""
    if settings.tower == "history":
        tower = HistoryTower(
            items,
            encoder=_encoder(settings),
            features=list(features.user.values()),
            context_features=list(features.context.values()),
            hidden=settings.hidden,
            encoded=True,
        )
        return tower, ["history", *features.query] if features.query else "history"
    if num_users is None:
        raise UserError(
            "this step should have a model that knows users by their histories. Received: one of "
            "--tower matrix-factorization. Train with --tower history."
        )
    # Not the seed of the items: equal streams would make user i the twin of item i.
    return UserTower(num_users, settings.dim, settings.stddev, settings.seed + 1), "user"


def _item_tower(
    settings: TrainSettings, embedding: ItemEmbedding, features: RunFeatures
) -> ItemTower:
    return ItemTower(
        embedding,
        list(features.item.values()),
        features.item_values(),
        hidden=settings.hidden,
        encoded=True,
        id_dropout=settings.item_id_dropout if features.item else 0.0,
        trained_items=features.trained_items,
        seed=settings.seed % 2**31,
    )


def _encoder(settings: TrainSettings) -> str | SelfAttentionEncoder:
    if settings.encoder != "transformer":
        return settings.encoder
    return SelfAttentionEncoder(
        max_length=settings.history_length,
        blocks=settings.blocks,
        heads=settings.heads,
        dropout=settings.dropout,
        seed=settings.seed % 2**31,
    )


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
    columns: Mapping[str, tf.Tensor | tf.RaggedTensor] | None = None,
    block_size: int = 1024,
) -> np.ndarray:
    """Query vectors ``[num_users, dim]``.

    Histories of similar length share a block, which is as wide as its longest one, so that little
    of the work is on padding.

    Args:
      model: model that embeds the users.
      histories: ``[num_users, history_length]``, padded at the end.
      numbers: ``[num_users]``, numbers of the users in the training split, for a matrix
        factorisation.
      columns: encoded features of the queries, by name.
      block_size: number of users to embed at a time.
    """
    if numbers is None:
        are_items = histories != model.query_tower.embedding.padding_id
        lengths = np.count_nonzero(are_items, axis=1)
        order = np.argsort(lengths, kind="stable")
    else:
        order = np.arange(len(numbers))
    blocks = []
    for first in range(0, len(order), block_size):
        rows = order[first : first + block_size]
        features = {key: tf.gather(values, rows) for key, values in (columns or {}).items()}
        if numbers is None:
            width = max(int(lengths[rows[-1]]), 1)
            features["history"] = tf.constant(histories[rows, :width])
        else:
            features["user"] = tf.constant(numbers[rows])
        # Unlike `predict`, this leaves a strategy's other devices alone.
        blocks.append(model.embed_query_block(features).numpy())
    embedded = np.concatenate(blocks)
    vectors = np.empty_like(embedded)
    vectors[order] = embedded
    return vectors
