"""Training with side features goes on after an interruption as if there had been none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipelines.runs.folder import open_run
from pipelines.runs.settings import TrainSettings
from pipelines.train.loop import train
from tests.support.features import add_examples


@pytest.mark.slow
def test_an_interrupted_run_ends_like_one_without_interruption(
    tiny_data: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_data, tmp_path / "data")
    data = add_examples(tmp_path / "data", ["brand", "genres", "released", "country", "hour"])
    settings = TrainSettings(
        dim=8, hidden=(8,), batch_size=32, negatives_per_example=2, max_steps=20,
        steps_per_epoch=10, monitor="recall@20", cutoffs=(20,), item_id_dropout=0.5,
    )  # fmt: skip

    def stop(row: object) -> None:
        raise KeyboardInterrupt

    with open_run(tmp_path / "straight", data, settings) as run:
        train(run, data, pictures=False)
    with pytest.raises(KeyboardInterrupt), open_run(tmp_path / "broken", data, settings) as run:
        train(run, data, after_validation=stop, pictures=False)
    with open_run(tmp_path / "broken", data, settings) as run:
        train(run, data, pictures=False)
    straight, broken = (
        (tmp_path / name / "history.csv").read_bytes() for name in ("straight", "broken")
    )
    assert straight == broken
