"""Means over seeds, their standard errors, and paired t tests."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Summary:
    """Attributes: mean; standard_error, None for a single value; num, how many values."""

    mean: float
    standard_error: float | None
    num: int


def summarize(values: Sequence[float]) -> Summary:
    """Mean and standard error: the sample's standard deviation over the root of its size.

    >>> summarize([1.0, 2.0, 3.0, 6.0]).mean
    3.0
    """
    if not values:
        raise ValueError("`values` should be at least one number. Received: none.")
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Summary(mean, None, 1)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return Summary(mean, math.sqrt(squares / (len(values) - 1) / len(values)), len(values))


@dataclasses.dataclass(frozen=True)
class PairedTest:
    """A difference between two ways to train, over the seeds that both have.

    Attributes:
      difference: mean of the differences.
      standard_error: of that mean.
      p_value: of the two-sided paired t test.
      num: seeds in common.
    """

    difference: float
    standard_error: float
    p_value: float
    num: int


def paired_test(values: Mapping[int, float], reference: Mapping[int, float]) -> PairedTest | None:
    """Tests ``values`` against ``reference``, both by seed; None for fewer than two in common."""
    seeds = sorted(set(values) & set(reference))
    if len(seeds) < 2:
        return None
    summary = summarize([values[seed] - reference[seed] for seed in seeds])
    error = summary.standard_error or 0.0
    if error == 0.0:
        p_value = 1.0 if summary.mean == 0.0 else 0.0
    else:
        p_value = student_p_value(summary.mean / error, len(seeds) - 1)
    return PairedTest(summary.mean, error, p_value, len(seeds))


def student_p_value(statistic: float, degrees: int) -> float:
    r"""The two-sided p value of Student's t with a whole number of degrees of freedom, exactly.

    With :math:`\theta = \arctan(t / \sqrt{\nu})` the probability of :math:`|T| < t` is a finite sum
    of powers of :math:`\cos\theta`. For one degree it is :math:`2\theta/\pi`:

    >>> round(student_p_value(1.0, 1), 12)
    0.5
    """
    if degrees < 1:
        raise ValueError(f"`degrees` should be at least 1. Received: {degrees}.")
    angle = math.atan(abs(statistic) / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    if degrees % 2:
        term = total = cosine if degrees > 1 else 0.0
        for power in range(3, degrees - 1, 2):
            term *= cosine * cosine * (power - 1) / power
            total += term
        inside = 2.0 / math.pi * (angle + sine * total)
    else:
        term = total = 1.0
        for power in range(2, degrees - 1, 2):
            term *= cosine * cosine * (power - 1) / power
            total += term
        inside = sine * total
    return min(1.0, max(0.0, 1.0 - inside))
