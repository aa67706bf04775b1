"""Vectors for other engines, read back by those engines."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfrs_croloss import serving
from tfrs_croloss.indexes import VectorFiles, write_shard
from tfrs_croloss.serving import engines, round_trip, vector_files

FORMATS = ("parquet", "jsonl", "faiss")
DIM, NUM_ITEMS = 8, 300
IDS = [f'item {number} ä"{"x" * (number % 3)}' for number in range(NUM_ITEMS)]
ITEMS = np.random.default_rng(0).normal(size=[NUM_ITEMS, DIM]).astype(np.float32)


class Users(tf.Module):
    """User ids, which are numbers as strings, as rows of a table."""

    def __init__(self):
        super().__init__()
        self.table = tf.Variable(np.random.default_rng(1).normal(size=[50, DIM]), dtype=tf.float32)

    def __call__(self, users):
        return tf.gather(self.table, tf.strings.to_number(users, tf.int32))


USERS = np.array([str(number) for number in range(50)])


def top_ids(query, num):
    """The ids of the items with the highest cosines, in plain Python."""
    scores = {
        one: sum(float(a) * float(b) for a, b in zip(row, query)) / math.hypot(*map(float, row))
        for one, row in zip(IDS, ITEMS)
    }
    return sorted(scores, key=scores.get, reverse=True)[:num]


def read_parquet(folder):
    table = pytest.importorskip("pyarrow.parquet").read_table(folder / "items.parquet")
    assert str(table.schema.field("embedding").type) == f"fixed_size_list<element: float>[{DIM}]"
    return table["id"].to_pylist(), np.array(table["embedding"].to_pylist(), np.float32)


def read_jsonl(folder):
    lines = (folder / "items.json").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert all(set(record) == {"id", "embedding"} for record in records)
    ids = [record["id"] for record in records]
    return ids, np.array([record["embedding"] for record in records], np.float32)


def read_faiss(folder):
    index = pytest.importorskip("faiss").read_index(str(folder / "items.faiss"))
    ids = (folder / "item_ids.txt").read_text(encoding="utf-8").splitlines()
    return ids, index.reconstruct_n(0, index.ntotal)


READ = {"parquet": read_parquet, "jsonl": read_jsonl, "faiss": read_faiss}


@pytest.mark.parametrize("format", FORMATS)
def test_the_files_have_the_ids_and_vectors(tmp_path, format):
    done = serving.export_vectors(tmp_path / "v", format=format, candidates=(IDS, ITEMS))
    ids, vectors = READ[format](done.path / "items")
    assert ids == IDS
    np.testing.assert_array_equal(vectors, ITEMS)
    assert (done.num_items, done.dim, done.version) == (NUM_ITEMS, DIM, 1)
    assert done.query_model is None and done.items.is_file()
    record = json.loads((done.path / "vectors.json").read_text())
    assert record["format"] == format and record["num_items"] == NUM_ITEMS
    serving.check_manifest(done.path)


def test_an_engine_finds_the_top_n_of_the_query_model(tmp_path):
    faiss = pytest.importorskip("faiss")
    done = serving.export_vectors(
        tmp_path / "v",
        format="faiss",
        candidates=(IDS, ITEMS),
        query_model=Users(),
        query_examples=USERS,
        query_name="user",
        similarity="cosine",
    )
    assert done.num_queries == 50
    loaded = tf.saved_model.load(str(done.query_model / "1"))
    queries = loaded.signatures["serving_default"](user=tf.constant(["7", "3"]))["embedding"]
    ids, vectors = read_faiss(done.items.parent)
    for rows in (queries.numpy(), vectors):
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=1e-5)
    _, numbers = faiss.read_index(str(done.items)).search(queries.numpy(), 5)
    for query, row in zip(queries.numpy(), numbers):
        assert [ids[number] for number in row] == top_ids(query, 5)


@pytest.mark.parametrize("format", FORMATS)
def test_blocks_of_files_and_whole_numbers_as_ids(tmp_path, monkeypatch, format):
    monkeypatch.setattr(vector_files, "_LINES", 64)
    monkeypatch.setattr(vector_files, "_ROWS", 70)
    for shard in range(2):
        write_shard(
            tmp_path / "shards",
            shard,
            lambda first, last: ITEMS[first:last],
            num_shards=2,
            num_items=NUM_ITEMS,
            dim=DIM,
            origin={},
        )
    rows = VectorFiles.open(tmp_path / "shards")
    numbers = list(range(100, 100 + NUM_ITEMS))
    done = serving.export_vectors(tmp_path / "v", format=format, candidates=(numbers, rows))
    ids, vectors = READ[format](done.path / "items")
    assert ids == (numbers if format == "parquet" else [str(one) for one in numbers])
    np.testing.assert_array_equal(vectors, ITEMS)


def test_versions_follow_each_other_and_old_ones_go(tmp_path):
    options = {"format": "jsonl", "candidates": (IDS, ITEMS)}
    first = serving.export_vectors(tmp_path / "v", **options)
    second = serving.export_vectors(tmp_path / "v", **options, keep_versions=1)
    assert (first.version, second.version, second.removed) == (1, 2, (1,))
    assert [path.name for path in (tmp_path / "v").iterdir()] == ["2"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("fault", ["vectors", "ids", "rows"])
def test_files_that_differ_are_not_published(tmp_path, monkeypatch, format, fault):
    made = vector_files.FORMATS[format]
    ids, rows = list(IDS), ITEMS.copy()
    if fault == "vectors":
        rows[123, 1] += 1e-3
    elif fault == "ids":
        ids[7] += "!"
    else:
        ids, rows = ids[:-1], rows[:-1]
    write = type(made).write
    monkeypatch.setattr(
        type(made), "write", lambda self, folder, *_: write(self, folder, ids, rows)
    )
    with pytest.raises(serving.ExportError, match="Nothing was published"):
        serving.export_vectors(tmp_path / "v", format=format, candidates=(IDS, ITEMS))
    assert not (tmp_path / "v").exists()


def test_another_top_n_is_not_published(tmp_path, monkeypatch):
    wrong = np.tile(np.arange(100), [NUM_ITEMS, 1])
    monkeypatch.setattr(
        vector_files.Faiss, "search", lambda self, folder, queries, num: wrong[: len(queries), :num]
    )
    with pytest.raises(serving.ExportError, match="another top 10 "):
        serving.export_vectors(tmp_path / "v", format="faiss", candidates=(IDS, ITEMS), top_n=10)


@pytest.mark.parametrize(("format", "module"), [("parquet", "pyarrow.parquet"), ("faiss", "faiss")])
def test_a_missing_package_names_the_extra(tmp_path, monkeypatch, format, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(serving.EngineUnavailable, match=r"tfrs-croloss\[engines\]"):
        serving.export_vectors(tmp_path / "v", format=format, candidates=(IDS, ITEMS))
    assert not (tmp_path / "v").exists()


def test_mistakes_are_named(tmp_path):
    path = tmp_path / "v"
    with pytest.raises(ValueError, match="`format` should be one of .*faiss.*'csv'"):
        serving.export_vectors(path, format="csv", candidates=(IDS, ITEMS))
    with pytest.raises(ValueError, match="only `query_model`"):
        serving.export_vectors(path, format="jsonl", candidates=(IDS, ITEMS), query_model=Users())
    with pytest.raises(ValueError, match="UTF-8"):
        serving.export_vectors(path, format="jsonl", candidates=([b"\xff", b"b"], ITEMS[:2]))
    with pytest.raises(serving.ExportError, match="one size. Received: 8 and 3"):
        serving.export_vectors(
            path,
            format="jsonl",
            candidates=(IDS, ITEMS[:, :3]),
            query_model=Users(),
            query_examples=USERS,
        )
    assert not Path(path).exists()


def test_the_record_may_have_more(tmp_path):
    done = serving.export_vectors(
        tmp_path / "v", format="jsonl", candidates=(IDS, ITEMS), record={"step": 3}
    )
    assert json.loads((done.path / engines.RECORD).read_text())["step"] == 3


def test_requests_with_whole_numbers_can_be_sent_to_a_fresh_process():
    request = {"item_ids": [np.int64(3), -1], "text": [b"a"]}
    assert round_trip.as_json(request) == {"item_ids": [3, -1], "text": ["a"]}
    assert json.dumps(round_trip.as_json(request))
