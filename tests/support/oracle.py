"""The paper's formulas in plain Python, one loop per sum, to 60 digits.

Imports nothing from the library, and nothing but the standard library.
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Sequence
from decimal import Decimal

_CONTEXT = decimal.Context(prec=60, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
decimal.setcontext(_CONTEXT)

ZERO, ONE = Decimal(0), Decimal(1)
DIFFERENTIABLE = ("hinge", "sigmoid", "exponential", "softplus")
KERNELS = DIFFERENTIABLE + ("unit_step",)
ALPHAS = (0.0, 0.5, 0.999999, 1.0, 1.000001, 1.4, 2.0)


# Remembered, since tests ask for the same gaps again and again: 60 digits take time.
@functools.lru_cache(100_000)
def exp(x: Decimal) -> Decimal:
    return _CONTEXT.exp(x)


@functools.lru_cache(100_000)
def log(x: Decimal) -> Decimal:
    return _CONTEXT.ln(x)


def kernel(name: str, gap: Decimal, margin: float = 5.0) -> Decimal:
    if name == "hinge":
        return max(gap + Decimal(margin), ZERO)
    if name == "sigmoid":
        return ONE / (ONE + exp(-gap))
    if name == "exponential":
        return exp(gap)
    if name == "softplus":
        return log(ONE + exp(gap))
    return ONE if gap >= 0 else ZERO


def kernel_slope(name: str, gap: Decimal, margin: float = 5.0) -> Decimal:
    if name == "hinge":
        return ONE if gap + Decimal(margin) > 0 else ZERO
    if name == "sigmoid":
        return ONE / ((ONE + exp(-gap)) * (ONE + exp(gap)))
    if name == "exponential":
        return exp(gap)
    return ONE / (ONE + exp(-gap))


def weight(rank: Decimal, num_items: int, alpha: float, normalized: bool = False) -> Decimal:
    """w: the density of the power weighting."""
    return _factor(num_items, alpha, normalized) * exp(-Decimal(alpha) * log(rank))


def weight_integral(
    rank: Decimal, num_items: int, alpha: float, normalized: bool = False
) -> Decimal:
    """W: the integral of ``weight`` from rank 1."""
    return _factor(num_items, alpha, normalized) * _power_integral(log(rank), alpha)


def _factor(num_items: int, alpha: float, normalized: bool) -> Decimal:
    end = log(Decimal(num_items + 1))
    return (ONE if normalized else end) / _power_integral(end, alpha)


def _power_integral(log_rank: Decimal, alpha: float) -> Decimal:
    beta = ONE - Decimal(alpha)
    return log_rank if beta == 0 else (exp(beta * log_rank) - ONE) / beta


class Row:
    """One query: its positive, its negatives, and how these represent the catalogue."""

    def __init__(
        self,
        scores: Sequence[float],
        labels: Sequence[float],
        *,
        positive: int | None = None,
        mask: Sequence[bool] | None = None,
        num_items: int | None = None,
        estimate: str = "paper",
        probability: Sequence[float] | None = None,
    ) -> None:
        self.positive = list(labels).index(1) if positive is None else positive
        self.width = len(scores)
        considered = [True] * self.width if mask is None else list(mask)
        self.negatives = [i for i in range(self.width) if labels[i] == 0 and considered[i]]
        self.gaps = {
            i: Decimal(float(scores[i])) - Decimal(float(scores[self.positive]))
            for i in self.negatives
        }
        count = len(self.negatives)
        self.num_items = count + 1 if num_items is None else num_items
        self.scale = ONE
        self.weights = dict.fromkeys(self.negatives, ONE)
        if probability is not None:
            for i in self.negatives:
                self.weights[i] = ONE / (count * Decimal(float(probability[i])))
        elif num_items is not None and estimate == "unbiased":
            for i in self.negatives:
                self.weights[i] = Decimal(num_items - 1) / count
        elif num_items is not None:
            self.scale = Decimal(num_items) / (count + 1)

    def rank(self, name: str) -> Decimal:
        total = ONE
        for i in self.negatives:
            total += self.weights[i] * kernel(name, self.gaps[i])
        return self.scale * total

    def loss(
        self,
        alpha: float,
        name: str,
        rank_name: str | None = None,
        normalized: bool = False,
        descent: str = "rank",
    ) -> Decimal:
        if rank_name is None:
            return weight_integral(self.rank(name), self.num_items, alpha, normalized)
        rank = self.rank(rank_name)
        density = weight(rank, self.num_items, alpha, normalized)
        if descent == "log_rank":
            return density * rank * log(self.rank(name))
        return density * self.rank(name)

    def pull(self, name: str, share: float, easing: float, least: float) -> Decimal:
        """The share of the push that pulls the positive."""
        eased = ONE / (ONE + Decimal(easing) * log(self.rank(name)))
        return Decimal(share) * max(eased, Decimal(least))

    def gradient(
        self,
        alpha: float,
        name: str,
        rank_name: str | None = None,
        normalized: bool = False,
        descent: str = "rank",
        pull: tuple[float, float, float] = (1.0, 0.0, 1.0),
    ) -> list[Decimal]:
        """With respect to every score of the row."""
        rank = self.rank(rank_name or name)
        factor = weight(rank, self.num_items, alpha, normalized)
        if rank_name is not None and descent == "log_rank":
            factor *= rank / self.rank(name)
        share = self.pull(name, *pull)
        result = [ZERO] * self.width
        for i in self.negatives:
            slope = factor * self.scale * self.weights[i] * kernel_slope(name, self.gaps[i])
            result[i] += slope
            result[self.positive] -= share * slope
        return result
