"""What ``--overwrite`` may replace, by step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import pipelines.prepare
from pipelines.__main__ import main
from pipelines.data.prepared import PreparedData
from pipelines.data.verification import VERIFIED
from pipelines.errors import UserError
from pipelines.runs.folder import discard_replaced, exclusive, open_run
from pipelines.runs.settings import TrainSettings


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture
def data(tiny_data: Path) -> PreparedData:
    return PreparedData.load(tiny_data)


def begin(path: Path, data: PreparedData, seed: int = 0, finished: bool = False) -> None:
    """A run as it is a moment after its start, or after its end."""
    with open_run(path, data, TrainSettings(seed=seed), overwrite=True):
        if finished:
            (path / "result.json").write_text("{}")


def seed_of(path: Path) -> int:
    return json.loads((path / "config.json").read_text())["seed"]


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != VERIFIED)
    return {str(path): path.read_bytes() for path in files}


def test_a_run_that_is_being_trained_is_not_moved(tmp_path: Path, data: PreparedData) -> None:
    out = tmp_path / "run"
    with open_run(out, data, TrainSettings(seed=1)):
        before = tree(tmp_path)
        with pytest.raises(UserError, match="another process is training"):
            begin(out, data, seed=2)
        assert tree(tmp_path) == before
    begin(out, data, seed=2)
    assert seed_of(out) == 2 and seed_of(tmp_path / ".replaced-run") == 1


def test_the_lock_goes_with_the_run_that_it_protects(tmp_path: Path, data: PreparedData) -> None:
    out = tmp_path / "run"
    begin(out, data, seed=1)
    with open_run(out, data, TrainSettings(seed=2), overwrite=True):
        # The old run is locked, too: it is still being replaced.
        for folder in (out, tmp_path / ".replaced-run"):
            with pytest.raises(UserError, match="another process"), exclusive(folder):
                raise AssertionError("must not get here")


def test_what_is_replaced_is_the_last_run_that_was_finished(
    tmp_path: Path, data: PreparedData
) -> None:
    out, replaced = tmp_path / "run", tmp_path / ".replaced-run"
    begin(out, data, seed=1, finished=True)
    begin(out, data, seed=2)
    begin(out, data, seed=3)
    assert (seed_of(out), seed_of(replaced)) == (3, 1)
    # Finished, but killed before it could discard what it has replaced.
    (out / "result.json").write_text("{}")
    begin(out, data, seed=4)
    assert (seed_of(out), seed_of(replaced)) == (4, 3)
    discard_replaced(out)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path: Path, data: PreparedData) -> None:
    out = tmp_path / "run"
    begin(out, data, seed=1, finished=True)
    out.rename(tmp_path / ".replaced-run")
    with open_run(out, data, TrainSettings(seed=1)) as found:
        assert found.result == {}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("leftover", [".lock", ".tmp-config.json-x7ab"])
def test_a_kill_before_the_configuration_is_in_place(
    tmp_path: Path, data: PreparedData, leftover: str
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / leftover).write_text("{")
    with open_run(out, data, TrainSettings(seed=1)):
        assert seed_of(out) == 1
        assert sorted(path.name for path in out.iterdir()) == [".lock", "config.json"]


def test_train_leaves_everything_else_alone(
    tmp_path: Path, tiny_data: Path, data: PreparedData, capsys: pytest.CaptureFixture[str]
) -> None:
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter.tex").write_text("x")
    with_notes = tmp_path / "run"
    begin(with_notes, data)
    (with_notes / "notes.txt").write_text("x")
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / "config.json").write_text("{}")
    around = tmp_path / "around"
    begin(around, data)
    moved = around / "prepared"
    shutil.copytree(tiny_data, moved)
    for out, given, message in (
        (thesis, tiny_data, "is not a training run (no config.json)"),
        (with_notes, tiny_data, "notes.txt"),
        (odd, tiny_data, "config.json has no 'settings'"),
        (tiny_data, tiny_data, "holds --data"),
        (around, moved, "holds --data"),
    ):
        before = tree(out)
        assert run("train", "--data", given, "--out", out, "--overwrite") == 2
        assert message in capsys.readouterr().err
        assert tree(out) == before


def test_prepare_leaves_everything_else_alone(
    tmp_path: Path, tiny_data: Path, data: PreparedData, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "events.csv"
    log.write_text("user,item,time\n" + "".join(f"u{n % 9},i{n % 7},{n}\n" for n in range(200)))
    with_run = tmp_path / "with-run"
    shutil.copytree(tiny_data, with_run)
    begin(with_run / "run", data)
    with_log = tmp_path / "with-log"
    shutil.copytree(tiny_data, with_log)
    shutil.copy(log, with_log)
    a_run = tmp_path / "a-run"
    begin(a_run, data)
    for out, given, message in (
        (with_run, log, "run/config.json"),
        (with_log, with_log / "events.csv", "holds --input"),
        (a_run, log, "files that prepare did not write"),
    ):
        before = tree(out)
        words = ("--source", "csv", "--input", given, "--out", out, "--overwrite")
        assert run("prepare", *words) == 2
        assert message in capsys.readouterr().err
        assert tree(out) == before


@pytest.mark.parametrize("was_there", [True, False])
def test_what_comes_while_prepare_runs_is_not_replaced(
    tmp_path: Path,
    was_there: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log, out = tmp_path / "events.csv", tmp_path / "prepared"
    log.write_text("user,item,time\n" + "".join(f"u{n % 9},i{n % 7},{n}\n" for n in range(200)))
    words = ("prepare", "--source", "csv", "--input", log, "--out", out, "--overwrite")
    assert not was_there or run(*words) == 0
    prepare = pipelines.prepare._prepare

    def slowly(*arguments):
        manifest = prepare(*arguments)
        out.mkdir(exist_ok=True)
        (out / "notes.txt").write_text("x")
        return manifest

    monkeypatch.setattr(pipelines.prepare, "_prepare", slowly)
    assert run(*words) == 2
    assert "notes.txt" in (error := capsys.readouterr().err) or "did not write" in error
    assert (out / "notes.txt").read_text() == "x"
    assert {path.name for path in tmp_path.iterdir()} == {"events.csv", "prepared"}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_synthesize_replaces_what_it_has_written(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"events.{ending}"
    words = ("synthesize", "--users", 5, "--items", 5, "--out", out, "--overwrite")
    assert run(*words) == run(*words) == 0
    out.write_text("user,item,time\nann,hat,3\n")
    assert run(*words) == 2
    assert "was not written by synthesize" in capsys.readouterr().err
    assert out.read_text() == "user,item,time\nann,hat,3\n"


def test_experiments_leave_everything_else_alone(
    tmp_path: Path, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.html").write_text("x")
    words = ("--data", tiny_data, "--out", tmp_path, "--losses", "softmax", "--quick")
    assert run("compare", *words) == 2
    assert "is not an experiment" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
