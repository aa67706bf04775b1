"""The towers and the model that joins them, against plain arithmetic."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfrs_croloss import CROLoss, LambdaCROLoss
from tfrs_croloss.memory import CandidateMemory
from tfrs_croloss.models import (
    CatalogueModel,
    Feature,
    HistoryTower,
    ItemEmbedding,
    ItemTower,
    TwoTowerModel,
    UserTower,
    unit_vectors,
)
from tfrs_croloss.tasks import CatalogueRetrieval, Retrieval

NUM_ITEMS = 7


@pytest.fixture
def mixed_float16() -> Iterator[None]:
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    yield
    tf.keras.mixed_precision.set_global_policy("float32")


def make_model(loss: Any = None, temperature: float = 0.5, **options: Any) -> TwoTowerModel:
    embedding = ItemEmbedding(NUM_ITEMS, 4, stddev=1.0, seed=3)
    task = Retrieval(loss or CROLoss.softmax_cross_entropy(), temperature=temperature)
    return TwoTowerModel(HistoryTower(embedding), ItemTower(embedding), task, **options)


def make_batch(**more: Any) -> dict[str, tf.Tensor]:
    batch = {
        "history": tf.constant([[0, 1, 7], [2, 7, 7], [3, 4, 5]]),
        "item_id": tf.constant([2, 0, 6]),
        "negative_item_id": tf.constant([0, 1, 2, 5]),
    }
    return {**batch, **{name: tf.constant(value) for name, value in more.items()}}


def table(tower: HistoryTower | ItemTower) -> np.ndarray:
    return tower.embedding(tf.range(NUM_ITEMS)).numpy().astype(np.float64)


# ----------------------------------------------------------------------------------------- vectors


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e30])
def test_unit_vectors_of_any_size(size: float) -> None:
    vectors = tf.constant([[3.0 * size, -4.0 * size]])
    np.testing.assert_allclose(unit_vectors(vectors), [[0.6, -0.8]], rtol=1e-6)


def test_the_zero_vector_stays_zero_with_a_finite_gradient() -> None:
    vectors = tf.zeros([2, 3])
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        units = unit_vectors(vectors)
    assert not np.any(units)
    assert np.all(np.isfinite(tape.gradient(units, vectors)))


def test_the_gradient_of_unit_vectors() -> None:
    values = np.array([[0.3, -2.0, 0.7], [5.0, 1.0, -1.0]])
    theoretical, numerical = tf.test.compute_gradient(unit_vectors, [tf.constant(values)])
    np.testing.assert_allclose(theoretical[0], numerical[0], atol=1e-6)


# ------------------------------------------------------------------------------------------ towers


def test_the_mean_history_against_plain_python() -> None:
    tower = HistoryTower(ItemEmbedding(NUM_ITEMS, 4, stddev=1.0))
    histories = [[0, 1, 6, 6], [5], []]
    padded = [history + [NUM_ITEMS] * (4 - len(history)) for history in histories]
    arrived = tower(tf.constant(padded)).numpy()
    rows = table(tower)
    kernel, bias = (weights.numpy() for weights in tower._dense.weights)
    for history, vector in zip(histories, arrived):
        mean = sum((rows[item] for item in history), np.zeros(4)) / max(len(history), 1)
        np.testing.assert_allclose(vector, mean @ kernel + bias, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("encoder", ["mean", "gru", "transformer"])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_ids_that_are_no_items_are_padding(encoder: str, dtype: tf.DType) -> None:
    tower = HistoryTower(ItemEmbedding(NUM_ITEMS, 4, stddev=1.0), encoder=encoder)
    short = tower(tf.constant([[3, 1]], dtype))
    for padding in (NUM_ITEMS, NUM_ITEMS + 5, -1):
        longer = tower(tf.constant([[3, 1, padding, padding]], dtype))
        np.testing.assert_allclose(longer, short, rtol=1e-6)
    assert np.all(np.isfinite(tower(tf.fill([2, 3], tf.constant(NUM_ITEMS, dtype)))))


def test_the_gru_sees_the_order_and_the_mean_does_not() -> None:
    for encoder, alike in (("gru", False), ("mean", True)):
        tower = HistoryTower(ItemEmbedding(NUM_ITEMS, 4, stddev=1.0), encoder=encoder)
        forth, back = tower(tf.constant([[1, 2, 3]])), tower(tf.constant([[3, 2, 1]]))
        assert np.allclose(forth, back, atol=1e-5) == alike


def test_padding_trains_nothing() -> None:
    embedding = ItemEmbedding(NUM_ITEMS, 4)
    tower = HistoryTower(embedding)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tower(tf.constant([[2, NUM_ITEMS], [NUM_ITEMS, NUM_ITEMS]])))
    gradient = tape.gradient(total, embedding.trainable_variables[0])
    dense = tf.convert_to_tensor(gradient).numpy()
    assert isinstance(gradient, tf.IndexedSlices)
    assert set(np.flatnonzero(np.any(dense != 0, axis=1))) == {2}


def test_items_outside_the_catalogue_are_an_error() -> None:
    tower = ItemTower(ItemEmbedding(NUM_ITEMS, 4))
    with pytest.raises(ValueError, match=r"ids of items, 0 to 6.*Rows: \[1\]"):
        tower(tf.constant([0, NUM_ITEMS]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="ids of items"):
        tf.function(tower)(tf.constant([0, -1]))


def test_towers_name_what_is_wrong_with_their_inputs() -> None:
    embedding = ItemEmbedding(NUM_ITEMS, 4)
    with pytest.raises(ValueError, match="`encoder` should be one of"):
        HistoryTower(embedding, encoder="lstm")
    with pytest.raises(ValueError, match=r"`history` should be integer ids of shape \[batch, len"):
        HistoryTower(embedding)(tf.constant([1, 2]))
    with pytest.raises(ValueError, match="column 'history'"):
        HistoryTower(embedding)({"item_id": tf.constant([1])})
    with pytest.raises(ValueError, match="column 'brand'"):
        ItemTower(embedding, [Feature("brand", ("a",))])({"item_id": tf.constant([1])})
    with pytest.raises(ValueError, match="one value of 'brand' for each of the 7 items"):
        ItemTower(embedding, [Feature("brand", ("a",))], {"brand": ["a"]})
    with pytest.raises(ValueError, match="distinct strings, or distinct integers"):
        Feature("brand", ("a", 1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'price' should hold integers"):
        tower = ItemTower(embedding, [Feature("price", (1, 2))])
        tower({"item_id": tf.constant([1]), "price": tf.constant(["cheap"])})


def test_item_features_by_id_are_those_of_columns() -> None:
    brands, prices = ["x", "y", "x", "z", "y", "x", "z"], [3, 1, 1, 2, 9, 3, 2]
    features = [Feature.from_values("brand", brands), Feature("price", (1, 2, 3), dim=3)]
    embedding = ItemEmbedding(NUM_ITEMS, 4)
    by_id = ItemTower(embedding, features, {"brand": brands, "price": prices})
    by_column = ItemTower(embedding, features)
    ids = tf.constant([6, 0, 4])
    columns = {
        "item_id": ids,
        "brand": tf.constant([brands[item] for item in ids]),
        "price": tf.constant([prices[item] for item in ids]),
    }
    expected = by_id(ids)
    by_column(columns)
    by_column.set_weights([weight for weight in by_id.get_weights() if weight.dtype.kind == "f"])
    np.testing.assert_allclose(by_column(columns), expected, rtol=1e-6)
    columns["brand"] = tf.constant(["x", "x", "x"])
    assert not np.allclose(by_column(columns), expected)


def test_user_features_change_the_query_and_unknown_values_are_alike() -> None:
    features = [Feature("country", ("de", "fr")), Feature("age", (20, 30))]
    tower = HistoryTower(ItemEmbedding(NUM_ITEMS, 4), features=features)

    def query(country: str, age: int) -> np.ndarray:
        inputs = {"history": [[1, 2]], "country": [country], "age": [age]}
        return tower({name: tf.constant(value) for name, value in inputs.items()}).numpy()

    assert not np.allclose(query("de", 20), query("fr", 20))
    assert not np.allclose(query("de", 20), query("de", 30))
    np.testing.assert_array_equal(query("xx", 99), query("yy", 98))


def test_a_user_is_a_row_of_the_table() -> None:
    tower = UserTower(5, 3, seed=1)
    vectors = tower(tf.range(5)).numpy()
    assert vectors.shape == (5, 3) and len(np.unique(vectors)) == 15
    np.testing.assert_array_equal(tower({"user": tf.constant([4, 0])}), vectors[[4, 0]])
    with pytest.raises(ValueError, match=r"`user` should be numbers of users, 0 to 4.*Rows: \[1\]"):
        tower(tf.constant([0, 5]))
    with pytest.raises(ValueError, match="`num_users`"):
        UserTower(0)


@pytest.mark.parametrize("kind", ["history", "item", "user"])
def test_towers_come_back_from_their_configuration(kind: str) -> None:
    embedding = ItemEmbedding(NUM_ITEMS, 3, stddev=0.5, seed=9)
    features = [Feature("code", (4, 5), dim=2)]
    if kind == "history":
        tower: Any = HistoryTower(embedding, 6, "gru", features, "clicks", name="user")
    elif kind == "user":
        tower = UserTower(9, 6, stddev=0.5, seed=9, user_column="number", name="person")
    else:
        tower = ItemTower(embedding, features, {"code": [4, 5, 4, 5, 4, 5, 6]}, "sku", "thing")
    config = tower.get_config()
    again = type(tower).from_config(config).get_config()
    if kind != "user":
        # The table is one of its own, and so is its number.
        tables = [one.pop("embedding") for one in (again, config)]
        assert tables[0]["config"] == tables[1]["config"] and tables[0] != tables[1]
    assert again == config


# ------------------------------------------------------------------------------------------- model


def plain_loss(
    model: TwoTowerModel, batch: dict[str, tf.Tensor], left_out: dict[int, set[int]]
) -> float:
    """Softmax cross-entropy by loops: in-batch positives are no negatives unless the model says."""
    queries = model.query_tower(batch["history"]).numpy().astype(np.float64)
    rows = table(model.candidate_tower)
    positives = batch["item_id"].numpy().tolist()
    losses = []
    for row, positive in enumerate(positives):
        negatives = batch["negative_item_id"].numpy().tolist()
        if model.in_batch_negatives:
            negatives += positives[:row] + positives[row + 1 :]
        negatives = [item for item in negatives if item != positive]
        negatives = [item for item in negatives if item not in left_out.get(row, set())]

        def score(item: int) -> float:
            product = float(queries[row] @ rows[item])
            if model.similarity == "cosine":
                product /= float(np.linalg.norm(queries[row]) * np.linalg.norm(rows[item]))
            return product / 0.5

        overtaking = sum(math.exp(score(item) - score(positive)) for item in negatives)
        losses.append(math.log(1.0 + overtaking))
    return sum(losses)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("in_batch_negatives", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_the_loss_against_plain_python(
    similarity: str, in_batch_negatives: bool, known: bool
) -> None:
    model = make_model(similarity=similarity, in_batch_negatives=in_batch_negatives)
    batch = make_batch(**({"known_item_ids": [[1, 7], [7, 7], [0, 2]]} if known else {}))
    left_out = {0: {1}, 2: {0, 2}} if known else {}
    loss = model.compute_loss(batch)
    assert float(loss) == pytest.approx(plain_loss(model, batch, left_out), rel=1e-5)


def test_in_batch_negatives_count_by_the_mixture_they_are_drawn_from() -> None:
    share = np.array([0.4, 0.2, 0.1, 0.1, 0.1, 0.1, 0.0])
    loss = CROLoss(alpha=1.0, kernel="softplus", num_items=NUM_ITEMS)
    model = make_model(loss, in_batch_negatives=True, candidate_probabilities=share)
    batch = make_batch(item_id=[2, 0, 3])
    queries, candidates, ids, mask = (value.numpy() for value in model.scored_batch(batch))
    losses = []
    for row in range(3):
        scores = candidates @ queries[row] / 0.5
        columns = [column for column in range(7) if mask[row, column] and column != row]
        rank = 1.0
        for column in columns:
            drawn = (3 * share[ids[column]] + 4 / NUM_ITEMS) / 7
            gap = scores[column] - scores[row]
            rank += math.log1p(math.exp(gap)) / (len(columns) * drawn)
        losses.append(math.log(rank))
    assert float(model.compute_loss(batch)) == pytest.approx(sum(losses), rel=1e-5)


def test_positives_of_earlier_batches_are_negatives_and_count_by_the_mixture() -> None:
    share = np.array([0.4, 0.2, 0.1, 0.1, 0.1, 0.1, 0.0])
    loss = CROLoss(alpha=1.0, kernel="softplus", num_items=NUM_ITEMS)
    model = make_model(loss, memory=CandidateMemory(8, 4, tf.int32), candidate_probabilities=share)
    earlier = make_batch(item_id=[4, 4, 1])
    model.compute_loss(earlier)  # evaluation remembers nothing
    model.compute_loss(earlier, training=True)
    batch = make_batch(item_id=[2, 0, 3])
    queries = model.embed_queries(batch).numpy()
    vectors = model.embed_catalogue(NUM_ITEMS).numpy()
    losses = []
    for row, positive in enumerate([2, 0, 3]):
        scores = vectors @ queries[row] / 0.5
        negatives = [item for item in [0, 1, 2, 5, 4, 4, 1] if item != positive]
        rank = 1.0
        for item in negatives:
            drawn = (3 * share[item] + 4 / NUM_ITEMS) / 7
            gap = scores[item] - scores[positive]
            rank += math.log1p(math.exp(gap)) / (len(negatives) * drawn)
        losses.append(math.log(rank))
    assert float(model.compute_loss(batch, training=True)) == pytest.approx(sum(losses), rel=1e-5)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("known", ["none", "ragged", "padded"])
def test_the_loss_over_the_whole_catalogue_against_plain_python(
    similarity: str, known: str
) -> None:
    embedding = ItemEmbedding(NUM_ITEMS, 4, stddev=1.0, seed=3)
    model = CatalogueModel(
        NUM_ITEMS,
        UserTower(5, 4, stddev=1.0, seed=4, user_column="person"),
        ItemTower(embedding, id_column="sku"),
        CatalogueRetrieval(CROLoss.softmax_cross_entropy(), temperature=0.5),
        similarity=similarity,
        query_inputs="person",
        id_column="sku",
    )
    batch = {"person": tf.constant([4, 0, 1]), "sku": tf.constant([2, 0, 6])}
    left_out: list[set[int]] = [set(), set(), set()]
    if known != "none":
        rows = tf.constant([[1, 7], [7, 7], [0, 2]])
        batch["known_item_ids"] = tf.RaggedTensor.from_tensor(rows, padding=7)
        left_out = [{1}, set(), {0, 2}]
        if known == "padded":
            batch["known_item_ids"] = rows
    queries = model(batch).numpy().astype(np.float64)
    rows = model.embed_catalogue(NUM_ITEMS).numpy().astype(np.float64)
    losses = []
    for query, positive, dropped in zip(queries, [2, 0, 6], left_out):
        gaps = (rows - rows[positive]) @ query / 0.5
        others = [item for item in range(NUM_ITEMS) if item not in {positive, *dropped}]
        losses.append(math.log(1.0 + sum(math.exp(gaps[item]) for item in others)))
    assert float(model.compute_loss(batch)) == pytest.approx(sum(losses), rel=1e-5)
    _, candidates, ids, mask = (value.numpy() for value in model.scored_batch(batch))
    np.testing.assert_allclose(candidates, rows[ids], rtol=1e-6)
    for row, (positive, dropped) in enumerate(zip([2, 0, 6], left_out)):
        counted = sorted(ids[mask[row]])
        assert counted == [item for item in range(NUM_ITEMS) if item not in dropped - {positive}]


@pytest.mark.parametrize("known", ["none", "ragged", "padded"])
def test_untrained_items_are_not_ranked_in_training(known: str) -> None:
    embedding = ItemEmbedding(NUM_ITEMS, 4, stddev=1.0, seed=3)
    model = CatalogueModel(
        NUM_ITEMS,
        UserTower(5, 4, stddev=1.0, seed=4, user_column="person"),
        ItemTower(embedding),
        CatalogueRetrieval(CROLoss.softmax_cross_entropy()),
        query_inputs="person",
        trained_items=[True, False, True, True, False, True, True],
    )
    batch = {"person": tf.constant([4, 0, 1]), "item_id": tf.constant([2, 0, 6])}
    left_out: list[set[int]] = [set(), set(), set()]
    if known != "none":
        rows = tf.constant([[1, 5], [7, 7], [0, 2]])
        batch["known_item_ids"] = tf.RaggedTensor.from_tensor(rows, padding=7)
        left_out = [{1, 5}, set(), {0, 2}]
        if known == "padded":
            batch["known_item_ids"] = rows
    with tf.GradientTape() as tape:
        in_training = model.compute_loss(batch, training=True)
    moved = tape.gradient(in_training, embedding.trainable_variables[0])
    np.testing.assert_array_equal(np.unique(moved.indices), [0, 2, 3, 5, 6])
    again = CatalogueModel.from_config(model.get_config())
    assert again.get_config()["trained_items"] == [True, False, True, True, False, True, True]
    queries = model(batch).numpy().astype(np.float64)
    rows = model.embed_catalogue(NUM_ITEMS).numpy().astype(np.float64)
    for training, ranked in ((True, [0, 2, 3, 5, 6]), (False, range(NUM_ITEMS))):
        losses = []
        for query, positive, dropped in zip(queries, [2, 0, 6], left_out):
            gaps = (rows - rows[positive]) @ query
            others = [item for item in ranked if item not in {positive, *dropped}]
            losses.append(math.log(1.0 + sum(math.exp(gaps[item]) for item in others)))
        assert float(model.compute_loss(batch, training)) == pytest.approx(sum(losses), rel=1e-5)
        _, vectors, ids, mask = (one.numpy() for one in model.scored_batch(batch, training))
        np.testing.assert_allclose(vectors, rows[ids], rtol=1e-6)
        for row, (positive, dropped) in enumerate(zip([2, 0, 6], left_out)):
            counted = [item for item in ranked if item not in dropped - {positive}]
            assert sorted(ids[mask[row]]) == counted


def test_trained_items_are_checked() -> None:
    def make(trained: list[bool]) -> CatalogueModel:
        embedding = ItemEmbedding(NUM_ITEMS, 4)
        task = CatalogueRetrieval(CROLoss())
        towers = UserTower(5, 4), ItemTower(embedding)
        return CatalogueModel(NUM_ITEMS, *towers, task, query_inputs="user", trained_items=trained)

    for wrong in ([True], [False] * NUM_ITEMS):
        with pytest.raises(ValueError, match="`trained_items` should have one boolean for each"):
            make(wrong)
    model = make([True] * (NUM_ITEMS - 1) + [False])
    batch = {"user": tf.constant([0]), "item_id": tf.constant([NUM_ITEMS - 1])}
    assert float(model.compute_loss(batch)) >= 0.0
    with pytest.raises(ValueError, match="`item_id` should be items of `trained_items`"):
        model.compute_loss(batch, training=True)
    for number in (-1, NUM_ITEMS):
        with pytest.raises(ValueError, match="from 0 to the number of items minus 1"):
            model.compute_loss({**batch, "item_id": tf.constant([number])}, training=True)


def test_a_factorization_over_the_whole_catalogue_learns() -> None:
    model = CatalogueModel(
        NUM_ITEMS,
        UserTower(12, 8, seed=1),
        ItemTower(ItemEmbedding(NUM_ITEMS, 8, seed=2)),
        CatalogueRetrieval(LambdaCROLoss(), temperature=0.1),
        query_inputs="user",
    )
    users = np.arange(12)
    batch = {"user": users, "item_id": users % NUM_ITEMS}
    model.compile(tf.keras.optimizers.Adam(0.1))
    model.fit(tf.data.Dataset.from_tensors(batch).repeat(40), verbose=0)
    scores = model.predict(batch, verbose=0) @ model.embed_catalogue(NUM_ITEMS).numpy().T
    np.testing.assert_array_equal(scores.argmax(axis=1), users % NUM_ITEMS)


def test_any_keras_models_are_towers() -> None:
    tf.keras.utils.set_random_seed(0)
    queries = tf.keras.Sequential([tf.keras.layers.Dense(3)])
    candidates = tf.keras.Sequential(
        [tf.keras.layers.StringLookup(vocabulary=["a", "b"]), tf.keras.layers.Embedding(3, 3)]
    )
    model = TwoTowerModel(
        queries,
        candidates,
        Retrieval(CROLoss(), temperature=0.1),
        query_inputs="age",
        candidate_inputs="sku",
        id_column="sku",
        in_batch_negatives=True,
    )
    batch = {"age": tf.constant([[20.0], [-30.0]]), "sku": tf.constant(["a", "b"])}
    model.compile(tf.keras.optimizers.Adam(0.1))
    losses = model.fit(tf.data.Dataset.from_tensors(batch).repeat(30), epochs=2, verbose=0)
    first, last = losses.history["loss"]
    assert last < first
    with pytest.raises(ValueError, match=r"Missing: \['sku'\]"):
        model.compute_loss({"age": batch["age"]})


@pytest.mark.parametrize("encoder", ["mean", "gru", "transformer"])
def test_weights_come_back_from_a_checkpoint(tmp_path: pathlib.Path, encoder: str) -> None:
    def make(seed: int) -> TwoTowerModel:
        tf.keras.utils.set_random_seed(seed)
        embedding = ItemEmbedding(NUM_ITEMS, 4, seed=seed)
        task = Retrieval(CROLoss(num_items=NUM_ITEMS))
        model = TwoTowerModel(
            HistoryTower(embedding, encoder=encoder, features=[Feature("age", (1, 2))]),
            ItemTower(embedding),
            task,
            query_inputs=("history", "age"),
        )
        model.compute_loss(make_batch(age=[1, 2, 3]))
        return model

    saved, restored = make(1), make(2)
    batch = make_batch(age=[1, 2, 3])
    assert not np.allclose(saved(batch), restored(batch))
    path = tf.train.Checkpoint(saved).write(str(tmp_path / "weights"))
    tf.train.Checkpoint(restored).read(path).assert_existing_objects_matched()
    np.testing.assert_array_equal(saved(batch), restored(batch))
    np.testing.assert_array_equal(
        saved.embed_catalogue(NUM_ITEMS), restored.embed_catalogue(NUM_ITEMS, block_size=3)
    )


@pytest.mark.parametrize(
    "encoder",
    ["mean", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gru", "transformer"))],
)
def test_a_tower_is_exported_as_a_saved_model(tmp_path: pathlib.Path, encoder: str) -> None:
    tower = HistoryTower(
        ItemEmbedding(NUM_ITEMS, 4), encoder=encoder, features=[Feature("country", ("de",))]
    )
    inputs = {"history": tf.constant([[1, 2], [3, 7]]), "country": tf.constant(["de", "xx"])}
    expected = tower(inputs)
    tf.saved_model.save(tower, str(tmp_path))
    np.testing.assert_allclose(tf.saved_model.load(str(tmp_path))(inputs), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "encoder",
    [
        "mean",
        pytest.param("gru", marks=pytest.mark.slow),
        pytest.param("transformer", marks=pytest.mark.slow),
    ],
)
def test_half_precision_learns_what_single_precision_does(
    encoder: str, request: pytest.FixtureRequest
) -> None:
    def train(optimizer: Any) -> tuple[TwoTowerModel, list[float]]:
        tf.keras.utils.set_random_seed(0)
        embedding = ItemEmbedding(NUM_ITEMS, 4, stddev=0.5, seed=0)
        task = Retrieval(LambdaCROLoss(num_items=NUM_ITEMS), temperature=0.5)
        model = TwoTowerModel(HistoryTower(embedding, encoder=encoder), ItemTower(embedding), task)
        model.compile(optimizer)
        dataset = tf.data.Dataset.from_tensors(make_batch()).repeat(10)
        return model, model.fit(dataset, epochs=3, verbose=0).history["loss"]

    # Unlike Adam, plain descent notices gradients that are too large by a factor.
    _, single = train(tf.keras.optimizers.SGD(0.1))
    request.getfixturevalue("mixed_float16")
    descent = tf.keras.mixed_precision.LossScaleOptimizer(
        tf.keras.optimizers.SGD(0.1), dynamic=False, initial_scale=64
    )
    model, half = train(descent)
    assert {variable.dtype for variable in model.trainable_variables} == {tf.float32}
    assert model.query_tower(make_batch()["history"]).dtype == tf.float16
    assert model(make_batch()).dtype == tf.float32
    assert half[-1] < half[0]
    np.testing.assert_allclose(half, single, rtol=2e-3)


def test_a_user_without_a_direction_scores_nothing_rather_than_nan() -> None:
    model = make_model()
    batch = make_batch(history=[[7, 7, 7]] * 3)
    model.compute_loss(batch)
    with tf.GradientTape() as tape:
        loss = model.compute_loss(batch)
    # The bias starts at zero, so every query is the zero vector and every score 0.
    expected = 2 * math.log(1 + 3) + math.log(1 + 4)
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    for gradient in tape.gradient(loss, model.trainable_variables):
        assert np.all(np.isfinite(tf.convert_to_tensor(gradient)))
