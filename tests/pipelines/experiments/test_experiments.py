"""Experiments: cells, resuming, equal terms, statistics and the report."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.__main__ import build_parser, main
from pipelines.common.files import json_sha256, read_json
from pipelines.common.page import Field, Grid, Picture, Text, markdown, web_page
from pipelines.data.prepared import PreparedData
from pipelines.errors import DivergedError, UserError
from pipelines.experiments import compare, report, reproduce, tune
from pipelines.experiments.cells import Cell, Variant, seed_by_seed
from pipelines.experiments.measure import paired_test, summarize
from pipelines.experiments.paper_numbers import ALPHAS, published_dataset
from pipelines.experiments.paper_tables import (
    NAMES,
    PROTOCOLS,
    SIZES,
    paper_settings,
    paper_table,
)
from pipelines.experiments.runner import Runner
from pipelines.runs.build import build_loss
from pipelines.runs.command_line import settings_of, train_command
from pipelines.runs.folder import data_checksum
from pipelines.runs.losses import LOSSES, contestants
from pipelines.runs.settings import TrainSettings
from pipelines.runs.spaces import Range
from tests.support.features import add_examples
from tests.support.presplit import presplit_data
from tests.support.processes import run_step, start_step
from tests.support.server_process import Server
from tfrs_croloss.serving import publish

SMALL: dict[str, Any] = {
    "dim": 8,
    "batch_size": 32,
    "negatives_per_example": 2,
    "max_steps": 6,
    "steps_per_epoch": 3,
    "max_validation_users": 40,
}
OPTIONS = [
    word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))
]


def small_settings(**changes: Any) -> TrainSettings:
    return dataclasses.replace(TrainSettings(cutoffs=(20, 50)), **{**SMALL, **changes})


# Statistics.


def test_summary_of_values() -> None:
    # Deviations from 5: -3, -1, 4, so squares of 26; 26 / 2 / 3.
    summary = summarize([2.0, 4.0, 9.0])
    assert summary.mean == 5.0
    assert summary.standard_error == pytest.approx(math.sqrt(26 / 2 / 3))
    assert summarize([7.0]).standard_error is None
    with pytest.raises(ValueError, match="at least one"):
        summarize([])


@pytest.mark.parametrize(
    "statistic, degrees, expected",
    [
        (1.0, 1, 0.5),  # Cauchy: 1 - 2 atan(1) / pi.
        (math.sqrt(2.0), 2, 1.0 - math.sqrt(2.0) / math.sqrt(2.0 + 2.0)),
        (12.706204736, 1, 0.05),  # From printed tables of the t distribution.
        (4.302652730, 2, 0.05),
        (3.182446305, 3, 0.05),
        (2.776445105, 4, 0.05),
        (4.032142984, 5, 0.01),
        (3.249835542, 9, 0.01),
        (2.228138852, 10, 0.05),
        (-2.228138852, 10, 0.05),
        (0.0, 4, 1.0),
    ],
)
def test_p_values(statistic: float, degrees: int, expected: float) -> None:
    # Half of the differences are one above the mean, half one below, and an odd one is the mean.
    num = degrees + 1
    signs = [1.0 if number % 2 else -1.0 for number in range(num - num % 2)] + [0.0] * (num % 2)
    error = math.sqrt((num - num % 2) / (num - 1) / num)
    differences = {seed: statistic * error + sign for seed, sign in enumerate(signs)}
    test = paired_test(differences, dict.fromkeys(differences, 0.0))
    assert test is not None and test.standard_error == pytest.approx(error)
    assert test.p_value == pytest.approx(expected, abs=1e-8)


def test_paired_test_by_hand() -> None:
    # Differences 1, 2, 3 over the seeds in common: mean 2, error 1 / sqrt(3), t = 2 sqrt(3).
    test = paired_test({1: 2.0, 2: 4.0, 3: 6.0, 9: 0.0}, {3: 3.0, 2: 2.0, 1: 1.0, 8: 5.0})
    assert test is not None and test.num == 3
    assert test.difference == pytest.approx(2.0)
    assert test.standard_error == pytest.approx(1 / math.sqrt(3))
    assert test.p_value == pytest.approx(1 - math.sqrt(12 / (12 + 2)))
    assert paired_test({1: 2.0}, {1: 1.0}) is None
    constant = paired_test({1: 2.0, 2: 3.0}, {1: 1.0, 2: 2.0})
    assert constant is not None and constant.p_value == 0.0
    equal = paired_test({1: 2.0, 2: 3.0}, {1: 2.0, 2: 3.0})
    assert equal is not None and equal.p_value == 1.0


# Cells.


def test_keys_know_settings_seed_data_and_split(tiny_data: Path) -> None:
    data = PreparedData.load(tiny_data)
    cell = Cell("one", small_settings())
    assert cell.key(data) == dataclasses.replace(cell, name="two").key(data)
    others = [
        dataclasses.replace(cell, split="valid"),
        Cell("one", small_settings(seed=1)),
        Cell("one", small_settings(alpha=1.1)),
        Cell("one", small_settings(weight_average=0.5)),
    ]
    manifest = json.loads(json.dumps(data.manifest))
    manifest["files"]["item_ids.txt"]["sha256"] = "0" * 64
    changed = dataclasses.replace(data, manifest=manifest)
    keys = {cell.key(data), cell.key(changed), *(other.key(data) for other in others)}
    assert len(keys) == 6
    # Results from before there were these settings count where they change nothing.
    settings = cell.settings.as_dict()
    del settings["weight_average"], settings["item_feature_dim"]
    content = {"format": 1, "settings": settings, "data": data_checksum(data), "split": "test"}
    assert cell.key(data) == json_sha256(content)[:16]


def test_results_from_before_items_were_sums_do_not_count(tiny_data: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_data, tmp_path / "data")
    data = add_examples(tmp_path / "data")

    def key(format_of: int, **options: Any) -> tuple[str, str]:
        settings = small_settings(**options)
        plain = settings.as_dict()
        del plain["weight_average"], plain["item_feature_dim"]
        content = {
            "format": format_of,
            "settings": plain,
            "data": data_checksum(data),
            "split": "test",
        }
        return Cell("one", settings).key(data), json_sha256(content)[:16]

    found, expected = key(2)
    assert found == expected
    none = {f"{of}_features": "none" for of in ("item", "user", "context")}
    found, expected = key(1, **none)
    assert found == expected


def test_variants_have_nothing_of_other_losses() -> None:
    base = small_settings(loss="sl_at_k", retrieval_size=20, weight_temperature=2.0, margin=3.0)
    assert Variant("softmax", "softmax").settings(base, 4) == small_settings(
        loss="softmax", kernel="exponential", seed=4
    )


def test_first_all_losses_then_the_next_seed() -> None:
    variants = [Variant("a", "softmax"), Variant("b", "bpr")]
    cells = seed_by_seed(variants, small_settings(), [5, 6])
    assert [(cell.name, cell.settings.seed) for cell in cells] == [
        ("a", 5),
        ("b", 5),
        ("a", 6),
        ("b", 6),
    ]


@pytest.mark.parametrize("loss", LOSSES)
def test_train_command_gives_the_settings_back(loss: str) -> None:
    changes: dict[str, Any] = {"learning_rate": 1 / 3, "exclude_history": True, "seed": 9}
    if loss in ("cro", "lambda"):
        changes.update(kernel="hinge", rank_kernel="unit_step", alpha=0.7, margin=2.5)
    if loss == "sl_at_k":
        changes.update(retrieval_size=30, weight_temperature=0.4, differentiate_weight=False)
    if loss == "talos":
        changes.update(retrieval_size=30)
    settings = small_settings().with_loss(loss, **changes)
    words = shlex.split(train_command(settings, "a folder", "out"))
    assert words[:3] == ["python", "-m", "pipelines"]
    args = build_parser("train").parse_args(words[3:])
    assert settings_of(args) == settings
    assert (args.data, args.out) == ("a folder", "out")


# The paper.


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_retrieval_sizes_meet_the_whole_grid_of_alpha(protocol: str) -> None:
    base = paper_settings(protocol)
    table = paper_table(SIZES, protocol)
    settings = {entry.row: entry.variant.settings(base, 1) for entry in table.entries}
    alphas = [one.alpha for one in settings.values() if one.retrieval_size is None]
    assert alphas == [0.6, 0.8, 1.0, 1.2, 1.4, 1.6]
    sizes = [one.retrieval_size for one in settings.values() if one.retrieval_size is not None]
    assert sizes == [20, 50, 100, 200, 500]
    assert table.reference in settings
    assert {(one.loss, one.rank_kernel) for one in settings.values()} == {("lambda", "sigmoid")}
    assert len({one.kernel for one in settings.values()}) == 1


def test_tables_of_the_paper() -> None:
    sizes = {"main": 5, "kernels": 20, "lambda": 6, "mining": 4, "figures": 16}
    for protocol in PROTOCOLS:
        settings = paper_settings(protocol)
        assert (settings.dim, settings.learning_rate, settings.margin) == (32, 0.02, 5.0)
        assert settings.temperature == pytest.approx(1 / 10)
        for name in NAMES:
            table = paper_table(name, protocol)
            assert len(table.entries) == sizes[name]
            for entry in table.entries:
                assert entry.published is not None and len(entry.published) == 4
                entry.variant.settings(settings, 1)
    books = {entry.row: entry.published for entry in paper_table("main", "books").entries}
    assert books["CROLoss-lambda"] == {50: 10.17, 100: 14.07, 200: 18.81, 500: 26.20}
    # Special cases are printed twice, and must be the same numbers: softmax is exponential, α=1.
    for protocol in PROTOCOLS:
        assert 1.0 in ALPHAS[protocol]
        kernels = paper_table("kernels", protocol)
        softmax = next(
            entry.published
            for entry in kernels.entries
            if (entry.row, entry.column) == ("exponential", "α=1")
        )
        assert softmax == paper_table("main", protocol).entries[0].published


def test_published_numbers_only_for_the_same_data() -> None:
    def manifest(source: str, name: str, items: int) -> dict[str, Any]:
        statistics = {"items": items}
        return {"source": source, "inputs": [{"path": f"in/{name}"}], "statistics": statistics}

    assert published_dataset(manifest("authors", "book_train.txt", 313_966)) == "books"
    assert published_dataset(manifest("amazon-reviews", "Books_5.json", 310_000)) == "books"
    assert published_dataset(manifest("taobao", "UserBehavior.csv", 1_708_530)) == "taobao"
    assert published_dataset(manifest("authors", "book_train.txt", 17_049)) is None
    assert published_dataset(manifest("csv", "books.csv", 313_966)) is None


# Running.


@pytest.mark.slow
def test_a_cell_is_a_run_of_train_and_evaluate(tiny_data: Path, tmp_path: Path) -> None:
    settings = small_settings(loss="lambda", monitor="recall@20", seed=3)
    data = PreparedData.load(tiny_data)
    runner = Runner(tmp_path / "experiment", data)
    with runner.lock():
        # Another cell before it must not change it.
        first, result = runner.run(
            [Cell("other", small_settings(seed=8), "valid"), Cell("x", settings)]
        )
    assert "test" not in first and not any((tmp_path / "experiment/runs").iterdir())
    command = train_command(settings, str(tiny_data), str(tmp_path / "run"))
    run_step(*shlex.split(command)[3:])
    run_step("evaluate", "--run", tmp_path / "run", "--cutoffs", 20, 50, "--baselines")
    assert result["history"] == read_json(tmp_path / "run/history.json")
    evaluated = read_json(tmp_path / "run/recall.json")["systems"]["model"]
    for average in ("users", "pairs"):
        for name in ("recall@20", "recall@50", "mrr"):
            assert result["test"][average][name] == evaluated[average][name]
    for share in ("examples", "gradient"):
        assert sum(band[share] for band in result["gradient"]) == pytest.approx(1.0)


def _results(folder: Path) -> dict[str, tuple[int, int]]:
    """Identity and time of each result file: a cell that runs again makes a new one."""
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in (folder / "results").glob("*.json")
    }


@pytest.mark.slow
def test_resume_after_kill(tiny_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["reproduce", "--data", tiny_data, "--out", out, "--seeds", 1, *OPTIONS]
    command += ["--table", "mining"]
    process = start_step(*command)
    try:
        deadline = time.monotonic() + 240
        while not _results(out) and process.poll() is None:
            assert time.monotonic() < deadline, "no result in four minutes"
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    before = _results(out)
    assert 1 <= len(before) < 4
    (out / "results" / ".tmp-half.json-1").write_text("{")
    run_step(*command)
    after = _results(out)
    assert len(after) == 4 and not list((out / "results").glob(".tmp-*"))
    assert {name: after[name] for name in before} == before
    run_step(*command)
    assert _results(out) == after
    page = (out / "report.html").read_text()
    for text in ("triplet", "BPR, α=1", "CROLoss hinge α=1", "Recall@500", "tensorflow 2"):
        assert text in page
    assert "paper 7.53" not in page
    assert page.count("data:image/png;base64,") == 4
    assert not re.search(r"https?://|src=\"(?!data:)|<script|<link|url\(", page)
    twin = (out / "report.md").read_text()
    assert "| BPR, α=1 |" in twin and "mining_recall.png" in twin
    assert (out / "mining_recall.png").is_file()
    summary = read_json(out / "summary.json")["tables"]["mining"]
    assert set(summary["triplet"]) >= {"loss", "seeds", "recall@20", "recall@500"}


def test_diverged_cells_are_results_too(tiny_data: Path, tmp_path: Path) -> None:
    data = PreparedData.load(tiny_data)
    runner = Runner(tmp_path, data)
    # After a step of this length, scores are beyond float32.
    settings = small_settings(loss="softmax", similarity="dot", learning_rate=1e30)
    with runner.lock():
        (result,) = runner.run([Cell("bad", settings)])
    assert "diverged" in result["failed"]
    assert report.by_seed([result]) == {}


@pytest.mark.parametrize("error", [UserError("the words have diverged"), DivergedError("nan")])
def test_only_divergence_makes_a_result(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: UserError
) -> None:
    def fail(*args: Any, **keywords: Any) -> None:
        raise error

    monkeypatch.setattr("pipelines.experiments.runner.train", fail)
    runner = Runner(tmp_path, PreparedData.load(tiny_data))
    with runner.lock():
        if isinstance(error, DivergedError):
            assert runner.run_one(Cell("x", small_settings()))["failed"] == "nan"
        else:
            with pytest.raises(UserError, match="the words have diverged"):
                runner.run_one(Cell("x", small_settings()))


# Equal terms.


def test_every_loss_has_the_same_temperatures() -> None:
    base = compare.comparison_settings(20, "history")
    temperatures = {
        name: [
            compare.trial(name, it, number, base, Range(0.05, 0.3, True)).options["temperature"]
            for number in range(6)
        ]
        for name, it in contestants().items()
    }
    assert set(map(tuple, temperatures.values())) == {tuple(temperatures["softmax"])}
    assert len(set(temperatures["softmax"])) == 6
    assert temperatures["softmax"][0] == base.temperature
    for name, it in contestants().items():
        variants = [compare.trial(name, it, n, base, Range(0.05, 0.3, True)) for n in range(6)]
        assert len({variant.settings(base, 0) for variant in variants}) == 6


def radical_inverse(number: int, base: int) -> float:
    """The digits of ``number`` behind the point."""
    share, weight = 0.0, 1.0 / base
    while number:
        number, digit = divmod(number, base)
        share += digit * weight
        weight /= base
    return share


def test_trials_stay_the_points_that_they_were() -> None:
    base = compare.comparison_settings(20, "history")
    temperatures, calibrations = Range(0.05, 0.3, True), Range(0.0, 1.0)
    contestant = contestants()["gbce"]
    for number in range(1, 40):
        options = compare.trial("gbce", contestant, number, base, temperatures).options
        assert options == {
            "temperature": temperatures.at(radical_inverse(number + 1, 2)),
            "calibration": calibrations.at(radical_inverse(number, 3)),
        }
    # Written down by an earlier version.
    psl = [compare.trial("psl", contestants()["psl"], n, base, temperatures) for n in (0, 1, 2, 7)]
    assert [variant.options for variant in psl] == [
        {"temperature": 0.1},
        {"temperature": 0.0783, "activation": "atan"},
        {"temperature": 0.192, "activation": "relu"},
        {"temperature": 0.0559, "activation": "atan"},
    ]


def test_compare_knows_every_loss_and_group() -> None:
    assert {it.loss for it in contestants().values()} == set(LOSSES)
    assert compare.chosen_contestants(["all"]) == contestants()
    assert list(compare.chosen_contestants(["conventional", "psl"])) == [
        "softmax", "triplet", "bpr", "psl",
    ]  # fmt: skip
    assert list(compare.chosen_contestants(["baselines"])) == [
        "bce", "gbce", "psl", "bsl", "sl_at_k", "talos", "llpauc",
    ]  # fmt: skip
    family = compare.chosen_contestants(["family"])
    assert {it.loss for it in family.values()} == {"cro", "lambda"}
    assert [name for name, it in contestants().items() if it.sized] == [
        "sl_at_k",
        "talos",
        "lambda-sized",
    ]


def test_a_search_that_does_not_bracket_the_temperature_says_so() -> None:
    low, middle, high = (0.05, 0.2), (0.1, 0.3), (0.2, 0.25)
    bracketed = {"softmax": [middle, low, high]}
    assert compare.open_ends({**bracketed, "bpr": [middle], "psl": [middle, (0.1, 0.4)]}) == []
    notes = compare.open_ends({**bracketed, "bpr": [middle, low], "psl": [middle, high]})
    assert notes == [
        "the best temperature is the lowest that was tried for psl, so a lower one may be better. "
        "Change --temperatures, or raise --trials.",
        "the best temperature is the highest that was tried for bpr, so a higher one may be "
        "better. Change --temperatures, or raise --trials.",
    ]


@pytest.mark.slow
def test_compare_reads_the_test_after_the_choice(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    split: Callable[..., Any] = PreparedData.split

    def watched(data: PreparedData, name: str) -> Any:
        if name == "test":
            events.append("test")
            assert (tmp_path / "out/choices.json").is_file()
        return split(data, name)

    monkeypatch.setattr(PreparedData, "split", watched)
    run_step(
        "compare", "--data", tiny_data, "--out", tmp_path / "out", "--losses", "softmax", "psl",
        "--trials", 2, "--seeds", 1, "--retrieval-size", 20, *OPTIONS,
    )  # fmt: skip
    results = [read_json(path) for path in (tmp_path / "out/results").iterdir()]
    searched = [result for result in results if result["split"] == "valid"]
    tested = [result for result in results if result["split"] == "test"]
    assert len(events) >= len(tested) == 2
    assert sorted(result["name"] for result in searched) == ["psl", "psl", "softmax", "softmax"]
    assert not any("test" in result for result in searched)
    assert {result["seed"] for result in searched} == {0}
    # Of two temperatures, the best one has no other on one of its sides.
    assert "The best temperature is the " in (tmp_path / "out/report.md").read_text()
    # The same steps for all, and the settings that were best in validation.
    assert {result["steps"] for result in results} == {SMALL["max_steps"]}
    choices = read_json(tmp_path / "out/choices.json")
    for result in tested:
        listing = choices[result["name"]]
        values = [entry["recall@20"] for entry in listing["trials"]]
        assert len(values) == 2 and values[listing["chosen"]] == max(values)
        chosen = listing["trials"][listing["chosen"]]["options"]
        assert result["settings"]["temperature"] == chosen["temperature"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["--whole-catalogue", "--no-whole-catalogue"])
def test_matrix_factorization_learns(
    tmp_path: Path,
    mode: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = presplit_data(tmp_path)
    run_step(
        "train", "--data", data, "--out", tmp_path / "run", "--tower", "matrix-factorization",
        mode, "--min-history", 0, "--dim", 4, "--batch-size", 64, "--learning-rate", 0.05,
        "--max-steps", 120, "--steps-per-epoch", 60, "--exclude-history", "--monitor", "recall@12",
        "--mask-known-positives", "--loss", "lambda",
    )  # fmt: skip
    run_step("evaluate", "--run", tmp_path / "run", "--exclude-history", "--cutoffs", 12)
    found = read_json(tmp_path / "run/recall.json")["systems"]
    # Twelve items of the user's own group are left to find. Without the groups it would be 12 of
    # 32, and with the vectors of other users half at best.
    assert found["model"]["users"]["recall@12"] > 0.75
    assert found["random"]["users"]["recall@12"] < 0.6
    # It knows its users by number, and is served by their ids.
    if mode == "--whole-catalogue":
        monkeypatch.setattr(publish, "check_round_trip", lambda *_: None)
    out = tmp_path / "model"
    capsys.readouterr()
    run_step("export", "--run", tmp_path / "run", "--out", out, "--top-n", 12)
    assert f"query --model {out} --user" in capsys.readouterr().out
    for user in ("6", "7"):
        run_step("query", "--model", out, "--user", user, "--top-n", 12)
        items = [int(line.split()[1]) for line in capsys.readouterr().out.splitlines()[-12:]]
        assert np.mean([item // 20 == int(user) % 2 for item in items]) > 0.75
    if mode == "--no-whole-catalogue":
        check_the_server(out, items)
    run_step("query", "--model", out, "--user", "nobody")
    assert "this is the answer for the average user" in capsys.readouterr().out
    assert main(["query", "--model", str(out), "--history", "3"]) == 2
    assert "takes user as its query. Received: --history. Use --user" in capsys.readouterr().err


def check_the_server(model: Path, items_of_seven: list[int]) -> None:
    """`serve` gives the items that `query` gives, over REST, and knows whom it does not know."""
    server = Server(model)
    try:
        instances = [{"user": user, "top_n": 12} for user in ("7", "nobody")]
        status, answer = server.post({"signature_name": "recommend", "instances": instances})
    finally:
        assert server.stop() == 0
    assert status == 200
    known, unknown = answer["predictions"]
    assert [int(item) for item in known["item_ids"]] == items_of_seven
    assert [known["is_default"], unknown["is_default"]] == [False, True]


def test_matrix_factorization_needs_known_users(
    tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--tower", "matrix-factorization", "--out", str(tmp_path / "run")]
    assert main(["train", "--data", str(tiny_data), *options]) == 2
    assert "Use --tower history" in capsys.readouterr().err


# The search.


@pytest.mark.slow
def test_tune_resumes_and_names_the_winner(
    tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    optuna = pytest.importorskip("optuna")
    out = tmp_path / "out"
    command = ["tune", "--data", tiny_data, "--out", out, "--retrieval-size", 20, *OPTIONS]
    command += ["--pruner", "none"]
    run_step(*command, "--trials", 1)
    storage = f"sqlite:///{out / 'study.db'}"
    # What a killed process leaves: a trial that still runs.
    left = optuna.load_study(study_name="tune", storage=storage).ask()
    kernel = left.suggest_categorical("kernel", ("softplus", "exponential", "sigmoid", "hinge"))
    capsys.readouterr()
    run_step(*command, "--trials", 2)
    printed = capsys.readouterr().out
    study = optuna.load_study(study_name="tune", storage=storage)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert study.trials[2].params["kernel"] == kernel
    best = read_json(out / "best.json")
    assert best["recall@20"] == max(trial.value for trial in study.trials if trial.value)
    assert best["command"] in printed
    args = build_parser("train").parse_args(shlex.split(best["command"])[3:])
    assert settings_of(args).as_dict() == best["settings"]
    assert "test split was not read" in (out / "report.html").read_text()
    assert main([*map(str, command), "--dim", "4", "--trials", "2"]) == 2
    assert "other settings" in capsys.readouterr().err


class DrawnTrial:
    """A trial of Optuna that draws at random, and remembers what it was asked for."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self.drawn: dict[str, Any] = {}

    def suggest_categorical(self, name: str, choices: tuple[str, ...]) -> str:
        self.drawn[name] = choices[self._generator.integers(len(choices))]
        return str(self.drawn[name])

    def suggest_float(self, name: str, low: float, high: float, log: bool = False) -> float:
        assert 0.0 <= low < high
        self.drawn[name] = float(self._generator.uniform(low, high))
        return float(self.drawn[name])


@pytest.mark.parametrize("loss", LOSSES)
def test_tune_can_search_every_loss(loss: str) -> None:
    base = small_settings(monitor="recall@20")
    asked: set[str] = set()
    for seed in range(40):
        trial = DrawnTrial(seed)
        settings = tune.suggest(trial, base, (loss,))
        assert settings.loss == loss
        assert build_loss(settings, 99).get_config()
        for name in {"temperature", "learning_rate", *LOSSES[loss].space}:
            assert getattr(settings, name) == trial.drawn[name]
        if "retrieval_size" in LOSSES[loss].required:
            assert settings.retrieval_size == 20
        asked |= set(trial.drawn)
    family = {"kernel", "weighting", "alpha", "margin", "pull_by_rank", "easing"}
    own = {"cro": family, "lambda": family | {"rank_kernel"}}.get(loss, set(LOSSES[loss].space))
    assert asked == {"loss", "temperature", "learning_rate"} | own


def test_tune_searches_the_family_unless_told() -> None:
    args = build_parser("tune").parse_args(["tune", "--data", "d", "--retrieval-size", "20"])
    assert tune.chosen_losses(args.losses) == ("cro", "lambda")
    assert tune.chosen_losses(["psl", "conventional"]) == ("softmax", "triplet", "bpr", "psl")
    assert tune.chosen_losses(["all"]) == tuple(LOSSES)
    with pytest.raises(UserError, match="--losses should be among all, .*Received: 'best'"):
        tune.chosen_losses(["best"])


def test_tune_goes_on_with_a_search_of_an_older_version(tiny_data: Path, tmp_path: Path) -> None:
    data, base = PreparedData.load(tiny_data), small_settings()
    settings = base.as_dict()
    del settings["weight_average"]  # A setting that came later.
    older = {"settings": settings, "data_checksum": data_checksum(data)}
    (tmp_path / "config.json").write_text(json.dumps(older))
    tune.check_same_search(tmp_path, base, ("cro", "lambda"), data)
    with pytest.raises(UserError, match="losses: cro lambda there, psl now"):
        tune.check_same_search(tmp_path, base, ("psl",), data)
    with pytest.raises(UserError, match="dim: 8 there, 9 now"):
        tune.check_same_search(tmp_path, small_settings(dim=9), ("cro", "lambda"), data)


def test_tune_without_optuna(
    tiny_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["tune", "--data", str(tiny_data), "--retrieval-size", "20"]) == 2
    assert "pip install" in capsys.readouterr().err


# The page, and errors.


def test_page_escapes_and_marks() -> None:
    blocks = [
        Text("a < b"),
        Grid(["x", "N"], [[Field("a|b"), Field("1.0", "paper 2.0", best=True)]]),
        Picture("p", 'a "picture"', b"png"),
    ]
    page = web_page("T & T", blocks)
    assert "a &lt; b" in page and "T &amp; T" in page and "<b>1.0</b>" in page
    assert "paper 2.0" in page and "data:image/png;base64,cG5n" in page
    text = markdown("T", blocks)
    assert "| a\\|b | **1.0** (paper 2.0) |" in text and '![a "picture"](p.png)' in text


def fake_result(seed: int, recall: float) -> dict[str, Any]:
    averages = {"recall@50": recall, "ndcg@50": recall / 2, "mrr": 0.1}
    return {"seed": seed, "loss": "x", "test": {"users": averages, "pairs": averages}}


def test_flat_table_marks_the_best_and_tests_it() -> None:
    rows = {
        "softmax": report.by_seed([fake_result(1, 0.10), fake_result(2, 0.12)]),
        "other": report.by_seed([fake_result(1, 0.13), fake_result(2, 0.17), None]),
    }
    blocks = report.flat_blocks(rows, "users", "softmax", {"other": {50: 14.0}})
    table, _, differences, _, gains = blocks
    assert isinstance(table, Grid) and isinstance(differences, Grid) and isinstance(gains, Grid)
    assert gains.header == ["loss", "NDCG@50"]
    assert gains.rows[1][1] == Field("7.50 ± 1.00", best=True)
    assert table.rows[0][1] == Field("11.00 ± 1.00")
    assert table.rows[1][1] == Field("15.00 ± 2.00", "paper 14.00", best=True)
    # Differences of 3 and 5: t = 4 / 1 with one degree of freedom.
    p_value = 1 - 2 / math.pi * math.atan(4.0)
    assert differences.rows == [[Field("other"), Field("+36.4 %", f"p = {p_value:.3f}")]]
    summary = report.summary_json(rows, "users", "softmax")
    assert summary["other"]["recall@50"]["p_value"] == pytest.approx(p_value)
    assert summary["other"]["ndcg@50"]["mean"] == pytest.approx(7.5)
    assert summary["other"]["ndcg@50"]["p_value"] == pytest.approx(p_value)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["compare", "--losses", "best"], "--losses should be among all, "),
        (["compare", "--temperatures", "0.3", "0.1"], "the lower first"),
        (["compare", "--search-seed", "2"], "--search-seed should not be one"),
        (["compare", "--losses", "bpr", "--report-only"], "requires a finished search"),
        (["reproduce", "--learning-rate", "-1"], "--learning-rate should be"),
        (["reproduce", "--out", "FILE"], "should be a folder"),
    ],
)
def test_errors(
    tiny_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    (tmp_path / "file").write_text("")
    given = [str(tmp_path / "file") if word == "FILE" else word for word in arguments]
    if "--out" not in given:
        given += ["--out", str(tmp_path / "out")]
    assert main([*given, "--data", str(tiny_data)]) == 2
    assert message in capsys.readouterr().err


def test_reproduce_quick_is_one_seed_of_few_steps(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[Cell] = []
    monkeypatch.setattr(Runner, "run", lambda self, cells, after=None: planned.extend(cells) or [])
    monkeypatch.setattr(reproduce.Page, "write", lambda self: None)
    run_step("reproduce", "--data", tiny_data, "--out", tmp_path, "--quick", "--table", "all")
    assert {cell.settings.seed for cell in planned} == {1}
    assert {cell.settings.max_steps for cell in planned} == {300}
    # Shared by several tables, trained once.
    data = PreparedData.load(tiny_data)
    assert len(planned) == 5 + 20 + 6 + 4 + 16
    assert len({cell.key(data) for cell in planned}) < 35
