"""Query features that a request may leave out, in the SavedModel and in the loaded model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tfrs_croloss.indexes import BruteForceIndex
from tfrs_croloss.serving import History, Recommender, WithDefault, export_vectors, save
from tfrs_croloss.serving.item_ids import IdTable
from tfrs_croloss.serving.queries import QueryEncoder, QueryInputs
from tfrs_croloss.serving.recommender import VOCABULARY

NAMES = [f"item {number}" for number in range(6)]
TABLE = np.random.default_rng(3).normal(size=(6, 4)).astype(np.float32)
PADDED = np.concatenate([TABLE, np.zeros([1, 4], np.float32)])
FEATURES = {
    "history": History(3),
    "sign": WithDefault(1.0),
    "word": WithDefault(""),
}
SPECS = {
    "history": tf.TensorSpec([None, None], tf.string),
    "sign": tf.TensorSpec([None], tf.float64),
    "word": tf.TensorSpec([None], tf.string),
}


class Tower(tf.Module):
    """The sum of the history, times a sign, plus the length of a word."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(PADDED)

    def __call__(self, features: Mapping[str, tf.Tensor]) -> tf.Tensor:
        sums = tf.reduce_sum(tf.gather(self.table, features["history"]), axis=1)
        signs = tf.cast(features["sign"], tf.float32)[:, tf.newaxis]
        lengths = tf.cast(tf.strings.length(features["word"]), tf.float32)[:, tf.newaxis]
        return signs * sums + lengths


def expected(history: list[int], sign: float = 1.0, word: str = "") -> np.ndarray:
    vector: np.ndarray = sign * TABLE[history].sum(axis=0) + len(word)
    return vector


@pytest.fixture(scope="module")
def recommender(tmp_path_factory: pytest.TempPathFactory) -> Recommender:
    folder = tmp_path_factory.mktemp("ids")
    ids = IdTable(NAMES, folder, VOCABULARY)
    tower = Tower()
    encoder = QueryEncoder(tower, QueryInputs(SPECS, "mapping", FEATURES), ids, folder)
    return Recommender(encoder, BruteForceIndex(TABLE), top_n=6)


@pytest.fixture(scope="module")
def folder(recommender: Recommender, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    save(recommender, path)
    return path


def test_the_signatures_have_the_defaults(folder: Path) -> None:
    proto = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    signatures = proto.meta_graphs[0].signature_def
    for name in ("serving_default", "recommend", "recommend_excluding", "user_embedding"):
        defaults = signatures[name].defaults
        assert set(defaults) == {"sign", "word"}
        assert tf.make_ndarray(defaults["sign"]).tolist() == [1.0]
        assert tf.make_ndarray(defaults["word"]).tolist() == [b""]
        assert set(signatures[name].inputs) >= {"history", "sign", "word"}
    assert not signatures["search"].defaults and not signatures["item_embedding"].defaults


@pytest.mark.parametrize("given", [{}, {"sign": [-2.0, 0.5]}, {"sign": [3.0], "word": ["abc"]}])
def test_a_session_feeds_what_is_given(folder: Path, given: dict[str, Any]) -> None:
    """As TensorFlow Serving does: inputs that are left out keep their defaults in the graph."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        graph = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
        signature = graph.signature_def["user_embedding"]
        inputs = {"history": [["item 1", "item 4"], ["item 2", ""]], **given}
        vectors = session.run(
            signature.outputs["embedding"].name,
            {signature.inputs[name].name: value for name, value in inputs.items()},
        )
    signs, words = given.get("sign", [1.0]), given.get("word", [""])
    for row, history in enumerate([[1, 4], [2]]):
        vector = expected(history, signs[row % len(signs)], words[row % len(words)])
        np.testing.assert_allclose(vectors[row], vector, rtol=1e-5)


def test_the_loaded_model_is_called_with_all_or_with_none(folder: Path) -> None:
    loaded = tf.saved_model.load(str(folder))
    history = tf.constant([["item 1", "item 4"], ["item 2", ""]])
    alone, _ = loaded({"history": history}, 2)
    ragged, _ = loaded({"history": tf.RaggedTensor.from_tensor(history, padding="")}, 2)
    signs = tf.constant([1.0, -1.0], tf.float64)
    every, _ = loaded({**loaded.defaults(), "history": history, "sign": signs}, 2)
    plain = np.sort(np.stack([expected([1, 4]), expected([2])]) @ TABLE.T)[:, ::-1][:, :2]
    turned = np.sort(expected([2], -1.0) @ TABLE.T)[::-1][:2]
    np.testing.assert_allclose(alone, plain, rtol=1e-5)
    np.testing.assert_allclose(ragged, plain, rtol=1e-5)
    np.testing.assert_allclose(every, [plain[0], turned], rtol=1e-5)


def test_other_numbers_of_rows_are_errors(recommender: Recommender) -> None:
    embed = recommender.signatures()["user_embedding"]
    message = "sign should have one row for each query, or one for all"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        embed(
            history=tf.constant([["item 1"]] * 3),
            sign=tf.constant([1.0, 2.0], tf.float64),
            word=tf.constant([""]),
        )


@pytest.mark.parametrize(
    ("features", "form", "message"),
    [
        ({"sign": WithDefault("x")}, "mapping", "default of 'sign' should be float64"),
        ({"history": WithDefault("x")}, "mapping", "one value for each query.*'history'"),
        ({"sign": WithDefault(1.0)}, "sequence", "should be mappings"),
        ({name: WithDefault("") for name in SPECS}, "mapping", "at least one other feature"),
    ],
)
def test_defaults_are_checked(features: dict[str, Any], form: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QueryInputs(SPECS, form, features)


def test_the_query_model_of_other_engines_has_the_defaults_too(tmp_path: Path) -> None:
    tower = Tower()
    examples = {
        "history": tf.constant([[NAMES[0], NAMES[2]]] * 4),
        "sign": tf.constant([2.0, -1.0, 1.0, 3.0], tf.float64),
        "word": tf.constant(["a", "", "bb", "c"]),
    }
    done = export_vectors(
        tmp_path / "v",
        format="jsonl",
        candidates=(NAMES, TABLE),
        query_model=tower,
        query_examples=examples,
        tracked=tower,
        features=FEATURES,
    )
    loaded = tf.saved_model.load(str(done.query_model / "1"))
    embed = loaded.signatures["serving_default"]
    history = tf.constant([[NAMES[1], NAMES[3]]])
    found = embed(**loaded.defaults(), history=history)["embedding"]
    np.testing.assert_allclose(found[0], expected([1, 3]), rtol=1e-5)
