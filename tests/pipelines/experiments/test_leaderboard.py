"""Tables on published splits: their protocols, their intervals, and small ones to the page."""

from __future__ import annotations

import argparse
import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

from pipelines.__main__ import main
from pipelines.common.files import read_json
from pipelines.data.prepared import PreparedData
from pipelines.errors import UserError
from pipelines.experiments import leaderboard, reproduce
from pipelines.experiments.compare import chosen_contestants, comparison_settings
from pipelines.experiments.item_attributes import write_attribute_table
from pipelines.experiments.measure import (
    figures_by_user,
    interval_over_seeds,
    interval_over_users,
)
from pipelines.experiments.protocols import PROTOCOLS
from pipelines.experiments.published_splits import BENCHMARKS
from pipelines.runs.build import build_loss
from tests.pipelines.experiments.test_experiments import DrawnTrial
from tests.support.presplit import write_presplit
from tests.support.processes import run_step
from tfrs_croloss.metrics import summarize_ranks


def test_figures_of_users_average_to_the_report() -> None:
    generator = np.random.default_rng(0)
    ranks, users = generator.integers(1, 40, 50), generator.integers(0, 12, 50)
    # Some users have more than three targets, some fewer.
    for size in (3, 7):
        found = figures_by_user(ranks, users, size)
        averages = summarize_ranks(ranks, num_items=60, cutoffs=[size], user_rows=users).users
        assert found[f"recall@{size}"].mean() == pytest.approx(averages.recall[size])
        assert found[f"ndcg@{size}"].mean() == pytest.approx(averages.ndcg[size])


def test_intervals_by_hand() -> None:
    # Differences of 1, 2 and 3 over seeds: 2 ± 4.3027 / sqrt(3), from a printed table.
    interval = interval_over_seeds({1: 2.0, 2: 4.0, 3: 6.0, 4: 9.0}, {1: 1.0, 2: 2.0, 3: 3.0})
    assert interval is not None and interval.mean == 2.0
    assert interval.high - 2.0 == pytest.approx(4.302652730 / math.sqrt(3))
    assert 2.0 - interval.low == pytest.approx(4.302652730 / math.sqrt(3))
    assert interval_over_seeds({1: 2.0}, {1: 1.0}) is None
    # Users whose differences, averaged over two seeds, are 1, 2 and 3.
    mine = {1: np.array([5.0, 3.0, 7.0]), 2: np.array([1.0, 2.0, 4.0]), 4: np.ones(3)}
    others = {1: np.array([4.0, 1.0, 5.0]), 2: np.zeros(3), 3: np.ones(3)}
    interval = interval_over_users(mine, others)
    assert interval is not None and interval.mean == pytest.approx(2.0)
    assert interval.high - 2.0 == pytest.approx(4.302652730 / math.sqrt(3))
    assert interval_over_users({1: np.zeros(3)}, {2: np.zeros(3)}) is None


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of sequences, in which an item often follows the one before it."""
    folder = tmp_path_factory.mktemp("sequences")
    starts = np.random.default_rng(0).integers(0, 30, 80)
    lines = (
        f"{user} {' '.join(str((start + place) % 30) for place in range(5 + user % 4))}\n"
        for user, start in enumerate(starts)
    )
    (folder / "toys.txt").write_text("".join(lines))
    # Neighbours share an attribute; item 29 has none.
    attributes = {str(item): [item // 3, 100 + item % 2] for item in range(29)}
    (folder / "toys_item2attributes.json").write_text(json.dumps({**attributes, "29": []}))
    return folder


@pytest.mark.parametrize(
    ("table", "name"), [(table, name) for table in BENCHMARKS for name in BENCHMARKS[table].losses]
)
def test_every_loss_of_a_table_can_be_drawn(table: str, name: str) -> None:
    protocol = PROTOCOLS[table]
    base = comparison_settings(20, "history")
    contestant = chosen_contestants([name], protocol.contestants)[name]
    trial = DrawnTrial(0)
    settings = leaderboard.suggest(trial, name, contestant, base, protocol).settings(base, 0)
    assert build_loss(settings, 99).get_config()
    assert set(trial.drawn) == {"temperature", "learning_rate", *contestant.space}
    assert settings.temperature == trial.drawn["temperature"]
    assert settings.retrieval_size == (20 if contestant.sized else None)


def test_what_is_published_has_a_place_in_its_table() -> None:
    assert set(PROTOCOLS) == set(BENCHMARKS)
    for benchmark in BENCHMARKS.values():
        assert set(benchmark.sets) <= set(benchmark.published)
        for figures in benchmark.published.values():
            assert all(recall > ndcg > 1.0 for recall, ndcg in figures.values())
    for figures in BENCHMARKS["leaderboard"].published.values():
        assert set(figures) <= set(BENCHMARKS["leaderboard"].losses)


def test_attributes_become_a_table(tmp_path: Path) -> None:
    source, table = tmp_path / "a.json.gz", tmp_path / "out" / "items.csv"
    source.write_bytes(gzip.compress(b'{"7": [3, "red, dark"], "x": []}'))
    write_attribute_table(source, table)
    assert table.read_bytes() == b'item,attributes\n7,"3|red, dark"\nx,\n'
    number = table.stat().st_ino
    write_attribute_table(source, table)
    assert table.stat().st_ino == number


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "should be a JSON file"),
        (b"\xff", "should be a JSON file"),
        (b"[1]", "object of items and their attributes.*Received: list"),
        (b'{"7": 3}', "Received: 3 for item '7'"),
        (b'{"7": [1.5]}', r"Received: \[1.5\] for item '7'"),
        (b'{"7": [true]}', r"Received: \[true\] for item '7'"),
        (b'{"7": ["a|b"]}', r"without \|"),
        (b'{"7": ["a\\nb"]}', r"of printable texts"),
        (b'{"7": [""]}', r"of printable texts"),
        (b"{}", "Received: no item"),
    ],
)
def test_wrong_attributes_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UserError, match=message):
        write_attribute_table(tmp_path / "a.json", tmp_path / "items.csv")
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(content)[:-3])
    with pytest.raises(UserError, match="should be a JSON file"):
        write_attribute_table(tmp_path / "a.json.gz", tmp_path / "items.csv")
    assert not (tmp_path / "items.csv").exists()


def options_of_sequences(data: Path, out: Path, *words: str) -> leaderboard.Options:
    parser = argparse.ArgumentParser()
    reproduce.add_arguments(parser)
    command = ["--table", "sequences", "--data", data, "--out", out, "--sets", "toys", *words]
    return leaderboard.read_options("sequences", parser.parse_args(list(map(str, command))), {})


def test_losses_with_attributes_are_for_data_that_has_some(sequences: Path, tmp_path: Path) -> None:
    every = BENCHMARKS["sequences"].losses
    assert tuple(options_of_sequences(sequences, tmp_path).contestants) == every
    (tmp_path / "toys.txt").write_text((sequences / "toys.txt").read_text())
    found = tuple(options_of_sequences(tmp_path, tmp_path / "out").contestants)
    assert found == tuple(loss for loss in every if not loss.endswith("attributes"))
    with pytest.raises(UserError, match="requires attributes of the items in toys_item2attrib"):
        options_of_sequences(
            tmp_path, tmp_path / "out", "--losses", "softmax-sampled-attributes", "softmax"
        )


def test_the_protocol_of_sequences(sequences: Path, tmp_path: Path) -> None:
    protocol = PROTOCOLS["sequences"]
    source = protocol.input(sequences, "toys")
    run_step("prepare", *protocol.prepare, "--input", source, "--out", tmp_path / "data")
    data = PreparedData.load(tmp_path / "data")
    splits = data.manifest["statistics"]["splits"]
    # The last item of each user is for the test, the one before it for validation.
    assert splits["test"]["target_interactions"] == splits["valid"]["target_interactions"] == 80
    settings = protocol.settings(data, {"batch_size": 16, "dim": 8}, 10)
    # 80 users in batches of 16, for at most 60 passes.
    assert (settings.steps_per_epoch, settings.max_steps) == (5, 300)
    assert (settings.encoder, settings.positions, settings.dim) == ("transformer", "sequences", 8)
    assert settings.whole_catalogue and settings.exclude_history
    assert (settings.heads, settings.dropout, settings.learning_rate) == (1, 0.4, 0.002)
    wide = protocol.settings(data, {"dim": 256, "dropout": 0.3}, 10)
    assert (wide.heads, wide.dropout, wide.learning_rate) == (4, 0.3, 0.001)
    sampled = chosen_contestants(["softmax-sampled"], protocol.contestants)["softmax-sampled"]
    drawn = leaderboard.suggest(DrawnTrial(0), "s", sampled, settings, protocol)
    assert not drawn.settings(settings, 0).whole_catalogue


@pytest.mark.slow
def test_a_small_table_of_sequences(sequences: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    out = tmp_path / "table"
    command = (
        "reproduce", "--table", "sequences", "--data", sequences, "--sets", "toys", "--out", out,
        "--losses", "softmax", "softmax-sampled", "softmax-sampled-attributes", "--trials", 1,
        "--seeds", 1, "--dim", 8, "--batch-size", 16, "--max-steps", 100, "--learning-rate", 0.02,
    )  # fmt: skip
    run_step(*command)
    summary = read_json(out / "summary.json")["toys"]
    features = {name: entry["settings"]["item_features"] for name, entry in summary.items()}
    assert features == {
        "softmax": "none",
        "softmax-sampled": "none",
        "softmax-sampled-attributes": "attributes",
    }
    assert (out / "toys/items.csv").read_text().splitlines()[:2] == ["item,attributes", "0,0|100"]
    without, with_them = (
        summary[name]["recall@10"]["mean"] for name in features if name != "softmax"
    )
    assert without != with_them > 60.0
    assert summary["softmax"]["settings"]["encoder"] == "transformer"
    assert not summary["softmax-sampled"]["settings"]["whole_catalogue"]
    # Ten of thirty items by chance, less those of the history.
    assert summary["softmax"]["recall@10"]["mean"] > 60.0
    page = (out / "report.md").read_text()
    assert "eSASRec, published | 9.39 | 5.38" in page
    assert "Every loss had 1 trial, " in page and "as side features" in page
    run_step(*command, "--refit")
    refitted = read_json(out / "summary.json")["toys"]["softmax"]
    data = PreparedData.load(out / "toys/refit/data")
    assert data.trains_on_valid
    (trial,) = (read_json(path) for path in (out / "toys/softmax/results").glob("*.json"))
    # 80 users are six batches in buckets of length, with and without the interactions of valid.
    assert refitted["settings"]["max_steps"] == round(6 * trial["best"]["epoch"])
    assert refitted["recall@10"] != summary["softmax"]["recall@10"]
    assert "training and validation together" in (out / "report.md").read_text()


@pytest.mark.slow
def test_a_small_leaderboard_from_files_to_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    write_presplit(tmp_path, valid=False).rename(tmp_path / "health")
    out = tmp_path / "board"
    command = (
        "reproduce", "--table", "leaderboard", "--data", tmp_path, "--sets", "health", "--out", out,
        "--losses", "softmax", "sl_at_k", "--trials", 2, "--seeds", 2, "--max-steps", 20,
        "--steps-per-epoch", 10, "--dim", 4, "--batch-size", 64,
    )  # fmt: skip
    run_step(*command)
    data = PreparedData.load(out / "health/data")
    # One of ten training pairs is held out for each of 60 users.
    assert data.manifest["statistics"]["splits"]["valid"]["target_interactions"] == 60
    summary = read_json(out / "summary.json")["health"]
    assert set(summary) == {"softmax", "sl_at_k"}
    assert summary["sl_at_k"]["seeds"] == [1, 2]
    assert summary["sl_at_k"]["recall@20"]["published"] == 18.23
    assert summary["sl_at_k"]["search"]["trials"] == 2
    assert 20 < summary["sl_at_k"]["search"]["steps"] <= 40
    settings = summary["sl_at_k"]["settings"]
    assert (settings["stddev"], settings["whole_catalogue"]) == (1.0, False)
    assert settings["exclude_history"] and settings["mask_known_positives"]
    for metric in ("recall@20", "ndcg@20"):
        mine, others = summary["sl_at_k"][metric], summary["softmax"][metric]
        for interval in (mine["over_users"], mine["over_seeds"]):
            assert interval["low"] <= interval["mean"] <= interval["high"]
            assert interval["mean"] == pytest.approx(mine["mean"] - others["mean"], abs=1e-6)
    # Choices were made in validation alone.
    for path in (out / "health/sl_at_k/results").glob("*.json"):
        assert "test" not in read_json(path)
    page = (out / "report.md").read_text()
    assert "published 18.23" in page and "NDCG@20" in page
    (out / "report.md").unlink()
    capsys.readouterr()
    run_step(*command, "--report-only")
    assert (out / "report.md").read_text() == page
    assert main([*map(str, command), "--trials", "9", "--report-only"]) == 2
    assert "of 9 trials are" in capsys.readouterr().err
    assert main([*map(str, command), "--dim", "5"]) == 2
    assert "holds a search with other settings or data (dim: 4 there, 5 now)" in (
        capsys.readouterr().err
    )
    with open(tmp_path / "health" / "train.txt", "a") as file:
        file.write("0 39\n")
    assert main([*map(str, command)]) == 2
    assert "holds results on other files than" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--table leaderboard main", "cannot be combined with other tables"),
        ("--table main --refit", "--refit requires --table leaderboard or sequences"),
        ("--table sizes --sets health", "--sets requires --table leaderboard or sequences"),
        ("--table all --losses bpr", "--losses requires --table leaderboard or sequences"),
        ("--table kernels --trials 2", "--trials requires --table leaderboard or sequences"),
        ("--table leaderboard --sets absent", "a folder absent of train and test files"),
        ("--table sequences --sets absent", "a file absent.txt or absent.txt.gz with a line"),
        ("--table leaderboard --sets health --first-seed 0", "--first-seed should be above 0"),
        ("--table leaderboard --sets health --losses best", "--losses should be among"),
    ],
)
def test_errors(
    options: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "health").mkdir()
    assert main(["reproduce", "--data", str(tmp_path), *options.split()]) == 2
    assert message in capsys.readouterr().err
