"""A self-attention tower on a leave-one-out split, from the log to the served model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipelines.common.files import read_json
from pipelines.runs.build import build_model
from pipelines.runs.checkpoints import restore_best
from pipelines.runs.folder import Run
from tests.support.processes import run_step


@pytest.mark.slow
def test_from_the_log_to_the_served_model(tmp_path: Path) -> None:
    log, data, run = tmp_path / "events.csv", tmp_path / "prepared", tmp_path / "run"
    run_step("synthesize", "--out", log, "--users", 400, "--items", 150)
    run_step(
        "prepare", "--source", "csv", "--input", log, "--out", data, "--split", "leave-one-out",
        "--drop-cold-targets", "--drop-repeated-targets",
    )  # fmt: skip
    run_step(
        "train", "--data", data, "--out", run, "--encoder", "transformer", "--blocks", 1,
        "--heads", 2, "--dropout", 0.1, "--dim", 16, "--whole-catalogue", "--batch-size", 32,
        "--learning-rate", 0.01, "--max-steps", 200, "--steps-per-epoch", 100,
        "--loss", "lambda", "--retrieval-size", 20, "--monitor", "recall@20", "--exclude-history",
    )  # fmt: skip
    run_step("evaluate", "--run", run, "--exclude-history", "--cutoffs", 20)
    systems = read_json(run / "recall.json")["systems"]
    found, popular = (systems[name]["users"]["recall@20"] for name in ("model", "popularity"))
    assert found > 1.2 * popular

    run_step("export", "--run", run, "--out", tmp_path / "model", "--top-n", 10)
    loaded = Run.load(run)
    prepared = loaded.open_data(None)
    model = build_model(loaded.settings, prepared.num_items)
    restore_best(run, model)
    names = np.array(prepared.item_ids())
    history = [3, 70, 12]
    query = model.embed_queries({"history": tf.constant([history])}).numpy()[0]
    scores = model.embed_catalogue(prepared.num_items).numpy() @ query
    scores[history] = -np.inf
    recommend = tf.saved_model.load(str(tmp_path / "model" / "1")).signatures["recommend"]
    answer = recommend(history=tf.constant([names[history]]), top_n=tf.constant([10]))
    expected = np.sort(scores)[::-1][:10]
    np.testing.assert_allclose(answer["scores"][0], expected, rtol=1e-4, atol=1e-5)
