"""The layers and metrics of keras-rs with our losses and tasks, in a program with Keras 3.

Each function compares what keras-rs' part and ours give together with what ours give alone. The
program prints the names of the functions that passed.
"""

from __future__ import annotations

import keras_rs
import numpy as np
import tensorflow as tf

from tfrs_croloss import CROLoss, LambdaCROLoss, indexes, models, tasks

RANDOM = np.random.default_rng(3)
QUERIES, ITEMS = (tf.constant(RANDOM.normal(size=(8, 4)), tf.float32) for _ in range(2))
IDS = tf.constant([1, 2, 3, 1, 4, 2, 5, 6])
SCORES, LABELS = tf.matmul(QUERIES, ITEMS, transpose_b=True), tf.eye(8)
SOFTMAX = tf.keras.losses.CategoricalCrossentropy(from_logits=True, reduction="sum")


def hard_negative_mining() -> None:
    """The hardest negatives of keras-rs are those of our task."""
    scores, labels = keras_rs.layers.HardNegativeMining(3)(SCORES, LABELS)
    loss = LambdaCROLoss()
    expected = tasks.Retrieval(loss, num_hard_negatives=3)(QUERIES, ITEMS)
    np.testing.assert_allclose(loss(labels, scores), expected, rtol=1e-5)
    assert abs(float(expected - loss(LABELS, SCORES))) > 0.01


def remove_accidental_hits() -> None:
    """Our task drops hits that keras-rs 0.4.0 leaves: it adds about -0 to their scores."""
    scores = keras_rs.layers.RemoveAccidentalHits()(SCORES, LABELS, IDS)
    softmax = CROLoss.softmax_cross_entropy()
    task = tasks.Retrieval(softmax, remove_accidental_hits=True)
    exact, found = task(QUERIES, ITEMS, candidate_ids=IDS), softmax(LABELS, scores)
    assert exact < softmax(LABELS, SCORES)
    dropped = SCORES - 1e9 * tf.cast(IDS[:, tf.newaxis] == IDS, tf.float32) * (1.0 - LABELS)
    np.testing.assert_allclose(softmax(LABELS, dropped), exact, rtol=1e-5)
    if not np.array_equal(scores, SCORES):
        np.testing.assert_allclose(found, exact, rtol=1e-5)


def sampling_probability_correction() -> None:
    """The correction of keras-rs is that of our task with a loss of Keras."""
    shares = tf.constant(RANDOM.uniform(0.05, 0.5, size=8), tf.float32)
    correction = keras_rs.layers.SamplingProbabilityCorrection()
    scores = correction(SCORES, tf.tile(shares[tf.newaxis], [8, 1]))
    expected = tasks.Retrieval(SOFTMAX)(QUERIES, ITEMS, candidate_sampling_probability=shares)
    softmax = CROLoss.softmax_cross_entropy()
    np.testing.assert_allclose(softmax(LABELS, scores), expected, rtol=1e-4)
    assert abs(float(expected - softmax(LABELS, SCORES))) > 0.1


def metrics() -> None:
    """Each metric of keras-rs in our task has the value that it has on the scores."""
    for name in (
        "DCG",
        "MeanAveragePrecision",
        "MeanReciprocalRank",
        "NDCG",
        "PrecisionAtK",
        "RecallAtK",
    ):
        inside, outside = (getattr(keras_rs.metrics, name)(k=3, name=name) for _ in range(2))
        tasks.Retrieval(LambdaCROLoss(), batch_metrics=[inside])(QUERIES, ITEMS)
        outside.update_state(LABELS, SCORES)
        np.testing.assert_allclose(inside.result(), outside.result(), rtol=1e-6, err_msg=name)
        assert inside.result() > 0.0, name


def brute_force_retrieval() -> None:
    """It finds what our index finds."""
    layer = keras_rs.layers.BruteForceRetrieval(ITEMS, k=3)
    scores, found = layer(QUERIES)
    rows, expected = indexes.BruteForceIndex(ITEMS).search(QUERIES, 3)
    np.testing.assert_array_equal(found, rows)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


class Averaged(tf.keras.layers.Layer):
    """A query tower of one of the Embed layers."""

    def __init__(self, layer: tf.keras.layers.Layer) -> None:
        super().__init__()
        self.layer = layer

    def call(self, history: tf.Tensor) -> tf.Tensor:
        return self.layer(history)


def embed_layers() -> None:
    """Either Embed layer is a query tower of our model, and learns."""
    table = keras_rs.layers.TableConfig("films", 20, 4, combiner="mean", placement="default_device")
    feature = keras_rs.layers.FeatureConfig("history", table, (16, 5), (16, 4))
    topics = np.arange(320) % 10
    log = {
        "history": topics[:, None] + 10 * RANDOM.integers(0, 2, size=(320, 5)),
        "item_id": topics + 10 * RANDOM.integers(0, 2, size=320),
    }
    data = tf.data.Dataset.from_tensor_slices(log).batch(16, drop_remainder=True)
    for layer in (
        keras_rs.layers.EmbedReduce(20, 4, combiner="mean"),
        keras_rs.layers.DistributedEmbedding(feature),
    ):
        tf.keras.utils.set_random_seed(1)
        model = models.TwoTowerModel(
            Averaged(layer),
            models.ItemTower(models.ItemEmbedding(20, 4)),
            tasks.Retrieval(LambdaCROLoss(num_items=20), temperature=0.1),
            in_batch_negatives=True,
        )
        model.compile(tf.keras.optimizers.Adam(0.05))
        losses = model.fit(data, epochs=6, verbose=0).history["loss"]
        assert losses[-1] < 0.8 * losses[0], (layer, losses)
        assert layer.trainable_variables


def main() -> None:
    """Runs all of them."""
    assert tf.keras.__version__.startswith("3.")
    for check in (
        hard_negative_mining,
        remove_accidental_hits,
        sampling_probability_correction,
        metrics,
        brute_force_retrieval,
        embed_layers,
    ):
        check()
        print(check.__name__)


if __name__ == "__main__":
    main()
