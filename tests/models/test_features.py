"""Side features: how each kind is encoded and embedded, and the towers that take them."""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfrs_croloss.models import (
    AgeFeature,
    Feature,
    FeatureEmbedding,
    FeatureEncoder,
    HistoryTower,
    HourFeature,
    ItemEmbedding,
    ItemTower,
    NumberFeature,
    QuantileFeature,
    SideFeature,
    TagsFeature,
    TextFeature,
    WeekdayFeature,
)
from tfrs_croloss.models.features import MISSING_INTEGER, feature_from_config

NUM_ITEMS, DIM = 7, 4
NAN = math.nan
MONDAY = int(datetime.datetime(2026, 11, 16, 7, 59, tzinfo=datetime.timezone.utc).timestamp())

EVERY_KIND: dict[SideFeature, list[Any]] = {
    Feature("brand", ("acme", "öl"), dim=2): ["öl", "", "unknown"],
    Feature("code", (5, -1), dim=3): [-1, MISSING_INTEGER, 6],
    TagsFeature("genres", ("war", "fun"), dim=2): ["fun|war|new", "", "||"],
    TextFeature("title", 50, dim=2): ["Die ÄRA, 2!", "", "die ära"],
    NumberFeature("weight", 10.0, 4.0, dim=2): [2.0, NAN, 1e300],
    QuantileFeature("price", (1.0, 2.5), dim=2): [2.5, NAN, 0.1],
    HourFeature("hour", dim=2): [MONDAY, MISSING_INTEGER, MONDAY + 3600],
    WeekdayFeature("day", dim=2): [MONDAY, MISSING_INTEGER, MONDAY - 86_400],
    AgeFeature("age", MONDAY, 1.0, 2.0, dim=2): [MONDAY - 86_400, MISSING_INTEGER, MONDAY + 5],
}
FEATURES = list(EVERY_KIND)
RAW = {feature.name: values for feature, values in EVERY_KIND.items()}


def columns() -> dict[str, tf.Tensor]:
    return {feature.name: tf.constant(RAW[feature.name], feature.raw_dtype) for feature in FEATURES}


def word(text: str) -> int:
    return 1 + int(tf.strings.to_hash_bucket_fast(text, 50))


EXPECTED: dict[str, Any] = {
    "brand": [2, 0, 0],
    "code": [2, 0, 0],
    "genres": [[2, 1, 0], [], []],
    "title": [[word("die"), word("ära"), word("2")], [], [word("die"), word("ära")]],
    "weight": [(2.0 - 10.0) / 4.0, NAN, NAN],
    "price": [3, 0, 1],
    "hour": [8, 0, 9],
    "day": [1, 0, 7],
    "age": [(math.log(2.0) - 1.0) / 2.0, NAN, (0.0 - 1.0) / 2.0],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_raw_values_are_encoded(name: str) -> None:
    encoded = FeatureEncoder(FEATURES)(columns())[name]
    feature = next(one for one in FEATURES if one.name == name)
    assert encoded.dtype == feature.encoded_dtype
    if feature.is_ragged:
        assert encoded.to_list() == EXPECTED[name]
    else:
        np.testing.assert_allclose(encoded, EXPECTED[name], rtol=1e-6)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_the_missing_value_is_encoded_as_missing(feature: SideFeature) -> None:
    missing = {feature.name: tf.constant([feature.missing], feature.raw_dtype)}
    encoded = FeatureEncoder([feature])(missing)[feature.name]
    if feature.is_ragged:
        assert encoded.to_list() == [[]]
    elif feature.num_rows is None:
        assert np.isnan(encoded)
    else:
        assert encoded.numpy().tolist() == [0]


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_features_come_back_from_their_configuration(feature: SideFeature) -> None:
    assert feature_from_config(json.loads(json.dumps(feature.get_config()))) == feature


def test_a_configuration_without_a_kind_is_a_category() -> None:
    config = {"name": "code", "vocabulary": [4, 5], "dim": 2}
    assert feature_from_config(config) == Feature("code", (4, 5), 2)


def test_vectors_are_rows_scaled_sums_and_multiples() -> None:
    tags, number = TagsFeature("tags", ("a", "b"), dim=3), NumberFeature("number", dim=3)
    layer = FeatureEmbedding([tags, number], encoded=True)
    given = {
        "tags": tf.ragged.constant([[1, 2, 2], []], tf.int32),
        "number": tf.constant([-2.0, NAN]),
    }
    vectors = layer(given).numpy()
    table = layer._embeddings["tags"].embeddings.numpy()
    rows = layer._embeddings["number"].kernel.numpy()
    expected = (table[1] + 2 * table[2]) / np.sqrt(3)
    np.testing.assert_allclose(vectors[0, :3], expected, rtol=1e-5)
    np.testing.assert_allclose(vectors[1, :3], np.zeros(3))
    np.testing.assert_allclose(vectors[:, 3:], [-2.0 * rows[0], rows[1]], rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NumberFeature("x", deviation=0.0), "`deviation`"),
        (lambda: QuantileFeature("x", (2.0, 1.0)), "`boundaries` of feature 'x'.*ascending"),
        (lambda: TagsFeature("x", ("a", "a")), "`vocabulary` of feature 'x'"),
        (lambda: Feature("x", ("a", "")), "the value that stands for a missing one"),
        (lambda: TextFeature("x", 0), "`buckets`"),
        (lambda: HourFeature("x", dim=0), "`dim`"),
        (lambda: NumberFeature.from_values("x", [NAN]), "at least one number"),
        (lambda: FeatureEncoder([HourFeature("x"), HourFeature("x")]), "distinct names"),
        (lambda: FeatureEncoder([HourFeature("x")])({"y": [1]}), "column 'x'"),
        (lambda: FeatureEncoder([HourFeature("x")])({"x": [1.5]}), "'x' should hold integers"),
        (lambda: FeatureEncoder([NumberFeature("x")])({"x": ["a"]}), "'x' should hold numbers"),
        (lambda: FeatureEncoder([TextFeature("x")])({"x": [3]}), "'x' should hold strings"),
        (lambda: FeatureEncoder([TextFeature("x")])({"x": [["a"]]}), "of shape \\[batch\\]"),
        (
            lambda: FeatureEmbedding([TextFeature("x")], encoded=True)({"x": tf.constant([1])}),
            "'x' should be encoded: int32, ragged",
        ),
    ],
)
def test_errors_name_the_feature(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_quantiles_from_values_hold_equal_shares() -> None:
    feature = QuantileFeature.from_values("x", np.arange(1000.0), buckets=4)
    encoded = feature.encode(tf.range(1000.0, dtype=tf.float64), None)
    assert np.bincount(encoded).tolist() == [0, 250, 250, 250, 250]


# ------------------------------------------------------------------------------------------ towers


def raw_and_encoded(tower: Any, twin: Any, ids: Any, column: str) -> tuple[Any, Any]:
    """What a tower makes of raw columns, and its twin, with the same weights, of encoded ones."""
    raw = tower({column: ids, **columns()})
    encoded = {column: ids, **FeatureEncoder(FEATURES)(columns())}
    twin(encoded)
    twin.set_weights(tower.get_weights())
    return raw, twin(encoded)


@pytest.mark.parametrize("encoder", ["mean", "gru", "transformer"])
def test_a_history_tower_takes_raw_and_encoded_features(encoder: str) -> None:
    history = tf.constant([[1, 2, 7], [7, 7, 7], [0, 3, 5]])
    towers = [
        HistoryTower(
            ItemEmbedding(NUM_ITEMS, DIM),
            encoder=encoder,
            features=FEATURES[:5],
            context_features=FEATURES[5:],
            hidden=(6, 5),
            encoded=encoded,
        )
        for encoded in (False, True)
    ]
    raw, encoded = raw_and_encoded(*towers, history, "history")
    assert raw.shape == (3, DIM)
    np.testing.assert_allclose(raw, encoded, rtol=1e-5)


def test_hidden_layers_come_between() -> None:
    tower = HistoryTower(ItemEmbedding(NUM_ITEMS, DIM), hidden=(6,))
    history = tf.constant([[1, 2, 7]])
    result = tower(history)
    table = tower.embedding(tf.constant([1, 2])).numpy()
    hidden, dense = tower._hidden[0], tower._dense
    kernels = [layer.kernel.numpy() for layer in (hidden, dense)]
    expected = np.maximum(table.mean(axis=0) @ kernels[0], 0.0) @ kernels[1]
    np.testing.assert_allclose(result[0], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("encoder", ["mean", "gru"])
def test_positions_have_the_features_of_the_user_and_contexts_of_their_own(encoder: str) -> None:
    tower = HistoryTower(
        ItemEmbedding(NUM_ITEMS, DIM),
        encoder=encoder,
        features=[Feature("country", ("de", "fr"))],
        context_features=[HourFeature("hour")],
    )
    history = np.array([[1, 2, 3], [4, 5, 7]])
    positions = np.array([[0, 0], [0, 2], [1, 1]])
    hours = [3600, 7200, 0]
    countries = np.array(["fr", "de"])
    at_positions = tower.at_positions(
        {
            "history": tf.constant(history),
            "country": tf.constant(countries.tolist()),
            "hour": tf.constant(hours, tf.int64),
        },
        tf.constant(positions),
    )
    for place, (row, column) in enumerate(positions):
        alone = tower(
            {
                "history": tf.constant(history[row : row + 1, : column + 1]),
                "country": tf.constant(countries[row : row + 1].tolist()),
                "hour": tf.constant(hours[place : place + 1], tf.int64),
            }
        )
        np.testing.assert_allclose(at_positions[place], alone[0], rtol=1e-5, atol=1e-7)


def item_values(rows: list[int]) -> dict[str, Any]:
    return {name: [values[row] for row in rows] for name, values in RAW.items()}


def item_tower(**options: Any) -> ItemTower:
    """Items have the values of the three rows of ``RAW`` in turn."""
    values = item_values([item % 3 for item in range(NUM_ITEMS)])
    return ItemTower(ItemEmbedding(NUM_ITEMS, DIM), FEATURES, values, **options)


def test_items_look_up_features_of_every_kind() -> None:
    by_id = item_tower(hidden=(5,))
    by_column = ItemTower(by_id.embedding, FEATURES, hidden=(5,))
    ids = tf.constant([4, 2, 0])
    given = {
        feature.name: tf.constant(
            [RAW[feature.name][int(item) % 3] for item in ids], feature.raw_dtype
        )
        for feature in FEATURES
    }
    expected = by_id(ids)
    by_column({"item_id": ids, **given})
    for variable, value in zip(by_column.trainable_variables, by_id.trainable_variables):
        variable.assign(value)
    np.testing.assert_allclose(by_column({"item_id": ids, **given}), expected, rtol=1e-5)


def test_an_item_without_a_row_is_embedded_from_its_features() -> None:
    trained = np.arange(NUM_ITEMS) != 4
    tower = item_tower(trained_items=trained)
    new = tower.from_features(
        {
            feature.name: tf.constant([RAW[feature.name][4 % 3]], feature.raw_dtype)
            for feature in FEATURES
        }
    )
    np.testing.assert_allclose(tower(tf.constant([4])), new, rtol=1e-5, atol=1e-7)
    # Item 1 has the same features, and a row of its own.
    assert not np.allclose(tower(tf.constant([1])), new)


def by_hand(tower: ItemTower, item: int, row: np.ndarray) -> np.ndarray:
    """An item's vector from the values of the third feature, prices, and a row."""
    assert tower._given is not None and tower._dense is not None
    number = tower._given.embed({"price": tf.constant([float(item % 3)])})[0].numpy()
    return row + number @ tower._dense.kernel.numpy() + tower._dense.bias.numpy()


def priced_tower(**options: Any) -> ItemTower:
    prices = [float(item % 3) for item in range(NUM_ITEMS)]
    feature = NumberFeature("price", mean=0.0, deviation=1.0, dim=2)
    table = ItemEmbedding(NUM_ITEMS, DIM, seed=1)
    return ItemTower(table, [feature], {"price": prices}, **options)


def test_features_are_added_to_the_row() -> None:
    tower = priced_tower()
    tower(tf.constant([0]))
    assert tower._dense is not None
    tower._dense.bias.assign(np.arange(DIM) / 10.0)
    rows = tower.embedding(tf.range(NUM_ITEMS)).numpy()
    expected = [by_hand(tower, item, rows[item]) for item in range(NUM_ITEMS)]
    np.testing.assert_allclose(tower(tf.range(NUM_ITEMS)), expected, rtol=1e-5, atol=1e-7)


def test_features_of_the_size_of_the_row_are_added_as_they_are() -> None:
    brand = Feature("brand", ("a", "b"), dim=DIM)
    table = ItemEmbedding(NUM_ITEMS, DIM)
    brands = ["a", "b", "?"] * 2 + ["a"]
    tower = ItemTower(table, [brand], {"brand": brands})
    vectors = tower(tf.range(NUM_ITEMS)).numpy()
    assert tower._dense is None and tower._given is not None
    rows = tower._given._embeddings["brand"].embeddings.numpy()
    expected = table(tf.range(NUM_ITEMS)).numpy() + rows[[1, 2, 0, 1, 2, 0, 1]]
    np.testing.assert_allclose(vectors, expected, rtol=1e-6)
    # Together with one of another size, which a dense layer brings to it.
    price = NumberFeature("price", dim=2)
    both = ItemTower(table, [brand, price], {"brand": brands, "price": [1.0] * NUM_ITEMS})
    both(tf.constant([0]))
    assert both._dense is not None and both._dense.kernel.shape == (2, DIM)


def test_hidden_layers_add_to_the_row() -> None:
    tower = priced_tower(hidden=(3,))
    found = tower(tf.constant([2]))[0].numpy()
    assert tower._given is not None and tower._dense is not None
    row = tower.embedding(tf.constant([2]))[0].numpy()
    number = tower._given.embed({"price": tf.constant([2.0])})[0].numpy()
    hidden = np.maximum(np.concatenate([row, number]) @ tower._hidden[0].kernel.numpy(), 0.0)
    np.testing.assert_allclose(found, row + hidden @ tower._dense.kernel.numpy(), rtol=1e-5)


def test_items_of_a_history_have_their_features() -> None:
    trained = np.arange(NUM_ITEMS) != 4
    tower = priced_tower(trained_items=trained, id_dropout=0.9)
    history = tf.constant([[1, 4, NUM_ITEMS], [-1, NUM_ITEMS, 5]])
    vectors = tower.in_history(history).numpy()
    rows = tower.embedding(tf.range(NUM_ITEMS)).numpy()
    expected = np.zeros([2, 3, DIM])
    expected[0, 0], expected[1, 2] = by_hand(tower, 1, rows[1]), by_hand(tower, 5, rows[5])
    # Item 4 was not trained, so that its features are all there is of it.
    expected[0, 1] = by_hand(tower, 4, np.zeros(DIM))
    np.testing.assert_allclose(vectors, expected, rtol=1e-5, atol=1e-7)
    user = HistoryTower(tower)
    assert user._dense is not None
    mean = expected[0, :2].mean(axis=0)
    # Training drops rows of candidates, and none of the history.
    np.testing.assert_allclose(
        user(history, training=True)[0],
        mean @ user._dense.kernel.numpy(),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("encoder", ["mean", "gru", "transformer"])
def test_features_of_a_history_learn(encoder: str) -> None:
    tower = priced_tower()
    user = HistoryTower(tower, encoder=encoder)
    weights = {weight.name: weight for weight in user.trainable_variables}
    assert len(weights) == len(user.trainable_variables)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(user(tf.constant([[1, 2, NUM_ITEMS], [5, 3, 0]])) ** 2)
    kernel = tower._dense.kernel  # type: ignore[union-attr]
    assert float(tf.norm(tape.gradient(loss, kernel))) > 0.0


def test_padding_of_a_history_has_no_gradient() -> None:
    brand = Feature("brand", ("a", "b"), dim=DIM)
    tower = ItemTower(ItemEmbedding(NUM_ITEMS, DIM), [brand], {"brand": ["a"] + ["b"] * 6})
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tower.in_history(tf.constant([[3, NUM_ITEMS], [-1, 4]])) ** 2)
    table = tower.embedding.trainable_variables[0]
    brands = tower._given._embeddings["brand"].embeddings  # type: ignore[union-attr]
    of_items, of_brands = tape.gradient(loss, [table, brands])
    assert sorted(of_items.indices.numpy()) == [3, 4]
    assert set(of_brands.indices.numpy()) == {2}
    nothing = tower.in_history(tf.constant([[NUM_ITEMS, -1]]))
    np.testing.assert_array_equal(nothing, np.zeros([1, 2, DIM]))


def test_a_history_with_features_is_saved_before_an_item_was_embedded(tmp_path: Path) -> None:
    history = tf.constant([[1, 2, NUM_ITEMS]])
    user = HistoryTower(priced_tower(id_dropout=0.2), hidden=(3,))
    expected = user(history)
    user.save(tmp_path / "user.keras")
    loaded = tf.keras.models.load_model(tmp_path / "user.keras")
    np.testing.assert_allclose(loaded(history), expected, rtol=1e-6)


def test_a_history_cannot_have_columns_of_items() -> None:
    tower = ItemTower(ItemEmbedding(NUM_ITEMS, DIM), [Feature("brand", ("a",))])
    with pytest.raises(ValueError, match=r"looks all features up.*\['brand'\].*`item_values`"):
        HistoryTower(tower)


def test_rows_are_dropped_in_training_only_and_by_share() -> None:
    tower = item_tower(id_dropout=0.25, seed=3)
    ids = tf.constant([1] * 4000)
    full = tower(ids[:1])
    alone = item_tower(trained_items=np.zeros(NUM_ITEMS))
    alone(ids[:1])
    np.testing.assert_allclose(tower(ids), np.repeat(full, 4000, axis=0), rtol=1e-5)
    in_training = tower(ids, training=True).numpy()
    dropped = ~np.isclose(in_training, full, rtol=1e-4).all(axis=1)
    assert 0.22 < dropped.mean() < 0.28
    assert len(np.unique(in_training[dropped].round(5), axis=0)) == 1
    again = ~np.isclose(tower(ids, training=True), full, rtol=1e-4).all(axis=1)
    assert (again != dropped).any()


@pytest.mark.parametrize("wrong", [{"id_dropout": 0.1}, {"trained_items": [True] * NUM_ITEMS}])
def test_rows_are_needed_without_features(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="come with `features`"):
        ItemTower(ItemEmbedding(NUM_ITEMS, DIM), **wrong)
    with pytest.raises(ValueError, match="should have `features`"):
        ItemTower(ItemEmbedding(NUM_ITEMS, DIM)).from_features({})


def own_config(tower: ItemTower | HistoryTower) -> dict[str, Any]:
    """The configuration without the number of the table, which no two tables have in common."""
    config = json.loads(json.dumps(tower.get_config()))
    return {**config, "embedding": config["embedding"]["config"]}


def test_towers_come_back_from_their_configuration() -> None:
    tower = item_tower(hidden=(3,), id_dropout=0.5, trained_items=[True] * 6 + [False], seed=9)
    twin = ItemTower.from_config(json.loads(json.dumps(tower.get_config())))
    ids = tf.range(NUM_ITEMS)
    tower(ids), twin(ids)
    twin.set_weights(tower.get_weights())
    np.testing.assert_allclose(twin(ids), tower(ids), rtol=1e-5)
    assert own_config(twin) == own_config(tower)
    user = HistoryTower(
        ItemEmbedding(NUM_ITEMS, DIM),
        features=FEATURES[:2],
        context_features=FEATURES[2:],
        hidden=(2,),
        encoded=True,
    )
    config = json.loads(json.dumps(user.get_config()))
    assert own_config(HistoryTower.from_config(config)) == own_config(user)


def test_checkpoints_have_weights_and_no_values(tmp_path: Path) -> None:
    tower = item_tower(trained_items=[True] * NUM_ITEMS)
    tower(tf.range(2))
    tf.train.Checkpoint(tower=tower).write(str(tmp_path / "weights"))
    names = [name for name, _ in tf.train.list_variables(str(tmp_path / "weights"))]
    assert any("_embeddings/brand" in name for name in names)
    assert not [name for name in names if "_lookups" in name]


def test_a_saved_tower_has_the_values(tmp_path: Path) -> None:
    tower = item_tower()
    module = tf.Module()
    module.tower = tower
    module.embed = tf.function(tower, input_signature=[tf.TensorSpec([None], tf.int32)])
    expected = module.embed(tf.range(NUM_ITEMS))
    tf.saved_model.save(module, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_allclose(loaded.embed(tf.range(NUM_ITEMS)), expected, rtol=1e-6)
