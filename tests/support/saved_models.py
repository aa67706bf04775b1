"""Models that are saved as ``.keras`` files by one process and loaded by another.

``python -m tests.support.saved_models write FOLDER`` trains and saves them, ``read FOLDER`` loads
them; both print what the models answer, and what one more epoch of training makes of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.keras_numbers import BRANDS, DIM, NUM_ITEMS, batch, batches, floats, numbers
from tfrs_croloss import CROLoss, LambdaCROLoss, models, tasks
from tfrs_croloss.losses import kernels
from tfrs_croloss.memory import CandidateMemory
from tfrs_croloss.optimizers import LazyAdam


@kernels.named("tests_steep")
class Steep(kernels.ComparisonKernel):
    """A kernel of a user's own, known by its name."""

    def __init__(self, slope: float = 1.0) -> None:
        self.slope = slope

    def __call__(self, gaps: tf.Tensor) -> tf.Tensor:
        return tf.math.softplus(self.slope * gaps)

    def get_config(self) -> dict[str, Any]:
        return {"slope": self.slope}


@tf.keras.utils.register_keras_serializable(package="tests_saved")
def shifted(gaps: tf.Tensor) -> tf.Tensor:
    """A kernel of a user's own that is a function."""
    return tf.nn.elu(gaps) + 1.0


def with_everything() -> models.TwoTowerModel:
    """A history of items with features, a memory, probabilities and estimates of its own."""
    embedding = models.ItemEmbedding(NUM_ITEMS, DIM)
    country = models.Feature("country", ("de", "fr"), dim=2)
    brand = models.Feature.from_values("brand", BRANDS, dim=3)
    items = models.ItemTower(embedding, features=[brand], item_values={"brand": BRANDS})
    return models.TwoTowerModel(
        models.HistoryTower(items, encoder="gru", features=[country]),
        items,
        tasks.Retrieval(
            LambdaCROLoss(1.2, kernel={"name": "tests_steep", "slope": 2.0}, num_items=NUM_ITEMS),
            temperature=0.2,
            batch_metrics=tf.keras.metrics.TopKCategoricalAccuracy(k=3, name="top"),
            loss_metrics=[tf.keras.metrics.Mean(name="mean")],
        ),
        in_batch_negatives=True,
        candidate_probabilities=numbers("shares").dirichlet(np.ones(NUM_ITEMS)),
        memory=CandidateMemory(8, DIM + 1),
        item_bias=models.ItemBias(NUM_ITEMS),
        weight_decay=1e-3,
        query_inputs=("history", "country"),
    )


def with_streaming() -> models.TwoTowerModel:
    """Towers of Keras, and sampling probabilities that are estimated."""
    tower = tf.keras.layers.Embedding(NUM_ITEMS, DIM)
    return models.TwoTowerModel(
        tf.keras.Sequential([tf.keras.layers.Embedding(9, DIM)]),
        tf.keras.Sequential([tower]),
        tasks.Retrieval(
            CROLoss(1.3, shifted),
            sampling_probability=tasks.StreamingFrequencies(num_buckets=64),
            num_hard_negatives=4,
        ),
        similarity="dot",
        in_batch_negatives=True,
        query_inputs="user",
    )


def with_counts() -> models.TwoTowerModel:
    """One tower for both, as in item-to-item retrieval, and counted sampling probabilities."""
    tower = models.ItemTower(models.ItemEmbedding(NUM_ITEMS, DIM))
    counts = tasks.CandidateFrequencies(np.arange(NUM_ITEMS), 1 + np.arange(NUM_ITEMS))
    task = tasks.Retrieval(LambdaCROLoss(), sampling_probability=counts)
    return models.TwoTowerModel(
        tower, tower, task, in_batch_negatives=True, query_inputs="negative_item_id"
    )


def with_self_attention() -> models.CatalogueModel:
    """A transformer whose loss ranks the whole catalogue."""
    embedding = models.ItemEmbedding(NUM_ITEMS, DIM)
    encoder = models.SelfAttentionEncoder(max_length=4, blocks=1, dropout=0.1, seed=3)
    return models.CatalogueModel(
        NUM_ITEMS,
        models.HistoryTower(embedding, encoder=encoder),
        models.ItemTower(embedding),
        tasks.CatalogueRetrieval(LambdaCROLoss(), temperature=0.2, normalize=True),
        trained_items=[True] * NUM_ITEMS,
    )


MODELS: dict[str, Callable[[], Any]] = {
    "everything": with_everything,
    "streaming": with_streaming,
    "counts": with_counts,
    "attention": with_self_attention,
}


def data() -> tf.data.Dataset:
    """Batches with as many queries as negatives."""
    rows = batches(columns=("history", "country", "item_id", "user"))
    return rows.map(lambda row: {**row, "negative_item_id": tf.reverse(row["item_id"], [0])})


def answers(model: Any) -> dict[str, Any]:
    """What a model answers now, and after one more epoch."""
    features = {**batch(7), "negative_item_id": batch(7)["item_id"]}
    found = {"queries": floats(model.embed_queries(features))}
    items = {"item_id": tf.range(NUM_ITEMS)}
    found["items"] = floats(model.embed_candidates(items))
    found["history"] = model.fit(data(), shuffle=False, verbose=0).history
    found["afterwards"] = floats(model.embed_candidates(items))
    return {**found, "variables": len(model.trainable_variables)}


def written(path: Path, name: str) -> dict[str, Any]:
    """Trains and saves a model."""
    model = MODELS[name]()
    # Graphs of steps that run three times would take most of the time.
    model.compile(LazyAdam(0.05), run_eagerly=True)
    model.fit(data(), shuffle=False, verbose=0)
    model.save(path)
    return answers(model)


def read(path: Path) -> dict[str, Any]:
    """Loads a model."""
    model = tf.keras.models.load_model(path)
    model.run_eagerly = True
    return answers(model)


def functional() -> Any:
    """A model of Keras' functional API that has a task for a layer; its output is the loss."""
    users, items = (tf.keras.Input([], dtype="int32") for _ in range(2))
    vectors = [tf.keras.layers.Embedding(9, DIM)(column) for column in (users, items)]
    task = tasks.Retrieval(CROLoss(), num_items=99)
    loss = task(*vectors, candidate_ids=items, remove_accidental_hits=True)
    return tf.keras.Model([users, items], loss)


def loss_of(model: Any) -> float:
    """The loss that a functional model gives."""
    return float(model([np.arange(5), np.array([4, 3, 3, 1, 0])]))


def main(action: str, folder: str) -> None:
    """Prints the answers of all models."""
    found: dict[str, Any] = {"keras": getattr(tf.keras, "__version__", "2")}
    file = Path(folder) / "functional.keras"
    if action == "write":
        functional().save(file)
    found["functional"] = loss_of(tf.keras.models.load_model(file))
    for name in MODELS:
        path = Path(folder) / f"{name}.keras"
        if action == "write":
            found[name] = written(path, name)
        else:
            found[name] = read(path)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
