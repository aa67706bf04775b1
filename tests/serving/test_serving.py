"""The answers of every signature of a recommender, with every kind of index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfrs_croloss.indexes import BruteForceIndex
from tfrs_croloss.indexes.base import NO_SCORE
from tfrs_croloss.indexes.tuning import build_index
from tfrs_croloss.serving import Recommender, check_catalogue, save
from tfrs_croloss.serving.recommender import SIGNATURES

NUM_ITEMS, DIM, LIMIT, HISTORY_LENGTH = 300, 8, 50, 4
NAMES = [f"item {number}" for number in range(NUM_ITEMS)]
TABLE = np.random.default_rng(5).normal(size=(NUM_ITEMS, DIM)).astype(np.float32)
DEFAULT_QUERY = np.linspace(-1.0, 1.0, DIM).astype(np.float32)


class SumOfHistory(tf.Module):
    """A query tower that is easy to compute by hand; a feature changes the sign of the query."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(np.concatenate([TABLE, np.zeros((1, DIM), np.float32)]))

    def __call__(self, features: Any) -> tf.Tensor:
        queries = tf.reduce_sum(tf.gather(self.table, features["history"]), axis=1) + DEFAULT_QUERY
        return queries * features["sign"][:, tf.newaxis] if "sign" in features else queries


def build(kind: str = "brute_force", **options: Any) -> Recommender:
    tower = SumOfHistory()
    arguments = {"history_length": HISTORY_LENGTH, "top_n": LIMIT, "tracked": tower, **options}
    return Recommender(tower, build_index(kind, TABLE), NAMES, **arguments)


@pytest.fixture(scope="module")
def exact_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "exact"
    save(build(), folder)
    return folder


@pytest.fixture(scope="module")
def exact_signatures(exact_folder: Path) -> Any:
    return tf.saved_model.load(str(exact_folder)).signatures


@pytest.fixture(scope="module", params=["brute_force", "partitioned", "scann"])
def signatures(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if request.param == "brute_force":
        return request.getfixturevalue("exact_signatures")
    folder = tmp_path_factory.mktemp("saved") / request.param
    save(build(request.param), folder)
    return tf.saved_model.load(str(folder)).signatures


def ask(signature: Any, **inputs: Any) -> dict[str, np.ndarray]:
    specs = signature.structured_input_signature[1]
    tensors = {name: tf.constant(value, specs[name].dtype) for name, value in inputs.items()}
    return {name: value.numpy() for name, value in signature(**tensors).items()}


def items(answer: dict[str, np.ndarray], row: int = 0) -> list[str]:
    return [item.decode() for item in answer["item_ids"][row][: answer["num_results"][row]]]


def query(*numbers: int) -> np.ndarray:
    return TABLE[list(numbers)].sum(axis=0) + DEFAULT_QUERY


def best(vector: np.ndarray, among: Any = range(NUM_ITEMS)) -> list[str]:
    return [NAMES[number] for number in sorted(among, key=lambda n: -float(TABLE[n] @ vector))]


def test_names_and_ranks_of_all_tensors_are_known(signatures: Any) -> None:
    assert set(signatures) == set(SIGNATURES)
    for name, signature in signatures.items():
        for spec in signature.structured_outputs.values():
            assert spec.shape.rank is not None, name
    inputs = signatures["recommend_excluding"].structured_input_signature[1]
    assert {key: (spec.dtype, spec.shape.rank) for key, spec in inputs.items()} == {
        "history": (tf.string, 2),
        "excluded_ids": (tf.string, 2),
        "top_n": (tf.int32, 1),
    }


def test_the_best_items_come_first(signatures: Any) -> None:
    answer = ask(signatures["serving_default"], history=[["item 7", "item 3"]])
    scores = [float(TABLE[NAMES.index(item)] @ query(7, 3)) for item in items(answer)]
    np.testing.assert_allclose(answer["scores"][0], scores, rtol=1e-4, atol=1e-4)
    assert scores == sorted(scores, reverse=True)
    assert len(set(items(answer))) == LIMIT == answer["num_results"][0]
    found = len(set(items(answer)) & set(best(query(7, 3))[:LIMIT])) / LIMIT
    assert found >= 0.8
    assert answer["known_items"].tolist() == [2] and answer["is_default"].tolist() == [False]


def test_each_query_has_its_own_size(signatures: Any) -> None:
    answer = ask(signatures["recommend"], history=[["item 1"], ["item 2"]], top_n=[2, 5])
    assert answer["num_results"].tolist() == [2, 5]
    assert answer["item_ids"].shape == (2, 5)
    assert answer["item_ids"][0, 2:].tolist() == [b"", b"", b""]
    assert np.all(answer["scores"][0, 2:] == np.float32(NO_SCORE))
    assert np.all(np.isfinite(answer["scores"]))
    alone = ask(signatures["recommend"], history=[["item 1"]], top_n=[2])
    assert items(alone) == items(answer)


@pytest.mark.parametrize("top_n", [0, -1, LIMIT + 1])
def test_a_size_out_of_bounds_is_an_error_that_names_them(signatures: Any, top_n: int) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"between 1 and {LIMIT}"):
        ask(signatures["recommend"], history=[["item 1"]], top_n=[top_n])


def test_excluded_items_never_come_back(signatures: Any) -> None:
    first = ask(signatures["recommend"], history=[["item 7"]], top_n=[LIMIT])
    excluded = items(first)[:20]
    answer = ask(
        signatures["recommend_excluding"],
        history=[["item 7"]],
        excluded_ids=[[*excluded, excluded[0], "", "unheard-of"]],
        top_n=[LIMIT],
    )
    assert not set(items(answer)) & set(excluded)
    assert answer["num_results"].tolist() == [LIMIT]
    assert items(answer)[:10] == items(first)[20:30]


@pytest.mark.parametrize("left", [3, 1, 0])
def test_what_is_left_comes_back_and_nothing_else(signatures: Any, left: int) -> None:
    excluded = NAMES[left:]
    answer = ask(
        signatures["recommend_excluding"],
        history=[["item 7"], [""]],
        excluded_ids=[excluded, NAMES[: NUM_ITEMS - left]],
        top_n=[LIMIT, LIMIT],
    )
    assert answer["num_results"].tolist() == [left, left]
    assert items(answer) == best(query(7), range(left))
    assert items(answer, 1) == best(query(), range(NUM_ITEMS - left, NUM_ITEMS))
    assert np.all(np.isfinite(answer["scores"]))


def test_only_allowed_items_come_back_and_once(signatures: Any) -> None:
    answer = ask(
        signatures["recommend_among"],
        history=[["item 7"], ["item 9"]],
        allowed_ids=[["item 30", "item 4", "item 30", "unheard-of"], ["", "", "", ""]],
        top_n=[10, 10],
    )
    assert items(answer) == best(query(7), [30, 4])
    assert items(answer, 1) == []
    nobody = np.zeros((1, 0), object)
    assert (
        items(ask(signatures["recommend_among"], history=[["a"]], allowed_ids=nobody, top_n=[3]))
        == []
    )


def test_a_query_vector_gives_what_its_history_gives(signatures: Any) -> None:
    embedded = ask(signatures["user_embedding"], history=[["item 7", "item 3"]])
    np.testing.assert_allclose(embedded["embedding"][0], query(7, 3), rtol=1e-5, atol=1e-5)
    found = ask(signatures["search"], query_embedding=embedded["embedding"], top_n=[20])
    direct = ask(signatures["recommend"], history=[["item 7", "item 3"]], top_n=[20])
    assert items(found) == items(direct)
    with pytest.raises(tf.errors.InvalidArgumentError, match="query_embedding should be finite"):
        ask(signatures["search"], query_embedding=[[np.nan] * DIM], top_n=[1])


def test_vectors_of_items_are_those_that_are_scored(signatures: Any) -> None:
    answer = ask(signatures["item_embedding"], item_ids=["item 12", "unheard-of", "item 0"])
    assert answer["is_known"].tolist() == [True, False, True]
    expected = [TABLE[12], np.zeros(DIM), TABLE[0]]
    np.testing.assert_allclose(answer["embedding"], expected, rtol=1e-6)


def test_unknown_items_and_padding_take_no_place(exact_signatures: Any) -> None:
    embed = exact_signatures["user_embedding"]
    history = ["item 1", "", "unheard-of", "item 2", "item 3", "", "item 4", "item 5", "gone"]
    answer = ask(embed, history=[history])
    np.testing.assert_allclose(answer["embedding"][0], query(2, 3, 4, 5), rtol=1e-5, atol=1e-6)
    assert answer["known_items"].tolist() == [5]


@pytest.mark.parametrize("history", [[], [""], ["unheard-of", "gone"]])
def test_without_a_known_item_the_answer_is_the_default(
    exact_signatures: Any, history: list[str]
) -> None:
    answer = ask(exact_signatures["serving_default"], history=np.array([history], object))
    assert answer["is_default"].tolist() == [True] and answer["known_items"].tolist() == [0]
    assert items(answer) == best(query())[:LIMIT]


def test_no_queries_no_answers(signatures: Any) -> None:
    answer = ask(signatures["recommend"], history=np.zeros((0, 3), object), top_n=[])
    assert answer["num_results"].shape == (0,) and answer["item_ids"].shape[0] == 0


def test_inputs_with_other_numbers_of_rows_are_named(exact_signatures: Any) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="top_n should have one row"):
        ask(exact_signatures["recommend"], history=[["item 1"]], top_n=[1, 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="excluded_ids should have one row"):
        ask(
            exact_signatures["recommend_excluding"],
            history=[["item 1"], ["item 2"]],
            excluded_ids=[["item 1"]],
            top_n=[1, 1],
        )


def test_other_query_features_are_inputs_too(tmp_path: Path) -> None:
    save(build(features={"sign": tf.TensorSpec([None], tf.float32)}), tmp_path / "model")
    loaded = tf.saved_model.load(str(tmp_path / "model")).signatures
    assert "sign" in loaded["serving_default"].structured_input_signature[1]
    answer = ask(
        loaded["recommend"], history=[["item 7"], ["item 7"]], sign=[1.0, -1.0], top_n=[5, 5]
    )
    assert items(answer) == best(query(7))[:5]
    assert items(answer, 1) == best(-query(7))[:5]


def test_the_index_is_saved_once(exact_folder: Path) -> None:
    variables = tf.train.list_variables(str(exact_folder / "variables" / "variables"))
    assert len(variables) == len({name for name, _ in variables})
    assert [shape for _, shape in variables].count([NUM_ITEMS, DIM]) == 1
    vocabulary = (exact_folder / "assets" / "item_ids.txt").read_text().splitlines()
    assert vocabulary == NAMES


def test_what_cannot_be_served_is_refused_by_name() -> None:
    def refuse(match: str, **options: Any) -> None:
        arguments = {"item_ids": ["a", "b"], "history_length": 2, "top_n": 1, **options}
        with pytest.raises(ValueError, match=match):
            Recommender(tf.identity, BruteForceIndex(np.eye(2)), **arguments)

    refuse("3 ids and 2 rows", item_ids=["a", "b", "c"])
    refuse("'a' is repeated", item_ids=["a", "a"])
    refuse("single lines", item_ids=["a", ""])
    refuse("single lines", item_ids=["a", "b\r"])
    refuse("at least 1. Received: 2 and 0", top_n=0)
    refuse("names of other inputs", features={"top_n": tf.TensorSpec([None], tf.int32)})
    refuse("first dimension", features={"age": tf.TensorSpec([3], tf.int32)})
    assert build(top_n=10_000).top_n == NUM_ITEMS

    with pytest.raises(ValueError, match=r"1 of 2 that are zero, the first of them for \['b'\]"):
        check_catalogue(["a", "b"], [[1.0, 0.0], [0.0, 0.0]])
    with pytest.raises(ValueError, match=r"with NaN or infinity, the first of them for \['a'\]"):
        check_catalogue(["a", "b"], [[np.nan, 0.0], [0.0, 1.0]])
    check_catalogue(["a", "b"], np.eye(2))
