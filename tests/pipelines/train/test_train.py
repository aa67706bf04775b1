"""Training: the files of a run, and results that do not depend on interruptions."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pipelines.__main__ import main
from pipelines.errors import UserError
from pipelines.runs.build import build_loss, build_optimizer
from pipelines.runs.checkpoints import TrainingState
from pipelines.runs.settings import LAZY_FROM_ROWS, TrainSettings
from pipelines.train.loop import Segment, plan
from tests.support.presplit import write_presplit
from tests.support.processes import run_step, start_step
from tests.support.tiny_run import OPTIONS
from tfrs_croloss import CROLoss, LambdaCROLoss
from tfrs_croloss.optimizers import LazyAdam


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def final_weights(run: Path) -> dict[str, np.ndarray]:
    """All numbers of the last checkpoint: weights, moments, iterations."""
    return weights_of(max((run / "checkpoints").iterdir()) / "state")


def weights_of(checkpoint: Path) -> dict[str, np.ndarray]:
    """The numbers in a checkpoint of TensorFlow."""
    reader = tf.train.load_checkpoint(str(checkpoint))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if not name.startswith(("_CHECKPOINTABLE", "save_counter"))
    }


# -------------------------------------------------------------------------------------- run folder


def test_a_run_leaves_everything_behind(tiny_run: Path, tiny_data: Path) -> None:
    config, result = read(tiny_run / "config.json"), read(tiny_run / "result.json")
    rows = read(tiny_run / "history.json")
    assert config["settings"]["rank_kernel"] == "sigmoid"
    assert config["settings"]["kernel"] == "softplus"
    assert config["versions"]["tensorflow"] == tf.__version__
    assert os.path.normpath(tiny_run / config["data"]) == str(tiny_data)
    assert [row["step"] for row in rows[:2]] == [120, 240]
    assert result["stopped"] in ("all steps done", "no new best in 3 validations")
    assert result["steps"] == rows[-1]["step"]
    assert result["best"] == max(rows, key=lambda row: row["recall@20"])
    assert result["best"] == read(tiny_run / "best" / "best.json")
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert all(1 <= row["mean_hard_rank"] <= 321 for row in rows)
    assert rows[-1]["mean_hard_rank"] < rows[0]["mean_hard_rank"]
    with open(tiny_run / "history.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [{name: float(row[name]) for name in row} for row in table] == rows
    assert (tiny_run / "learning_curves.png").read_bytes()[:4] == b"\x89PNG"
    leftovers = [path.name for path in tiny_run.rglob(".tmp-*")]
    assert not leftovers


def test_tensorboard_has_the_history(tiny_run: Path) -> None:
    (events,) = (tiny_run / "tensorboard").iterdir()
    found: dict[tuple[int, str], float] = {}
    for event in tf.compat.v1.train.summary_iterator(str(events)):
        for value in event.summary.value:
            found[event.step, value.tag] = float(tf.make_ndarray(value.tensor))
    for row in read(tiny_run / "history.json"):
        for name in ("loss", "recall@20", "mean_soft_rank", "mean_hard_rank"):
            tag = name.replace("@", "_at_")
            assert found[row["step"], tag] == pytest.approx(row[name], rel=1e-6)
        assert found[row["step"], "zero_gradient_share"] == row["zero_gradient_share"]


def test_a_finished_run_is_left_alone(
    tiny_run: Path, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (tiny_run / "result.json").stat().st_mtime_ns
    run_step("train", "--data", tiny_data, "--out", tiny_run, *OPTIONS)
    printed = capsys.readouterr().out
    assert "is finished already" in printed
    assert f"python -m pipelines evaluate --run {tiny_run}" in printed
    assert (tiny_run / "result.json").stat().st_mtime_ns == before


def test_other_settings_need_overwrite(
    tiny_run: Path, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--data", str(tiny_data), "--out", str(tiny_run), *OPTIONS]
    assert main([*command, "--alpha", "1.4"]) == 2
    error = capsys.readouterr().err
    assert "alpha: 1.0 there, 1.4 now" in error
    assert "--overwrite" in error


def test_overwrite_replaces_when_the_new_run_is_finished(
    tiny_run: Path, tiny_data: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    command = ["train", "--data", tiny_data, "--out", out, *OPTIONS, "--max-steps", 3]
    (out / "report.md").write_text("the old run")
    # A loss that is not finite ends the new run before its first validation.
    failing = [*command, "--similarity", "dot", "--learning-rate", "1e30", "--overwrite"]
    assert main([str(argument) for argument in failing]) == 2
    assert not (out / "result.json").exists()
    assert (tmp_path / ".replaced-run" / "report.md").exists()
    run_step(*command, "--overwrite")
    assert read(out / "result.json")["steps"] == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    assert not (out / "report.md").exists()


def test_a_folder_of_something_else_is_not_touched(
    tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("")
    assert main(["train", "--data", str(tiny_data), "--out", str(tmp_path)]) == 2
    assert "is not a training run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


# ------------------------------------------------------------------------------------ interruption


# Once between two validations, and once at a step that is a validation.
@pytest.mark.slow
@pytest.mark.parametrize("kills", [(27, 60)])
def test_a_killed_run_ends_as_if_nothing_had_happened(
    kills: tuple[int, ...], tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    length = ["--max-steps", 150, "--steps-per-epoch", 60, "--early-stopping-patience", 0]
    options = [*OPTIONS, "--schedule", "cosine", "--weight-average", "0.9", *length]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_step("train", "--data", tiny_data, "--out", whole, *options)
    command = ["train", "--data", tiny_data, "--out", killed, *options, "--checkpoint-steps", 9]
    for reached in kills:
        process = start_step(*command)
        try:
            _wait_for_step(killed, reached, process)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (killed / "result.json").exists()
    capsys.readouterr()
    run_step(*command)
    printed = capsys.readouterr().out
    assert int(re.findall(r"continuing after step (\d+)", printed)[0]) >= kills[-1]

    for name in ("history.csv", "history.json", "best/best.json"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    expected, arrived = final_weights(whole), final_weights(killed)
    assert expected.keys() == arrived.keys()
    assert len(expected) > 8
    for name in expected:
        np.testing.assert_array_equal(arrived[name], expected[name], err_msg=name)
    (events,) = (killed / "tensorboard").iterdir()
    steps = [
        event.step
        for event in tf.compat.v1.train.summary_iterator(str(events))
        for value in event.summary.value
        if value.tag == "loss"
    ]
    assert steps == [60, 120, 150]


def test_a_damaged_checkpoint_is_left_for_the_one_before(
    tiny_run: Path, tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    command = ["train", "--data", str(tiny_data), "--out", str(run), *OPTIONS]
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["step-000000720", "step-000000808"]
    (run / "result.json").unlink()
    expected = (run / "history.json").read_bytes()

    # Of an earlier version, without checksums: TensorFlow itself notices.
    newest = run / "checkpoints/step-000000808"
    (newest / "files.json").unlink()
    weights = newest / "state.data-00000-of-00001"
    weights.write_bytes(weights.read_bytes()[:-100])
    (run / "checkpoints/step-000000999").mkdir()
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "continuing after step 720" in shown.out
    for name in ("step-000000999", "step-000000808"):
        assert re.search(rf"note: .*{name} is damaged .* The one before it is used", shown.err)
    assert (run / "history.json").read_bytes() == expected
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == names

    (run / "result.json").unlink()
    for name in names:
        content = bytearray((run / "checkpoints" / name / "state.index").read_bytes())
        content[len(content) // 2] ^= 4
        (run / "checkpoints" / name / "state.index").write_bytes(content)
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "step-000000808 is damaged (state.index differs from its checksum)" in error
    assert "--overwrite" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "name, content, step",
    [
        ("config.json", b"{}", "evaluate"),
        ("config.json", b'{"settings": 3}', "evaluate"),
        ("best/best.json", b"{}", "evaluate"),
        ("best/weights.index", b"x", "evaluate"),
        ("best/weights.data-00000-of-00001", b"", "embed"),
        ("best/files.json", b"{", "evaluate"),
        ("result.json", b"[]", "train"),
        ("config.json", b"", "train"),
    ],
)
def test_damaged_files_of_a_run_are_one_line(
    tiny_run: Path,
    tiny_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    step: str,
) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    (run / name).write_bytes(content)
    words = {
        "evaluate": ["--run", run, "--data", tiny_data],
        "embed": ["--run", run, "--data", tiny_data, "--out", tmp_path / "vectors"],
        "train": ["--data", tiny_data, "--out", run, *OPTIONS],
    }[step]
    assert main([step, *map(str, words)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert str(run / name) in error or f"{run / 'best'} is damaged" in error
    assert "traceback" not in error


def _wait_for_step(run: Path, step: int, process: Any) -> None:
    started = time.monotonic()
    while time.monotonic() < started + 240:
        names = [path.name for path in (run / "checkpoints").glob("step-*")]
        if any(int(name[5:]) >= step for name in names):
            return
        assert process.poll() is None, "".join(process.communicate())[-4000:]
        time.sleep(0.002)
    raise AssertionError(f"no checkpoint of step {step} in four minutes")


def test_two_processes_do_not_train_in_one_folder(
    tiny_run: Path, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipelines.runs.folder import exclusive

    with exclusive(tiny_run):
        command = ["train", "--data", tiny_data, "--out", tiny_run, *OPTIONS]
        assert main([str(argument) for argument in command]) == 2
    assert "another process is training" in capsys.readouterr().err


def test_the_plan_covers_every_step_once() -> None:
    for done in range(25):
        for total in range(done, 25):
            segments = list(plan(done, total, 5))
            steps = [step for part in segments for step in range(part.first_step, part.last_step)]
            assert steps == list(range(done, total))
            ends = {
                end
                for part in segments
                for end in range(part.first_step + part.interval, part.last_step + 1, part.interval)
            }
            wanted = {step for step in range(done + 1, total + 1) if step % 5 == 0}
            assert ends == wanted | ({total} if total > done else set())
    assert list(plan(3, 3, 5)) == []
    assert list(plan(0, 4, 5)) == [Segment(0, 4, 4)]


# ----------------------------------------------------------------------------------------- variants


def test_early_stopping_counts_validations_without_a_new_best() -> None:
    state = TrainingState()
    improved = [state.add({"recall@5": value}, "recall@5") for value in (0.2, 0.3, 0.3, 0.1, 0.4)]
    assert improved == [True, True, False, False, True]
    assert (state.best_row, state.patience_used) == (4, 0)
    state.add({"recall@5": 0.4}, "recall@5")
    assert (state.best, state.patience_used) == ({"recall@5": 0.4}, 1)


def test_a_run_that_does_not_learn_is_stopped(tiny_data: Path, tmp_path: Path) -> None:
    run_step(
        *("train", "--data", tiny_data, "--out", tmp_path / "run", *OPTIONS),
        *("--learning-rate", 1e-30, "--steps-per-epoch", 2, "--early-stopping-patience", 2),
    )
    result = read(tmp_path / "run" / "result.json")
    assert result["stopped"] == "no new best in 2 validations"
    assert (result["steps"], result["best"]["step"]) == (6, 2)


def test_the_average_of_the_weights_is_validated_and_kept(tiny_data: Path, tmp_path: Path) -> None:
    # The average is up to date at validations that are no multiples of its interval.
    options = [*OPTIONS, "--max-steps", 134, "--steps-per-epoch", 67]
    plain, averaged = tmp_path / "plain", tmp_path / "averaged"
    run_step("train", "--data", tiny_data, "--out", plain, *options)
    run_step("train", "--data", tiny_data, "--out", averaged, *options, "--weight-average", 0.95)
    before, after = read(plain / "history.json"), read(averaged / "history.json")
    assert [row["loss"] for row in after] == [row["loss"] for row in before]
    assert [row["recall@20"] for row in after] != [row["recall@20"] for row in before]

    weights = {run: weights_of(run / "best" / "weights") for run in (plain, averaged)}
    last = weights_of(max((averaged / "checkpoints").iterdir()) / "state")
    table = "candidate_tower/embedding/_table/embeddings/.ATTRIBUTES/VARIABLE_VALUE"
    assert read(averaged / "best" / "best.json")["step"] == 134
    np.testing.assert_array_equal(last[f"weights/{table}"], weights[plain][table])
    assert np.abs(weights[averaged][table] - weights[plain][table]).max() > 1e-3
    found = [value for name, value in last.items() if name.startswith("average/")]
    assert any(np.array_equal(value, weights[averaged][table]) for value in found)


def test_the_last_weights_count_if_validation_is_part_of_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = write_presplit(tmp_path)
    data, run = tmp_path / "data", tmp_path / "run"
    run_step("prepare", "--source", "presplit", "--input", raw, "--out", data, "--train-on-valid")
    run_step(
        *("train", "--data", data, "--out", run, *OPTIONS, "--learning-rate", 1e-30),
        *("--steps-per-epoch", 2, "--max-steps", 6, "--early-stopping-patience", 1),
    )
    result = read(run / "result.json")
    assert (result["stopped"], result["best"]["step"]) == ("all steps done", 6)
    shown = capsys.readouterr().out
    assert "the last weights count, not the best" in shown and "best so far" not in shown
    assert "validation, which is part of train, at step 6" in shown
    command = ["compare", "--data", str(data), "--out", str(tmp_path / "c"), "--losses", "softmax"]
    assert main(command) == 2
    assert "was prepared with --train-on-valid" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "--kernel exponential --encoder gru --optimizer lazy-adam --schedule linear "
        "--mixed-precision --exclude-history --monitor-average pairs",
        "--loss triplet --margin 1 --encoder gru",
        "--loss bpr --in-batch-negatives --mask-known-positives --positions one-per-user",
    ],
)
def test_variants_train(options: str, tiny_data: Path, tmp_path: Path) -> None:
    base = "--dim 8 --batch-size 32 --max-steps 5 --negatives-per-example 3".split()
    run_step("train", "--data", tiny_data, "--out", tmp_path / "run", *base, *options.split())
    (row,) = read(tmp_path / "run" / "history.json")
    assert row["step"] == 5
    assert all(np.isfinite(value) for value in row.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--loss softmax --kernel hinge", "cannot be combined with --kernel"),
        ("--loss softmax --alpha 1", "cannot be combined with --alpha"),
        ("--negatives-per-example 0", "training requires negatives"),
        ("--monitor ndcg@5", "--monitor should be recall@N"),
        ("--learning-rate 0", "--learning-rate should be a finite number above 0"),
        ("--alpha -1", "--alpha should be a finite number of at least 0"),
        ("--min-history 1000", "more than 1000 items"),
    ],
)
def test_what_cannot_be_trained_is_one_line(
    options: str,
    message: str,
    tiny_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["train", "--data", str(tiny_data), "--out", str(tmp_path / "run")]
    assert main([*command, *options.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_settings_make_the_losses_they_name() -> None:
    assert isinstance(build_loss(TrainSettings(), 100), CROLoss)
    ranked = build_loss(TrainSettings(rank_kernel="unit_step", alpha=1.4), 100)
    assert isinstance(ranked, LambdaCROLoss)
    assert (ranked.alpha, ranked.num_items) == (1.4, 100)
    settings = TrainSettings(rank_kernel="sigmoid", margin=2.0)
    mean = {"reduction": "sum_over_batch_size"}
    for name, preset in (
        ("softmax", CROLoss.softmax_cross_entropy(100, **mean)),
        ("triplet", CROLoss.triplet(100, margin=2.0, **mean)),
        ("bpr", CROLoss.bpr(100, **mean)),
    ):
        config = build_loss(settings.with_loss(name), 100).get_config()
        assert {**config, "name": preset.name} == preset.get_config()
        assert f"= {name}" in settings.with_loss(name).loss_title


def test_settings_come_back_from_json() -> None:
    settings = TrainSettings(rank_kernel="hinge", cutoffs=(3, 7), max_steps=9, seed=2**40)
    assert TrainSettings.from_dict(json.loads(json.dumps(settings.as_dict()))) == settings
    with pytest.raises(UserError, match=r"does not know: \['colour'\]"):
        TrainSettings.from_dict({**settings.as_dict(), "colour": "red"})
    older = settings.as_dict()
    del older["schedule"]
    assert TrainSettings.from_dict(older).schedule == TrainSettings().schedule


@pytest.mark.parametrize(
    ("schedule", "middle"),
    [("constant", 0.5), ("cosine", 0.5 * 0.505), ("linear", 0.5 * 0.505), ("exponential", 0.05)],
)
def test_schedules_of_the_learning_rate(schedule: str, middle: float) -> None:
    settings = TrainSettings(learning_rate=0.5, schedule=schedule)
    optimizer = build_optimizer(settings, 10, total_steps=100)
    variable = tf.Variable(0.0)
    optimizer.build([variable])
    for step, expected in ((0, 0.5), (50, middle), (100, 0.5 if schedule == "constant" else 0.005)):
        optimizer.iterations.assign(step)
        optimizer.apply_gradients([(tf.constant(1.0), variable)])
        rate = float(tf.convert_to_tensor(optimizer.learning_rate))
        assert rate == pytest.approx(expected, rel=1e-5)


def test_large_tables_get_the_lazy_optimizer() -> None:
    def kind(num_items: int, name: str = "auto") -> bool:
        return isinstance(build_optimizer(TrainSettings(optimizer=name), num_items, 1), LazyAdam)

    assert not kind(LAZY_FROM_ROWS - 1)
    assert kind(LAZY_FROM_ROWS)
    assert kind(10, "lazy-adam")
    assert not kind(10**7, "adam")
