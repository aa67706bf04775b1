"""A run with a bias of items: the same answers in validation, evaluation and serving."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipelines.common.files import read_json
from pipelines.runs.build import build_model
from pipelines.runs.checkpoints import restore_best
from pipelines.runs.folder import Run
from pipelines.runs.ranks import evaluation_users
from tests.support.presplit import presplit_data
from tests.support.processes import run_step
from tfrs_croloss.serving import publish


@pytest.mark.slow
def test_a_run_with_a_bias_is_evaluated_exported_and_served_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = presplit_data(tmp_path)
    run = tmp_path / "run"
    train = (
        "train", "--data", data, "--out", run, "--tower", "matrix-factorization", "--item-bias",
        "--whole-catalogue", "--min-history", 0, "--dim", 3, "--batch-size", 64,
        "--learning-rate", 0.1, "--max-steps", 40, "--steps-per-epoch", 20, "--exclude-history",
        "--monitor", "recall@12", "--loss", "softmax",
    )  # fmt: skip
    run_step(*train)
    loaded = Run.load(run)
    prepared = loaded.open_data(None)
    model = build_model(loaded.settings, prepared.num_items, num_users=60)
    restore_best(run, model)
    items = model.embed_catalogue(prepared.num_items).numpy()
    assert items.shape[1] == 4
    np.testing.assert_allclose(np.linalg.norm(items[:, :3], axis=1), 1.0, rtol=1e-5)
    assert np.abs(items[:, 3]).max() > 0.01

    run_step("evaluate", "--run", run, "--exclude-history", "--cutoffs", 12)
    found = read_json(run / "recall.json")["systems"]["model"]["users"]["recall@12"]
    users = evaluation_users(prepared, "test", loaded.settings)
    queries = model.embed_queries({"user": tf.constant(users.numbers)}).numpy()
    shares = []
    for row, seen in enumerate(users.seen.to_list()):
        targets = users.targets[users.users == row]
        scores = queries[row] @ items.T
        scores[seen] = -np.inf
        shares.append(np.isin(targets, np.argsort(-scores)[:12]).mean())
    assert found == pytest.approx(np.mean(shares), abs=0.01)

    monkeypatch.setattr(publish, "check_round_trip", lambda *_: None)
    numbers = tf.range(60)
    scores = model.embed_queries({"user": numbers}).numpy() @ items.T
    run_step("export", "--run", run, "--out", tmp_path / "model", "--top-n", 12)
    recommend = tf.saved_model.load(str(tmp_path / "model" / "1")).signatures["recommend"]
    names = prepared.item_ids()
    answers = recommend(
        user=tf.constant(prepared.split("train").user_ids()), top_n=tf.fill([60], 12)
    )
    expected = np.sort(scores, axis=1)[:, ::-1][:, :12]
    np.testing.assert_allclose(answers["scores"], expected, rtol=1e-4, atol=1e-5)
    positions = {name.encode(): place for place, name in enumerate(names)}
    for row, found in enumerate(answers["item_ids"].numpy()):
        own = scores[row, [positions[item] for item in found]]
        np.testing.assert_allclose(own, expected[row], rtol=1e-4, atol=1e-5)
