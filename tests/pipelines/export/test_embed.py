"""Item vectors written in shards by ``embed``, and models exported from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pipelines.__main__ import main
from pipelines.data.prepared import PreparedData
from pipelines.export import loading
from pipelines.runs.build import build_model
from pipelines.runs.checkpoints import Checkpoints, restore_best
from pipelines.runs.folder import Run
from tests.support.processes import run_step
from tfrs_croloss.indexes.tuning import Tuned, measure
from tfrs_croloss.indexes.vectors import VectorFiles
from tfrs_croloss.serving import measured_index, publish


@pytest.fixture(scope="module")
def vectors(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedded") / "vectors"
    run_step("embed", "--run", tiny_run, "--out", folder, "--shards", 3)
    return folder


def failure(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err


def test_the_shards_hold_the_vectors_of_the_best_weights(
    vectors: Path, tiny_run: Path, tiny_data: Path
) -> None:
    loaded, data = Run.load(tiny_run), PreparedData.load(tiny_data)
    model = build_model(loaded.settings, data.num_items)
    best = restore_best(tiny_run, model)
    files = VectorFiles.open(vectors)
    np.testing.assert_array_equal(files[:], model.embed_catalogue(data.num_items))
    assert len(files.shards) == 3
    assert files.origin["step"] == best["step"]
    assert files.origin["seed"] == loaded.settings.seed
    assert files.origin["settings"] == loaded.settings.as_dict()
    assert files.origin["data_checksum"] == loaded.config["data_checksum"]
    assert files.shards[0].made_with["versions"]["tensorflow"] == tf.__version__


def test_one_process_for_each_shard(
    tiny_run: Path, vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["embed", "--run", tiny_run, "--out", tmp_path / "vectors", "--shards", 3]
    run_step(*arguments, "--shard", 2)
    assert "still missing: shards 0, 1" in capsys.readouterr().out
    run_step(*arguments, "--shard", 0)
    assert "Missing: 1." in failure(
        capsys,
        "export",
        "--run",
        tiny_run,
        "--out",
        tmp_path / "m",
        "--embedded",
        tmp_path / "vectors",
    )
    run_step(*arguments)
    printed = capsys.readouterr()
    assert "1 of 3 shards written" in printed.out
    assert "shard 0 of 3 ... exists already" in printed.err
    assert "shard 1 of 3 ... written" in printed.err
    assert "python -m pipelines export --run" in printed.out
    for name in sorted(path.name for path in vectors.glob("*.npy")):
        assert (tmp_path / "vectors" / name).read_bytes() == (vectors / name).read_bytes()
    message = failure(capsys, *arguments, "--shard", 3)
    assert "--shard should be from 0 to 2, one less than --shards. Received: 3" in message


@pytest.fixture(scope="module")
def other_run(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with the same settings, and weights of another training."""
    run = tmp_path_factory.mktemp("other") / "run"
    shutil.copytree(tiny_run, run)
    loaded = Run.load(run)
    model = build_model(loaded.settings, loaded.open_data(str(data_of(tiny_run))).num_items)
    best = restore_best(run, model)
    for variable in model.candidate_tower.variables:
        variable.assign(-variable)
    model.compile()
    Checkpoints(run, model).save_best(best)
    return run


def data_of(run: Path) -> Path:
    return run.parent / "prepared"


def test_vectors_of_something_else_are_refused(
    tiny_run: Path,
    other_run: Path,
    vectors: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "vectors"
    shutil.copytree(vectors, folder)
    message = failure(capsys, "embed", "--run", tiny_run, "--out", folder, "--shards", 4)
    assert "--shards: 3 there, 4 now). Pass --overwrite" in message

    data = data_of(tiny_run)
    other = ("--run", other_run, "--data", data)
    message = failure(capsys, "embed", *other, "--out", folder, "--shards", 3)
    assert "holds other vectors in vectors-00000-of-00003.npy (other weights)" in message
    message = failure(capsys, "export", *other, "--out", tmp_path / "m", "--embedded", folder)
    assert "Differences: other weights." in message and "embed --run" in message

    later = tmp_path / "later"
    shutil.copytree(other_run, later)
    best = json.loads((later / "best" / "best.json").read_text())
    (later / "best" / "best.json").write_text(json.dumps({**best, "step": best["step"] + 5}))
    (later / "best" / "files.json").unlink()  # it has the checksum of the file as it was
    message = failure(
        capsys,
        "export",
        "--run",
        later,
        "--data",
        data,
        "--out",
        tmp_path / "m",
        "--embedded",
        folder,
    )
    assert f"weights of step {best['step']} there, {best['step'] + 5} now" in message
    assert not (tmp_path / "m").exists()

    # Shards of the same vectors stay, others are removed.
    run_step("embed", *other, "--out", folder, "--shards", 4, "--shard", 1, "--overwrite")
    assert [path.name for path in sorted(folder.glob("*.npy"))] == ["vectors-00001-of-00004.npy"]
    run_step("embed", *other, "--out", folder, "--shards", 4, "--overwrite")
    assert "3 of 4 shards written" in capsys.readouterr().out
    np.testing.assert_allclose(
        VectorFiles.open(folder)[:], -VectorFiles.open(vectors)[:], atol=1e-6
    )


def test_damaged_vectors_are_refused(
    tiny_run: Path, vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "vectors"
    shutil.copytree(vectors, folder)
    content = bytearray((folder / "vectors-00001-of-00003.npy").read_bytes())
    content[-1] ^= 1
    (folder / "vectors-00001-of-00003.npy").write_bytes(content)
    message = failure(
        capsys, "export", "--run", tiny_run, "--out", tmp_path / "m", "--embedded", folder
    )
    assert "vectors-00001-of-00003.npy" in message and "checksum" in message


@pytest.mark.parametrize(
    "kind", ["partitioned", pytest.param("brute_force", marks=pytest.mark.slow)]
)
def test_a_model_from_files_answers_alike(
    kind: str,
    tiny_run: Path,
    tiny_data: Path,
    vectors: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Any] = []

    def as_built(index: Any, queries: Any, _: Any, *, top_n: int, **options: Any) -> Tuned:
        # The search goes by times, which differ from run to run.
        given.append(options["item_embeddings"])
        measured = measure(index, queries, top_n)
        return Tuned(index, [measured], measured)

    monkeypatch.setattr(measured_index, "tune", as_built)
    options = ("--run", tiny_run, "--index", kind, "--top-n", 20)
    if kind == "partitioned":  # The slow case has the check in a fresh process.
        monkeypatch.setattr(publish, "check_round_trip", lambda *_: None)
    run_step("export", *options, "--out", tmp_path / "files", "--embedded", vectors)
    # What is exported from an array is checked in a fresh process by other tests.
    monkeypatch.setattr(publish, "check_round_trip", lambda *_: None)
    run_step("export", *options, "--out", tmp_path / "array")
    if kind == "partitioned":
        assert [isinstance(one, VectorFiles) for one in given] == [True, False]
    names = PreparedData.load(tiny_data).item_ids()
    histories = tf.constant([[names[3], names[10]], [names[0], ""], ["", ""]])
    answers = []
    for name, from_files in (("array", False), ("files", True)):
        version = tmp_path / name / "1"
        record = json.loads((version / "export.json").read_text())
        assert record["vectors_from_files"] is from_files
        recommend = loading.load_model(version).signatures["recommend"]
        answers.append(recommend(history=histories, top_n=tf.constant([20, 20, 20])))
    assert sorted(answers[0]) == sorted(answers[1])
    for name, value in answers[0].items():
        np.testing.assert_array_equal(value, answers[1][name], name)
    assert np.all(answers[0]["num_results"] == 20)
