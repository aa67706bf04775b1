"""The registry of losses: what each entry builds, and where its options turn up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.__main__ import build_parser
from pipelines.errors import UserError
from pipelines.experiments.protocols import PROTOCOLS
from pipelines.runs.build import build_loss
from pipelines.runs.losses import GROUPS, LOSSES, contestants, loss_options
from pipelines.runs.settings import TrainSettings
from pipelines.runs.spaces import Choice
from tests.support.processes import run_step
from tfrs_croloss import (
    BilateralSoftmax,
    BinaryCrossEntropy,
    CROLoss,
    LambdaCROLoss,
    LowerLeftPartialAUC,
    PairwiseSoftmaxLoss,
    RetrievalSizeWeighting,
    SoftmaxAtK,
    Talos,
)
from tfrs_croloss.losses import Pull, RetrievalLoss, kernels

MEAN = {"reduction": "sum_over_batch_size"}  # what the learning rates of the pipelines are for
FAMILY = {**MEAN, "count_copies": True}  # every copy of a negative is a draw of its own
EXAMPLES: list[tuple[dict[str, Any], Any, str]] = [
    (
        {"loss": "cro", "alpha": 1.2},
        CROLoss(1.2, "softplus", 99, **FAMILY),
        "CROLoss (softplus, alpha 1.2)",
    ),
    (
        {"loss": "cro", "retrieval_size": 20},
        CROLoss(num_items=99, retrieval_size=20, **FAMILY),
        "CROLoss (softplus, for 20 retrieved)",
    ),
    (
        {"loss": "lambda", "retrieval_size": 20, "kernel": "exponential"},
        LambdaCROLoss(kernel="exponential", num_items=99, retrieval_size=20, **FAMILY),
        "LambdaCROLoss (sigmoid ranks, exponential gaps, for 20 retrieved)",
    ),
    (
        {"loss": "lambda", "easing": 0.03, "pull": 0.95, "descent": "log_rank"},
        LambdaCROLoss(num_items=99, pull=Pull(0.95, 0.03), descent="log_rank", **FAMILY),
        "LambdaCROLoss (sigmoid ranks, softplus gaps, alpha 1, pull 0.95, easing 0.03, log form)",
    ),
    (
        {"loss": "softmax"},
        CROLoss(1.0, "exponential", 99, **FAMILY),
        "CROLoss (exponential, alpha 1) = softmax",
    ),
    ({"loss": "bce"}, BinaryCrossEntropy(0.0, 99, name="bce", **MEAN), "binary cross-entropy"),
    (
        {"loss": "gbce", "calibration": 0.5},
        BinaryCrossEntropy(0.5, 99, name="gbce", **MEAN),
        "gBCE (calibration 0.5)",
    ),
    (
        {"loss": "psl", "activation": "atan", "temperature": 0.4},
        PairwiseSoftmaxLoss("atan", 0.2, 99, **MEAN),
        "PSL (atan)",
    ),
    (
        {"loss": "bsl", "negative_exponent": 1.25},
        BilateralSoftmax(1.25, 99, **MEAN),
        "BSL (exponent 1.25)",
    ),
    (
        {"loss": "sl_at_k", "retrieval_size": 20, "weight_temperature": 2.0, "temperature": 0.5},
        SoftmaxAtK(20, 4.0, 99, **MEAN),
        "SL@20 (weights of 2)",
    ),
    (
        {"loss": "sl_at_k", "retrieval_size": 20, "differentiate_weight": False},
        SoftmaxAtK(20, 10.0, 99, differentiate_weight=False, **MEAN),
        "SL@20 (weights of 1, without their gradient)",
    ),
    (
        {"loss": "talos", "retrieval_size": 20, "temperature": 0.5},
        Talos(20, 0.5, 99, **MEAN),
        "Talos@20",
    ),
    (
        {"loss": "llpauc", "negative_share": 0.25},
        LowerLeftPartialAUC(1.0, 0.25, 99, **MEAN),
        "LLPAUC (the highest 0.25 of the negatives)",
    ),
]


@pytest.mark.parametrize(("fields", "expected", "title"), EXAMPLES)
def test_every_name_makes_its_loss(fields: dict[str, Any], expected: Any, title: str) -> None:
    settings = TrainSettings(**fields)
    loss = build_loss(settings, 99)
    assert type(loss) is type(expected)
    assert loss.get_config() == expected.get_config()
    assert settings.loss_title == title
    assert TrainSettings.from_dict(json.loads(json.dumps(settings.as_dict()))) == settings


SIZE: dict[str, dict[str, Any]] = {
    name: {"retrieval_size": 5} if "retrieval_size" in loss.required else {}
    for name, loss in LOSSES.items()
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_entry_builds_and_has_a_title(name: str) -> None:
    settings = TrainSettings(loss=name, **SIZE[name])
    assert isinstance(build_loss(settings, 99), RetrievalLoss)
    assert build_loss(settings, 99).num_items == 99
    assert build_loss(settings, 99).reduction == MEAN["reduction"]
    assert settings.loss_title
    assert LOSSES[name].group in GROUPS


def test_every_option_is_in_the_help_of_train(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser("train").parse_args(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name, loss in LOSSES.items():
        assert f"{name}: {loss.summary}" in text
        for option in loss.options:
            assert f"--{option.replace('_', '-')} " in text
    for name, option in loss_options().items():
        takers = [loss for loss, entry in LOSSES.items() if name in entry.options]
        assert f"[{', '.join(takers)}] ({option.default_text})" in text


@pytest.mark.parametrize("name", contestants())
def test_every_value_of_a_search_space_builds(name: str) -> None:
    it = contestants()[name]
    loss = LOSSES[it.loss]
    assert set(it.space) <= set(loss.options) and set(it.options) <= set(loss.options)
    size = {"retrieval_size": 20} if it.sized else {}
    for own, space in it.space.items():
        values = space.choices if isinstance(space, Choice) else (space.low, space.high)
        for value in values:
            fields = {"loss": it.loss, **it.options, **size, own: value}
            build_loss(TrainSettings(**fields), 99)


def test_names_are_those_of_the_library() -> None:
    options = loss_options()
    choices = {name: options[name].kind.choices for name in ("kernel", "rank_kernel", "activation")}
    assert set(choices["rank_kernel"]) == set(kernels.NAMED) - {"pairwise_softmax"}
    assert set(choices["kernel"]) == set(choices["rank_kernel"]) - {"unit_step"}
    assert choices["activation"] == kernels.PairwiseSoftmax.ACTIVATIONS
    for name, names in choices.items():
        for value in names:
            loss = "psl" if name == "activation" else "lambda"
            build_loss(TrainSettings(loss=loss, **{name: value}), 99)


def test_the_registry_and_the_settings_load_no_tensorflow(run_python: Any) -> None:
    program = (
        "import sys; from pipelines.runs.settings import TrainSettings\n"
        "TrainSettings(loss='softmax', dim=8); TrainSettings(loss='lambda').loss_title\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'tensorflow'])"
    )
    assert run_python(program).strip() == "[]"


@pytest.mark.slow
def test_a_loss_of_ones_own_needs_one_entry(run_python: Any, tiny_data: Path) -> None:
    """The entry alone puts it on the command line, into reports, ``compare`` and ``tune``."""
    program = """
import argparse
from pipelines.runs.losses import LOSSES, Loss
from pipelines.common.options import Option, Real
from pipelines.runs.spaces import Range

def build(settings, num_items):
    from tfrs_croloss.losses import BilateralSoftmax
    return BilateralSoftmax(settings.sharpness, num_items, name="own")

LOSSES["own"] = Loss(
    "a loss of one's own",
    build,
    lambda settings: f"own ({settings.sharpness:g})",
    {"sharpness": Option(Real(above=0.0), 1.2, "sharpness of the loss")},
    space={"sharpness": Range(0.5, 2.0)},
)

from pipelines.__main__ import build_parser
from pipelines.experiments import compare, tune
from pipelines.runs.build import build_loss
from pipelines.runs.command_line import settings_of

words = ["train", "--data", "d", "--out", "o", "--loss", "own", "--sharpness", "1.5"]
settings = settings_of(build_parser("train").parse_args(words))
print(settings.loss_title, build_loss(settings, 9).negative_exponent)
chosen = compare.chosen_contestants(["own"])
base = compare.comparison_settings(20, "history")
variant = compare.trial("own", chosen["own"], 1, base, Range(0.1, 0.2))
print(variant.settings(base, 3).sharpness)
print(tune.chosen_losses(["own"]))
"""
    printed = run_python(program).splitlines()
    assert printed == ["own (1.5) 1.5", "1.0", "('own',)"]


def test_the_family_is_told_the_retrieval_size() -> None:
    loss = build_loss(TrainSettings(loss="lambda", retrieval_size=7), 99)
    assert isinstance(loss.weighting, RetrievalSizeWeighting)
    assert loss.weighting.retrieval_size == 7


@pytest.mark.parametrize("before", LOSSES)
@pytest.mark.parametrize("after", LOSSES)
def test_any_loss_can_be_exchanged_for_any_other(before: str, after: str) -> None:
    settings = TrainSettings(loss=before, dim=7, **SIZE[before]).with_loss(after, **SIZE[after])
    assert settings.dim == 7
    fresh = TrainSettings(loss=after, dim=7, retrieval_size=settings.retrieval_size)
    assert settings == fresh
    assert build_loss(settings, 99).get_config() == build_loss(fresh, 99).get_config()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss": "focal"}, "--loss should be one of cro, lambda"),
        ({"loss": "gbce", "kernel": "hinge"}, "cannot be combined with --kernel"),
        ({"loss": "softmax", "alpha": 1.2}, "cannot be combined with --alpha"),
        ({"loss": "psl", "rank_kernel": "sigmoid"}, "cannot be combined with --rank-kernel"),
        ({"loss": "sl_at_k"}, "requires --retrieval-size"),
        ({"loss": "talos"}, "requires --retrieval-size"),
        ({"loss": "llpauc", "negative_share": 1.5}, "above 0 and at most 1"),
        ({"loss": "llpauc", "negative_share": 0.0}, "above 0 and at most 1"),
        ({"loss": "gbce", "retrieval_size": 5}, "cannot be combined with --retrieval-size"),
        ({"retrieval_size": 5, "alpha": 1.2}, "--retrieval-size cannot be combined with --alpha"),
        ({"retrieval_size": 0}, "--retrieval-size should be a whole number of at least 1"),
        ({"loss": "gbce", "calibration": 1.5}, "--calibration should be a number from 0 to 1"),
        (
            {"loss": "gbce", "calibration": float("nan")},
            "--calibration should be a number from 0 to 1",
        ),
        ({"loss": "bsl", "negative_exponent": 0.0}, "--negative-exponent should be"),
        ({"loss": "sl_at_k", "retrieval_size": 5, "weight_temperature": -1.0}, "above 0"),
        ({"loss": "psl", "activation": "gelu"}, "--activation should be one of tanh"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TrainSettings(**fields)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param("--loss lambda --retrieval-size 20", marks=pytest.mark.slow),
        pytest.param("--loss gbce --calibration 0.9", marks=pytest.mark.slow),
        pytest.param("--loss psl --activation relu --mixed-precision", marks=pytest.mark.slow),
        pytest.param("--loss bsl --in-batch-negatives", marks=pytest.mark.slow),
        pytest.param(
            "--loss sl_at_k --retrieval-size 20 --in-batch-negatives --mask-known-positives",
            marks=pytest.mark.slow,
        ),
        "--loss talos --retrieval-size 20 --whole-catalogue --mixed-precision",
        pytest.param("--loss llpauc --in-batch-negatives", marks=pytest.mark.slow),
    ],
)
def test_they_train(options: str, tiny_data: Path, tmp_path: Path) -> None:
    """Other losses train in quick tests of the settings, of experiments and of `train` itself."""
    base = "--dim 8 --batch-size 32 --max-steps 5 --negatives-per-example 3".split()
    run_step("train", "--data", tiny_data, "--out", tmp_path / "run", *base, *options.split())
    (row,) = json.loads((tmp_path / "run" / "history.json").read_text())
    assert row["step"] == 5
    assert all(np.isfinite(value) for value in row.values())


def test_the_first_trial_has_values_of_the_search_spaces() -> None:
    """Optuna would draw any other value anew, without a word."""
    found = [one for one in contestants().values() if one.first]
    assert {one.loss for one in found} >= {"lambda", "sl_at_k"}
    shared = {"temperature": PROTOCOLS["leaderboard"].temperatures}
    for contestant in found:
        for name, value in contestant.first.items():
            space = {**contestant.space, **shared}[name]
            assert not isinstance(space, Choice) and space.low <= value <= space.high
