"""Exported models, in processes that know nothing of this package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipelines.__main__ import main
from pipelines.prepared import PreparedData
from tests.tiny_run import run_step, tiny_data, tiny_run  # noqa: F401
from tfrs_croloss.serving import BruteForceIndex

STRANGER = """
import json, sys
import tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
answer = model.signatures["serving_default"](history=tf.constant(json.loads(sys.argv[2])))
assert not [name for name in sys.modules if name.split(".")[0] in ("tfrs_croloss", "pipelines")]
print(json.dumps([
    [[item.decode() for item in row] for row in answer["item_ids"].numpy()],
    answer["scores"].numpy().tolist(),
]))
"""


@pytest.fixture(scope="module")
def exported(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("exported") / "model"
    run_step("export", "--run", tiny_run, "--out", folder, "--top-n", 30)
    return folder


def test_a_process_without_this_package_gets_the_items_of_highest_score(
    exported: Path, tiny_data: Path, tmp_path: Path  # noqa: F811
) -> None:
    names = PreparedData.load(tiny_data).item_ids()
    histories = [[names[3], names[10], "unheard-of"], [names[0], "", ""]]
    hidden = ("PYTHONPATH", "TF_USE_LEGACY_KERAS")
    finished = subprocess.run(
        [sys.executable, "-I", "-c", STRANGER, str(exported / "1"), json.dumps(histories)],
        env={name: value for name, value in os.environ.items() if name not in hidden},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    items, scores = json.loads(finished.stdout)

    signatures = tf.saved_model.load(str(exported / "1")).signatures
    table = signatures["embed_items"](item_ids=tf.constant(names))["embeddings"].numpy()
    queries = signatures["embed_history"](history=tf.constant(histories))["embeddings"].numpy()
    np.testing.assert_allclose(np.linalg.norm(table, axis=1), 1.0, rtol=1e-5)
    for row in range(2):
        expected = sorted(table @ queries[row], reverse=True)[:30]
        np.testing.assert_allclose(scores[row], expected, rtol=1e-5, atol=1e-6)
        own = [float(table[names.index(item)] @ queries[row]) for item in items[row]]
        np.testing.assert_allclose(own, scores[row], rtol=1e-5, atol=1e-6)
        assert len(set(items[row])) == 30


def test_padding_and_unknown_items_take_no_place(
    exported: Path, tiny_data: Path  # noqa: F811
) -> None:
    names = PreparedData.load(tiny_data).item_ids()
    embed = tf.saved_model.load(str(exported / "1")).signatures["embed_history"]

    def query(*history: str) -> np.ndarray:
        return embed(history=tf.constant([list(history)]))["embeddings"].numpy()[0]

    latest = names[5:25]
    expected = query(*latest)
    np.testing.assert_allclose(query("", *latest, "", ""), expected, atol=1e-6)
    np.testing.assert_allclose(query(*latest[:7], "unknown", *latest[7:]), expected, atol=1e-6)
    # The run uses the latest 20.
    np.testing.assert_allclose(query(*names[40:60], *latest), expected, atol=1e-6)
    assert not np.allclose(query(*latest[:-1], names[70]), expected, atol=1e-3)
    assert np.all(np.isfinite(query("", "unknown")))


def test_versions_are_counted_and_appear_whole(
    exported: Path, tiny_run: Path, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:
    (exported / "notes").mkdir()
    (exported / "7").mkdir()
    run_step("export", "--run", tiny_run, "--out", exported)
    assert sorted(path.name for path in exported.iterdir()) == ["1", "7", "8", "notes"]
    record = json.loads((exported / "8" / "export.json").read_text())
    assert record["best"] == json.loads((tiny_run / "best" / "best.json").read_text())
    assert "python -m pipelines query --model" in capsys.readouterr().out
    (exported / "7").rmdir()
    (exported / "notes").rmdir()


def test_query_prints_a_table(
    exported: Path, tiny_data: Path, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:
    names = PreparedData.load(tiny_data).item_ids()
    history = f"{names[3]},what,{names[10]}"
    run_step("query", "--model", exported, "--history", history, "--top-n", 4)
    printed = capsys.readouterr().out
    assert "not in the catalogue, and left out: what" in printed
    version = max(int(path.name) for path in exported.iterdir())
    serve = tf.saved_model.load(str(exported / str(version))).signatures["serving_default"]
    answer = serve(history=tf.constant([[names[3], names[10]]]))
    lines = [line.split() for line in printed.splitlines()[-4:]]
    assert [line[1] for line in lines] == [
        item.decode() for item in answer["item_ids"].numpy()[0][:4]
    ]
    for line, score in zip(lines, answer["scores"].numpy()[0]):
        assert float(line[2]) == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--history", "a", "--top-n", "1000"], "--top-n should be at most"),
        (["--history", ","], "at least one item"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    options: list[str], message: str, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", "--model", str(exported), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_a_model_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", "--model", str(tmp_path), "--history", "a"]) == 2
    assert "has no version of a model" in capsys.readouterr().err
    (tmp_path / "1").mkdir()
    assert main(["query", "--model", str(tmp_path), "--history", "a"]) == 2
    assert "is not a SavedModel" in capsys.readouterr().err


def test_an_index_names_what_is_wrong() -> None:
    def build(item_ids: list[str], **options: int) -> BruteForceIndex:
        arguments = {"history_length": 2, **options}
        return BruteForceIndex(tf.identity, tf.eye(2), item_ids, **arguments)  # type: ignore

    with pytest.raises(ValueError, match="3 ids and 2 rows"):
        build(["a", "b", "c"])
    with pytest.raises(ValueError, match="2 ids, 1 of them distinct"):
        build(["a", "a"])
    with pytest.raises(ValueError, match="should be at least 1. Received: 2 and 0"):
        build(["a", "b"], top_n=0)
    assert build(["a", "b"], top_n=9)._top_n == 2
