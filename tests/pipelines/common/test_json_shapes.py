"""JSON files that hold something else than a step has written are named, with the place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipelines.common.files import read_json
from pipelines.common.json_shapes import check_shape
from pipelines.data.prepared import PreparedData
from pipelines.errors import UserError
from pipelines.experiments.cells import Cell
from pipelines.experiments.runner import Runner, read_history
from pipelines.experiments.tune import check_same_search
from pipelines.export.source import _evaluation
from pipelines.query import _record
from pipelines.runs.folder import Run, open_run
from pipelines.runs.settings import TrainSettings

HUGE = 10**30


@pytest.mark.parametrize(
    "value, shape",
    [
        (3, int),
        (3, float),
        (0.5, float),
        (True, bool),
        (None, None),
        (None, (str, None)),
        ({}, {"a": int}),
        ({"b": "x"}, {"a": int}),
        ({"a": 1, "b": [0.5]}, {"a": int, "*": [float]}),
        ([], [int]),
    ],
)
def test_what_fits(value: object, shape: object) -> None:
    check_shape(Path("a.json"), value, shape)


@pytest.mark.parametrize(
    "value, shape, message",
    [
        (True, int, "an integer. Received: true or false"),
        (True, float, "a number. Received: true or false"),
        (0.5, int, "an integer. Received: a number"),
        (HUGE, float, "a number. Received: an integer of more than 64 bits"),
        (float("inf"), float, "a number. Received: a number that is not finite"),
        (None, dict, "an object. Received: null"),
        (3, (str, None), "a text or null. Received: an integer"),
        ({"a": {"b": [1, "x"]}}, {"*": {"b": [int]}}, "an integer in a.b[1]. Received: a text"),
    ],
)
def test_what_does_not_fit(value: object, shape: object, message: str) -> None:
    with pytest.raises(UserError) as failure:
        check_shape(Path("a.json"), value, shape, "Train again.")
    assert str(failure.value) == f"a.json should have {message}. Train again."


def change(path: Path, keys: str, value: object) -> None:
    record: Any = json.loads(path.read_text())
    *outer, last = keys.split("/")
    place = record
    for key in outer:
        place = place[key]
    place[last] = value
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    "keys, value",
    [
        ("settings", 3),
        ("data", {}),
        ("data", 1e308),
        ("data_checksum", None),
        ("strategy", []),
        ("strategy", None),
        ("strategy/name", {}),
        ("versions", "x"),
    ],
)
def test_the_configuration_of_a_run(
    tiny_data: Path, tmp_path: Path, keys: str, value: object
) -> None:
    data, out = PreparedData.load(tiny_data), tmp_path / "run"
    with open_run(out, data, TrainSettings()):
        pass
    change(out / "config.json", keys, value)
    message = rf"config.json should have .* in {keys.replace('/', '.')}. Received: .*Train again"
    with pytest.raises(UserError, match=message):
        Run.load(out)
    with pytest.raises(UserError, match=message), open_run(out, data, TrainSettings()):
        raise AssertionError("must not get here")


@pytest.mark.parametrize("value", [None, {}, "x", HUGE])
def test_the_result_of_a_run(tmp_path: Path, value: object) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"stopped": "x", "steps": value}))
    with pytest.raises(UserError, match="result.json should have an integer in steps"):
        _ = Run(tmp_path, TrainSettings(), {}).result


@pytest.mark.parametrize(
    "keys, value",
    [
        ("source", None),
        ("inputs", [3]),
        ("files", []),
        ("files/item_ids.txt", 3),
        ("files/item_ids.txt/bytes", HUGE),
        ("statistics", "x"),
        ("statistics/rows", "x"),
        ("statistics/splits", []),
        ("statistics/splits/valid", []),
        ("statistics/splits/valid/users", None),
        ("statistics/bad_rows_by_kind", [None]),
        ("config", []),
    ],
)
def test_the_manifest_of_prepared_data(
    tiny_data: Path, tmp_path: Path, keys: str, value: object
) -> None:
    data = Path(shutil.copytree(tiny_data, tmp_path / "data"))
    change(data / "manifest.json", keys, value)
    with pytest.raises(UserError, match="manifest.json should have .* in .*--overwrite"):
        PreparedData.load(data)


@pytest.mark.parametrize("content", [None, [], "x", {"systems": []}, {"systems": {"model": None}}])
def test_an_evaluation(tmp_path: Path, content: object) -> None:
    (tmp_path / "recall.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="recall.json should "):
        _evaluation(Run(tmp_path, TrainSettings(), {}))


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {"wall_seconds": None},
        {"seed": []},
        {"settings": {"monitor": {}}},
        {"best": {"recall@20": None}},
        {"history": [3]},
        {"history": [{"step": "x"}]},
        {"test": {"users": {"recall@20": []}}},
        {"test": {"curve": {"sizes": ["x"]}}},
        {"versions": {"numpy": 3}},
    ],
)
def test_the_result_of_an_experiment(tiny_data: Path, tmp_path: Path, content: object) -> None:
    cell = Cell("softmax", TrainSettings())
    runner = Runner(tmp_path, PreparedData.load(tiny_data))
    file = tmp_path / "results" / f"{cell.key(runner.data)}.json"
    file.parent.mkdir()
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"{file.name} should .*(Create it again|Remove it)"):
        runner.result(cell)


@pytest.mark.parametrize("content", [{}, [3], [{"step": "x"}], [[]]])
def test_the_history_of_a_trial(tmp_path: Path, content: object) -> None:
    (tmp_path / "history.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="history.json should "):
        read_history(tmp_path)


@pytest.mark.parametrize(
    "content", [None, [], {"settings": 3.5}, {"losses": "x"}, {"losses": [{}]}, {"losses": None}]
)
def test_the_configuration_of_a_search(tiny_data: Path, tmp_path: Path, content: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="config.json should "):
        check_same_search(tmp_path, TrainSettings(), ("softmax",), PreparedData.load(tiny_data))


@pytest.mark.parametrize(
    "content",
    [None, [], {}, {"top_n": True}, {"top_n": HUGE}, {"top_n": 3, "inputs": "x"}]
    + [{"top_n": 3, "features": {"a": []}}, {"top_n": 3, "signatures": {"recommend": None}}],
)
def test_the_record_of_an_export(tmp_path: Path, content: object) -> None:
    (tmp_path / "export.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="export.json (should|has no)"):
        _record(tmp_path)


def test_what_the_steps_write_has_the_shapes(tiny_run: Path) -> None:
    run = Run.load(tiny_run)
    assert run.result is not None and run.result["steps"] > 0
    assert run.open_data().num_items > 0
    assert read_json(tiny_run / "history.json", list)
