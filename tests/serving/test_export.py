"""Exports of models of any kind: what they answer, what they promise, and what is refused."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfrs_croloss import serving
from tfrs_croloss.serving import publish, round_trip, versions
from tfrs_croloss.serving.candidates import read_candidates
from tfrs_croloss.serving.card import CARD
from tfrs_croloss.serving.item_ids import IdTable
from tfrs_croloss.serving.queries import QueryEncoder, QueryInputs
from tfrs_croloss.serving.warmup import WARMUP_FILE

USERS = ["ann", "bob", "café", "dan"]
FILMS = ["x", "y", "z"]
# Ann likes x, bob y, café z; dan likes x most, then y.
USER_VECTORS = np.array([[3, 0, 0], [0, 2, 0], [0, 0, 1], [3, 2, 1]], np.float32)


def lookup(words: list[str], vectors: np.ndarray) -> tf.keras.Model:
    """Ids to vectors, as in TFRS' tutorials; the first row is for ids that are not listed."""
    table = np.concatenate([np.zeros((1, vectors.shape[1])), vectors]).astype(np.float32)
    embedding = tf.keras.layers.Embedding(len(table), table.shape[1])
    model = tf.keras.Sequential(
        [tf.keras.layers.StringLookup(vocabulary=words, mask_token=None), embedding]
    )
    model(tf.constant(words))
    embedding.set_weights([table])
    return model


def films() -> dict[str, Any]:
    """Arguments of an export of three films, each a direction of its own."""
    return {"candidates": FILMS, "candidate_model": lookup(FILMS, np.eye(3)), "top_n": 2}


@pytest.fixture
def no_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the fresh process, which takes seconds, but not what it would be asked."""

    def check(recommender: Any, requests: Any, *_: Any) -> None:
        assert len(json.loads(json.dumps(round_trip.as_json(requests)))) >= 7

    monkeypatch.setattr(publish, "check_round_trip", check)


def ask(signature: Any, **inputs: Any) -> dict[str, list[Any]]:
    specs = signature.structured_input_signature[1]
    tensors = {name: tf.constant(value, specs[name].dtype) for name, value in inputs.items()}
    return {name: value.numpy().tolist() for name, value in signature(**tensors).items()}


@pytest.fixture(scope="module")
def by_id(tmp_path_factory: pytest.TempPathFactory) -> serving.Exported:
    """A tutorial's model, exported with the check in a process without this package."""
    folder = tmp_path_factory.mktemp("export") / "films"
    users = tf.data.Dataset.from_tensor_slices(USERS * 5).repeat().batch(1000)
    return serving.export(
        folder, query_model=lookup(USERS, USER_VECTORS), query_examples=users, **films()
    )


def test_a_user_id_is_a_query(by_id: serving.Exported) -> None:
    loaded = tf.saved_model.load(str(by_id.path))
    scores, ids = loaded(["dan", "bob"])
    assert ids.numpy().tolist() == [[b"x", b"y"], [b"y", b"x"]]
    assert scores.numpy().tolist() == [[3.0, 2.0], [2.0, 0.0]]
    assert loaded(["café"], 1)[1].numpy().tolist() == [[b"z"]]
    assert loaded(tf.constant(["ann"]), k=1)[0].numpy().tolist() == [[3.0]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="between 1 and 2"):
        loaded(["ann"], 3)
    signatures = loaded.signatures
    assert ask(signatures["serving_default"], query=["dan"]) == {
        "item_ids": [[b"x", b"y"]],
        "scores": [[3.0, 2.0]],
        "num_results": [2],
    }
    left = ask(
        signatures["recommend_excluding"], query=["dan"], excluded_ids=[["x", ""]], top_n=[1]
    )
    assert left["item_ids"] == [[b"y"]]
    among = ask(signatures["recommend_among"], query=["dan"], allowed_ids=[["z", "y"]], top_n=[2])
    assert among["item_ids"] == [[b"y", b"z"]]
    assert ask(signatures["user_embedding"], query=["dan"])["embedding"] == [[3.0, 2.0, 1.0]]
    assert ask(signatures["item_embedding"], item_ids=["y", "?"])["is_known"] == [True, False]


def test_what_is_written_beside_the_model(by_id: serving.Exported) -> None:
    assert by_id.path.name == "1" and by_id.recall == 1.0
    # Four users, however often the examples repeat them.
    assert by_id.num_queries == 4
    assert (by_id.path / WARMUP_FILE).is_file()
    assert serving.check_manifest(by_id.path)
    record = json.loads((by_id.path / "export.json").read_text(encoding="utf-8"))
    assert record["inputs"] == ["query"] and record["top_n"] == 2 and record["num_items"] == 3
    card = (by_id.path / CARD).read_text(encoding="utf-8")
    assert "finds 100.00% of the exact top 2" in card and "`query` string [any]" in card
    assert "is_default" not in card
    assert [path.name for path in by_id.path.parent.iterdir()] == ["1"]


class Profile(tf.keras.Model):
    """Two interests of a user, from features of several types; each is a head."""

    def __init__(self) -> None:
        super().__init__()
        self.films = lookup(FILMS, np.eye(3))

    def call(self, inputs: Any) -> tf.Tensor:
        seen = tf.reduce_sum(self.films(inputs["seen"]), axis=1)
        if isinstance(seen, tf.RaggedTensor):
            seen = seen.to_tensor()
        ages = tf.cast(tf.reduce_sum(inputs["ages"], axis=1), tf.float32)
        second = tf.one_hot(inputs["favourite"], 3) * ages[:, tf.newaxis]
        return tf.stack([seen, second * inputs["weight"]], axis=1)


@pytest.mark.usefixtures("no_round_trip")
def test_features_of_all_types_and_two_heads(tmp_path: Path) -> None:
    examples = tf.data.Dataset.from_tensor_slices(
        {
            "seen": tf.ragged.constant([["x"], ["x", "y", "y"], []]),
            "ages": tf.ragged.constant([[1, 2], [], [4]]),
            "favourite": tf.constant([2, 1, 0], tf.int64),
            "weight": tf.constant([[1.0], [0.5], [2.0]]),
        }
    ).batch(2)
    model = Profile()
    films = tf.data.Dataset.from_tensor_slices(([10, 20, 30], np.eye(3, dtype=np.float64)))
    done = serving.export(
        tmp_path / "m",
        query_model=model,
        query_examples=examples,
        candidates=films.batch(2),
        top_n=3,
    )
    loaded = tf.saved_model.load(str(done.path))
    specs = loaded.signatures["recommend"].structured_input_signature[1]
    assert {name: (spec.dtype.name, spec.shape.as_list()) for name, spec in specs.items()} == {
        "seen": ("string", [None, None]),
        "ages": ("int32", [None, None]),
        "favourite": ("int64", [None]),
        "weight": ("float32", [None, 1]),
        "top_n": ("int32", [None]),
    }
    query = {
        "seen": [["x", "y", "y"], ["x", "", ""]],
        "ages": [[1, 2], [4, -1]],
        "favourite": [2, 0],
        "weight": [[1.0], [0.5]],
    }
    answer = ask(loaded.signatures["recommend"], **query, top_n=[3, 1])
    # The heads of the first: x + 2 y, and 3 z. Those of the second: x, and 2 x.
    assert answer["item_ids"] == [[30, 20, 10], [10, -1, -1]]
    assert answer["scores"][0] == [3.0, 2.0, 1.0] and answer["scores"][1][0] == 2.0
    assert answer["num_results"] == [3, 1]
    vectors = ask(loaded.signatures["user_embedding"], **query)["embedding"]
    assert vectors == [[[1, 2, 0], [0, 0, 3]], [[1, 0, 0], [2, 0, 0]]]
    found = ask(loaded.signatures["search"], query_embedding=vectors, top_n=[3, 1])
    assert found["item_ids"] == answer["item_ids"]
    among = ask(
        loaded.signatures["recommend_among"],
        **query,
        allowed_ids=[[20, 30, 20], [30, -1, 9]],
        top_n=[2, 2],
    )
    assert among["item_ids"] == [[30, 20], [30, -1]]
    tensors = {name: tf.constant(value, specs[name].dtype) for name, value in query.items()}
    assert loaded(tensors, 1)[1].numpy().tolist() == [[30], [10]]
    ragged = {
        **tensors,
        "seen": tf.ragged.constant([["x", "y", "y"], ["x"]]),
        "ages": tf.ragged.constant([[1, 2], [4]]),
    }
    assert loaded(ragged, 1)[1].numpy().tolist() == [[30], [10]]
    assert loaded(ragged)[1].numpy().tolist()[0] == [30, 20, 10]
    assert "Pad `seen`, `ages` at the end" in (done.path / CARD).read_text(encoding="utf-8")


class Lists(tf.Module):
    """A user as the sum of the latest films and of a bias of the user."""

    def __init__(self) -> None:
        super().__init__()
        self.films = tf.Variable(np.concatenate([np.eye(3), np.zeros((1, 3))]), dtype=tf.float32)
        self.users = tf.Variable([[0.5, 0, 0], [0, 0.5, 0], [0, 0, 0.1]])

    def embed(self, inputs: Any) -> tf.Tensor:
        history, user = inputs
        return tf.reduce_sum(tf.gather(self.films, history), 1) + tf.gather(self.users, user)


@pytest.mark.usefixtures("no_round_trip")
def test_histories_and_known_ids_have_their_rules(tmp_path: Path) -> None:
    done = serving.export(
        tmp_path / "m",
        query_model=Lists().embed,
        query_examples=([["x", "y"], ["z", ""]], [7, 8]),
        candidates=(FILMS, np.eye(3)),
        features={"query_0": serving.History(length=2), "query_1": serving.KnownIds([7, 8])},
    )
    loaded = tf.saved_model.load(str(done.path))
    answer = ask(
        loaded.signatures["serving_default"],
        query_0=[["x", "y", "?", "y", ""], ["?", "", "", "", ""], ["", "", "", "", ""]],
        query_1=[9, 8, 9],
    )
    # The first: the latest two, y and y, and an unknown user.
    assert answer["scores"][0] == pytest.approx([2.0, 0.1, 0.0])
    assert answer["item_ids"][0] == [b"y", b"z", b"x"]
    assert answer["item_ids"][1][0] == b"y" and answer["scores"][1][0] == 0.5
    assert answer["known_items"] == [3, 0, 0]
    assert answer["is_default"] == [False, False, True]
    for history in ([["x"]], tf.ragged.constant([["x"]])):
        scores, _ = loaded([history, tf.constant([7], tf.int64)])
        assert scores.numpy()[0, 0] == 1.5


@pytest.mark.parametrize("is_ragged", [False, True])
def test_a_history_can_be_ids_for_the_model_too(is_ragged: bool, tmp_path: Path) -> None:
    """As a model with a lookup of its own takes it."""
    spec: Any = tf.TensorSpec([None, None], tf.string)
    if is_ragged:
        spec = tf.RaggedTensorSpec([None, None], tf.string)
    received = []

    def model(history: Any) -> tf.Tensor:
        received.append(history)
        return tf.zeros([2, 3])

    encoder = QueryEncoder(
        model,
        QueryInputs({"seen": spec}, "tensor", {"seen": serving.History(2, as_numbers=False)}),
        IdTable(FILMS, tmp_path, "films.txt"),
        tmp_path,
    )
    _, about = encoder.encode({"seen": tf.constant([["x", "?", "y", "z"], ["", "x", "", ""]])})
    assert about["known_items"].numpy().tolist() == [3, 1]
    expected = [[b"y", b"z"], [b"x"] if is_ragged else [b"x", b""]]
    given = received[0]
    assert (given.to_list() if is_ragged else given.numpy().tolist()) == expected


def test_candidates_come_in_every_form() -> None:
    vectors, model = np.eye(3, dtype=np.float32), lookup(FILMS, np.eye(3))
    pairs = tf.data.Dataset.from_tensor_slices((FILMS, vectors)).batch(2)
    features = tf.data.Dataset.from_tensor_slices((FILMS, {"title": FILMS})).batch(2)
    for candidates, candidate_model in (
        (FILMS, model),
        (np.array(FILMS), model),
        (tf.data.Dataset.from_tensor_slices(FILMS).batch(2), model),
        ((FILMS, vectors), None),
        (pairs, None),
        ((FILMS, {"title": np.array(FILMS)}), lambda rows: model(rows["title"])),
        (features, lambda rows: model(rows["title"])),
    ):
        ids, found = read_candidates(candidates, candidate_model)
        assert ids == FILMS
        np.testing.assert_array_equal(found, vectors)
    assert read_candidates((np.array([4, 9]), vectors[:2]), None)[0] == [4, 9]
    assert read_candidates((np.array([4, 9], object), vectors[:2]), None)[0] == [4, 9]
    # Not UTF-8, as in files of other encodings.
    assert read_candidates(([b"caf\xe9", "b"], vectors[:2]), None)[0] == ["caf\udce9", "b"]
    unit = read_candidates((["a"], [[3.0, 4.0]]), None, unit=True)[1]
    np.testing.assert_allclose(unit, [[0.6, 0.8]])


def test_an_id_that_stands_twice_is_an_error_or_its_first_is_kept() -> None:
    twice = (["a", "b", "a"], [[1.0], [2.0], [3.0]])
    with pytest.raises(ValueError, match="'a' is repeated. Pass duplicates='first'"):
        read_candidates(twice, None)
    ids, vectors = read_candidates(twice, None, duplicates="first")
    assert ids == ["a", "b"] and vectors.tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    "candidates, match",
    [
        (["a", "b"], "no `candidate_model`"),
        (tf.data.Dataset.from_tensor_slices((["a"], [[1.0]])), "Batch it"),
        ({"title": ["a"]}, "Say which is the id"),
        ((["a", 1], [[1.0], [2.0]]), "all strings or all integers"),
        ((["a"], [[1.0], [2.0]]), "1 ids and .2. rows"),
        ((["a"], [1.0]), r"shape \[1, dim\]"),
        (([0.5], [[1.0]]), "all strings or all integers"),
        (([], np.zeros((0, 2))), "at least one candidate"),
    ],
)
def test_candidates_that_cannot_be_used_are_named(candidates: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        read_candidates(candidates, None)


def refused(tmp_path: Path, match: str, error: type[Exception] = ValueError, **given: Any) -> None:
    arguments = {
        **films(),
        "query_model": lookup(USERS, USER_VECTORS),
        "query_examples": USERS,
        **given,
    }
    folder = tmp_path / "m"
    with pytest.raises(error, match=match):
        serving.export(folder, **arguments)
    assert not folder.exists()


def test_a_model_that_could_not_answer_is_refused(tmp_path: Path) -> None:
    wrong = r"`query_model` cannot embed `query_examples`.*query \(int64 \[any\]\).*Pass examples"
    refused(tmp_path, wrong, serving.ExportError, query_examples=np.array([1, 2]))
    refused(tmp_path, "should have batches", query_examples=tf.data.Dataset.from_tensors("ann"))
    refused(tmp_path, "at least one query", query_examples=tf.constant([], tf.string))
    refused(tmp_path, "should be a tensor", query_examples={"a": {"b": ["ann"]}})
    refused(tmp_path, "identifiers", query_examples={"user id": ["ann"]})
    refused(tmp_path, "names of other inputs", query_examples={"top_n": ["ann"]})
    refused(tmp_path, "Received: 2 and 3", query_model=lookup(USERS, np.ones((4, 2))))
    refused(tmp_path, "finite", query_model=lookup(USERS, np.full((4, 3), np.nan)))
    refused(tmp_path, r"\[batch, dim\]", query_model=lambda words: tf.strings.length(words))
    refused(tmp_path, "`candidate_model` cannot embed", candidates=[1, 2])
    refused(tmp_path, "that are zero", candidates=["x", "?"])
    refused(tmp_path, "`features` should name inputs", features={"user": serving.History(3)})


def test_arguments_are_checked_before_anything_else(tmp_path: Path) -> None:
    refused(tmp_path, "`index` should be", index="hnsw")
    refused(tmp_path, "`top_n` should be", top_n=0)
    refused(tmp_path, "`recall_target` should be", recall_target=95)
    refused(tmp_path, "`similarity` should be", similarity="l2")
    refused(tmp_path, "`keep_versions` should be", keep_versions=0)
    refused(tmp_path, "`duplicates` should be", duplicates="last")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(serving.ExportError, match="`path` should be a folder"):
        serving.export(file, query_model=tf.identity, query_examples=["a"], **films())


@pytest.mark.usefixtures("no_round_trip")
def test_variables_that_nobody_owns_are_refused(tmp_path: Path) -> None:
    model = lookup(USERS, USER_VECTORS)
    refused(tmp_path, "`tracked` should be", serving.ExportError, query_model=lambda x: model(x))


def test_too_few_examples_for_an_approximate_index(tmp_path: Path) -> None:
    refused(tmp_path, "at least 2 queries", index="partitioned", query_examples=["ann", "ann"])


@pytest.mark.usefixtures("no_round_trip")
def test_optional_packages_are_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib.figure", "tensorflow_serving.apis"):
        monkeypatch.setitem(sys.modules, name, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        done = serving.export(
            tmp_path / "m",
            query_model=lookup(USERS, USER_VECTORS),
            query_examples=USERS,
            query_name="user_id",
            similarity="cosine",
            **films(),
        )
    told = [
        str(warning.message) for warning in caught if "croloss[pipelines]" in str(warning.message)
    ]
    assert len(told) == 2
    card = (done.path / CARD).read_text(encoding="utf-8")
    assert all(text in card for text in told)
    assert not (done.path / WARMUP_FILE).exists() and (done.path / "index_recall.md").is_file()
    scores, _ = tf.saved_model.load(str(done.path))(["ann"])
    assert scores.numpy()[0].tolist() == [1.0, 0.0]


def test_what_servers_do_not_take_for_a_version_is_none(tmp_path: Path) -> None:
    for name in ("1", "02", "3", str(2**63), "9" * 100):
        (tmp_path / name).mkdir()
    with versions.next_version(tmp_path) as number:
        assert number == 4
    assert versions.remove_old_versions(tmp_path, keep=1) == [1, 2]
    assert {path.name for path in tmp_path.iterdir()} == {"3", str(2**63), "9" * 100}


def test_versions_are_numbered_and_leftovers_removed(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    (folder / "7").mkdir(parents=True)
    (folder / ".tmp-export-dead").mkdir()
    (folder / ".old-3-dead").mkdir()
    (folder / "elsewhere").mkdir()
    (folder / ".tmp-export-link").symlink_to(folder / "elsewhere")
    with versions.workspace(folder) as mine:
        assert mine.parent == folder and not (folder / ".tmp-export-dead").exists()
        with versions.workspace(folder) as other:
            # A live export keeps its folder.
            assert mine.is_dir() and other != mine
        (mine / "built").mkdir()
        with versions.next_version(folder) as number:
            assert number == 8
            versions.publish(mine / "built", folder / "8")
            (mine / "late").mkdir()
            with pytest.raises(serving.ExportError, match="has written .*8 in the meantime"):
                versions.publish(mine / "late", folder / "8")
    assert versions.remove_old_versions(folder, 1) == [7]
    names = sorted(path.name for path in folder.iterdir())
    assert names == [".tmp-export-link", "8", "elsewhere"]
    assert os.stat(folder / "8").st_mode & 0o755 == 0o755


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["partitioned", "scann"])
@pytest.mark.parametrize("heads", [0, 3])
def test_an_approximate_index_keeps_its_promise(kind: str, heads: int, tmp_path: Path) -> None:
    """With ScaNN's operations or without, in a process that has neither this package nor TFRS."""
    random = np.random.default_rng(3)
    items = random.normal(size=(6000, 16)).astype(np.float32)
    tower = tf.keras.Sequential(
        [
            tf.keras.layers.Normalization(mean=0.0, variance=4.0),
            tf.keras.layers.Dense(16 * (heads or 1)),
        ]
    )
    if heads:
        tower.add(tf.keras.layers.Reshape([heads, 16]))
    queries = random.normal(size=(600, 5)).astype(np.float32)
    tower(queries[:1])
    done = serving.export(
        tmp_path / "m",
        query_model=tower,
        query_examples=queries,
        candidates=(np.arange(6000), items),
        index=kind,
        top_n=20,
        recall_target=0.9,
    )
    assert done.recall >= 0.9 and done.num_queries == 300
    if kind == "scann":
        pytest.importorskip("scann")
    loaded = tf.saved_model.load(str(done.path))
    vectors = tower(queries[1::2]).numpy().reshape(300, -1, 16)
    exact = np.einsum("qhd,nd->qhn", vectors, items).max(axis=1)
    best = np.argsort(-exact, axis=1)[:, :20]
    found = loaded(tf.constant(queries[1::2]))[1].numpy()
    share = np.mean([len(set(one) & set(other)) / 20 for one, other in zip(found, best)])
    assert share >= 0.89


@pytest.mark.slow
def test_every_form_of_query_passes_the_fresh_process(tmp_path: Path) -> None:
    """The exports of the quick tests, with the check that these leave out."""
    test_features_of_all_types_and_two_heads(tmp_path / "features")
    test_histories_and_known_ids_have_their_rules(tmp_path / "ids")
