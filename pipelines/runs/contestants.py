"""The losses that ``compare`` lets compete, and what is tuned of each of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UserError
from ..experiments.cells import Variant
from .settings import TrainSettings

# Bases of the two sequences that trials are taken from.
_TEMPERATURE, _OWN = 2, 3


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers to search, evenly or evenly in the logarithm.

    >>> Range(1.0, 100.0, logarithmic=True).at(0.5)
    10.0
    """

    low: float
    high: float
    logarithmic: bool = False

    def at(self, share: float) -> float:
        """The number at ``share`` of the way, to three digits."""
        if self.logarithmic:
            value = self.low * math.exp(share * math.log(self.high / self.low))
        else:
            value = self.low + share * (self.high - self.low)
        return float(f"{value:.3g}")


@dataclasses.dataclass(frozen=True)
class Choice:
    """Values to choose among."""

    values: Sequence[Any]

    def at(self, share: float) -> Any:
        """The value at ``share`` of the way."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A loss, with the one setting of its own that is tuned beside the temperature.

    Attributes:
      loss: one of ``pipelines.runs.losses.LOSS_NAMES``.
      options: settings that stay as they are.
      own: name of the tuned setting; None where there is none.
      space: its values.
      sized: whether it is told how many items will be retrieved.
    """

    loss: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    own: str | None = None
    space: Range | Choice | None = None
    sized: bool = False


def _family(loss: str, kernel: str) -> Contestant:
    return Contestant(loss, {"kernel": kernel}, "alpha", Range(0.6, 1.8))


FAMILY: dict[str, Contestant] = {
    "croloss-softplus": _family("cro", "softplus"),
    "croloss-sigmoid": _family("cro", "sigmoid"),
    "lambda-softplus": _family("lambda", "softplus"),
    "lambda-exponential": _family("lambda", "exponential"),
    "lambda-sized": Contestant(
        "lambda", {}, "kernel", Choice(("softplus", "exponential")), sized=True
    ),
}
CONVENTIONAL: dict[str, Contestant] = {
    "softmax": Contestant("softmax"),
    "triplet": Contestant("triplet", {}, "margin", Range(1.0, 10.0, logarithmic=True)),
    "bpr": Contestant("bpr"),
}
RIVALS: dict[str, Contestant] = {
    "bce": Contestant("bce"),
    "gbce": Contestant("gbce", {}, "calibration", Range(0.0, 1.0)),
    "psl": Contestant("psl", {}, "activation", Choice(("tanh", "atan", "relu"))),
    "bsl": Contestant("bsl", {}, "negative_exponent", Range(0.8, 1.35)),
    "sl_at_k": Contestant(
        "sl_at_k", {}, "weight_temperature", Range(0.3, 3.0, logarithmic=True), sized=True
    ),
}
CONTESTANTS: dict[str, Contestant] = {**CONVENTIONAL, **RIVALS, **FAMILY}
GROUPS: dict[str, tuple[str, ...]] = {
    "all": tuple(CONTESTANTS),
    "family": tuple(FAMILY),
    "conventional": tuple(CONVENTIONAL),
    "rivals": tuple(RIVALS),
}


def named(names: Sequence[str]) -> dict[str, Contestant]:
    """The contestants of these names, which may be those of groups."""
    chosen: dict[str, Contestant] = {}
    for name in names:
        if name not in GROUPS and name not in CONTESTANTS:
            raise UserError(
                f"--losses should be of {', '.join((*GROUPS, *CONTESTANTS))}. Received: {name!r}."
            )
        for member in GROUPS.get(name, (name,)):
            chosen[member] = CONTESTANTS[member]
    return chosen


def radical_inverse(number: int, base: int) -> float:
    """The digits of ``number`` behind the point: these fill the unit interval evenly.

    >>> [radical_inverse(number, 2) for number in (1, 2, 3, 4)]
    [0.5, 0.25, 0.75, 0.125]
    """
    share, weight = 0.0, 1.0 / base
    while number:
        number, digit = divmod(number, base)
        share += digit * weight
        weight /= base
    return share


def trial(
    name: str, contestant: Contestant, number: int, base: TrainSettings, temperatures: Range
) -> Variant:
    """Trial ``number`` of a search: trial 0 has the defaults, the others spread over the space.

    The temperatures are the same for all losses, so that nobody is given the luckier ones.

    Args:
      name: of the loss.
      contestant: what it is.
      number: from 0.
      base: has the default temperature, and the N that sized losses are told.
      temperatures: to search.
    """
    options = dict(contestant.options)
    if contestant.sized:
        options["retrieval_size"] = base.monitor_cutoff
    options["temperature"] = base.temperature
    if number:
        options["temperature"] = temperatures.at(radical_inverse(number + 1, _TEMPERATURE))
        if contestant.own is not None and contestant.space is not None:
            options[contestant.own] = contestant.space.at(radical_inverse(number, _OWN))
    return Variant(name, contestant.loss, options)
