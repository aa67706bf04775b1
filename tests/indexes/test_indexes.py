"""Every property on every kind of index, and the tuning of their settings."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfrs_croloss import indexes
from tfrs_croloss.indexes import partitioned, scann, tuning
from tfrs_croloss.indexes.base import NO_SCORE
from tfrs_croloss.indexes.tuning import RecallNotReached, build_index, measure, tune

HAS_SCANN = sys.platform == "linux"
needs_scann = pytest.mark.skipif(not HAS_SCANN, reason="ScaNN exists for Linux only")
KINDS = ["brute_force", "partitioned", pytest.param("scann", marks=needs_scann)]
APPROXIMATE = KINDS[1:]
# ScaNN trains a tree from 5,000 items on.
NUM_ITEMS, DIM = 6_000, 16


def clustered(num_rows, seed, dim=DIM, num_centres=60, spread=0.5):
    centres = np.random.default_rng(99).normal(size=(num_centres, dim))
    random = np.random.default_rng(seed)
    rows = centres[random.integers(0, num_centres, num_rows)]
    return (rows + spread * random.normal(size=rows.shape)).astype(np.float32)


def exact_top(items, query, num, excluded=()):
    """Item numbers and scores, in plain Python."""
    scores = {
        number: sum(float(a) * float(b) for a, b in zip(row, query))
        for number, row in enumerate(items)
        if number not in excluded
    }
    best = sorted(scores, key=scores.get, reverse=True)[:num]
    return best, [scores[number] for number in best]


def found(index, queries, num):
    numbers, scores = index.search(tf.constant(queries), tf.constant(num))
    return numbers.numpy(), scores.numpy()


def search_everything(index):
    if index.kind != "brute_force":
        index.leaves_to_search = index.num_leaves
    if index.kind == "scann":
        index.reorder = index.num_items
    return index


@pytest.fixture(scope="module")
def items():
    return clustered(NUM_ITEMS, seed=0)


@pytest.fixture(scope="module")
def built(items):
    """A function that returns the index of a kind, built at its first call."""
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = build_index(kind, items, seed=3)
        index = made[kind]
        if kind != "brute_force":
            index.leaves_to_search = 4
        if kind == "scann":
            index.reorder = 200
        return index

    return get


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_queries", [1, 7, 300])
def test_answers_are_distinct_items_in_the_order_of_their_inner_products(
    built, items, kind, num_queries
):
    queries = clustered(num_queries, seed=1)
    numbers, scores = found(built(kind), queries, 50)
    assert numbers.shape == scores.shape == (num_queries, 50)
    assert numbers.dtype == np.int32 and scores.dtype == np.float32
    assert numbers.min() >= 0 and numbers.max() < NUM_ITEMS
    assert all(len(set(row)) == 50 for row in numbers)
    assert np.all(np.diff(scores, axis=1) <= 0)
    np.testing.assert_allclose(
        scores, np.einsum("qnd,qd->qn", items[numbers], queries), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("kind", KINDS)
def test_searching_everything_is_exact(built, items, kind):
    index = search_everything(built(kind))
    queries = clustered(3, seed=2)
    numbers, scores = found(index, queries, 20)
    for row, query in enumerate(queries):
        best, best_scores = exact_top(items, query, 20)
        assert list(numbers[row]) == best
        np.testing.assert_allclose(scores[row], best_scores, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_temporary_index_can_be_searched(items, kind):
    query = clustered(1, seed=2)
    numbers, _ = build_index(kind, items[:20]).search(query, 3)
    assert numbers.numpy()[0].tolist() == exact_top(items[:20], query[0], 3)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_queries_may_be_tensors_arrays_or_lists_of_any_floats(built, kind):
    index, queries = built(kind), clustered(2, seed=2)
    expected, _ = found(index, queries, 5)
    for given, num in (
        (queries, 5),
        (queries.tolist(), np.int64(5)),
        (queries.astype(np.float64), tf.constant(5, tf.int64)),
        (tf.constant(queries, tf.float64), 5),
    ):
        np.testing.assert_array_equal(index.search(given, num)[0].numpy(), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_outside_of_functions_is_traced_once(items, kind):
    # Operation by operation, it took ten times as long.
    index = build_index(kind, items[:50])
    for num_queries, num in ((1, 1), (2, 5), (7, 50)):
        index.search(clustered(num_queries, seed=2), num)
    assert index._search.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_searches_that_cannot_be_answered_say_why(built, kind):
    index = built(kind)
    with pytest.raises(ValueError, match=r"`queries` should have the shape \[batch, 16\]"):
        index.search([[1.0, 2.0]], 3)
    with pytest.raises(ValueError, match=r"`queries` should have the shape \[batch, 16\]"):
        index.search([1.0] * DIM, 3)
    for num in (0, NUM_ITEMS + 1, tf.constant(NUM_ITEMS + 1)):
        with pytest.raises(ValueError, match="`num` should be from 1 to 6000"):
            index.search([[1.0] * DIM], num)


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_few_leaves_find_most_and_more_leaves_find_more(built, kind):
    index = built(kind)
    recalls = []
    for leaves in (1, 4, index.num_leaves):
        index.leaves_to_search = leaves
        recalls.append(measure(index, clustered(100, seed=4), 10).recall)
    assert recalls[0] < recalls[1] < recalls[2]
    assert recalls[1] > 0.6
    assert recalls[2] > 0.99


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("everything", [False, True])
def test_single_queries_and_batches_agree(built, kind, everything):
    index = built(kind)
    if everything:
        search_everything(index)
    queries = clustered(40, seed=5)
    numbers, _ = found(index, queries, 10)
    alone = np.concatenate([found(index, query[np.newaxis], 10)[0] for query in queries])
    if kind == "scann" and not everything:
        # It chooses leaves for a query alone a little differently.
        shared = [len(set(one) & set(other)) / 10 for one, other in zip(numbers, alone)]
        assert np.mean(shared) > 0.95
    else:
        np.testing.assert_array_equal(numbers, alone)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_has_an_empty_answer(built, kind):
    index = built(kind)
    for numbers, scores in (
        found(index, np.zeros([0, DIM], np.float32), 5),
        index.exact_search(tf.zeros([0, DIM]), tf.constant(5), tf.zeros([0, 2], tf.int32)),
    ):
        assert numbers.shape == scores.shape == (0, 5)


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_places_that_the_visited_leaves_cannot_fill_say_so(built, items, kind):
    index = built(kind)
    index.leaves_to_search = 1
    numbers, scores = found(index, clustered(5, seed=6), NUM_ITEMS)
    assert numbers.shape == scores.shape == (5, NUM_ITEMS)
    for row_numbers, row_scores in zip(numbers, scores):
        filled = int(np.sum(row_numbers < NUM_ITEMS))
        assert 0 < filled < NUM_ITEMS / 2
        assert len(set(row_numbers[:filled])) == filled
        assert np.all(row_scores[:filled] > NO_SCORE)
        assert np.all(row_numbers[filled:] == NUM_ITEMS)
        assert np.all(row_scores[filled:] == np.float32(NO_SCORE))


@pytest.mark.parametrize("kind", KINDS)
def test_all_items_may_be_asked_for(built, kind):
    numbers, _ = found(search_everything(built(kind)), clustered(2, seed=7), NUM_ITEMS)
    assert all(sorted(row) == list(range(NUM_ITEMS)) for row in numbers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_items", "dim"), [(1, 5), (2, 1), (17, 5), (300, 1)])
def test_small_catalogues(kind, num_items, dim):
    items = np.random.default_rng(num_items).normal(size=(num_items, dim)).astype(np.float32)
    index = search_everything(build_index(kind, items))
    query = np.full([1, dim], 0.5, np.float32)
    numbers, scores = found(index, query, num_items)
    best, best_scores = exact_top(items, query[0], num_items)
    assert list(numbers[0]) == best
    np.testing.assert_allclose(scores[0], best_scores, rtol=1e-4, atol=1e-6)
    assert (index.num_items, index.dim) == (num_items, dim)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_the_embeddings(built, items, kind):
    numbers = np.array([[5, 0], [NUM_ITEMS - 1, 5]], np.int32)
    vectors = built(kind).vectors(tf.constant(numbers)).numpy()
    np.testing.assert_array_equal(vectors, items[numbers])


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_do_not_make_every_search_copy_the_embeddings(built, kind):
    # TensorFlow copies a variable at every read once it was read sparsely.
    index = built(kind)
    spec = tf.TensorSpec([None], tf.int32)
    graph = tf.function(index.vectors).get_concrete_function(spec).graph
    table = index._state["dataset"] if kind == "scann" else index._table
    handle = next(inside for outer, inside in graph.captures if outer is table.handle)
    readers = {operation.type for operation in handle.consumers()}
    assert readers == {"ReadVariableOp"}


@pytest.mark.parametrize("kind", KINDS)
def test_exact_search_leaves_out_what_is_excluded(built, items, kind):
    queries = clustered(2, seed=8)
    first, _ = exact_top(items, queries[0], 3)
    excluded = np.array([first, [NUM_ITEMS] * 3], np.int32)
    numbers, scores = built(kind).exact_search(
        tf.constant(queries), tf.constant(10), tf.constant(excluded)
    )
    for row, without in enumerate((first, ())):
        best, best_scores = exact_top(items, queries[row], 10, without)
        assert list(numbers.numpy()[row]) == best
        np.testing.assert_allclose(scores.numpy()[row], best_scores, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_exclusions_never_come_back_when_few_items_remain(kind):
    items = np.eye(4, dtype=np.float32)
    index = build_index(kind, items)
    numbers, scores = index.exact_search(
        tf.constant([[4.0, 3.0, 2.0, 1.0]]), tf.constant(4), tf.constant([[0, 2, 2, 3]])
    )
    assert numbers.numpy().tolist() == [[1, 4, 4, 4]]
    assert scores.numpy().tolist() == [[3.0] + [np.float32(NO_SCORE)] * 3]


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_the_same_seed_gives_the_same_index(items, built, kind):
    queries = clustered(50, seed=9)
    first, again = built(kind), build_index(kind, items, seed=3)
    other = build_index(kind, items, seed=4)
    answers = []
    for index in (first, again, other):
        index.leaves_to_search = 1
        answers.append(found(index, queries, 100)[0])
    np.testing.assert_array_equal(answers[0], answers[1])
    assert not np.array_equal(answers[0], answers[2])


def test_partitions_of_unequal_and_equal_items():
    random = np.random.default_rng(0)
    heap = np.ones([900, 4]) + 1e-3 * random.normal(size=[900, 4])
    few = 5 * random.normal(size=[100, 4])
    for items in (np.concatenate([heap, few]), np.ones([1000, 4]), np.zeros([1000, 4])):
        index = build_index("partitioned", items, num_leaves=20)
        sizes = np.diff(index._bounds.numpy())
        assert sizes.sum() == 1000 and sizes.min() >= 1
        assert sizes.max() <= 1.5 * 1000 / 20
        index.leaves_to_search = index.num_leaves
        numbers, _ = found(index, np.ones([2, 4], np.float32), 1000)
        assert all(sorted(row) == list(range(1000)) for row in numbers)


def test_a_batch_in_blocks_has_the_same_answer(items, built, monkeypatch):
    queries = clustered(33, seed=10)
    expected = found(built("partitioned"), queries, 10)
    monkeypatch.setattr(partitioned, "_SCORES_AT_ONCE", 4000)
    index = build_index("partitioned", items, seed=3, leaves_to_search=4)
    assert 1 <= 4000 // (4 * index._largest_leaf) < 33
    numbers, scores = found(index, queries, 10)
    np.testing.assert_array_equal(numbers, expected[0])
    np.testing.assert_allclose(scores, expected[1], rtol=1e-4)


LOAD_AND_SEARCH = """
import json, sys
import numpy as np
import tensorflow as tf
queries = np.load({queries!r}, allow_pickle=False)
answers = {{}}
for kind, path in {paths!r}.items():
    if kind == "scann":
        import scann
    model = tf.saved_model.load(path)
    for name in ("search", "vectors"):
        for size in (1, len(queries), 0):
            answer = model.signatures[name](queries=tf.constant(queries[:size]))
            answers[f"{{kind}} {{name}} {{size}}"] = {{
                key: answer[key].numpy().tolist() for key in answer
            }}
packages = {{name.split(".")[0] for name in sys.modules}}
print(json.dumps([answers, sorted(packages & {{"tfrs_croloss", "tensorflow_recommenders"}})]))
"""


class Model(tf.Module):
    """A model with two signatures that share one index."""

    def __init__(self, index):
        super().__init__()
        self.index = index

    @tf.function(input_signature=[tf.TensorSpec([None, DIM], tf.float32, "queries")])
    def search(self, queries):
        numbers, scores = self.index.search(queries, 10)
        assert numbers.shape.rank == scores.shape.rank == 2
        return {"numbers": numbers, "scores": scores}

    @tf.function(input_signature=[tf.TensorSpec([None, DIM], tf.float32, "queries")])
    def vectors(self, queries):
        numbers, _ = self.index.search(queries, 3)
        return {"vectors": self.index.vectors(numbers)}


def test_round_trip_through_a_fresh_process(built, tmp_path, run_python):
    queries = clustered(9, seed=11)
    np.save(tmp_path / "queries.npy", queries)
    # ScaNN last: the others are loaded by TensorFlow alone.
    kinds = ["brute_force", "partitioned"] + ["scann"] * HAS_SCANN
    models = {kind: Model(built(kind)) for kind in kinds}
    paths = {kind: str(tmp_path / kind) for kind in kinds}
    for kind, model in models.items():
        signatures = {"search": model.search, "vectors": model.vectors}
        tf.saved_model.save(model, paths[kind], signatures=signatures)
    program = LOAD_AND_SEARCH.format(paths=paths, queries=str(tmp_path / "queries.npy"))
    printed = run_python(program, {"PYTHONPATH": None})
    answers, unwanted = json.loads(printed.splitlines()[-1])
    assert unwanted == []
    assert len(answers) == 6 * len(kinds)
    for kind, model in models.items():
        for size in (1, 9, 0):
            answer = answers[f"{kind} search {size}"]
            expected = model.search(tf.constant(queries[:size]))
            assert answer["numbers"] == expected["numbers"].numpy().tolist()
            expected_scores = expected["scores"].numpy().tolist()
            np.testing.assert_allclose(answer["scores"], expected_scores, rtol=1e-4)
            vectors = model.vectors(tf.constant(queries[:size]))["vectors"].numpy().tolist()
            assert answers[f"{kind} vectors {size}"]["vectors"] == vectors


@needs_scann
def test_all_signatures_share_one_scann_searcher(built, items):
    index = built("scann")
    graph = index._search.get_concrete_function().graph
    names = {
        node.attr["shared_name"].s.decode()
        for node in graph.as_graph_def().node
        if node.op == "Scann>TensorsToScann"
    }
    assert names == {index._shared_name}
    assert build_index("scann", items[:20])._shared_name != index._shared_name


@pytest.mark.parametrize("kind", KINDS)
def test_measured_recall_is_the_share_of_the_exact_top(built, items, kind):
    index, queries = built(kind), clustered(12, seed=12)
    measured = measure(index, queries, 15)
    numbers, _ = found(index, queries, 15)
    shares = [
        len(set(row) & set(exact_top(items, query, 15)[0])) / 15
        for row, query in zip(numbers, queries)
    ]
    assert measured.recall == pytest.approx(np.mean(shares))
    assert measured.margin == pytest.approx(1.645 * np.std(shares, ddof=1) / np.sqrt(12))
    assert measured.single_ms > 0 and measured.batch_ms > 0
    assert measured.settings == index.settings()


class Scripted(indexes.BruteForceIndex):
    """Returns a given answer."""

    def _search(self, queries, num):
        answer = tf.constant([self.answer])
        return answer, tf.zeros_like(answer, tf.float32)


@pytest.mark.parametrize(
    "answer, recall",
    [
        ([0, 1], 1.0),
        ([0, 2], 1.0),  # ties with 1 for the second place
        ([1, 2], 0.5),  # there is one second place
        ([0, 3], 0.5),
        ([0, 0], 0.5),  # an item counts once
        ([0, 4], 0.5),  # no item
        ([4, 4], 0.0),
    ],
)
def test_ties_count_as_found_and_repeated_items_once(answer, recall):
    index = Scripted([[3.0], [2.0], [2.0], [1.0]])
    index.answer = answer
    assert measure(index, [[1.0]], 2).recall == recall


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_tuning_reaches_the_target_on_other_queries(built, kind):
    index = built(kind)
    seen = []
    tuned = tune(
        index,
        clustered(300, seed=13),
        clustered(300, seed=14),
        top_n=20,
        recall_target=0.9,
        rebuild=False,
        on_progress=seen.append,
    )
    assert tuned.index is index and tuned.tried == seen and tuned.chosen in seen
    assert tuned.chosen.settings == index.settings()
    assert tuned.chosen.recall - tuned.chosen.margin >= 0.9
    assert tuned.chosen.check_recall >= 0.9
    assert 1 < index.leaves_to_search < index.num_leaves
    assert measure(index, clustered(1000, seed=15), 20).recall >= 0.9


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_tuning_says_what_was_the_best_where_it_fails(built, kind):
    with pytest.raises(RecallNotReached, match="Recall@20 0.999 .*brute_force") as caught:
        tune(
            built(kind),
            clustered(100, seed=16),
            clustered(100, seed=17),
            top_n=20,
            recall_target=0.999,
            max_leaves_to_search=2,
            rebuild=False,
        )
    assert isinstance(caught.value, ValueError)
    assert caught.value.best.recall == max(one.recall for one in caught.value.tried)
    assert caught.value.best.settings["leaves_to_search"] == 2


def test_tuning_needs_the_second_hold_out_too(built, items):
    # Queries that any one leaf answers, and others that it does not.
    index = built("partitioned")
    easy = np.repeat(clustered(1, seed=18), 50, axis=0)
    index.leaves_to_search = index.num_leaves
    enough = tune(index, easy, easy, top_n=1, recall_target=1.0, rebuild=False).chosen
    both = tune(
        index, easy, clustered(200, seed=19), top_n=1, recall_target=1.0, rebuild=False
    ).chosen
    assert enough.settings["leaves_to_search"] < both.settings["leaves_to_search"]
    assert both.check_recall == 1.0


def test_tuning_builds_other_indexes_where_that_is_cheap(monkeypatch):
    items = clustered(800, seed=20)
    queries = clustered(50, seed=21), clustered(50, seed=22)
    index = build_index("partitioned", items, num_leaves=16)
    tuned = tune(index, *queries, top_n=5, recall_target=0.8)
    assert len({one.settings["num_leaves"] for one in tuned.tried}) == 3
    assert tuned.index.settings() == tuned.chosen.settings
    monkeypatch.setattr(tuning, "_CHEAP_TO_BUILD", 100)
    tuned = tune(index, *queries, top_n=5, recall_target=0.8)
    assert {one.settings["num_leaves"] for one in tuned.tried} == {index.num_leaves}


def test_the_exact_index_needs_no_tuning():
    index = build_index("brute_force", clustered(100, seed=23))
    queries = clustered(5, seed=24)
    tuned = tune(index, queries, queries, top_n=500, recall_target=1.0)
    assert tuned.chosen.recall == tuned.chosen.check_recall == 1.0
    assert len(tuned.tried) == 1


def test_errors_name_the_argument():
    items = clustered(10, seed=25)
    with pytest.raises(ValueError, match="`kind` should be one of .*partitioned.*'hnsw'"):
        build_index("hnsw", items)
    with pytest.raises(ValueError, match="'partitioned' takes the options .*num_leaves.*reorder"):
        build_index("partitioned", items, reorder=5)
    with pytest.raises(ValueError, match="`num_leaves` should be a whole number of at least 1"):
        build_index("partitioned", items, num_leaves=0)
    with pytest.raises(ValueError, match="`num_leaves` should be a whole number"):
        build_index("partitioned", items, num_leaves=1.5)
    index = build_index("partitioned", items)
    with pytest.raises(ValueError, match="`check_queries` should have the shape"):
        tune(index, items, items[:0], top_n=1, recall_target=0.5)
    with pytest.raises(ValueError, match="`recall_target` should be in"):
        tune(index, items, items, top_n=1, recall_target=95)
    with pytest.raises(ValueError, match="`top_n` should be at least 1"):
        measure(index, items, 0)


def test_a_missing_scann_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scann.scann_ops.py", None)
    with pytest.raises(scann.ScannUnavailable, match='pip install "scann'):
        build_index("scann", [[1.0]])


@needs_scann
def test_a_scann_of_another_tensorflow_says_so(monkeypatch):
    def broken(path):
        raise tf.errors.NotFoundError(None, None, "undefined symbol: _ZN4absl")

    scann.scann_ops()
    monkeypatch.setattr(tf, "load_op_library", broken)
    monkeypatch.delitem(sys.modules, "scann.scann_ops.py.scann_ops")
    monkeypatch.delattr(sys.modules["scann.scann_ops.py"], "scann_ops")
    with pytest.raises(scann.ScannUnavailable, match="does not load .*undefined symbol"):
        build_index("scann", [[1.0]])


@pytest.mark.slow
def test_importing_indexes_and_serving_needs_neither_scann_nor_keras_2(run_python):
    program = """
import sys
import tensorflow as tf
import tfrs_croloss
from tfrs_croloss import indexes

assert tfrs_croloss.indexes is indexes
for name in indexes.__all__:
    getattr(indexes, name)
index = indexes.PartitionedIndex([[1.0, 0.0], [0.0, 1.0]], leaves_to_search=2)
model = tfrs_croloss.serving.Recommender(
    lambda features: tf.one_hot(features["history"][:, 0], 2), index, ["a", "b"], history_length=1
)
answer = model.recommend(history=tf.constant([["b"]]), top_n=tf.constant([1]))
assert answer["item_ids"].numpy().tolist() == [[b"b"]]
assert tf.keras.__version__.startswith("3.")
print(sorted({"scann", "tf_keras", "tensorflow_recommenders"} & set(sys.modules)))
"""
    printed = run_python(program, {"TF_USE_LEGACY_KERAS": None})
    assert printed.splitlines()[-1] == "[]"
