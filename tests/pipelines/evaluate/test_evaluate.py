"""Evaluation: the numbers against plain computations from what was exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pipelines.__main__ import main
from pipelines.data.batches import EvaluationInput
from pipelines.data.prepared import PreparedData
from pipelines.errors import UserError
from pipelines.evaluate import _cold, popularity_note
from pipelines.evaluate.report import Contender
from pipelines.runs.ranks import (
    evaluation_users,
    expected_recall_alpha,
    ranks_by_chance,
    with_validation,
)
from pipelines.runs.settings import TrainSettings
from tests.support.presplit import presplit_data
from tests.support.processes import run_step
from tfrs_croloss.metrics import summarize_ranks

CUTOFFS = (5, 20, 50)


def evaluate(run: Path, *options: object) -> dict[str, Any]:
    run_step("evaluate", "--run", run, "--cutoffs", *CUTOFFS, *options)
    return json.loads((run / "recall.json").read_text())


def plain_recall(
    data: PreparedData, scores: Any, cutoff: int, exclude_history: bool
) -> tuple[float, float]:
    """Recall over users and over pairs, by loops; ``scores(history)`` gives one for each item."""
    split = data.split("test")
    assert split.history_lengths is not None
    by_user, found, total = [], 0, 0
    for user in range(split.num_users):
        items = split.items[split.offsets[user] : split.offsets[user + 1]].tolist()
        middle = int(split.history_lengths[user])
        history, targets = items[:middle], items[middle:]
        of_items = scores(history)
        hits = 0
        for target in targets:
            excluded = set(history) if exclude_history else set()
            if target in excluded:
                continue
            rank = 1 + sum(
                1
                for item in range(data.num_items)
                if item != target and item not in excluded and of_items[item] >= of_items[target]
            )
            hits += rank <= cutoff
        by_user.append(hits / len(targets))
        found, total = found + hits, total + len(targets)
    return float(np.mean(by_user)), found / total


@pytest.mark.slow
@pytest.mark.parametrize("exclude_history", [True, False])
def test_recall_is_that_of_the_exported_embeddings(
    tiny_run: Path, tiny_data: Path, tmp_path: Path, exclude_history: bool
) -> None:
    flag = "--exclude-history" if exclude_history else "--no-exclude-history"
    systems = evaluate(tiny_run, flag)["systems"]
    run_step("export", "--run", tiny_run, "--out", tmp_path / "model")
    data = PreparedData.load(tiny_data)
    names = data.item_ids()
    signatures = tf.saved_model.load(str(tmp_path / "model" / "1")).signatures
    items = signatures["item_embedding"](item_ids=tf.constant(names))["embedding"].numpy()

    def by_model(history: list[int]) -> np.ndarray:
        asked = tf.constant([[names[item] for item in history]])
        query = signatures["user_embedding"](history=asked)["embedding"].numpy()[0]
        return items.astype(np.float64) @ query.astype(np.float64)

    counts = data.item_counts.tolist()
    num_pairs, num_users = systems["model"]["pairs"]["num"], systems["model"]["users"]["num"]
    for cutoff in CUTOFFS:
        over_users, over_pairs = plain_recall(data, by_model, cutoff, exclude_history)
        # The exported tower may round the last bit of a score differently: one pair at most.
        reported = systems["model"]["pairs"][f"recall@{cutoff}"]
        assert reported == pytest.approx(over_pairs, abs=1.01 / num_pairs)
        reported = systems["model"]["users"][f"recall@{cutoff}"]
        assert reported == pytest.approx(over_users, abs=1.01 / num_users)
        over_users, over_pairs = plain_recall(data, lambda _: counts, cutoff, exclude_history)
        popularity = systems["popularity"]
        assert popularity["users"][f"recall@{cutoff}"] == pytest.approx(over_users, rel=1e-9)
        assert popularity["pairs"][f"recall@{cutoff}"] == pytest.approx(over_pairs, rel=1e-9)


def test_a_model_that_learned_is_far_ahead(tiny_run: Path) -> None:
    systems = evaluate(tiny_run)["systems"]
    recall = {name: system["users"]["recall@20"] for name, system in systems.items()}
    assert recall["model"] > 1.6 * recall["popularity"]
    assert recall["popularity"] > 1.4 * recall["random"]


def test_the_validation_split_gives_what_training_saw(tiny_run: Path) -> None:
    figures = evaluate(tiny_run, "--split", "valid")["systems"]["model"]["users"]
    best = json.loads((tiny_run / "best" / "best.json").read_text())
    for name in ("recall@20", "recall@50", "mrr"):
        assert figures[name] == best[name]


@pytest.mark.parametrize("exclude_history", [False, True])
def test_chance_finds_its_share(tiny_data: Path, exclude_history: bool) -> None:
    data = PreparedData.load(tiny_data)
    users = EvaluationInput.of(data.split("test"), data.num_items, 20)
    ranks = np.stack(
        [ranks_by_chance(users, data.num_items, exclude_history, seed) for seed in range(200)]
    )
    seen = [set(history.numpy().tolist()) for history in users.seen]
    for pair, (user, target) in enumerate(zip(users.users.tolist(), users.targets.tolist())):
        excluded = seen[user] if exclude_history else set()
        if target in excluded:
            assert set(ranks[:, pair]) == {data.num_items + 1}
        else:
            assert 1 <= ranks[:, pair].min() <= ranks[:, pair].max()
            assert ranks[:, pair].max() <= data.num_items - len(excluded)
    if not exclude_history:
        expected = (1 + data.num_items) / 2
        error = data.num_items / np.sqrt(12 * ranks.size)
        assert abs(ranks.mean() - expected) < 5 * error


@pytest.mark.slow
def test_losses_as_baselines_are_trained_once(
    tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    systems = evaluate(tiny_run, "--baselines", "softmax")["systems"]
    assert list(systems) == ["model", "softmax"]
    assert systems["softmax"]["title"] == "CROLoss (exponential, alpha 1) = softmax"
    assert systems["softmax"]["users"] != systems["model"]["users"]
    config = json.loads((tiny_run / "baselines" / "softmax" / "config.json").read_text())
    settings = json.loads((tiny_run / "config.json").read_text())["settings"]
    expected = {
        **settings,
        "loss": "softmax",
        "kernel": "exponential",
        "rank_kernel": None,
        "alpha": 1.0,
    }
    assert config["settings"] == expected
    assert "baseline softmax: training" in capsys.readouterr().out
    assert evaluate(tiny_run, "--baselines", "softmax")["systems"] == systems
    assert "training" not in capsys.readouterr().out


def test_the_report_and_the_table_agree(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluate(tiny_run)
    printed = capsys.readouterr().out
    report = (tiny_run / "report.md").read_text()
    for average in ("users", "pairs"):
        for name in ("model", "popularity", "random"):
            value = f"{found['systems'][name][average]['recall@20']:.4f} ±"
            assert value in printed
            assert value in report
    assert (tiny_run / "recall_curves.png").read_bytes()[:4] == b"\x89PNG"
    assert "python -m pipelines export --run" in printed


def test_what_cannot_be_evaluated_is_one_line(
    tiny_run: Path,
    tiny_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["evaluate", "--run", str(tmp_path)]) == 2
    assert "is not the folder of a training run" in capsys.readouterr().err
    assert main(["evaluate", "--run", str(tmp_path / "missing")]) == 2
    assert "missing does not exist. Run 'python -m" in capsys.readouterr().err
    for options, message in (
        (["--replicas", "2"], "--replicas requires --strategy mirrored"),
        (
            ["--strategy", "mirrored", "--baselines", "popularity", "bpr"],
            "cannot be combined with --strategy. Received: bpr and mirrored",
        ),
    ):
        assert main(["evaluate", "--run", str(tiny_run), *options]) == 2
        assert message in capsys.readouterr().err
    assert main(["evaluate", "--run", str(tiny_run), "--data", str(tmp_path / "gone")]) == 2
    assert "Pass --data to say where it is" in capsys.readouterr().err
    log = tmp_path / "other.csv"
    run_step("synthesize", "--out", log, "--users", 60, "--items", 30, "--seed", 1)
    run_step("prepare", "--source", "csv", "--input", log, "--out", tmp_path / "other")
    assert main(["evaluate", "--run", str(tiny_run), "--data", str(tmp_path / "other")]) == 2
    assert "is not the data that" in capsys.readouterr().err
    # A run that was configured and never came to a validation.
    (tmp_path / "empty").mkdir()
    config = json.loads((tiny_run / "config.json").read_text())
    (tmp_path / "empty" / "config.json").write_text(json.dumps(config))
    command = ["evaluate", "--run", str(tmp_path / "empty"), "--data", str(tiny_data)]
    assert main(command) == 2
    assert "has no trained weights yet" in capsys.readouterr().err


def test_validation_pairs_can_be_excluded_from_the_test(
    tmp_path: Path, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = PreparedData.load(presplit_data(tmp_path))
    users = evaluation_users(data, "test", TrainSettings())
    parts = {}
    for part in ("train", "valid", "test"):
        lines = (tmp_path / "raw" / f"{part}.txt").read_text().splitlines()
        parts[part] = {tuple(line.split()) for line in lines}
    names, test_users = data.item_ids(), data.split("test").user_ids()

    def pairs(seen: tf.RaggedTensor) -> set[tuple[str, str]]:
        return {
            (test_users[row], names[item])
            for row, items in enumerate(seen.to_list())
            for item in items
        }

    assert pairs(users.seen) == parts["train"]
    assert pairs(with_validation(users, data).seen) == parts["train"] | parts["valid"]
    # Users of a log are in one of the splits.
    with pytest.raises(UserError, match="--exclude-validation requires data whose test users"):
        log = PreparedData.load(tiny_data)
        with_validation(evaluation_users(log, "test", TrainSettings()), log)


@pytest.mark.parametrize("options", [["--split", "valid", "--exclude-history"], []])
def test_validation_is_excluded_with_the_history_from_the_test(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--run", str(tmp_path), "--exclude-validation", *options]) == 2
    assert "requires --split test and --exclude-history" in capsys.readouterr().err


def test_cold_targets_have_recall_of_their_own() -> None:
    data = PreparedData(Path(), {}, np.array([5, 0, 3, 0]))
    users = EvaluationInput(
        histories=np.zeros([2, 1], np.int32),
        targets=np.array([0, 1, 3]),
        users=np.array([0, 0, 1]),
        seen=tf.ragged.constant([[2], [2]]),
    )
    ranks, rows = [1, 2, 4], users.users
    report = summarize_ranks(ranks, num_items=4, user_rows=rows, cutoffs=[1, 3])
    (cold,) = _cold(data, users, [Contender("model", "title", report)])
    assert cold.name == "model" and cold.report.ranks.tolist() == [2, 4]
    assert cold.report.pairs.recall == {1: 0.0, 3: 1 / 2}
    warm = PreparedData(Path(), {}, np.array([5, 1, 3, 1]))
    assert _cold(warm, users, [Contender("model", "title", report)]) == []


def test_a_model_behind_popularity_is_told_what_to_try() -> None:
    def contender(name: str, *ranks: int) -> Contender:
        return Contender(name, name, summarize_ranks(ranks, num_items=50, cutoffs=[5, 20]))

    model, popular = contender("model", 1, 10, 30), contender("popularity", 2, 3, 40)
    settings = TrainSettings(loss="lambda", tower="matrix-factorization")
    note = popularity_note([model, popular], settings)
    # At N = 5 popularity finds two targets of three and the model one; at 20 both find two.
    assert note is not None and "than the model at N = 5. Things to try: train longer; " in note
    assert note.endswith("ease the pull, --easing 0.03.")
    of_histories = str(popularity_note([model, popular], TrainSettings()))
    assert of_histories.endswith("train longer; add --item-bias.")
    bsl = str(popularity_note([model, popular], settings.with_loss("bsl")))
    assert bsl.endswith("train longer; add --item-bias.")
    eased = TrainSettings(loss="lambda", tower="matrix-factorization", easing=0.03)
    for other in (eased, TrainSettings(similarity="dot"), TrainSettings(item_bias=True)):
        assert str(popularity_note([model, popular], other)).endswith("to try: train longer.")
    assert popularity_note([model, contender("popularity", 6, 21, 50)], settings) is None
    assert popularity_note([model], settings) is None


def test_expected_recall_has_the_alpha_of_the_loss() -> None:
    assert expected_recall_alpha(TrainSettings(alpha=1.3)) == 1.3
    sized = TrainSettings(loss="lambda", retrieval_size=100)
    assert expected_recall_alpha(sized) == 1 + 1.5 / 10
