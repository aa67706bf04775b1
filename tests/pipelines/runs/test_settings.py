"""Settings: the same fields on the command line, in JSON and in files for ``--config``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.__main__ import build_parser, main
from pipelines.common.files import read_json
from pipelines.common.options import dashed, options_of
from pipelines.errors import UserError
from pipelines.experiments.cells import SHARED_SETTINGS
from pipelines.runs.command_line import settings_of, shared_settings, train_command
from pipelines.runs.folder import Run
from pipelines.runs.settings import TrainSettings
from tests.support.processes import run_step

# The keys of config.json: existing runs have them, those of earlier versions without NEW_KEYS.
NEW_KEYS = """
pull easing descent differentiate_weight negative_share stddev item_bias weight_decay
weight_average
blocks heads dropout
item_features user_features context_features feature_dim item_id_dropout hidden
item_feature_dim
""".split()
KEYS = """
loss kernel rank_kernel alpha retrieval_size margin rank_estimate calibration activation
negative_exponent weight_temperature dim tower encoder similarity
temperature history_length min_history positions batch_size negatives_per_example
whole_catalogue in_batch_negatives memory_size mask_known_positives optimizer learning_rate
schedule epochs max_steps steps_per_epoch
early_stopping_patience monitor monitor_average max_validation_users cutoffs exclude_history
mixed_precision seed
""".split()


def parsed(*words: object) -> TrainSettings:
    arguments = ["train", "--data", "d", "--out", "o", *map(str, words)]
    return settings_of(build_parser("train").parse_args(arguments))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_file(text: str, name: str = "run.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write_file


def test_keys_of_existing_runs() -> None:
    assert set(TrainSettings().as_dict()) == {*KEYS, *NEW_KEYS}


def test_every_field_is_an_option_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed() == TrainSettings()
    with pytest.raises(SystemExit):
        build_parser("train").parse_args(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name, option in options_of(TrainSettings).items():
        assert f" {dashed(name)}" in text
        assert f"{option.help} ({option.default_text})" in text


def test_a_run_of_an_earlier_version_loads() -> None:
    """Written before the registry: integers for floats, options of other losses."""
    record = {
        "loss": "softmax", "kernel": "exponential", "rank_kernel": None, "alpha": 1.0,
        "retrieval_size": None, "margin": 5, "rank_estimate": "paper", "calibration": 0.5,
        "activation": "atan", "negative_exponent": 1.1, "weight_temperature": 1.0, "dim": 16,
        "tower": "history", "encoder": "gru", "similarity": "dot", "temperature": 1,
        "history_length": 20, "min_history": 4, "positions": "one-per-user", "batch_size": 64,
        "negatives_per_example": 5, "whole_catalogue": False, "in_batch_negatives": True,
        "memory_size": 0, "mask_known_positives": True, "optimizer": "lazy-adam",
        "learning_rate": 0.02, "schedule": "cosine", "epochs": 4, "max_steps": 700,
        "steps_per_epoch": 120, "early_stopping_patience": 0, "monitor": "recall@20",
        "monitor_average": "pairs", "max_validation_users": None, "cutoffs": [20, 50],
        "exclude_history": True, "mixed_precision": False, "seed": 3,
    }  # fmt: skip
    settings = TrainSettings.from_dict(record)
    defaults = TrainSettings().as_dict()
    assert settings.as_dict() == {**{name: defaults[name] for name in NEW_KEYS}, **record}
    assert (settings.temperature, settings.cutoffs) == (1.0, (20, 50))
    assert settings.loss_title == "CROLoss (exponential, alpha 1) = softmax"
    # SL@K had no gradient of its weight then.
    older = {"loss": "sl_at_k", "retrieval_size": 20}
    assert not TrainSettings.from_dict(older).differentiate_weight
    assert TrainSettings.from_dict({**older, "differentiate_weight": True}).differentiate_weight


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dim": 0}, "--dim should be a whole number of at least 1. Received: 0."),
        ({"dim": 8.0}, "--dim should be a whole number of at least 1. Received: 8.0."),
        ({"dim": True}, "--dim should be a whole number of at least 1. Received: True."),
        ({"temperature": 0.0}, "--temperature should be a finite number above 0. Received: 0.0."),
        ({"learning_rate": float("inf")}, "--learning-rate should be a finite number above 0"),
        ({"alpha": -1.0}, "--alpha should be a finite number of at least 0. Received: -1.0."),
        ({"seed": 2**63}, "--seed should be a whole number from 0 to 9223372036854775807"),
        ({"monitor": "recall@0"}, "--monitor should be recall@N, such as recall@50"),
        ({"cutoffs": (5, 0)}, "--cutoffs should be whole numbers of at least 1"),
        ({"cutoffs": ()}, "--cutoffs should be whole numbers of at least 1"),
        ({"encoder": "rnn"}, "--encoder should be one of mean, gru, transformer. Received: 'rnn'."),
        ({"blocks": 3}, "--blocks requires --tower history --encoder transformer"),
        ({"encoder": "gru", "dropout": 0.0}, "--dropout requires --tower history"),
        (
            {"encoder": "transformer", "tower": "matrix-factorization", "heads": 2},
            "Received: 2 with --tower matrix-factorization",
        ),
        ({"encoder": "transformer", "heads": 3}, "--heads should divide --dim. Received: 3 and 32"),
        (
            {"tower": "matrix-factorization", "positions": "sequences"},
            "--positions sequences requires --tower history",
        ),
        (
            {"positions": "sequences", "min_history": 0},
            "--positions sequences requires --min-history of at least 1",
        ),
        ({"whole_catalogue": "yes"}, "--whole-catalogue should be true or false. Received: 'yes'."),
        ({"epochs": None}, "--epochs should be a whole number of at least 1. Received: None."),
        ({"negatives_per_example": 0}, "training requires negatives"),
        (
            {"whole_catalogue": True, "memory_size": 5},
            "cannot be combined with --in-batch-negatives",
        ),
    ],
)
def test_wrong_values(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        TrainSettings(**fields)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--dim two", "argument --dim: should be a whole number of at least 1. Received: 'two'"),
        ("--alpha much", "argument --alpha: should be a finite number of at least 0"),
        ("--encoder rnn", "argument --encoder: invalid choice: 'rnn'"),
    ],
)
def test_wrong_words(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parsed(*words.split())
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        # As the loss has it, and yet of no use.
        ("--loss softmax --kernel exponential", "--loss softmax cannot be combined with --kernel"),
        ("--loss bpr --alpha 1", "which is an option of --loss cro, lambda. Received: 1.0"),
        ("--calibration 0.5", "--loss cro cannot be combined with --calibration"),
        ("--loss psl --retrieval-size 5", "is an option of --loss cro, lambda, sl_at_k, talos"),
    ],
)
def test_options_of_other_losses_are_refused(words: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parsed(*words.split())
    assert message in str(caught.value)


def test_a_transformer_is_trained_on_sequences_unless_told_otherwise() -> None:
    assert parsed().positions == "all"
    assert parsed("--encoder", "gru").positions == "all"
    settings = parsed("--encoder", "transformer")
    assert settings.positions == "sequences"
    assert "--positions" not in train_command(settings, "d", "o")
    settings = parsed("--encoder", "transformer", "--positions", "all")
    assert settings.positions == "all"
    assert "--positions all" in train_command(settings, "d", "o")
    assert parsed("--tower", "matrix-factorization").positions == "all"


# Files.


def test_yaml(write: Callable[..., Path]) -> None:
    path = write(
        "# A comment.\n"
        "loss: lambda\nrank_kernel: hinge\nmargin: 2\nlearning_rate: 1e-3\n"
        "cutoffs: [50, 20]\nin_batch_negatives: yes\nmax_validation_users: null\n"
    )
    expected = TrainSettings(
        loss="lambda",
        rank_kernel="hinge",
        margin=2.0,
        learning_rate=0.001,
        cutoffs=(20, 50),
        in_batch_negatives=True,
        max_validation_users=None,
    )
    assert parsed("--config", path) == expected
    assert isinstance(parsed("--config", path).margin, float)


def test_json(write: Callable[..., Path]) -> None:
    path = write(json.dumps({"dim": 8, "loss": "gbce", "calibration": 0.5}), "run.json")
    assert parsed("--config", path) == TrainSettings(dim=8, loss="gbce", calibration=0.5)


def test_options_override_the_file(write: Callable[..., Path]) -> None:
    path = write("dim: 8\nin_batch_negatives: true\nmax_steps: 100\nretrieval_size: 20\n")
    settings = parsed("--config", path, "--dim", 16, "--no-in-batch-negatives")
    assert (settings.dim, settings.in_batch_negatives) == (16, False)
    assert (settings.max_steps, settings.retrieval_size) == (100, 20)
    # One that stands in for another gives way to it.
    settings = parsed("--config", path, "--epochs", 3, "--alpha", 1.2)
    assert (settings.epochs, settings.max_steps) == (3, None)
    assert (settings.alpha, settings.retrieval_size) == (1.2, None)
    path = write("alpha: 1.2\nepochs: 3\n")
    settings = parsed("--config", path, "--retrieval-size", 20, "--max-steps", 9)
    assert (settings.alpha, settings.retrieval_size) == (1.0, 20)
    assert (settings.epochs, settings.max_steps) == (TrainSettings().epochs, 9)


def test_another_loss_drops_the_options_of_the_files(write: Callable[..., Path]) -> None:
    path = write("loss: lambda\nalpha: 1.2\nrank_kernel: hinge\ndim: 8\n")
    assert parsed("--config", path, "--loss", "softmax") == TrainSettings(loss="softmax", dim=8)
    assert parsed("--config", path, "--loss", "cro") == TrainSettings(dim=8)
    assert parsed("--config", path, "--loss", "lambda").alpha == 1.2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batchsize: 5", "`batchsize` is not a setting of this step. Did you mean `batch_size`?"),
        ("batch-size: 5", "Did you mean `batch_size`?"),
        ("zzz: 5", "Known keys: loss, kernel, "),
        ("dim: eight", "`dim` should be a whole number of at least 1. Received: 'eight'."),
        ("dim: 1.5", "`dim` should be a whole number of at least 1. Received: 1.5."),
        ("dim: null", "`dim` should be a whole number of at least 1. Received: None."),
        ("temperature: -0.1", "`temperature` should be a finite number above 0. Received: -0.1."),
        ("exclude_history: 1", "`exclude_history` should be true or false. Received: 1."),
        ("kernel: relu", "`kernel` should be one of "),
        ("loss: focal", "`loss` should be one of cro, lambda, "),
        ("cutoffs: 50", "`cutoffs` should be whole numbers of at least 1. Received: 50."),
        ("loss: softmax\nalpha: 2", "--loss softmax cannot be combined with `alpha` in "),
        ("calibration: 0.5", "which is an option of --loss gbce"),
        ("negatives_per_example: 0", "training requires negatives"),
        ("- dim", "should map settings to values"),
        ("", "should map settings to values"),
        ("dim: [", "should be YAML"),
    ],
)
def test_errors_name_the_file(text: str, message: str, write: Callable[..., Path]) -> None:
    path = write(text)
    with pytest.raises(UserError) as caught:
        parsed("--config", path)
    assert message in str(caught.value) and str(path) in str(caught.value)


def test_files_that_cannot_be_read(write: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no such file"):
        parsed("--config", tmp_path / "none.yaml")
    with pytest.raises(UserError, match="should be JSON, but: Expecting"):
        parsed("--config", write("{", "run.json"))
    (tmp_path / "raw.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UserError, match="UTF-8"):
        parsed("--config", tmp_path / "raw.yaml")


def test_train_records_what_it_used(
    tiny_data: Path, tmp_path: Path, write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    small = "dim: 8\nbatch_size: 32\nnegatives_per_example: 2\nmax_steps: 3\ncutoffs: [20]\n"
    path = write(f"{small}loss: gbce\ncalibration: 0.5\nmonitor: recall@20\n")
    run_step("train", "--data", tiny_data, "--out", tmp_path / "a", "--config", path, "--seed", 4)
    settings = Run.load(tmp_path / "a").settings
    assert (settings.loss, settings.calibration, settings.seed) == ("gbce", 0.5, 4)
    assert read_json(tmp_path / "a/history.json")[-1]["step"] == 3
    # The run's own record is a file of settings, too.
    record = tmp_path / "a/config.json"
    assert parsed("--config", record) == settings
    assert parsed("--config", record, "--loss", "softmax").loss == "softmax"
    capsys.readouterr()
    words = ["train", "--data", str(tiny_data), "--out", str(tmp_path / "b")]
    assert main([*words, "--config", str(write("dimm: 8"))]) == 2
    assert "Did you mean `dim`?" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("step", ["reproduce", "compare", "tune"])
def test_experiments_take_the_settings_that_they_share(
    step: str, write: Callable[..., Path]
) -> None:
    def shared(*words: object) -> dict[str, Any]:
        size = ["--retrieval-size", "20"] if step == "tune" else []
        arguments = [step, "--data", "d", *size, *map(str, words)]
        return shared_settings(build_parser(step).parse_args(arguments), SHARED_SETTINGS)

    assert shared() == {}
    path = write("dim: 8\nwhole_catalogue: true\n")
    given = {"dim": 9, "whole_catalogue": True, "schedule": "linear"}
    assert shared("--config", path, "--dim", 9, "--schedule", "linear") == given
    with pytest.raises(UserError, match="`loss` is not a setting of this step"):
        shared("--config", write("loss: cro"))
    record = write(json.dumps({"settings": TrainSettings(dim=9).as_dict()}), "config.json")
    assert shared("--config", record)["dim"] == 9
    assert set(shared("--config", record)) == set(SHARED_SETTINGS)
