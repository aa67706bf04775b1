r"""Comparison kernels: how far a negative overtakes the positive.

A kernel :math:`\phi` turns the gap between a negative's score and the positive's into a soft count.
The soft rank is one plus the sum of these counts, so a kernel that is close to the unit step ranks
accurately, and one that grows with the gap pushes hard negatives down faster.

======================  ==============================  ====================================
name                    value                           derivative
======================  ==============================  ====================================
``hinge``               max(gap + margin, 0)            1 where gap > -margin, else 0
``sigmoid``             1 / (1 + exp(-gap))             sigmoid(gap) sigmoid(-gap)
``exponential``         exp(gap)                        exp(gap)
``softplus``            log(1 + exp(gap))               sigmoid(gap)
``unit_step``           1 where gap >= 0, else 0        none: only to estimate ranks
``pairwise_softmax``    f(t gap) ** (1 / t)             f'(t gap) f(t gap) ** (1 / t - 1)
======================  ==============================  ====================================

A kernel is one class: its value, its derivative, its sum over a row (``log1p_sum``) and its sums
over a block of candidates (``block_sums``). All but the value have defaults.
"""

from __future__ import annotations

from tfrs_croloss.losses.kernels.base import (
    FAR_BELOW,
    LARGE_GAP,
    BlockCounts,
    BlockSums,
    ComparisonKernel,
    LogKernel,
)
from tfrs_croloss.losses.kernels.built_in import (
    Exponential,
    Hinge,
    PairwiseSoftmax,
    Sigmoid,
    Softplus,
    UnitStep,
)
from tfrs_croloss.losses.kernels.naming import (
    NAMED,
    FunctionKernel,
    KernelLike,
    get,
    named,
    to_config,
)

__all__ = [
    "FAR_BELOW",
    "LARGE_GAP",
    "NAMED",
    "BlockCounts",
    "BlockSums",
    "ComparisonKernel",
    "Exponential",
    "FunctionKernel",
    "Hinge",
    "KernelLike",
    "LogKernel",
    "PairwiseSoftmax",
    "Sigmoid",
    "Softplus",
    "UnitStep",
    "get",
    "named",
    "to_config",
]
