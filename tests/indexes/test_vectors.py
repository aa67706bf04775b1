"""Vectors in files: complete files are read as written, and incomplete ones are refused."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.processes import ROOT
from tfrs_croloss.indexes import _shards, base, partitioned, vectors
from tfrs_croloss.indexes.base import empty_table, taken_over
from tfrs_croloss.indexes.tuning import build_index, tune
from tfrs_croloss.indexes.vectors import VectorFiles, read_shards, row_blocks, write_shard
from tfrs_croloss.serving import check_catalogue

NUM_ITEMS, DIM = 101, 3
ORIGIN = {"step": 7, "settings": {"sizes": [1, 2]}}


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(5).standard_normal((NUM_ITEMS, DIM), np.float32)


def write(folder: Path, rows: np.ndarray, num_shards: int, **options: Any) -> list[bool]:
    shards = options.pop("shards", range(num_shards))
    settings = {"origin": ORIGIN, "block_size": 7, **options}
    return [
        write_shard(
            folder,
            shard,
            lambda first, last: rows[first:last],
            num_shards=num_shards,
            num_items=len(rows),
            dim=rows.shape[1],
            **settings,
        )
        for shard in shards
    ]


@pytest.fixture
def written(tmp_path: Path, rows: np.ndarray) -> Path:
    write(tmp_path / "vectors", rows, 4)
    return tmp_path / "vectors"


def test_a_shard_with_a_flipped_bit_is_written_again(written: Path, rows: np.ndarray) -> None:
    path = written / "vectors-00002-of-00004.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
    assert write(written, rows, 4) == [False, False, True, False]
    assert path.read_bytes() == whole


def test_a_link_under_the_name_of_the_lock_is_not_followed(
    tmp_path: Path, rows: np.ndarray
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".tmp-vectors-00000-of-00001.npy").symlink_to(victim)
    with pytest.raises(OSError, match="vectors-00000"):
        write(tmp_path, rows, 1)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(
    ("num_items", "num_shards"), [(101, 4), (101, 1), (100, 10), (3, 8), (1, 1), (1, 3)]
)
def test_what_is_read_is_what_was_written(
    tmp_path: Path, num_items: int, num_shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "BLOCK_SIZE", 9)
    rows = np.random.default_rng(0).standard_normal((num_items, 5), np.float32)
    assert all(write(tmp_path, rows, num_shards))
    files = VectorFiles.open(tmp_path)
    files.verify()
    assert files.shape == (num_items, 5) and len(files) == num_items
    assert files.dtype == np.float32 and files.origin == ORIGIN
    np.testing.assert_array_equal(np.asarray(files), rows)
    np.testing.assert_array_equal(np.concatenate(list(files.blocks(8))), rows)
    assert [len(block) for block in files.blocks(8)] == [
        min(8, num_items - first) for first in range(0, num_items, 8)
    ]
    for first in range(0, num_items, 4):
        for last in (0, first, first + 1, first + 40, num_items, -1, None):
            np.testing.assert_array_equal(files[first:last], rows[first:last])
    np.testing.assert_array_equal(files[::-3], rows[::-3])
    numbers = np.random.default_rng(1).integers(-num_items, num_items, (6, 20))
    np.testing.assert_array_equal(files[numbers], rows[numbers])
    np.testing.assert_array_equal(files[num_items - 1], rows[num_items - 1])
    assert files[[]].shape == (0, 5) and files[numbers[:0]].shape == (0, 20, 5)
    assert np.asarray(files, np.float64).dtype == np.float64


def test_files_are_ordinary_numpy_files(written: Path, rows: np.ndarray) -> None:
    parts = [np.load(file, allow_pickle=False) for file in sorted(written.glob("*.npy"))]
    assert [len(part) for part in parts] == [25, 25, 25, 26]
    np.testing.assert_array_equal(np.concatenate(parts), rows)
    assert len(list(written.iterdir())) == 2 * 4


def test_rows_that_do_not_exist_are_refused(written: Path) -> None:
    files = VectorFiles.open(written)
    for numbers in (NUM_ITEMS, -NUM_ITEMS - 1, [0, NUM_ITEMS]):
        with pytest.raises(IndexError, match="rows should be from -101 to 100"):
            files[numbers]
    for wrong in (1.5, [True] * NUM_ITEMS, "a"):
        with pytest.raises(TypeError, match="slice or whole numbers"):
            files[wrong]
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(files, copy=False)


def test_what_is_there_is_not_written_again(written: Path, rows: np.ndarray) -> None:
    (written / "vectors-00002-of-00004.json").unlink()
    calls: list[tuple[int, int]] = []
    states: list[tuple[int, int]] = []

    def embed(first: int, last: int) -> np.ndarray:
        calls.append((first, last))
        return rows[first:last]

    for shard in range(4):
        write_shard(
            written,
            shard,
            embed,
            num_shards=4,
            num_items=NUM_ITEMS,
            dim=DIM,
            origin={**ORIGIN, "settings": {"sizes": (1, 2)}},
            block_size=8,
            on_progress=lambda done, total: states.append((done, total)),
        )
    assert calls == [(50, 56), (56, 64), (64, 72), (72, 75)]
    assert states == [(6, 25), (14, 25), (22, 25), (25, 25)]
    np.testing.assert_array_equal(np.asarray(VectorFiles.open(written)), rows)


def test_another_origin_or_a_damaged_shard_is_written_again(
    written: Path, rows: np.ndarray
) -> None:
    assert write(written, rows, 4) == [False] * 4
    assert write(written, rows, 4, made_with={"versions": 2}) == [False] * 4
    data = written / "vectors-00001-of-00004.npy"
    data.write_bytes(data.read_bytes()[:-4])
    (written / "vectors-00003-of-00004.json").write_text("{")
    assert write(written, rows, 4) == [False, True, False, True]
    assert write(written, 2 * rows, 4, origin={"step": 8}) == [True] * 4
    np.testing.assert_array_equal(VectorFiles.open(written)[:], 2 * rows)


def test_missing_shards_are_named(written: Path, tmp_path: Path) -> None:
    for shard in (0, 2):
        (written / f"vectors-{shard:05d}-of-00004.json").unlink()
    with pytest.raises(ValueError, match="should have 4 shards of vectors. Missing: 0, 2. Write"):
        VectorFiles.open(written)
    for folder in (tmp_path / "absent", tmp_path):
        with pytest.raises(ValueError, match="has no description of any"):
            VectorFiles.open(folder)


def test_shards_of_different_matrices_are_refused(written: Path, rows: np.ndarray) -> None:
    write(written, rows, 4, shards=[1], origin={"step": 8})
    with pytest.raises(ValueError, match="00000-of-00004.npy and vectors-00001.*`origin`"):
        VectorFiles.open(written)
    write(written, rows, 4)
    write(written, rows, 5, shards=[4])
    with pytest.raises(ValueError, match="differ in `num_shards`: 4 and 5"):
        VectorFiles.open(written)
    next(one for one in read_shards(written) if one.num_shards == 5).remove()
    write(written, rows[:90], 4, shards=[3])
    with pytest.raises(ValueError, match="differ in `num_items`: 101 and 90"):
        VectorFiles.open(written)
    write(written, rows[:, :2], 4, shards=[3])
    with pytest.raises(ValueError, match="differ in `dim`: 3 and 2"):
        VectorFiles.open(written)


def test_damaged_data_is_refused(written: Path, tmp_path: Path) -> None:
    def damaged(change: Any) -> Path:
        folder = tmp_path / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(written, folder)
        change(folder / "vectors-00002-of-00004.npy")
        return folder

    def truncate(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-1])

    def replace_by_doubles(path: Path) -> None:
        size = path.stat().st_size
        np.save(path, np.zeros((25, DIM)))
        path.write_bytes(path.read_bytes()[:size])

    def replace_by_noise(path: Path) -> None:
        path.write_bytes(bytes(path.stat().st_size))

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)

    with pytest.raises(ValueError, match="00002-of-00004.npy should have 428 bytes and has 427"):
        VectorFiles.open(damaged(truncate))
    with pytest.raises(ValueError, match="should have 428 bytes and is missing"):
        VectorFiles.open(damaged(Path.unlink))
    with pytest.raises(ValueError, match="should hold .*float64"):
        VectorFiles.open(damaged(replace_by_doubles))
    with pytest.raises(ValueError, match="should be a NumPy file"):
        VectorFiles.open(damaged(replace_by_noise))
    files = VectorFiles.open(damaged(flip))
    with pytest.raises(ValueError, match="^vectors-00002-of-00004.npy in .*checksum"):
        files.verify()
    truncate(files.shards[2].path)
    with pytest.raises(ValueError, match="has become shorter"):
        files[:]


def test_descriptions_that_are_none_are_refused(written: Path) -> None:
    file = written / "vectors-00001-of-00004.json"
    record = json.loads(file.read_text())
    for change in (
        {"format_version": 2},
        {"shard": 2},
        {"first": 24},
        {"num_items": "many"},
    ):
        file.write_text(json.dumps({**record, **change}))
        with pytest.raises(ValueError, match="should describe a shard of vectors in format 1, but"):
            VectorFiles.open(written)
    del record["origin"]
    for text in ("{", "[]", "[" * 100_000, json.dumps(record)):
        file.write_text(text)
        with pytest.raises(ValueError, match="should describe a shard"):
            VectorFiles.open(written)


def test_a_failure_leaves_nothing_that_looks_complete(tmp_path: Path, rows: np.ndarray) -> None:
    def embed(first: int, last: int) -> np.ndarray:
        if first >= 14:
            raise RuntimeError("no more")
        return rows[first:last]

    with pytest.raises(RuntimeError, match="no more"):
        write_shard(
            tmp_path, 0, embed, num_shards=1, num_items=NUM_ITEMS, dim=DIM, origin={}, block_size=7
        )
    assert list(tmp_path.iterdir()) == []
    message = r"shape \(7, 4\) for the rows 0 to 7. Received: \(7, 3\). Return one row for each"
    with pytest.raises(ValueError, match=message):
        write_shard(
            tmp_path,
            0,
            lambda first, last: rows[first:last],
            num_shards=1,
            num_items=NUM_ITEMS,
            dim=4,
            origin={},
            block_size=7,
        )
    assert list(tmp_path.iterdir()) == []


def test_between_data_and_description_a_shard_is_absent(
    written: Path, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_shards, "_write_description", killed)
        with pytest.raises(KeyboardInterrupt):
            write(written, 2 * rows, 4, shards=[1], origin={"step": 8})
    # The data is new; the old description is gone, so that it cannot be taken for the old.
    with pytest.raises(ValueError, match="Missing: 1."):
        VectorFiles.open(written)
    assert write(written, rows, 4) == [False, True, False, False]
    np.testing.assert_array_equal(VectorFiles.open(written)[:], rows)


SLOW_WRITER = """
import sys, time
import numpy as np
from tfrs_croloss.indexes._shards import write_shard

def embed(first, last):
    print(first, flush=True)
    time.sleep(0.0 if first < 40 else 60.0)
    return np.ones((last - first, 3), np.float32)

write_shard(sys.argv[1], 0, embed, num_shards=1, num_items=101, dim=3, origin={}, block_size=20)
"""


def test_a_killed_writer_leaves_its_place_to_the_next(tmp_path: Path, rows: np.ndarray) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", SLOW_WRITER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert writer.stdout is not None
        assert [writer.stdout.readline().strip() for _ in range(3)] == ["0", "20", "40"]
        with pytest.raises(ValueError, match="another process is writing vectors-00000-of-00001"):
            write(tmp_path, rows, 1)
    finally:
        writer.kill()
        writer.wait()
    assert [path.name for path in tmp_path.iterdir()] == [".tmp-vectors-00000-of-00001.npy"]
    deadline = time.monotonic() + 10
    while True:
        try:
            assert write(tmp_path, rows, 1) == [True]
            break
        except ValueError:
            assert time.monotonic() < deadline
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".npy"]
    np.testing.assert_array_equal(VectorFiles.open(tmp_path)[:], rows)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"shard": 4}, "`shard` should be .* from 0 to 3. Received: 4. Number the shards"),
        ({"shard": -1}, "`shard` should be a whole number from 0"),
        ({"shard": 0.5}, "`shard` should be a whole number from 0"),
        (
            {"num_shards": 0},
            "`num_shards` should be .* at least 1. Received: 0. Pass the number",
        ),
        ({"num_items": 0}, "`num_items` should be .* at least 1. Received: 0. Pass the number"),
        ({"num_items": 2.5}, "`num_items` should be a whole number"),
        ({"dim": 0}, "`dim` should be .* at least 1. Received: 0. Pass the number"),
        ({"block_size": 0}, "`block_size` should be .* at least 1. Received: 0. Leave it out"),
        ({"block_size": True}, "`block_size` should be a whole number"),
    ],
)
def test_sizes_out_of_range_are_refused(
    tmp_path: Path, changed: dict[str, int], message: str
) -> None:
    given = {"shard": 0, "num_shards": 4, "num_items": 9, "dim": 2, **changed}
    with pytest.raises(ValueError, match=message):
        write_shard(tmp_path, given.pop("shard"), lambda *_: None, origin={}, **given)


def clustered_rows() -> np.ndarray:
    random = np.random.default_rng(3)
    centres = 3 * random.standard_normal((30, 8), np.float32)
    # Leaves of very different sizes, some of which are halved.
    chosen = random.choice(30, 6_000, p=np.arange(1, 31) / 465)
    rows: np.ndarray = centres[chosen] + random.standard_normal((6_000, 8), np.float32)
    return rows


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VectorFiles:
    """Files of `clustered_rows` that refuse to be read as a whole."""
    write(tmp_path, clustered_rows(), 3, block_size=1_000)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the files were read as a whole")

    monkeypatch.setattr(VectorFiles, "__array__", refuse)
    for module in (base, partitioned):
        monkeypatch.setattr(module, "row_blocks", functools.partial(row_blocks, block_size=700))
    return VectorFiles.open(tmp_path)


@pytest.mark.parametrize("kind", ["brute_force", "partitioned", "scann"])
def test_an_index_of_files_is_that_of_the_array(files: VectorFiles, kind: str) -> None:
    rows = clustered_rows()
    built = [build_index(kind, source, seed=2) for source in (rows, files)]
    for one, other in zip(*(index.variables for index in built)):
        assert one.name == other.name
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    answers = [index.search(tf.constant(rows[:50]), tf.constant(20)) for index in built]
    np.testing.assert_array_equal(answers[0][0], answers[1][0])
    np.testing.assert_array_equal(answers[0][1], answers[1][1])
    # Whatever the index has done to its memory, numbers still mean rows.
    np.testing.assert_array_equal(built[1].vectors(tf.range(6_000)), rows)


@pytest.mark.parametrize("kind", ["partitioned", pytest.param("scann", marks=pytest.mark.slow)])
def test_tuning_builds_other_indexes_from_the_files(files: VectorFiles, kind: str) -> None:
    rows = clustered_rows()
    index = build_index(kind, files, seed=2)
    tuned = tune(
        index, rows[:100], rows[100:200], top_n=5, recall_target=0.5, item_embeddings=files
    )
    assert len({one.settings["num_leaves"] for one in tuned.tried}) == 3
    np.testing.assert_array_equal(tuned.index.vectors(tf.range(6_000)), rows)


def test_a_table_is_taken_over_without_a_copy() -> None:
    for shape in ((1, 1), (7, 3), (1000, 64)):
        table = empty_table(shape)
        table[:] = np.arange(table.size).reshape(shape)
        address = table.ctypes.data
        assert address % 64 == 0
        variable = tf.Variable(taken_over(table), trainable=False)
        expected = table.copy()
        del table
        read = tf.convert_to_tensor(variable)
        np.testing.assert_array_equal(read, expected)
        assert np.from_dlpack(_Capsule(read)).ctypes.data == address


class _Capsule:
    """Shows where the memory of a tensor is."""

    def __init__(self, tensor: tf.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        return tf.experimental.dlpack.to_dlpack(self._tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_a_catalogue_in_files_is_checked(tmp_path: Path, rows: np.ndarray) -> None:
    names = [f"item {number}" for number in range(NUM_ITEMS)]
    write(tmp_path / "good", rows, 3)
    check_catalogue(names, VectorFiles.open(tmp_path / "good"))
    with pytest.raises(ValueError, match="Received: 100 ids and 101 rows"):
        check_catalogue(names[1:], VectorFiles.open(tmp_path / "good"))
    rows[[40, 100]] = 0.0
    write(tmp_path / "zero", rows, 3)
    with pytest.raises(ValueError, match=r"2 of 101 that are zero.*\['item 40', 'item 100'\]"):
        check_catalogue(names, VectorFiles.open(tmp_path / "zero"))
    rows[77, 1] = np.nan
    write(tmp_path / "nan", rows, 3)
    with pytest.raises(ValueError, match=r"1 of 101 with NaN.*\['item 77'\]"):
        check_catalogue(names, VectorFiles.open(tmp_path / "nan"))


def test_blocks_are_numbered(rows: np.ndarray) -> None:
    found = [(first, len(block)) for first, block in row_blocks(rows, 40)]
    assert found == [(0, 40), (40, 40), (80, 21)]
