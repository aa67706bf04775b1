"""The bias of items: part of every score, as one more dimension of the vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfrs_croloss import CROLoss
from tfrs_croloss.memory import CandidateMemory
from tfrs_croloss.models import (
    CatalogueModel,
    HistoryTower,
    ItemBias,
    ItemEmbedding,
    ItemTower,
    TwoTowerModel,
)
from tfrs_croloss.tasks import CatalogueRetrieval, Retrieval

NUM_ITEMS = 5
BIASES = np.array([0.5, -0.25, 0.0, 1.0, -2.0])
BATCH = {
    "history": tf.constant([[0, 1], [3, 5]]),
    "item_id": tf.constant([2, 4]),
    "negative_item_id": tf.constant([0, 1, 3]),
}


def make_bias(scale: float = 0.1) -> ItemBias:
    bias = ItemBias(NUM_ITEMS, scale)
    bias(tf.constant([0]))
    bias.set_weights([BIASES[:, np.newaxis] / scale])
    return bias


def make_model(kind: str = "sampled", similarity: str = "cosine", **options: Any) -> TwoTowerModel:
    embedding = ItemEmbedding(NUM_ITEMS, 3, stddev=1.0, seed=3)
    towers = HistoryTower(embedding), ItemTower(embedding)
    options = {"similarity": similarity, "item_bias": make_bias(), **options}
    softmax = CROLoss.softmax_cross_entropy()
    if kind == "catalogue":
        return CatalogueModel(
            NUM_ITEMS, *towers, CatalogueRetrieval(softmax, temperature=0.5), **options
        )
    return TwoTowerModel(*towers, Retrieval(softmax, temperature=0.5), **options)


def plain_scores(model: TwoTowerModel) -> np.ndarray:
    """``[2, num_items]``: the similarities of the towers' vectors, plus the biases."""
    queries = model.query_tower(BATCH["history"]).numpy().astype(np.float64)
    items = model.candidate_tower(tf.range(NUM_ITEMS)).numpy().astype(np.float64)
    if model.similarity == "cosine":
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
        items /= np.linalg.norm(items, axis=1, keepdims=True)
    return queries @ items.T + BIASES


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("kind", ["sampled", "catalogue"])
def test_vectors_and_loss_have_the_bias_beside_the_similarity(kind: str, similarity: str) -> None:
    model = make_model(kind, similarity)
    expected = plain_scores(model)
    queries = model.embed_queries(BATCH).numpy()
    assert queries.shape == (2, 4)
    scores = queries @ model.embed_catalogue(NUM_ITEMS).numpy().T
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)
    # Both are divided by the temperature, 0.5.
    powers = np.exp(expected / 0.5)
    losses = []
    for row, positive in enumerate((2, 4)):
        others = [0, 1, 3] if kind == "sampled" else [i for i in range(5) if i != positive]
        total = powers[row, positive] + powers[row, others].sum()
        losses.append(-np.log(powers[row, positive] / total))
    assert float(model.compute_loss(BATCH)) == pytest.approx(sum(losses), rel=1e-5)


def test_training_moves_the_bias_by_the_softmax_s_gradient() -> None:
    model = make_model()
    scores = plain_scores(model)
    model.compile(tf.keras.optimizers.SGD(1.0))
    model.train_step(BATCH)
    gradient = np.zeros(NUM_ITEMS)
    for row, positive in enumerate((2, 4)):
        shown = [positive, 0, 1, 3]
        shares = np.exp(scores[row, shown] / 0.5)
        gradient[shown] += shares / shares.sum() / 0.5
        gradient[positive] -= 1 / 0.5
    # The weights are ten times the biases, so biases move by a hundredth of their gradient.
    moved = model.item_bias(tf.range(NUM_ITEMS)).numpy()[:, 0]
    np.testing.assert_allclose(moved, BIASES - 0.01 * gradient, rtol=1e-4, atol=1e-6)


def test_ids_that_are_no_items_have_no_bias_and_no_gradient() -> None:
    bias = make_bias()
    with tf.GradientTape() as tape:
        found = bias(tf.constant([3, NUM_ITEMS, -1]))
    np.testing.assert_allclose(found, [[1.0], [0.0], [0.0]])
    gradient = tf.convert_to_tensor(tape.gradient(found, bias.trainable_variables[0]))
    np.testing.assert_allclose(gradient[:, 0], [0.0, 0.0, 0.0, 0.1, 0.0], rtol=1e-6)
    with pytest.raises(ValueError, match="`ids` of a bias should be integers.*Received: string"):
        bias(tf.constant(["a"]))
    for options in ({"num_items": 0}, {"num_items": 3, "scale": 0.0}):
        with pytest.raises(ValueError, match="should be.*Received: 0"):
            ItemBias(**options)


def test_the_memory_keeps_the_bias_of_its_items() -> None:
    memory = CandidateMemory(4, 4)
    model = make_model(memory=memory, candidate_probabilities=np.full(NUM_ITEMS, 0.2))
    model.compute_loss(BATCH, training=True)
    _, candidates, ids, _ = model.scored_batch(BATCH, training=True)
    np.testing.assert_allclose(candidates[:, 3], BIASES[ids], rtol=1e-6)
    assert ids[-2:].numpy().tolist() == [2, 4]


def test_biases_stay_in_float32_and_are_saved_with_their_configuration() -> None:
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        bias = make_bias(0.3)
        assert bias(tf.constant([1])).dtype == tf.float32
        again = tf.keras.layers.deserialize(tf.keras.layers.serialize(bias))
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    assert (
        again.get_config()
        == bias.get_config()
        == {
            "num_items": NUM_ITEMS,
            "scale": 0.3,
            "name": "item_bias",
        }
    )


@pytest.mark.parametrize("kind", ["sampled", "catalogue"])
def test_weight_decay_adds_multiples_of_the_weights_to_their_gradient(kind: str) -> None:
    steps = []
    for decay in (0.0, 0.5):
        model = make_model(kind, weight_decay=decay)
        model.compute_loss(BATCH)
        model.query_tower.set_weights([np.ones(w.shape) for w in model.query_tower.weights])
        before = [variable.numpy() for variable in model.trainable_variables]
        model.compile(tf.keras.optimizers.SGD(1.0))
        loss = float(model.train_step(BATCH)["loss"])
        after = [variable.numpy() for variable in model.trainable_variables]
        steps.append((loss, before, after))
    (plain, before, without), (penalised, _, with_decay) = steps
    for weights, one, other in zip(before, without, with_decay):
        np.testing.assert_allclose(one - other, 0.5 * weights, rtol=1e-4, atol=1e-5)
    squares = sum(float(np.sum(np.square(weights))) for weights in before)
    assert penalised - plain == pytest.approx(0.25 * squares, rel=1e-5)
    with pytest.raises(ValueError, match="`weight_decay` should be.*Received: -1"):
        make_model(kind, weight_decay=-1.0)
