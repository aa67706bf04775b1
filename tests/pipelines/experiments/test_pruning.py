"""Which trials of a search end early, with a runner that trains nothing."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from pipelines.experiments import tune
from pipelines.experiments.cells import Cell
from pipelines.runs.settings import TrainSettings

BASE = TrainSettings(monitor="recall@20", max_steps=2_700, steps_per_epoch=100)


class PretendedRunner:
    """Recall rises to a height that the temperature decides, which shows from the start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = types.SimpleNamespace(path=Path("nothing"))
        self.steps = 0
        self.finished: list[float] = []

    def run_folder(self, cell: Cell) -> Path:
        return self.folder / "none"

    def result(self, cell: Cell) -> None:
        return None

    def discard(self, cell: Cell) -> None:
        pass

    def run_one(self, cell: Cell, after_validation: Any) -> dict[str, Any]:
        height = 0.3 - abs(cell.settings.temperature - 0.2)
        for step in range(100, 2_701, 100):
            self.steps += 100
            row = {"step": step, "recall@20": height * step / (step + 300)}
            after_validation(row)
        self.finished.append(cell.settings.temperature)
        return {"best": row, "settings": cell.settings.as_dict()}


def search(folder: Path, pruner: str) -> PretendedRunner:
    optuna = pytest.importorskip("optuna")
    runner = PretendedRunner(folder)

    def draw(trial: Any) -> TrainSettings:
        temperature = trial.suggest_float("temperature", 0.05, 0.5)
        return TrainSettings(**{**BASE.as_dict(), "temperature": temperature})

    # In memory: a database takes most of the time of trials that train nothing.
    found = tune.Search(optuna, runner, BASE, draw, None, pruner)
    found.run(18)
    assert found.budget() == {"trials": 18, "end": len(runner.finished), "steps": runner.steps}
    return runner


def test_halving_spends_a_fraction_of_the_steps_and_finishes_the_best(tmp_path: Path) -> None:
    steps, best = {}, {}
    for pruner in tune.PRUNERS:
        (tmp_path / pruner).mkdir()
        runner = search(tmp_path / pruner, pruner)
        steps[pruner] = runner.steps
        best[pruner] = min(abs(temperature - 0.2) for temperature in runner.finished)
    assert steps["none"] == 18 * 2_700
    # Of the cuts at 300 and 900 steps, each lets the best third of the trials pass.
    assert steps["halving"] < 0.5 * steps["none"]
    assert steps["median"] < steps["none"]
    assert best["halving"] < 0.05
