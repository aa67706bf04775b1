"""Which loss a run trains with: the settings of all of them, as options and in words."""

from __future__ import annotations

import argparse
import dataclasses
import math
from typing import Any, TypeVar

from .. import cli
from ..errors import UserError

KERNELS = ("hinge", "sigmoid", "exponential", "softplus")
RANK_KERNELS = (*KERNELS, "unit_step")
ACTIVATIONS = ("tanh", "atan", "relu")

LOSSES: dict[str, dict[str, Any]] = {
    "softmax": {"kernel": "exponential", "alpha": 1.0},
    "triplet": {"kernel": "hinge", "alpha": 0.0},
    "bpr": {"kernel": "softplus", "alpha": 0.0},
}
"""The well-known losses, as the special cases of CROLoss that they are."""

FAMILY = ("cro", "lambda")
RIVALS = ("bce", "gbce", "psl", "bsl", "sl_at_k")
LOSS_NAMES = (*FAMILY, *LOSSES, *RIVALS)
"""Every loss that ``--loss`` takes."""

SIZED = (*FAMILY, "sl_at_k")
"""The losses that can be told how many items will be retrieved."""

Settings = TypeVar("Settings", bound="LossSettings")


@dataclasses.dataclass(frozen=True)
class LossSettings:
    """What concerns the loss.

    Attributes:
      loss: one of ``LOSS_NAMES``. ``"cro"`` with a ``rank_kernel`` is ``"lambda"``.
      kernel, rank_kernel, alpha, margin, rank_estimate: of the CROLoss family. ``"softmax"``,
        ``"triplet"`` and ``"bpr"`` set kernel and alpha themselves.
      retrieval_size: in place of ``alpha``; the K of SL@K.
      calibration: the t of gBCE.
      activation: of PSL.
      negative_exponent: of BSL.
      weight_temperature: of SL@K, in the unit of the similarity.
    """

    loss: str = "cro"
    kernel: str = "softplus"
    rank_kernel: str | None = None
    alpha: float = 1.0
    retrieval_size: int | None = None
    margin: float = 5.0
    rank_estimate: str = "paper"
    calibration: float = 0.75
    activation: str = "tanh"
    negative_exponent: float = 1.1
    weight_temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.loss not in LOSS_NAMES:
            raise UserError(
                f"--loss should be one of {', '.join(LOSS_NAMES)}. Received: {self.loss!r}."
            )
        self._check_numbers()
        if self.loss in FAMILY:
            if self.retrieval_size is not None and self.alpha != 1.0:
                raise UserError(
                    "--retrieval-size weighs the ranks in place of --alpha. Received: both. Leave "
                    "out one of them."
                )
            if self.loss == "lambda" and self.rank_kernel is None:
                object.__setattr__(self, "rank_kernel", "sigmoid")
            return
        preset = {**_OF_THE_FAMILY, **LOSSES.get(self.loss, {})}
        for name, value in preset.items():
            if getattr(self, name) not in (value, _OF_THE_FAMILY[name]):
                raise UserError(
                    f"--loss {self.loss} should come without --{name.replace('_', '-')}, which is "
                    f"an option of CROLoss. Received: {getattr(self, name)!r}. Leave out one or "
                    "the other."
                )
            object.__setattr__(self, name, value)
        if self.loss == "sl_at_k" and self.retrieval_size is None:
            raise UserError("--loss sl_at_k should have a --retrieval-size, its K. Received: none.")
        if self.loss not in SIZED and self.retrieval_size is not None:
            raise UserError(
                f"--retrieval-size goes with --loss {', '.join(SIZED)}. Received: --loss "
                f"{self.loss}. Leave out one or the other."
            )

    def _check_numbers(self) -> None:
        for name in ("negative_exponent", "weight_temperature"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise UserError(
                    f"--{name.replace('_', '-')} should be a finite number above 0. Received: "
                    f"{getattr(self, name)}."
                )
        if not 0.0 <= self.calibration <= 1.0:
            raise UserError(f"--calibration should be from 0 to 1. Received: {self.calibration}.")
        if self.retrieval_size is not None and self.retrieval_size < 1:
            raise UserError(
                f"--retrieval-size should be at least 1. Received: {self.retrieval_size}."
            )
        if self.activation not in ACTIVATIONS:
            raise UserError(
                f"--activation should be one of {', '.join(ACTIVATIONS)}. Received: "
                f"{self.activation!r}."
            )

    @property
    def loss_title(self) -> str:
        """The loss in words, for people."""
        titles = {
            "bce": "binary cross-entropy",
            "gbce": f"gBCE (calibration {self.calibration:g})",
            "psl": f"PSL ({self.activation})",
            "bsl": f"BSL (exponent {self.negative_exponent:g})",
            "sl_at_k": f"SL@{self.retrieval_size} (weights of {self.weight_temperature:g})",
        }
        if self.loss in titles:
            return titles[self.loss]
        margin = f", margin {self.margin:g}" if "hinge" in (self.kernel, self.rank_kernel) else ""
        aim = f"alpha {self.alpha:g}"
        if self.retrieval_size is not None:
            aim = f"for {self.retrieval_size} retrieved"
        if self.rank_kernel is not None:
            kernels = f"{self.rank_kernel} ranks, {self.kernel} gaps"
            return f"LambdaCROLoss ({kernels}, {aim}{margin})"
        names = [
            name
            for name, preset in LOSSES.items()
            if preset == {"kernel": self.kernel, "alpha": self.alpha} and not self.retrieval_size
        ]
        known = f" = {names[0]}" if names else ""
        return f"CROLoss ({self.kernel}, {aim}{margin}){known}"

    def with_loss(self: Settings, loss: str, **options: Any) -> Settings:
        """The same settings with another of ``LOSS_NAMES``, its options the default ones.

        Args:
          loss: the name.
          options: fields that should differ from what they are or would be.
        """
        changes: dict[str, Any] = {"loss": loss, **_OF_THE_FAMILY, **LOSSES.get(loss, {})}
        if loss not in SIZED:
            changes["retrieval_size"] = None
        return dataclasses.replace(self, **{**changes, **options})


_OF_THE_FAMILY: dict[str, Any] = {"kernel": "softplus", "rank_kernel": None, "alpha": 1.0}


def check_given(loss: str, given: dict[str, Any]) -> None:
    """Refuses options of the family beside a loss that is something by itself."""
    options = [f"--{name.replace('_', '-')}" for name in _OF_THE_FAMILY if name in given]
    if loss not in FAMILY and options:
        raise UserError(
            f"--loss {loss} stands for a kernel and an alpha of its own, so it should come without "
            f"{', '.join(options)}. Leave out one or the other."
        )


def add_loss_settings(parser: argparse.ArgumentParser) -> None:
    """Adds the options that make ``LossSettings``."""
    defaults = LossSettings()
    group = parser.add_argument_group(
        "loss", "CROLoss; with --rank-kernel LambdaCROLoss; with --loss another one"
    )
    # No defaults here: what was given has to be told from what was not.
    group.add_argument("--kernel", choices=KERNELS, help="closes the gaps (softplus)")
    group.add_argument("--rank-kernel", choices=RANK_KERNELS, help="estimates the rank")
    group.add_argument(
        "--alpha", type=float, help="larger: Recall@N of smaller N counts more (1.0)"
    )
    group.add_argument(
        "--retrieval-size",
        type=cli.positive,
        help="the N of the Recall@N to train for, in place of alpha; the K of sl_at_k",
    )
    group.add_argument("--loss", choices=LOSS_NAMES, help="in place of the kernels and alpha")

    def option(name: str, text: str, **keywords: Any) -> None:
        default = getattr(defaults, name[2:].replace("-", "_"))
        group.add_argument(name, help=f"{text} ({default})", default=default, **keywords)

    option("--margin", "of the hinge", type=float)
    option("--rank-estimate", "from samples", choices=("paper", "unbiased"))
    option("--calibration", "of gbce, from 0 (bce) to 1", type=float)
    option("--activation", "of psl", choices=ACTIVATIONS)
    option("--negative-exponent", "of bsl; 1 is softmax", type=float)
    option("--weight-temperature", "of sl_at_k, in the unit of the similarity", type=float)
