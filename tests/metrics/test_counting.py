"""Exact ranks by counting, against the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from tfrs_croloss.metrics import _counting
from tfrs_croloss.metrics.ranks import exact_ranks, popularity_ranks
from tfrs_croloss.metrics.report import evaluate, summarize_ranks


def slow_rank(query, candidates, positive, excluded=()):
    """The definition, one pair at a time, with exactly rounded dot products."""

    def score(item):
        return np.float32(math.fsum(float(a) * float(b) for a, b in zip(query, candidates[item])))

    others = set(range(len(candidates))) - {positive} - {int(item) for item in excluded}
    return 1 + sum(1 for item in others if score(item) >= score(positive))


def random_problem(seed=0, num_queries=23, num_items=97, dim=5):
    random = np.random.default_rng(seed)
    queries = random.normal(size=(num_queries, dim)).astype(np.float32)
    candidates = random.normal(size=(num_items, dim)).astype(np.float32)
    return queries, candidates, random.integers(0, num_items, num_queries)


@pytest.mark.parametrize("blocks", [(1, 1), (7, 5), (97, 23), (2048, 512)])
def test_ranks_are_those_of_the_definition(blocks):
    queries, candidates, positives = random_problem()
    ranks = exact_ranks(
        queries,
        candidates,
        positives,
        candidate_block_size=blocks[0],
        query_block_size=blocks[1],
    )
    assert ranks.tolist() == [
        slow_rank(query, candidates, item) for query, item in zip(queries, positives)
    ]


@pytest.mark.parametrize("dim", [1, 3, 17, 64])
def test_copies_of_the_positive_tie_wherever_they_are(dim):
    # Odd sizes, so that copies fall into full and partial tiles of the matrix product.
    queries, candidates, positives = random_problem(1, num_queries=41, num_items=1003, dim=dim)
    random = np.random.default_rng(2)
    queries, candidates = queries * np.float32(1e3), candidates + np.float32(10)
    for start in range(0, 1003, 3):
        candidates[start] = candidates[0]
    positives[:] = 3 * random.integers(0, 335, len(positives))
    ranks = exact_ranks(
        queries, candidates, positives, candidate_block_size=129, query_block_size=10
    )
    for query, item, rank in zip(queries, positives, ranks):
        assert rank == slow_rank(query, candidates, item)
        assert rank >= 335


def test_near_ties_are_decided_by_the_exact_scores():
    # Neighbouring floats, far closer than the rounding of sums of 32 large terms that cancel.
    random = np.random.default_rng(3)
    queries = random.normal(size=(8, 32)).astype(np.float32) * np.float32(100)
    base = random.normal(size=32).astype(np.float32) * np.float32(100)
    candidates = np.tile(base, (200, 1))
    candidates[:, 0] = np.float32(base[0]) + np.arange(200) * np.spacing(base[0])
    positives = random.integers(0, 200, 8)
    ranks = exact_ranks(queries, candidates, positives)
    expected = [slow_rank(query, candidates, item) for query, item in zip(queries, positives)]
    assert ranks.tolist() == expected
    assert 1 < min(expected) < max(expected)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.3])
def test_equal_scores_have_no_recall_below_the_catalogue_size(value):
    candidates = np.full((11, 4), value, np.float32)
    report = evaluate(np.ones((3, 4), np.float32), candidates, [0, 5, 10], cutoffs=[10, 11])
    assert report.recall == {10: 0.0, 11: 1.0}


def test_a_step_that_is_not_quite_whole_is_rounded_in_its_block():
    """One candidate in each of sixteen blocks is a little farther than the error bound."""
    near = np.float32(1.0 - 28 * 2.0**-24)
    catalogue = np.full([8192, 1], -1.0, np.float32)
    catalogue[::512] = near
    catalogue[5] = 1.0
    assert exact_ranks(np.ones([1, 1], np.float32), catalogue, [5]) == [1]
    catalogue = np.append(np.ones(15, np.float32), near)[:, np.newaxis]
    for block_size in (1, 16):
        ranks = exact_ranks(
            np.ones([1, 1], np.float32), catalogue, [15], candidate_block_size=block_size
        )
        assert ranks == [16]


def test_a_part_of_zero_vectors_scores_zero():
    """Of a catalogue in parts, one may have nothing else."""
    ahead, level = _counting.count_ahead(
        tf.ones([3, 2]),
        None,
        tf.constant([1.0, 0.0, -1.0]),
        tf.zeros([4, 2]),
        tf.constant(512, tf.int64),
        tf.constant(True),
    )
    np.testing.assert_array_equal(ahead, [0, 0, 4])
    np.testing.assert_array_equal(level, [0, 4, 0])


def test_ties_of_many_rows_in_many_blocks():
    """More rows than a block has, and more pairs than are scored again at once."""
    queries = np.random.default_rng(0).normal(size=[130, 3]).astype(np.float32)
    catalogue = np.tile(np.float32([[1.0, -2.0, 0.5]]), [300, 1])
    ranks = exact_ranks(queries, catalogue, np.arange(130), candidate_block_size=16)
    np.testing.assert_array_equal(ranks, 300)


def test_a_zero_query_ties_with_everything():
    queries = np.zeros((2, 3), np.float32)
    queries[1] = 1
    candidates = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert exact_ranks(queries, candidates, [3, 3]).tolist() == [4, 1]
    ranks = exact_ranks(queries, candidates, [3, 3], excluded=[[0, 1], [0, 1]])
    assert ranks.tolist() == [2, 1]


@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1e12, 1e36])
def test_ranks_do_not_depend_on_the_scale_of_the_candidates(scale):
    queries, candidates, positives = random_problem(12)
    expected = exact_ranks(queries, candidates, positives)
    candidates, queries = candidates * np.float32(scale), queries * np.float32(1 / scale)
    assert exact_ranks(queries, candidates, positives).tolist() == expected.tolist()


def test_one_item():
    assert exact_ranks([[1.0]], [[-2.0]], [0]).tolist() == [1]


@pytest.mark.parametrize("form", ["lists", "ragged tensor", "flat, shuffled"])
def test_several_positives_per_query(form):
    queries, candidates, _ = random_problem(4)
    random = np.random.default_rng(5)
    rows = np.repeat(np.arange(23), random.integers(0, 6, 23))
    ids = random.integers(0, 97, len(rows))
    options = {"query_block_size": 7, "candidate_block_size": 40}
    if form == "flat, shuffled":
        order = random.permutation(len(rows))
        rows, ids = rows[order], ids[order]
        ranks = exact_ranks(queries, candidates, ids, query_rows=rows, **options)
    elif form == "lists":
        lists = [ids[rows == row].tolist() for row in range(23)]
        ranks = exact_ranks(queries, candidates, lists, **options)
    else:
        ragged = tf.RaggedTensor.from_value_rowids(ids, rows, nrows=23)
        ranks = exact_ranks(queries, candidates, ragged, **options)
    expected = [slow_rank(queries[row], candidates, item) for row, item in zip(rows, ids)]
    assert ranks.tolist() == expected


@pytest.mark.parametrize("as_ragged_tensor", [False, True])
def test_excluded_items_do_not_compete(as_ragged_tensor):
    queries, candidates, positives = random_problem(6)
    random = np.random.default_rng(7)
    excluded = []
    for item in positives:
        history = random.integers(0, 97, random.integers(0, 60))  # with repeats
        excluded.append([other for other in history.tolist() if other != item])
    assert any(len(set(history)) < len(history) for history in excluded)
    given = tf.ragged.constant(excluded, dtype=tf.int64) if as_ragged_tensor else excluded
    ranks = exact_ranks(queries, candidates, positives, excluded=given, query_block_size=6)
    assert ranks.tolist() == [
        slow_rank(queries[row], candidates, positives[row], excluded[row]) for row in range(23)
    ]


def test_excluded_copies_of_the_positive_are_no_ties():
    candidates = np.array([[1.0, 2.0]] * 5, np.float32)
    ranks = exact_ranks([[0.1, 0.7]], candidates, [2], excluded=[[0, 4, 4, 0]])
    assert ranks.tolist() == [3]


def test_positives_that_are_excluded():
    candidates = [[4.0], [3.0], [2.0], [1.0]]
    options = {"excluded": [[0, 2]]}
    with pytest.raises(ValueError, match="item 2 of query 0.*'keep'.*'miss'"):
        exact_ranks([[1.0]], candidates, [2], **options)
    keep = exact_ranks([[1.0]], candidates, [2], excluded_positives="keep", **options)
    assert keep.tolist() == [2]
    miss = exact_ranks([[1.0]], candidates, [2], excluded_positives="miss", **options)
    assert miss.tolist() == [5]
    report = summarize_ranks(miss, num_items=4, cutoffs=[4])
    assert report.recall == {4: 0.0}
    assert report.pairs.expected_recall == 0.0


def test_popularity_ranks():
    counts = np.array([3, 9, 3, 0, 9, 1])
    queries, candidates = np.ones((6, 1), np.float32), counts[:, np.newaxis].astype(np.float32)
    excluded = [[1, 1], [], [0], [4, 5], [], [3]]
    expected = exact_ranks(queries, candidates, np.arange(6), excluded=excluded)
    ranks = popularity_ranks(counts, np.arange(6), excluded=excluded)
    assert ranks.tolist() == expected.tolist()
    assert popularity_ranks(counts, [5, 1], query_rows=[0, 0]).tolist() == [5, 2]


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_other_float_types(dtype):
    queries, candidates, positives = random_problem(8)
    queries, candidates = tf.cast(queries, dtype), tf.cast(candidates, dtype)
    expected = exact_ranks(tf.cast(queries, tf.float32), tf.cast(candidates, tf.float32), positives)
    assert exact_ranks(queries, candidates, positives).tolist() == expected.tolist()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"query_embeddings": [[1.0], [np.nan]]}, "`query_embeddings`.*row 1"),
        ({"candidate_embeddings": [[1.0], [2.0], [np.inf]]}, "`candidate_embeddings`.*row 2"),
        (
            {"query_embeddings": [[1.0], [1e30]], "candidate_embeddings": [[1.0], [2.0], [1e30]]},
            r"float32.* 1e\+30 \(query row 1\) and 1e\+30 \(item 2\)",
        ),
        (
            # Below what overflows when squared.
            {"query_embeddings": [[2e9], [1.0]], "candidate_embeddings": [[1.0], [1e30], [2.0]]},
            r"float32.* 2e\+09 \(query row 0\) and 1e\+30 \(item 1\)",
        ),
        ({"query_embeddings": [[1.0, 2.0]] * 2}, "same dim.*2 and 1"),
        ({"query_embeddings": [1.0, 2.0]}, r"shape \[rows, dim\]"),
        ({"query_embeddings": [[1], [2]]}, "should be floats"),
        ({"candidate_embeddings": np.zeros((0, 1), np.float32)}, "neither of them 0"),
        ({"positive_ids": [0, 3]}, "between 0 and 2.*3 at position 1"),
        ({"positive_ids": [0, -1]}, "between 0 and 2"),
        ({"positive_ids": [0]}, "one id for each of the 2 queries.*query_rows"),
        ({"positive_ids": [0.0, 1.0]}, "integers"),
        ({"positive_ids": [[], []]}, "at least one"),
        ({"positive_ids": [[0], [1], [2]]}, "one row for each of the 2"),
        ({"query_rows": [0, 2]}, "`query_rows`.*between 0 and 1"),
        ({"query_rows": [0]}, "each of the 1 `query_rows`"),
        ({"positive_ids": [[0], [1]], "query_rows": [0, 1]}, "flat"),
        ({"excluded": [[0]]}, "`excluded`.*each of the 2"),
        ({"excluded": [[], [7]]}, "`excluded`.*between 0 and 2"),
        ({"excluded_positives": "drop"}, "'drop'"),
        ({"candidate_block_size": 0}, "`candidate_block_size`.*0"),
    ],
)
def test_bad_input_is_named(changes, message):
    arguments = {
        "query_embeddings": [[1.0], [2.0]],
        "candidate_embeddings": [[1.0], [2.0], [3.0]],
        "positive_ids": [0, 1],
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        exact_ranks(**arguments)
