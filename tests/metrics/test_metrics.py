"""The Keras metric and callback over exact ranks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

import tfrs_croloss
from tests.support.repeats import first_of_each
from tfrs_croloss import metrics, models, tasks


def random_problem(seed=0, num_queries=23, num_items=97, dim=5):
    random = np.random.default_rng(seed)
    queries = random.normal(size=(num_queries, dim)).astype(np.float32)
    candidates = random.normal(size=(num_items, dim)).astype(np.float32)
    return queries, candidates, random.integers(0, num_items, num_queries)


def table_layer(table):
    return tf.keras.layers.Embedding(*table.shape, weights=[table])


CANDIDATES = {
    "array": lambda table: table,
    "variable": tf.Variable,
    "function": lambda table: lambda: tf.constant(table),
    "embedding layer": table_layer,
    "dataset": lambda table: tf.data.Dataset.from_tensor_slices(table).batch(31),
    "dataset of pairs": lambda table: tf.data.Dataset.from_tensor_slices(
        (tf.range(len(table)), table)
    ).batch(31),
}


# With ids or not, in a graph or not.
WAYS = ((False, True), (True, False), (False, False), (True, True))


@pytest.mark.parametrize(
    "kind, with_ids, in_graph",
    # In `make test` each kind is asked in one way, and each way by two kinds or so.
    first_of_each(
        [
            (kind, *WAYS[(number + place) % len(WAYS)])
            for number, kind in enumerate(CANDIDATES)
            for place in range(len(WAYS))
        ],
        lambda case: case[0],
    ),
)
def test_metric_agrees_with_the_function(kind, with_ids, in_graph):
    queries, table, positives = random_problem(9)
    table[5] = table[positives[0]]  # a tie
    metric = metrics.FactorizedRecall(CANDIDATES[kind](table), ks=(50, 3), candidate_block_size=40)

    def update(*tensors, **options):
        metric.update_state(*tensors, **options)

    update = tf.function(update) if in_graph else update
    weights = np.arange(23, dtype=np.float32)
    for part in (slice(0, 9), slice(9, 23)):
        ids = tf.constant(positives[part]) if with_ids else None
        update(
            tf.constant(queries[part]),
            tf.constant(table[positives[part]]),
            true_candidate_ids=ids,
            sample_weight=tf.constant(weights[part]),
        )
    ranks = metrics.exact_ranks(queries, table, positives)
    results = {inner.name: float(inner.result()) for inner in metric.metrics}
    assert results == pytest.approx(
        {
            "factorized_recall/recall@3": np.average(ranks <= 3, weights=weights),
            "factorized_recall/recall@50": np.average(ranks <= 50, weights=weights),
            "factorized_recall/mrr": np.average(1 / ranks, weights=weights),
        }
    )
    metric.reset_states()
    assert [float(value) for value in metric.result()] == [0.0, 0.0, 0.0]


def test_metric_matches_identifiers_and_never_finds_unknown_ones():
    table = np.array([[1.0], [5.0], [3.0]], np.float32)
    names = tf.constant(["low", "high", "middle"])
    dataset = tf.data.Dataset.from_tensor_slices((names, table)).batch(2)
    for metric in (
        metrics.FactorizedRecall(table, ks=(1, 3), identifiers=names),
        metrics.FactorizedRecall(dataset, ks=(1, 3)),
    ):
        ranks = metric.ranks(
            tf.ones([4, 1]), tf.zeros([4, 1]), tf.constant(["high", "none", "low", "middle"])
        )
        assert ranks[0] == 1 and ranks[2] == 3 and ranks[3] == 2
        assert ranks[1] > 3
    metric = metrics.FactorizedRecall(table, ks=(3,))
    assert metric.ranks(tf.ones([2, 1]), tf.zeros([2, 1]), tf.constant([-1, 3])).numpy().min() > 3
    with pytest.raises(ValueError, match="identifiers=..."):
        metric.ranks(tf.ones([1, 1]), tf.ones([1, 1]), tf.constant(["low"]))


def test_metric_takes_the_positive_for_itself_in_spite_of_rounding():
    queries, table, positives = random_problem(10, num_queries=200, num_items=60, dim=32)
    rounded = table[positives] * (1 + np.float32(1e-7))
    metric = metrics.FactorizedRecall(table, ks=(1,))
    ranks = metric.ranks(tf.constant(queries), tf.constant(rounded))
    assert ranks.numpy().tolist() == metrics.exact_ranks(queries, table, positives).tolist()
    absent = metric.ranks(tf.ones([1, 32]), tf.fill([1, 32], 100.0))
    assert absent.numpy().tolist() == [1]


@pytest.mark.parametrize("with_ids", [False, True])
def test_metric_ranks_what_is_not_a_number_last(with_ids):
    queries, table, positives = random_problem(11, num_queries=4, num_items=10)
    queries[1, 0] = np.nan
    ids = tf.constant(positives) if with_ids else None
    metric = metrics.FactorizedRecall(table, ks=(9,))
    assert metric.ranks(tf.constant(queries), tf.constant(table[positives]), ids)[1] == 10
    unknown = metric.ranks(tf.ones([1, 5]), tf.fill([1, 5], np.float32(np.nan)))
    assert unknown.numpy().tolist() == [10]
    broken = table.copy()
    broken[7, 2] = np.nan
    metric = metrics.FactorizedRecall(broken, ks=(9,))
    ranks = metric.ranks(tf.ones([4, 5]), tf.constant(table[positives]), ids)
    assert ranks.numpy().tolist() == [10] * 4


def test_metric_refuses_an_index():
    index = tfrs.layers.factorized_top_k.BruteForce().index(tf.ones([3, 2]))
    with pytest.raises(TypeError, match="BruteForce.*embeddings that the index was built from"):
        metrics.FactorizedRecall(index)


class TwoTowers(tfrs.Model):
    """A table for users and one for items."""

    def __init__(self, num_users, num_items, **task_options):
        super().__init__()
        self.query_model = tf.keras.layers.Embedding(num_users, 8)
        self.candidate_model = tf.keras.layers.Embedding(num_items, 8)
        self.candidate_model.build(None)
        self.task = tfrs.tasks.Retrieval(
            metrics=metrics.FactorizedRecall(self.candidate_model, ks=(1, 5)), **task_options
        )

    def compute_loss(self, inputs, training=False):
        users, items = inputs
        return self.task(self.query_model(users), self.candidate_model(items))


def tiny_log():
    users = np.arange(40)
    return users, (users * 7) % 20


def test_metric_in_a_tfrs_task_follows_training():
    users, items = tiny_log()
    data = tf.data.Dataset.from_tensor_slices((users, items)).shuffle(40, seed=1).batch(10)
    tf.keras.utils.set_random_seed(1)
    model = TwoTowers(40, 20)
    model.compile(optimizer=tf.keras.optimizers.Adagrad(1.0))
    history = model.fit(data, epochs=15, validation_data=data, verbose=0).history
    recall = history["val_factorized_recall/recall@1"]
    assert recall[-1] > 0.9 > recall[0]
    report = metrics.evaluate(
        model.query_model(users), model.candidate_model.embeddings, items, cutoffs=[1, 5]
    )
    assert recall[-1] == pytest.approx(report.recall[1])
    assert history["val_factorized_recall/recall@5"][-1] == pytest.approx(report.recall[5])


@pytest.mark.slow
def test_metric_under_a_strategy(run_python):
    program = """
import numpy as np
import tensorflow as tf

from tfrs_croloss import metrics

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
random = np.random.default_rng(0)
queries = random.normal(size=(22, 4)).astype("float32")
table = random.normal(size=(30, 4)).astype("float32")
positives = random.integers(0, 30, 22)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    variable = tf.Variable(table)
    metric = metrics.FactorizedRecall(lambda: variable, ks=(10,))
data = tf.data.Dataset.from_tensor_slices((queries, table[positives], positives)).batch(8)

@tf.function
def step(inputs):
    strategy.run(lambda q, v, i: metric.update_state(q, v, i), args=inputs)

for inputs in strategy.experimental_distribute_dataset(data):
    step(inputs)
ranks = metrics.exact_ranks(queries, table, positives)
print(float(metric.metrics[0].result()), np.mean(ranks <= 10))
"""
    merged, expected = map(float, run_python(program).split()[-2:])
    assert merged == pytest.approx(expected)
    assert 0 < expected < 1


@pytest.mark.parametrize("from_datasets", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_callback_feeds_early_stopping_and_checkpoints(tmp_path, from_datasets):
    users, items = tiny_log()
    data = tf.data.Dataset.from_tensor_slices((users, items)).batch(10)
    tf.keras.utils.set_random_seed(2)
    model = TwoTowers(40, 20)
    model.compile(optimizer=tf.keras.optimizers.Adagrad(1.0))
    if from_datasets:
        queries = tf.data.Dataset.from_tensor_slices(users).batch(16)
        candidates = tf.data.Dataset.range(20).batch(16)
    else:
        queries, candidates = (
            lambda: model.query_model(users),
            lambda: model.candidate_model(tf.range(20)),
        )
    steps = []
    recall = metrics.RecallCallback(
        queries,
        candidates,
        items,
        cutoffs=(1, 5),
        every_n_steps=3,
        on_report=lambda step, report: steps.append(step),
    )
    callbacks = [
        recall,
        tf.keras.callbacks.EarlyStopping("val_recall@1", mode="max", patience=3),
        tf.keras.callbacks.ModelCheckpoint(
            str(tmp_path / "best.weights.h5"),
            monitor="val_recall@1",
            mode="max",
            save_best_only=True,
            save_weights_only=True,
        ),
        tf.keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
    ]
    history = model.fit(data, epochs=60, callbacks=callbacks, verbose=0).history
    assert 4 < len(history["val_recall@1"]) < 60
    assert max(history["val_recall@1"]) > 0.9
    assert {"val_recall@5", "val_mrr", "val_expected_recall"} <= set(history)
    assert (tmp_path / "best.weights.h5").exists()
    assert "val_recall@1" in (tmp_path / "log.csv").read_text().splitlines()[0]
    assert steps[:5] == [3, 4, 6, 8, 9]  # four batches to an epoch
    assert [step for step, _ in recall.reports] == steps


class PlainTowers(tfrs.Model):
    """A TFRS model with two tables, under names of the caller's choice."""

    def __init__(self, query_name, candidate_name):
        super().__init__()
        setattr(self, query_name, tf.keras.layers.Embedding(40, 8))
        setattr(self, candidate_name, tf.keras.layers.Embedding(20, 8))


def dataset_callback(**options):
    users, items = tiny_log()
    return metrics.RecallCallback(
        tf.data.Dataset.from_tensor_slices(users).batch(16),
        tf.data.Dataset.range(20).batch(16),
        items,
        cutoffs=[1, 5],
        **options,
    )


@pytest.mark.parametrize(
    "names", [("user_model", "item_model"), ("query_tower", "candidate_tower")]
)
def test_callback_finds_towers_by_their_usual_names(names):
    users, items = tiny_log()
    model = PlainTowers(*names)
    queries, candidates = (getattr(model, name) for name in names)
    expected = metrics.evaluate(queries(users), candidates(np.arange(20)), items, cutoffs=[1, 5])
    callback = dataset_callback()
    callback.set_model(model)
    assert callback.evaluate().as_dict() == expected.as_dict()


def test_callback_takes_embedding_functions_for_towers_of_any_name():
    users, items = tiny_log()
    model = PlainTowers("people", "movies")
    callback = dataset_callback(
        query_embedder=lambda batch: -model.people(batch), candidate_embedder=model.movies
    )
    callback.set_model(model)
    expected = metrics.evaluate(
        -model.people(users), model.movies(np.arange(20)), items, cutoffs=[1, 5]
    )
    assert callback.evaluate().as_dict() == expected.as_dict()
    callback = dataset_callback(query_embedder=model.people)
    callback.set_model(model)
    with pytest.raises(ValueError, match="`candidate_embedder` should be given where `candidates`"):
        callback.evaluate()


@pytest.mark.parametrize("similarity", ["cosine", pytest.param("dot", marks=pytest.mark.slow)])
def test_callback_and_metric_measure_our_own_model(similarity):
    random = np.random.default_rng(3)
    histories = random.integers(0, 21, (40, 4))
    positives = random.integers(0, 20, 40)
    embedding = models.ItemEmbedding(20, 8, stddev=1.0, seed=1)
    task = tasks.Retrieval(tfrs_croloss.CROLoss())
    model = models.TwoTowerModel(
        models.HistoryTower(embedding),
        models.ItemTower(embedding),
        task,
        similarity=similarity,
        in_batch_negatives=True,
    )
    task.factorized_metrics = metrics.FactorizedRecall(lambda: model.embed_catalogue(20), ks=(1, 5))
    model.compile(tf.keras.optimizers.Adam(0.05))
    batches = tf.data.Dataset.from_tensor_slices(
        {"history": histories, "item_id": positives}
    ).batch(16)
    callback = metrics.RecallCallback(
        tf.data.Dataset.from_tensor_slices({"history": histories}).batch(16),
        tf.data.Dataset.from_tensor_slices({"item_id": np.arange(20)}).batch(16),
        positives,
        cutoffs=[1, 5],
    )
    history = model.fit(
        batches, epochs=6, validation_data=batches, callbacks=[callback], verbose=0
    ).history
    assert history["val_recall@5"][-1] > history["val_recall@5"][0]
    for cutoff in (1, 5):
        np.testing.assert_allclose(
            history[f"val_factorized_recall/recall@{cutoff}"], history[f"val_recall@{cutoff}"]
        )
    report = metrics.evaluate(
        model.predict({"history": histories}, verbose=0),
        model.embed_catalogue(20),
        positives,
        cutoffs=[1, 5],
    )
    assert history["val_recall@5"][-1] == pytest.approx(report.recall[5])


def test_callback_takes_a_sharded_catalogue():
    queries, table, positives = random_problem(4)
    catalogue = metrics.ShardedCatalogue(
        tf.distribute.get_strategy(), lambda ids: tf.gather(table, ids), len(table)
    )
    callback = metrics.RecallCallback(lambda: queries, lambda: catalogue, positives)
    expected = metrics.evaluate(queries, table, positives)
    assert callback.evaluate().as_dict() == expected.as_dict()


def test_callback_explains_a_missing_tower():
    callback = metrics.RecallCallback(
        tf.data.Dataset.range(3).batch(2), lambda: tf.eye(3), [0, 1, 2], cutoffs=[1]
    )
    callback.set_model(tf.keras.Sequential())
    with pytest.raises(ValueError, match="`query_embedder` should be given where `queries`"):
        callback.evaluate()
    with pytest.raises(ValueError, match="`average`"):
        metrics.RecallCallback(lambda: 0, lambda: 0, [0], average="items")


@pytest.mark.slow
def test_evaluation_needs_neither_keras_2_nor_tfrs(run_python):
    program = """
import sys
import tensorflow as tf
from tfrs_croloss import metrics
table = tf.eye(4)
catalogue = metrics.ShardedCatalogue(
    tf.distribute.get_strategy(), lambda ids: tf.gather(table, ids), 4
)
report = metrics.evaluate(table, catalogue, [0, 1, 2, 0], cutoffs=[1])
ranks = metrics.exact_ranks(table, table, [0, 1, 2, 0])
assert report == metrics.summarize_ranks(ranks, num_items=4, cutoffs=[1])
print(tf.keras.__version__[0], report.recall[1], "tensorflow_recommenders" in sys.modules)
"""
    printed = run_python(program, {"TF_USE_LEGACY_KERAS": None})
    assert printed.split()[-3:] == ["3", "0.75", "False"]
