"""The settings of the losses: which loss each makes, and which options go together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.errors import UserError
from pipelines.runs.build import build_loss
from pipelines.runs.losses import LOSS_NAMES
from pipelines.runs.settings import TrainSettings
from tests.support.processes import run_step
from tfrs_croloss import (
    BilateralSoftmax,
    BinaryCrossEntropy,
    CROLoss,
    LambdaCROLoss,
    PairwiseSoftmaxLoss,
    RetrievalSizeWeighting,
    SoftmaxAtK,
)

EXAMPLES: list[tuple[dict[str, Any], Any, str]] = [
    ({"loss": "cro", "alpha": 1.2}, CROLoss(1.2, "softplus", 99), "CROLoss (softplus, alpha 1.2)"),
    (
        {"loss": "cro", "retrieval_size": 20},
        CROLoss(num_items=99, retrieval_size=20),
        "CROLoss (softplus, for 20 retrieved)",
    ),
    (
        {"loss": "lambda", "retrieval_size": 20, "kernel": "exponential"},
        LambdaCROLoss(kernel="exponential", num_items=99, retrieval_size=20),
        "LambdaCROLoss (sigmoid ranks, exponential gaps, for 20 retrieved)",
    ),
    (
        {"loss": "softmax"},
        CROLoss(1.0, "exponential", 99),
        "CROLoss (exponential, alpha 1) = softmax",
    ),
    ({"loss": "bce"}, BinaryCrossEntropy(0.0, 99, name="bce"), "binary cross-entropy"),
    (
        {"loss": "gbce", "calibration": 0.5},
        BinaryCrossEntropy(0.5, 99, name="gbce"),
        "gBCE (calibration 0.5)",
    ),
    (
        {"loss": "psl", "activation": "atan", "temperature": 0.4},
        PairwiseSoftmaxLoss("atan", 0.2, 99),
        "PSL (atan)",
    ),
    (
        {"loss": "bsl", "negative_exponent": 1.25},
        BilateralSoftmax(1.25, 99),
        "BSL (exponent 1.25)",
    ),
    (
        {"loss": "sl_at_k", "retrieval_size": 20, "weight_temperature": 2.0, "temperature": 0.5},
        SoftmaxAtK(20, 4.0, 99),
        "SL@20 (weights of 2)",
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


def test_the_family_is_told_the_retrieval_size() -> None:
    loss = build_loss(TrainSettings(loss="lambda", retrieval_size=7), 99)
    assert isinstance(loss.weighting, RetrievalSizeWeighting)
    assert loss.weighting.retrieval_size == 7


@pytest.mark.parametrize("before", LOSS_NAMES)
@pytest.mark.parametrize("after", LOSS_NAMES)
def test_any_loss_can_be_exchanged_for_any_other(before: str, after: str) -> None:
    size = {name: {"retrieval_size": 5} if name == "sl_at_k" else {} for name in LOSS_NAMES}
    settings = TrainSettings(loss=before, dim=7, **size[before]).with_loss(after, **size[after])
    assert settings.dim == 7
    fresh = TrainSettings(loss=after, dim=7, retrieval_size=settings.retrieval_size)
    assert settings == fresh
    assert build_loss(settings, 99).get_config() == build_loss(fresh, 99).get_config()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss": "focal"}, "--loss should be one of cro, lambda"),
        ({"loss": "gbce", "kernel": "hinge"}, "should come without --kernel"),
        ({"loss": "softmax", "alpha": 1.2}, "should come without --alpha"),
        ({"loss": "psl", "rank_kernel": "sigmoid"}, "should come without --rank-kernel"),
        ({"loss": "sl_at_k"}, "should have a --retrieval-size"),
        ({"loss": "gbce", "retrieval_size": 5}, "--retrieval-size goes with"),
        ({"retrieval_size": 5, "alpha": 1.2}, "in place of --alpha"),
        ({"retrieval_size": 0}, "--retrieval-size should be at least 1"),
        ({"loss": "gbce", "calibration": 1.5}, "--calibration should be from 0 to 1"),
        ({"loss": "gbce", "calibration": float("nan")}, "--calibration should be from 0 to 1"),
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
        "--loss lambda --retrieval-size 20",
        "--loss gbce --calibration 0.9",
        "--loss psl --activation relu --mixed-precision",
        "--loss bsl --in-batch-negatives",
        "--loss sl_at_k --retrieval-size 20 --in-batch-negatives --mask-known-positives",
    ],
)
def test_they_train(options: str, tiny_data: Path, tmp_path: Path) -> None:
    base = "--dim 8 --batch-size 32 --max-steps 5 --negatives-per-example 3".split()
    run_step("train", "--data", tiny_data, "--out", tmp_path / "run", *base, *options.split())
    (row,) = json.loads((tmp_path / "run" / "history.json").read_text())
    assert row["step"] == 5
    assert all(np.isfinite(value) for value in row.values())
