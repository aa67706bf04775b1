"""The side features of a run: encoded as prepare does, chosen by settings, and in their rows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from pipelines.data.batches import WindowOptions
from pipelines.data.features import Column, FeatureSpec
from pipelines.data.prepared import PreparedData
from pipelines.data.sequences import training_input
from pipelines.errors import UserError
from pipelines.export.raw_values import raw_column
from pipelines.prepare.features.encoding import Raw, encode
from pipelines.runs.build import build_model, embed_histories
from pipelines.runs.command_line import train_command
from pipelines.runs.features import library_feature, run_features
from pipelines.runs.ranks import evaluation_users
from pipelines.runs.settings import TrainSettings
from tests.support.features import EXAMPLES, add_examples
from tfrs_croloss.models import FeatureEncoder
from tfrs_croloss.models.features import MISSING_INTEGER

NAN = float("nan")

# Raw values of every kind, with faults.
TEXTS = [
    "",
    "  ",
    "acme",
    "öl & co",
    "ACME",
    "drama",
    "war|drama||x",
    "|",
    " drama",
    "Ünder-WORLD 2",
]
NUMBERS = [NAN, 0.0, 1.0, 2.5, 2.4999999, 10.0, -3.0, 1e39, 0.1, 1e308, 49.0]
TIMES = [None, 0, -1, 1_700_000_000, 1_700_003_600, 1_699_999_999, 951_782_400, 2_000_000_000]


def raw_pair(spec: FeatureSpec) -> tuple[Raw, list[Any]]:
    """Raw values as prepare reads them, and as a request has them."""
    if spec.kind in ("number", "quantiles"):
        return Raw(pa.array(NUMBERS, pa.float64(), from_pandas=True)), NUMBERS
    if spec.kind in ("hour", "weekday", "age"):
        sent = [MISSING_INTEGER if time is None else time for time in TIMES]
        return Raw(pa.array(TIMES, pa.int64())), sent
    if spec.options.get("integers"):
        return Raw(pa.array(["49", "", "1", "7", "-5"])), [49, MISSING_INTEGER, 1, 7, -5]
    return Raw(pa.array(TEXTS)), TEXTS


@pytest.mark.parametrize("name", EXAMPLES)
def test_requests_are_encoded_as_prepare_encodes(name: str) -> None:
    of, entry, vocabulary = EXAMPLES[name]
    options = {key: value for key, value in entry.items() if key not in ("kind", "column")}
    spec = FeatureSpec(of, name, entry["kind"], entry["column"], options, tuple(vocabulary or ()))
    raw, sent = raw_pair(spec)
    prepared = encode(spec, raw)
    feature = library_feature(spec, 4)
    served = FeatureEncoder([feature])({name: tf.constant(sent, feature.raw_dtype)})[name]
    assert feature.num_rows == spec.num_codes
    if spec.is_ragged:
        assert served.row_lengths().numpy().tolist() == list(prepared.lengths)
        np.testing.assert_array_equal(served.values, prepared.values)
    else:
        np.testing.assert_allclose(served, prepared.values, rtol=1e-7)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if EXAMPLES[name][0] != "item"])
def test_raw_values_can_be_made_for_encoded_ones(name: str) -> None:
    of, entry, vocabulary = EXAMPLES[name]
    spec = FeatureSpec(of, name, entry["kind"], "column", entry, tuple(vocabulary or ()))
    feature = library_feature(spec, 4)
    rows = [-1.5, NAN, 0.25] if feature.num_rows is None else list(range(feature.num_rows))
    encoded = tf.constant(rows, feature.encoded_dtype)
    again = FeatureEncoder([feature])({name: raw_column(feature, encoded)})[name]
    np.testing.assert_allclose(again, encoded, rtol=1e-6)


@pytest.mark.parametrize("name", ["brand", "genres", "price"])
def test_raw_values_of_item_kinds_can_be_made_as_well(name: str) -> None:
    _, entry, vocabulary = EXAMPLES[name]
    spec = FeatureSpec("user", name, entry["kind"], "column", entry, tuple(vocabulary or ()))
    feature = library_feature(spec, 4)
    rows: Any = list(range(feature.num_rows or 0))
    encoded = tf.constant(rows)
    if feature.is_ragged:
        rows = [[1, 0, 3], [], [0]]
        encoded = tf.ragged.constant(rows, tf.int32)
    again = FeatureEncoder([feature])({name: raw_column(feature, encoded)})[name]
    found = again.to_list() if feature.is_ragged else again.numpy().tolist()
    assert found == rows


# ---------------------------------------------------------------------------------------- the run


@pytest.fixture(scope="module")
def data(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("features") / "prepared"
    shutil.copytree(tiny_data, folder)
    return add_examples(folder)


def test_all_prepared_features_are_taken_unless_others_are_named(data: PreparedData) -> None:
    every = run_features(TrainSettings(), data)
    assert list(every.item) == ["brand", "genres", "title", "price", "released"]
    assert list(every.query) == ["country", "years", "device", "hour", "day"]
    assert {feature.width for feature in every.item.values()} == {TrainSettings().dim}
    assert {feature.width for feature in every.query.values()} == {8}
    some = TrainSettings(item_features="price,brand", user_features="none", item_feature_dim=3)
    chosen = run_features(some, data)
    assert list(chosen.item) == ["price", "brand"]
    assert list(chosen.query) == ["device", "hour", "day"]
    assert {feature.width for feature in chosen.item.values()} == {3}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"item_features": "colour"}, "--item-features should name .*brand, genres.*: colour"),
        (
            {"tower": "matrix-factorization"},
            "cannot be combined with side features.*"
            "--item-features none --user-features none --context-features",
        ),
    ],
)
def test_features_that_cannot_be_used_are_errors(
    data: PreparedData, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        run_features(TrainSettings(**settings), data)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"item_features": "a,,b"}, "--item-features should be all, none, or names"),
        ({"item_features": "a,none"}, "--item-features should be all, none, or names"),
        ({"hidden": [0]}, "--hidden should be whole numbers"),
        ({"hidden": [4], "tower": "matrix-factorization"}, "--hidden requires --tower h"),
        (
            {"user_features": "a", "tower": "matrix-factorization"},
            "--user-features requires --tower",
        ),
    ],
)
def test_settings_of_features_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TrainSettings(**settings)


def test_settings_of_features_come_back() -> None:
    settings = TrainSettings(hidden=(32, 16), item_features="a, b", item_id_dropout=0.3)
    assert TrainSettings.from_dict(settings.as_dict()) == settings
    assert train_command(settings, "d", "o").endswith(
        "--item-features a,b --item-id-dropout 0.3 --hidden 32 16"
    )


def row_of(column: Column, row: int) -> list[float]:
    if column.offsets is None:
        return [float(column.values[row])]
    return column.values[column.offsets[row] : column.offsets[row + 1]].tolist()


def plain(value: Any, row: int) -> list[float]:
    return np.atleast_1d(value[row].numpy()).tolist()


@pytest.mark.parametrize("positions", ["all", "sequences"])
def test_examples_have_the_features_of_user_and_target(data: PreparedData, positions: str) -> None:
    split = data.split("train")
    features = run_features(TrainSettings(), data)
    options = WindowOptions(batch_size=16, positions=positions, users=positions == "all")
    source = training_input(split, data.num_items, options, features.example_columns(split))
    users, context = split.user_features(), split.context_features()
    batch = source.batch(tf.constant(3, tf.int64))
    if positions == "all":
        owners, places = (one.numpy() for one in source.examples(tf.constant(3, tf.int64)))
        of_rows = owners
    else:
        windows, owners = (one.numpy() for one in source.examples(tf.constant(3, tf.int64)))
        starts, firsts = source._windows[3].numpy()[windows], batch["query_positions"].numpy()
        places = starts[firsts[:, 0]] + firsts[:, 1] + 1
        of_rows = owners
    np.testing.assert_array_equal(batch["item_id"], split.items[places])
    for name in ("country", "years"):
        found = [plain(batch[name], row) for row in range(len(of_rows))]
        np.testing.assert_equal(found, [row_of(users[name], user) for user in of_rows])
    for name in ("device", "hour", "day"):
        found = [plain(batch[name], row) for row in range(len(places))]
        np.testing.assert_equal(found, [row_of(context[name], place) for place in places])


def test_evaluated_users_have_the_context_of_their_first_target(
    data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = evaluation_users(data, "valid", TrainSettings(), max_users=9)
    split = data.split("valid")
    assert split.history_lengths is not None
    for user in range(9):
        first = split.offsets[user] + split.history_lengths[user]
        assert split.items[first] == users.targets[users.users == user][0]
        assert plain(users.columns["hour"], user) == row_of(split.context_features()["hour"], first)
        np.testing.assert_equal(
            plain(users.columns["years"], user), row_of(split.user_features()["years"], user)
        )
    model = build_model(
        TrainSettings(), data.num_items, features=run_features(TrainSettings(), data)
    )
    columns = dict(users.columns, history=tf.constant(users.histories))
    at_once = model.embed_queries(columns).numpy()
    shapes, embed = [], model.embed_query_block

    def recorded(features: dict[str, Any]) -> tf.Tensor:
        shapes.append(tuple(features["history"].shape))
        return embed(features)

    monkeypatch.setattr(model, "embed_query_block", recorded)
    vectors = embed_histories(model, users.histories, None, users.columns, block_size=4)
    np.testing.assert_allclose(vectors, at_once, rtol=1e-5, atol=1e-6)
    # Blocks are as wide as their longest history, which is rarely the longest of all.
    lengths = np.sort((users.histories != data.num_items).sum(axis=1))
    assert lengths[0] < lengths[-1]
    assert shapes == [(4, lengths[3]), (4, lengths[7]), (1, lengths[8])]


def test_negatives_are_trained_items_if_others_are_known_by_features(data: PreparedData) -> None:
    split = data.split("train")
    counts = np.array(data.item_counts)
    counts[[3, 8]] = 0
    cold = PreparedData(data.path, data.manifest, counts)
    features = run_features(TrainSettings(), cold)
    assert features.trained_items is not None and (~features.trained_items).sum() == 2
    source = training_input(split, data.num_items, WindowOptions(), features.example_columns(split))
    drawn = np.concatenate([source.negatives(tf.constant(step)) for step in range(5)])
    assert set(drawn) <= set(range(data.num_items)) - {3, 8}
    assert len(set(drawn)) > 0.95 * data.num_items
    settings = TrainSettings(whole_catalogue=True)
    model = build_model(settings, data.num_items, features=features)
    ids = model.scored_batch(source.batch(tf.constant(0, tf.int64)), training=True)[2]
    assert set(ids.numpy()) == set(range(data.num_items)) - {3, 8}
    none = TrainSettings(item_features="none")
    assert run_features(none, cold).example_columns(split).negatives is None
