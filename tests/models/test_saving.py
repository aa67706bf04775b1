"""Whole models and tasks as ``.keras`` files, in the process that wrote them and in another."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.support import saved_models
from tests.support.processes import python_output
from tfrs_croloss import CROLoss, LambdaCROLoss, metrics, models, tasks
from tfrs_croloss.memory import CandidateMemory


@pytest.mark.parametrize("name", ["streaming", "counts"])
def test_a_loaded_model_answers_and_goes_on_as_the_saved_one(name, tmp_path):
    path = tmp_path / "model.keras"
    expected = saved_models.written(path, name)
    assert saved_models.read(path) == expected


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["1", None], ids=["keras 2", "keras 3"])
def test_models_are_loaded_by_a_fresh_process(keras, tmp_path):
    found = {}
    for action in ("write", "read"):
        printed = python_output(
            "-m", "tests.support.saved_models", action, tmp_path,
            environment={"TF_USE_LEGACY_KERAS": keras},
        )  # fmt: skip
        found[action] = json.loads(printed.splitlines()[-1])
    assert found["write"]["keras"].startswith("2" if keras else "3.")
    assert set(found["write"]) == {"keras", "functional", *saved_models.MODELS}
    assert found["read"] == found["write"]


def test_a_model_of_a_configuration_shares_what_the_model_shares():
    embedding = models.ItemEmbedding(9, 4)
    towers = models.HistoryTower(embedding), models.ItemTower(embedding)
    model = models.TwoTowerModel(*towers, tasks.Retrieval(), known_column="bought")
    config = json.loads(json.dumps(model.get_config()))
    again = models.TwoTowerModel.from_config(config)
    assert again.query_tower.embedding is again.candidate_tower.embedding is not embedding
    assert again.get_config()["known_column"] == "bought"
    brand = models.Feature("brand", ("a", "b"))
    items = models.ItemTower(embedding, [brand], {"brand": ["a", "b", "?"] * 3})
    model = models.TwoTowerModel(models.HistoryTower(items), items, tasks.Retrieval())
    again = models.TwoTowerModel.from_config(json.loads(json.dumps(model.get_config())))
    assert again.query_tower.embedding is again.candidate_tower is not items
    apart = models.TwoTowerModel(
        towers[0], models.ItemTower(models.ItemEmbedding(9, 4)), tasks.Retrieval()
    )
    again = models.TwoTowerModel.from_config(apart.get_config())
    assert again.query_tower.embedding is not again.candidate_tower.embedding


@pytest.mark.parametrize(
    "task",
    [
        tasks.Retrieval(
            LambdaCROLoss(1.3, num_items=99),
            batch_metrics=["categorical_accuracy"],
            loss_metrics=[tf.keras.metrics.Mean(name="mean")],
            temperature=0.3,
            num_hard_negatives=2,
            remove_accidental_hits=True,
            name="mine",
            num_items=99,
            memory_budget=10_000,
            global_negatives=False,
            sampling_probability=tasks.CandidateFrequencies(["a", "b", "c"], [5, 2, 1]),
        ),
        tasks.CatalogueRetrieval(
            CROLoss(0.9),
            loss_metrics=[tf.keras.metrics.Mean(name="mean")],
            temperature=0.3,
            normalize=True,
            memory_budget=10_000,
            name="mine",
        ),
    ],
    ids=lambda task: type(task).__name__,
)
def test_a_task_keeps_all_its_arguments(task):
    config = json.loads(json.dumps(task.get_config()))
    again = type(task).from_config(config)
    assert again.get_config() == task.get_config()
    queries = tf.constant([[0.3, -1.0], [0.2, 0.4], [1.0, 2.0]])
    given = (queries, queries[:, ::-1])
    call = {"candidate_ids": tf.constant(["a", "c", "unknown"])}
    if isinstance(task, tasks.CatalogueRetrieval):
        given, call = (*given, tf.constant([0, 2, 1])), {}
    assert float(again(*given, **call)) == float(task(*given, **call)) > 0.0


def test_a_task_is_a_layer_of_a_functional_model(tmp_path):
    model = saved_models.functional()
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    assert saved_models.loss_of(loaded) == saved_models.loss_of(model) > 0.0


def test_text_in_a_memory_is_saved(tmp_path):
    def model():
        embedding = models.ItemEmbedding(9, 2)
        return models.TwoTowerModel(
            models.HistoryTower(embedding),
            models.ItemTower(embedding),
            tasks.Retrieval(),
            memory=CandidateMemory(3, 2, tf.string),
        )

    saved, loaded = model(), model()
    saved.memory.extend(tf.eye(2), ["ä", "longer"], 0.5)
    for one in (saved, loaded):
        one.query_tower(tf.constant([[1]]))
    saved.save_weights(tmp_path / "of.weights.h5")
    loaded.load_weights(tmp_path / "of.weights.h5")
    found = loaded.memory.extend(tf.zeros([0, 2]), tf.zeros([0], tf.string), 1.0)
    assert [text.decode() for text in found.ids.numpy()] == ["ä", "longer"]
    np.testing.assert_array_equal(found.embeddings, np.eye(2))


def test_weights_of_a_model_without_the_state_say_so(tmp_path):
    def model(memory):
        tower = models.ItemTower(models.ItemEmbedding(9, 2))
        tower(tf.constant([1]))
        return models.TwoTowerModel(tower, tower, tasks.Retrieval(), memory=memory)

    model(None).save_weights(tmp_path / "of.weights.h5")
    with pytest.raises(ValueError, match="should have the state .*memory.* of TwoTowerModel"):
        model(CandidateMemory(3, 2)).load_weights(tmp_path / "of.weights.h5")


@tf.keras.utils.register_keras_serializable(package="tests_saved")
class Own(models.RetrievalModel):
    """A model of a user's own, whose layer has its variable from the beginning or later."""

    def __init__(self, early):
        super().__init__()
        self.early, self.users = early, tf.keras.layers.Embedding(3, 2)
        self.task = tasks.Retrieval()
        if early:
            self.users(tf.constant([0]))

    def compute_loss(self, features, training=False):
        return self.task(self.users(features), self.users(features))

    def get_config(self):
        return {"early": self.early}


@pytest.mark.parametrize("early", [True, False])
def test_a_model_of_ones_own_has_its_weights_or_says_why_not(early, tmp_path):
    model, data = Own(early), tf.data.Dataset.from_tensors([0, 1, 2])
    model.compile(tf.keras.optimizers.Adam(0.1), run_eagerly=True)
    model.fit(data, verbose=0)
    model.save(tmp_path / "own.keras")
    if not early:
        with rejected("Own should create its variables in __init__ .* with 1 of them"):
            tf.keras.models.load_model(tmp_path / "own.keras")
        return
    loaded = tf.keras.models.load_model(tmp_path / "own.keras")
    loaded.run_eagerly = True
    # The second step of Adam depends on what it remembers of the first.
    for one in (model, loaded):
        one.fit(data, verbose=0)
    np.testing.assert_array_equal(loaded.users.get_weights()[0], model.users.get_weights()[0])


def rejected(match):
    return pytest.raises(ValueError, match=match)


def test_what_cannot_be_saved_says_what_to_do():
    recall = metrics.FactorizedRecall(lambda: tf.eye(3))
    with rejected("`metrics` of a task should be None .*factorized_recall.*factorized_metrics = "):
        tasks.Retrieval(metrics=recall).get_config()
    with rejected("`metrics` of a task should be None"):
        tasks.CatalogueRetrieval(CROLoss(), metrics=recall).get_config()
    with rejected("named function to be saved.*register_keras_serializable"):
        tasks.Retrieval(CROLoss(kernel=lambda gaps: tf.exp(gaps))).get_config()
    with pytest.warns(UserWarning, match="lambda"), rejected("`batch_metrics` .*a lambda.*weights"):
        tasks.Retrieval(batch_metrics=[lambda labels, scores: scores]).get_config()
    tower = models.ItemTower(models.ItemEmbedding(3, 2))
    with rejected("`query_tower` should be a Keras object .*<lambda>.*save_weights"):
        models.TwoTowerModel(lambda ids: ids, tower, tasks.Retrieval()).get_config()
