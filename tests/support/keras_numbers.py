"""One small program for either Keras: prints its losses, gradients, steps and answers as JSON.

``python -m tests.support.keras_numbers SECTION…`` runs it with the Keras of the environment. The
initial values of weights follow from their shapes, so that two processes start from the same ones.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss import (
    CROLoss,
    LambdaCROLoss,
    SoftmaxAtK,
    indexes,
    losses,
    metrics,
    models,
    serving,
    tasks,
)
from tfrs_croloss.memory import CandidateMemory
from tfrs_croloss.optimizers import LazyAdam, WeightAverage

NUM_ITEMS, DIM = 23, 5
BRANDS = [f"brand{item % 6}" for item in range(NUM_ITEMS)]


@tf.keras.utils.register_keras_serializable(package="tests")
def leaky(gaps: tf.Tensor) -> tf.Tensor:
    """A kernel of a user's own."""
    return tf.nn.elu(gaps) + 1.0


def numbers(*key: object) -> np.random.Generator:
    """Random numbers that depend on nothing but the key."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def floats(tensor: Any) -> list[Any]:
    """Any tensor or sparse gradient as lists of numbers."""
    return np.asarray(tf.convert_to_tensor(tensor)).astype(np.float64).tolist()


# ------------------------------------------------------------------------------------------ losses


def loss_numbers() -> dict[str, Any]:
    """Values and gradients of every loss, type and reduction."""
    scores = 3.0 * numbers("scores").normal(size=(4, 9))
    labels = np.eye(4, 9, 2)
    labels[1, 7] = 1.0
    named: dict[str, Any] = {"softmax_at_k": SoftmaxAtK(3)}
    for name in losses.naming.NAMED:
        with contextlib.suppress(ValueError):  # Some losses have no default arguments.
            named[name] = losses.get(name)
    named["own kernel"] = CROLoss(1.3, leaky, num_items=50, rank_estimate="unbiased")
    for kernel in ("hinge", "sigmoid", "exponential"):
        named[kernel] = LambdaCROLoss(retrieval_size=5, kernel=kernel, num_items=40)
    for reduction in ("sum_over_batch_size", "none"):
        named[reduction] = LambdaCROLoss(reduction=reduction)
    found = {}
    for name, loss in named.items():
        for dtype in ("float32", "float64", "float16"):
            given = tf.constant(scores, dtype)
            with tf.GradientTape() as tape:
                tape.watch(given)
                value = loss(labels, given, sample_weight=[1.0, 0.5, 2.0, 0.0])
            gradient = tape.gradient(value, given)
            found[f"{name} {dtype}"] = [value.dtype.name, floats(value), floats(gradient)]
    found["empty batch"] = floats(LambdaCROLoss()(tf.zeros([0, 3]), tf.zeros([0, 3])))
    return found


# ------------------------------------------------------------------------------------------- tasks


def task_numbers() -> dict[str, Any]:
    """Values and gradients of the tasks with every option."""
    random = numbers("task")
    queries = tf.constant(random.normal(size=(6, DIM)), tf.float32)
    candidates = tf.constant(random.normal(size=(10, DIM)), tf.float32)
    ids = tf.constant([3, 4, 3, 1, 0, 7, 4, 2, 9, 11])
    texts = tf.strings.as_string(ids)
    known = tf.ragged.constant([[4], [], [9, 2], [], [7], []])
    probabilities = tf.constant(random.uniform(0.05, 0.5, size=10), tf.float32)
    loss = LambdaCROLoss(num_items=NUM_ITEMS)
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "plain": ({}, {}),
        "softmax of Keras": ({"loss": None}, {}),
        "by name": ({"loss": "softmax_cross_entropy"}, {}),
        "temperature": ({"temperature": 0.3}, {"sample_weight": [1, 2, 0.5, 1, 0, 1.0]}),
        "hard": ({"num_hard_negatives": 3}, {"candidate_sampling_probability": probabilities}),
        "ids": ({"remove_accidental_hits": True}, {"candidate_ids": texts}),
        "known": ({}, {"candidate_ids": ids, "known_positive_ids": known}),
        "shared": ({}, {"shared_negatives": [False] * 4 + [True] * 6}),
        "mask": ({}, {"score_mask": tf.ones([6, 10], tf.bool)}),
        "streaming": ({"sampling_probability": "streaming"}, {"candidate_ids": texts}),
        "none": ({"loss": CROLoss(reduction="none")}, {}),
        "metrics": (
            {
                "batch_metrics": tf.keras.metrics.TopKCategoricalAccuracy(k=2, name="top"),
                "loss_metrics": [tf.keras.metrics.Mean(name="mean")],
                "metrics": metrics.FactorizedRecall(candidates, ks=(1, 3)),
            },
            {"candidate_ids": tf.range(10)},
        ),
    }
    found: dict[str, Any] = {}

    def record(name: str, task: Any, *args: Any, **call: Any) -> None:
        with tf.GradientTape() as tape:
            tape.watch(args[:2])
            value = task(*args, **call)
        found[name] = [floats(value), *map(floats, tape.gradient(value, args[:2]))]
        found[f"{name} metrics"] = {m.name: floats(m.result()) for m in task.metrics}

    for name, (options, call) in cases.items():
        task = tasks.Retrieval(**{"loss": loss, **options})
        for step in range(2 if name == "streaming" else 1):
            record(f"{name} {step}", task, queries, candidates, **call)
    positions = tasks.Retrieval(loss)
    found["positions"] = floats(
        positions(queries.numpy(), candidates.numpy(), [1, 2, 3, 4, 5, 6.0], None, None, False)
    )
    record(
        "heads",
        tasks.Retrieval(loss),
        tf.reshape(tf.tile(queries, [1, 2]), [6, 2, DIM]),
        candidates,
    )
    catalogue = tasks.CatalogueRetrieval(loss, temperature=0.5, normalize=True)
    record("catalogue", catalogue, queries, candidates, [1, 4, 0, 9, 9, 3])
    record(
        "catalogue known", catalogue, queries, candidates, tf.range(6), known_positive_items=known
    )
    return found


# ---------------------------------------------------------------------------------------- training


def set_weights(model: Any) -> None:
    """Gives every variable values that follow from its shape, and its number of that shape."""
    seen: dict[tuple[int, ...], int] = {}
    for variable in model.trainable_variables:
        shape = tuple(variable.shape)
        seen[shape] = seen.get(shape, 0) + 1
        variable.assign(numbers(shape, seen[shape]).normal(size=shape).astype("float32"))


def weights_of(model: Any) -> dict[str, Any]:
    """The values of the trainable variables by shape."""
    found: dict[str, Any] = {}
    for variable in model.trainable_variables:
        found.setdefault(str(tuple(variable.shape)), []).append(floats(variable))
    return found


def batch(step: int, size: int = 6) -> dict[str, tf.Tensor]:
    """A batch of features, some of them known positives."""
    random = numbers("batch", step)
    return {
        "history": tf.constant(random.integers(4, NUM_ITEMS + 1, size=(size, 3))),
        "country": tf.constant(random.choice(["de", "fr", "xx"], size=size)),
        "item_id": tf.constant(random.integers(4, NUM_ITEMS, size=size)),
        "user": tf.constant(random.integers(0, 9, size=size)),
        "negative_item_id": tf.constant(random.integers(4, NUM_ITEMS, size=7)),
        "known_item_ids": tf.constant(random.integers(-1, NUM_ITEMS, size=(size, 2))),
    }


def batches(first: int = 0, count: int = 3, columns: tuple[str, ...] = ()) -> tf.data.Dataset:
    """A dataset of a few batches."""
    rows = [batch(step) for step in range(first, first + count)]
    columns = columns or tuple(rows[0])
    stacked = {name: tf.stack([row[name] for row in rows]) for name in columns}
    return tf.data.Dataset.from_tensor_slices(stacked)


def rich_model(**options: Any) -> models.TwoTowerModel:
    """Two towers with side features, in histories too, in-batch negatives and a memory."""
    embedding = models.ItemEmbedding(NUM_ITEMS, DIM)
    country = models.Feature("country", ("de", "fr"), dim=2)
    brand = models.Feature.from_values("brand", BRANDS, dim=3)
    items = models.ItemTower(embedding, features=[brand], item_values={"brand": BRANDS})
    return models.TwoTowerModel(
        models.HistoryTower(items, encoder="gru", features=[country]),
        items,
        tasks.Retrieval(LambdaCROLoss(num_items=NUM_ITEMS), temperature=0.2),
        in_batch_negatives=True,
        query_inputs=("history", "country"),
        **options,
    )


def plain_model(**options: Any) -> models.TwoTowerModel:
    """Two towers of one table."""
    embedding = models.ItemEmbedding(NUM_ITEMS, DIM)
    task = tasks.Retrieval(LambdaCROLoss(num_items=NUM_ITEMS), temperature=0.2)
    towers = models.HistoryTower(embedding), models.ItemTower(embedding)
    return models.TwoTowerModel(*towers, task, **options)


def fit(
    model: Any, optimizer: Any, data: Any = None, callbacks: Any = None, **options: Any
) -> dict[str, Any]:
    """The history of three steps, and the weights that they lead to."""
    with model.distribute_strategy.scope():
        model.compile(optimizer=optimizer, **options)
        model.embed_queries(batch(0))
        model.embed_candidates(batch(0))
    set_weights(model)
    history = model.fit(data or batches(), callbacks=callbacks, shuffle=False, verbose=0).history
    return {"history": history, **weights_of(model)}


def training_numbers(folder: Path) -> dict[str, Any]:
    """Three steps of a model with everything, its metrics, and what it answers when exported."""
    found: dict[str, Any] = {}
    shares = numbers("shares").dirichlet(np.ones(NUM_ITEMS))
    model = rich_model(candidate_probabilities=shares, memory=CandidateMemory(8, DIM))
    queries = {name: batch(9)[name] for name in ("history", "country")}
    callback = metrics.RecallCallback(
        tf.data.Dataset.from_tensors(queries),
        tf.data.Dataset.range(NUM_ITEMS).batch(8).map(lambda ids: (ids, {"item_id": ids})),
        batch(9)["item_id"].numpy(),
        cutoffs=(1, 5),
    )
    optimizer = LazyAdam(0.05, weight_decay=0.01)
    found["steps"] = fit(model, optimizer, callbacks=[callback])
    model.task.factorized_metrics = metrics.FactorizedRecall(
        lambda: model.embed_catalogue(NUM_ITEMS), ks=(1, 5)
    )
    found["evaluate"] = model.evaluate(batches(3, 2), return_dict=True, verbose=0)
    found["exported"] = exported(model, folder / "exported")
    return found


def optimizer_numbers() -> dict[str, Any]:
    """Three steps with several optimizers and policies, and against the whole catalogue."""
    found: dict[str, Any] = {}
    optimizers = {
        "lazy": LazyAdam(0.05, amsgrad=True, clipnorm=1.0),
        "adam": tf.keras.optimizers.Adam(0.05),
        "adagrad": tf.keras.optimizers.Adagrad(0.1),
    }
    for name, optimizer in optimizers.items():
        model = plain_model(similarity="dot")
        found[name] = fit(model, optimizer, run_eagerly=True)
        before, other_rows = table_of(model), sorted(set(range(NUM_ITEMS)) - items_in(batch(3)))
        model.fit(batches(3, 1), shuffle=False, verbose=0)
        after = table_of(model)
        found[f"{name} leaves other rows"] = np.array_equal(after[other_rows], before[other_rows])
        found[f"{name} goes on"] = floats(after)
    averaged = plain_model()
    found["averaged steps"] = fit(averaged, "sgd", callbacks=[WeightAverage(0.5)])
    found["averaged"] = floats(table_of(averaged))
    embedding = models.ItemEmbedding(NUM_ITEMS, DIM)
    exact = models.CatalogueModel(
        NUM_ITEMS,
        models.UserTower(9, DIM),
        models.ItemTower(embedding),
        tasks.CatalogueRetrieval(CROLoss(1.2), temperature=0.2),
        query_inputs="user",
    )
    data = batches(columns=("user", "item_id", "known_item_ids"))
    found["catalogue"] = fit(exact, "sgd", data, run_eagerly=True)
    try:
        tf.keras.mixed_precision.set_global_policy("mixed_float16")
        scaled = tf.keras.mixed_precision.LossScaleOptimizer(LazyAdam(0.05), initial_scale=64)
        found["mixed"] = fit(plain_model(), scaled, run_eagerly=True)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    return found


def table_of(model: models.TwoTowerModel) -> np.ndarray:
    """The rows of the items, as the model has them now."""
    return tf.convert_to_tensor(model.query_tower.embedding.trainable_variables[0]).numpy()


def items_in(features: dict[str, tf.Tensor]) -> set[int]:
    """The items whose rows a plain model reads for a batch."""
    names = ("history", "item_id", "negative_item_id")
    return {int(item) for name in names for item in np.ravel(features[name])}


def exported(model: models.TwoTowerModel, path: Path) -> Any:
    """What the SavedModel of a model answers."""
    item_ids = [f"item{item}" for item in range(NUM_ITEMS)]
    recommender = serving.Recommender(
        lambda features: model.embed_queries(features),
        indexes.PartitionedIndex(model.embed_catalogue(NUM_ITEMS), leaves_to_search=2),
        item_ids,
        history_length=4,
        top_n=4,
        features={"country": tf.TensorSpec([None], tf.string)},
        tracked=model,
    )
    serving.save(recommender, path)
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    answer = signature(
        history=tf.constant([["item3", "item9"], ["item1", ""]]),
        country=tf.constant(["fr", "es"]),
    )
    return [answer["item_ids"].numpy().astype(str).tolist(), floats(answer["scores"])]


def compiled_numbers() -> dict[str, Any]:
    """Three steps compiled with XLA, and three of two replicas."""
    found: dict[str, Any] = {}
    data = batches(columns=("history", "item_id", "negative_item_id"))
    found["jit"] = fit(plain_model(), LazyAdam(0.1), data, jit_compile=True)
    parts = batches().map(_without_shared).unbatch().batch(6)
    found["one replica"] = fit(
        plain_model(in_batch_negatives=True), LazyAdam(0.05), parts, run_eagerly=True
    )
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model, optimizer = plain_model(in_batch_negatives=True), LazyAdam(0.05)
    found["two replicas"] = fit(model, optimizer, parts)
    return found


def _without_shared(row: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {name: row[name] for name in ("history", "item_id")}


def main(sections: Sequence[str]) -> None:
    """Prints the numbers."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    found: dict[str, Any] = {"keras": getattr(tf.keras, "__version__", "2")}
    with tempfile.TemporaryDirectory() as folder:
        makers: dict[str, Callable[[], dict[str, Any]]] = {
            "losses": loss_numbers,
            "tasks": task_numbers,
            "optimizers": optimizer_numbers,
            "training": lambda: training_numbers(Path(folder)),
            "compiled": compiled_numbers,
        }
        found.update((section, makers[section]()) for section in sections)
    found["modules"] = sorted({"tensorflow_recommenders", "tf_keras"} & set(sys.modules))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
