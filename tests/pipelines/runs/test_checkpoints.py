"""Checkpoints whose files hold something else than training has written."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import pipelines.runs.checkpoints
from pipelines.errors import UserError
from pipelines.runs.checkpoints import Checkpoints, TrainingState, restore_best

ROW = {"step": 1, "loss": 0.5, "recall@20": 0.25}
HUGE = 10**30


class Part(tf.Module):
    """A part of a model, with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(0.0)


@pytest.fixture
def model() -> Any:
    towers = {name: Part() for name in ("query_tower", "candidate_tower", "optimizer")}
    return types.SimpleNamespace(**towers, item_bias=None)


@pytest.fixture
def checkpoints(tmp_path: Path, model: Any) -> Checkpoints:
    """Those of two steps, and the best weights."""
    saved = Checkpoints(tmp_path, model)
    for step in (1, 2):
        model.query_tower.weight.assign(step)
        saved.save(TrainingState(step, [ROW], 0, 0, 1.5, None, [0.5, 1.0]))
    saved.save_best(ROW)
    return saved


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    "values",
    [{"step": value} for value in (None, "x", -1, 1, HUGE)]
    + [
        {"rows": value}
        for value in (
            None,
            {},
            [None],
            [[]],
            [{}],
            [{"loss": None}],
            [{"loss": HUGE}],
            [{"loss": 1e308}],
            [ROW, {"step": 2}],
        )
    ]
    + [{"best_row": value} for value in (None, "x", [], -1, 1, HUGE, True)]
    + [{"patience_used": value} for value in (None, 0.5, HUGE)]
    + [{"seconds": value} for value in (None, {}, HUGE)]
    + [
        {"stopped": 3},
        {"mean_loss": [None]},
        {"mean_loss": 0.5},
    ],
    ids=str,
)
def test_a_state_that_training_cannot_have_written(
    checkpoints: Checkpoints,
    model: Any,
    tmp_path: Path,
    values: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    newest = tmp_path / "checkpoints/step-000000002"
    # Of an earlier version, without checksums.
    (newest / "files.json").unlink()
    change(newest / "training.json", **values)
    state = checkpoints.restore()
    assert state is not None and state.step == 1 and model.query_tower.weight.numpy() == 1
    assert f"{newest} is damaged (training.json should hold" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, 3, "x", [], {}, HUGE, {"bytes": 3}])
def test_a_list_of_files_that_lists_none(
    checkpoints: Checkpoints, tmp_path: Path, content: object, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = tmp_path / "checkpoints/step-000000002"
    change(newest / "files.json", **{"training.json": content})
    state = checkpoints.restore()
    assert state is not None and state.step == 1
    assert f"{newest} is damaged" in capsys.readouterr().err


def test_a_list_of_files_that_is_empty(
    checkpoints: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoints/step-000000002/files.json").write_text("{}")
    state = checkpoints.restore()
    assert state is not None and state.step == 1
    assert "files.json should name state.data" in capsys.readouterr().err


@pytest.mark.parametrize("value", [None, "x", [], HUGE])
def test_a_best_row_that_is_none(
    checkpoints: Checkpoints, model: Any, tmp_path: Path, value: object
) -> None:
    assert restore_best(tmp_path, model) == ROW
    (tmp_path / "best/files.json").unlink()
    change(tmp_path / "best/best.json", loss=value)
    with pytest.raises(UserError, match="best.json should hold a row of the history"):
        restore_best(tmp_path, model)


@pytest.mark.parametrize("function", ["_check_files", "read_json"])
def test_a_row_is_that_of_the_weights_that_were_read(
    checkpoints: Checkpoints,
    model: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
) -> None:
    """Training saves better weights between two of the files that are read."""
    original, others = getattr(pipelines.runs.checkpoints, function), [7.0, 9.0]

    def then_save(*arguments: Any) -> Any:
        found = original(*arguments)
        if others:
            kept = model.query_tower.weight.numpy()
            model.query_tower.weight.assign(number := others.pop())
            checkpoints.save_best({**ROW, "loss": number})
            model.query_tower.weight.assign(kept)
        return found

    monkeypatch.setattr(pipelines.runs.checkpoints, function, then_save)
    row = restore_best(tmp_path, model)
    assert row["loss"] == model.query_tower.weight.numpy() == 7.0


def test_weights_that_always_change_are_not_used(
    checkpoints: Checkpoints, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = pipelines.runs.checkpoints._check_files

    def then_exchange(folder: Path) -> None:
        check(folder)
        path = folder / "weights.data-00000-of-00001"
        other = folder / ".tmp-other"
        other.write_bytes(path.read_bytes())
        other.replace(path)

    monkeypatch.setattr(pipelines.runs.checkpoints, "_check_files", then_exchange)
    with pytest.raises(UserError, match="best changed while it was read. Run the same command"):
        restore_best(tmp_path, model)


def test_weights_of_a_model_of_another_version(
    checkpoints: Checkpoints, model: Any, tmp_path: Path
) -> None:
    model.query_tower.weight = tf.Variable([1.0, 2.0])
    message = r"best was written by a version with another model \(.*shape.*\).*--overwrite"
    with pytest.raises(UserError, match=message):
        restore_best(tmp_path, model)
    model.query_tower = tf.Module()
    with pytest.raises(UserError, match="was written by a version with another model"):
        restore_best(tmp_path, model)
