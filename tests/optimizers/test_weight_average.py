"""WeightAverage: what it averages, who sees the average, and that training does not."""

from __future__ import annotations

import math
import types
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

from tfrs_croloss.metrics import RecallCallback
from tfrs_croloss.optimizers import WeightAverage

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(24, 3)).astype(np.float32)
Y = (X @ [[1.0], [-2.0], [0.5]]).astype(np.float32)


EVERY_STEP = list(range(1, 13))


def make_model() -> tf.keras.Model:
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(1, kernel_initializer="ones", input_shape=[3])]
    )
    model.compile(tf.keras.optimizers.Adam(0.05), "mse")
    return model


class Recorder(tf.keras.callbacks.Callback):
    """Remembers the weights after every batch, and those that it sees at the end of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[np.ndarray] = []
        self.epochs: list[np.ndarray] = []

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.batches.append(flat(self.model))

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.epochs.append(flat(self.model))


def flat(model: tf.keras.Model) -> np.ndarray:
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


def fit(model: tf.keras.Model, *callbacks: tf.keras.callbacks.Callback, epochs: int = 2) -> dict:
    return model.fit(
        X,
        Y,
        batch_size=4,
        epochs=epochs,
        shuffle=False,
        validation_data=(X[:8], -Y[:8]),
        callbacks=list(callbacks),
        verbose=0,
    ).history


def averages(weights: list[np.ndarray], decay: float, seen: list[int]) -> np.ndarray:
    """The average after the last of the steps that were seen, by the formula of the docstring."""
    average, before = weights[0], 0
    for step in seen:
        kept = math.prod(min(decay, t / (t + 9)) for t in range(before + 1, step + 1))
        average, before = kept * average + (1 - kept) * weights[step - 1], step
    return average


@pytest.mark.parametrize(
    ("decay", "every", "seen"),
    [
        (0.9, 1, [1, 2, 3, 4, 5, 6]),
        (0.3, 1, [1, 2, 3, 4, 5, 6]),
        (0.0, 1, [1, 2, 3, 4, 5, 6]),
        (0.9, 3, [3, 6]),
        # Before it is seen, the average catches up with the steps since the last update.
        (0.5, 4, [4, 6]),
        (0.5, 10, [6]),
    ],
)
def test_the_average_is_that_of_the_formula(decay: float, every: int, seen: list[int]) -> None:
    model, recorder = make_model(), Recorder()
    first = make_model()
    first.fit(X[:4], Y[:4], epochs=1, verbose=0)
    model.fit(
        X,
        Y,
        batch_size=4,
        shuffle=False,
        verbose=0,
        callbacks=[WeightAverage(decay, every), recorder],
    )
    np.testing.assert_array_equal(recorder.batches[0], flat(first))
    # The callback begins with the weights after the first step.
    expected = averages(recorder.batches, decay, seen)
    np.testing.assert_allclose(flat(model), expected, rtol=1e-5)
    np.testing.assert_array_equal(recorder.epochs, [flat(model)])


def test_steps_are_counted_that_keras_runs_in_one_go() -> None:
    results = []
    for steps in (1, 3):
        model = make_model()
        model.compile(tf.keras.optimizers.Adam(0.05), "mse", steps_per_execution=steps)
        average = WeightAverage(0.9, every=3)
        model.fit(X, Y, batch_size=2, epochs=2, shuffle=False, verbose=0, callbacks=[average])
        assert int(average.variables[-1]) == 24
        results.append(flat(model))
    # They differ in the weights that the average begins with: after one step, or after three.
    np.testing.assert_allclose(results[0], results[1], atol=0.02)


def test_training_goes_on_from_the_weights_themselves() -> None:
    plain, averaged = Recorder(), Recorder()
    losses = fit(make_model(), plain)["loss"]
    found = fit(make_model(), WeightAverage(0.9), averaged)
    np.testing.assert_array_equal(averaged.batches, plain.batches)
    assert found["loss"] == losses
    assert np.abs(averaged.epochs[-1] - plain.epochs[-1]).max() > 0.01


def test_validation_and_what_comes_after_fit_see_the_average() -> None:
    model = make_model()
    history = fit(model, WeightAverage(0.9))
    left = model.evaluate(X[:8], -Y[:8], verbose=0)
    assert left == pytest.approx(history["val_loss"][-1], rel=1e-6)
    assert history["val_loss"] != fit(make_model())["val_loss"]


def test_the_best_weights_that_early_stopping_restores_are_averages() -> None:
    model, recorder = make_model(), Recorder()
    stop = tf.keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)
    # The targets of validation are those of training with the other sign: the first epoch is best.
    history = fit(model, WeightAverage(0.9), recorder, stop, epochs=5)
    assert len(history["loss"]) == 2
    np.testing.assert_array_equal(flat(model), recorder.epochs[0])


def test_a_second_fit_continues_where_the_first_one_ended() -> None:
    once, twice = make_model(), make_model()
    fit(once, WeightAverage(0.9))
    average = WeightAverage(0.9)
    for _ in range(2):
        fit(twice, average, epochs=1)
    np.testing.assert_array_equal(flat(twice), flat(once))


def test_another_model_gets_an_average_of_its_own_and_the_first_one_keeps_its_own() -> None:
    average, first = WeightAverage(0.9), make_model()
    fit(first, average)
    left = flat(first)
    model, recorder = make_model(), Recorder()
    fit(model, average, recorder)
    np.testing.assert_allclose(flat(model), averages(recorder.batches, 0.9, EVERY_STEP), rtol=1e-5)
    np.testing.assert_array_equal(flat(first), left)


def test_weights_that_are_loaded_between_two_fits_are_what_the_second_one_begins_with() -> None:
    average, model, recorder = WeightAverage(0.9), make_model(), Recorder()
    fit(model, average)
    loaded = [np.full([3, 1], 7.0, np.float32), np.zeros([1], np.float32)]
    model.set_weights(loaded)
    fit(model, average, recorder)
    assert np.abs(recorder.batches[0][:3] - 7.0).max() < 0.2
    np.testing.assert_allclose(flat(model), averages(recorder.batches, 0.9, EVERY_STEP), rtol=1e-5)


def test_a_layer_that_is_frozen_between_two_fits_keeps_what_it_has() -> None:
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(2, input_shape=[3]), tf.keras.layers.Dense(1)]
    )
    model.compile(tf.keras.optimizers.Adam(0.05), "mse")
    average = WeightAverage(0.9)
    fit(model, average)
    frozen = model.layers[0].get_weights()[0]
    model.layers[0].trainable = False
    model.compile(tf.keras.optimizers.Adam(0.05), "mse")
    fit(model, average)
    np.testing.assert_array_equal(model.layers[0].get_weights()[0], frozen)


def test_an_average_that_is_restored_goes_on(tmp_path: Path) -> None:
    model, average = make_model(), WeightAverage(0.999)
    fit(model, average, epochs=20)
    path = tf.train.Checkpoint(average=average.variables).write(str(tmp_path / "average"))
    again, restored, recorder = make_model(), WeightAverage(0.999), Recorder()
    restored.watch(again)
    tf.train.Checkpoint(average=restored.variables).read(path).assert_consumed()
    fit(again, restored, recorder, epochs=1)
    # After 120 steps, six more change little.
    kept = math.prod(t / (t + 9) for t in range(121, 127))
    assert int(restored.variables[-1]) == 126
    before, after = flat(model), flat(again)
    far = np.abs(np.array(recorder.batches) - before).max()
    assert np.abs(after - before).max() <= (1 - kept) * far * 1.001


def test_sixteen_bits_do_not_stop_the_average() -> None:
    weight = tf.Variable([1.0], dtype=tf.bfloat16)
    average = WeightAverage(0.999)
    holder = types.SimpleNamespace(trainable_variables=[weight], distribute_strategy=None)
    average.watch(holder)
    weight.assign([0.0])
    for step in range(1, 41):
        average.update(step)
    with average.applied():
        expected = math.prod(t / (t + 9) for t in range(1, 41))
        assert float(weight[0]) == pytest.approx(expected, abs=0.01)
    assert float(weight[0]) == 0.0


def test_recall_at_the_end_of_an_epoch_is_that_of_the_average() -> None:
    model, seen = make_model(), []

    def candidates() -> tf.Tensor:
        seen.append(flat(model))
        return tf.eye(3)

    recall = RecallCallback(lambda: tf.eye(3), candidates, [0, 1, 2], every_n_steps=3)
    fit(model, WeightAverage(0.9), recall, epochs=1)
    np.testing.assert_array_equal(seen[-1], flat(model))
    steps = [step for step, _ in recall.reports]
    assert steps == [3, 6, 6]


class Tutorial(tfrs.Model):
    """A model of TFRS, whose tables have no rows before the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.user_model = tf.keras.layers.Embedding(6, 2)
        self.item_model = tf.keras.layers.Embedding(6, 2)
        self.task = tfrs.tasks.Retrieval()

    def compute_loss(self, features: dict, training: bool = False) -> tf.Tensor:
        return self.task(self.user_model(features["user"]), self.item_model(features["item"]))


def test_weights_may_be_created_in_the_first_step() -> None:
    model, recorder = Tutorial(), Recorder()
    model.compile(tf.keras.optimizers.Adagrad(0.1))
    pairs = tf.data.Dataset.from_tensor_slices(
        {"user": tf.range(6), "item": tf.range(5, -1, -1)}
    ).batch(3)
    assert not model.weights
    model.fit(pairs, epochs=3, verbose=0, callbacks=[WeightAverage(0.8), recorder])
    np.testing.assert_allclose(
        flat(model), averages(recorder.batches, 0.8, [1, 2, 3, 4, 5, 6]), rtol=1e-5
    )


def test_the_scope_gives_the_weights_back_after_an_error() -> None:
    model, average = make_model(), WeightAverage(0.9)
    average.watch(model)
    before = flat(model)
    model.layers[0].kernel.assign_add(tf.ones([3, 1]))
    changed = flat(model)
    with pytest.raises(KeyError), average.applied():
        np.testing.assert_array_equal(flat(model), before)
        with average.applied():
            np.testing.assert_array_equal(flat(model), before)
        np.testing.assert_array_equal(flat(model), before)
        raise KeyError
    np.testing.assert_array_equal(flat(model), changed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": 1.0}, "`decay` should be at least 0 and below 1. Received: 1.0"),
        ({"decay": -0.1}, "Received: -0.1"),
        ({"every": 0}, "`every` should be"),
    ],
)
def test_what_is_wrong_is_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WeightAverage(**options)
