"""The registry of losses: whatever the pipelines know about a loss is its entry in ``LOSSES``.

An entry gives the loss its name for ``--loss``, its options in ``train``, its title in reports, its
builder, and its search spaces in ``compare`` and ``tune``. ``family`` has the entries of CROLoss
and its special cases, ``baselines`` those of other papers. The package loads no TensorFlow:
builders import the library when they are called.
"""

from . import baselines, family
from .registry import (
    GROUPS,
    LOSSES,
    REDUCTION,
    Contestant,
    Loss,
    choose,
    contestants,
    loss_options,
    names,
)

__all__ = [
    "GROUPS",
    "LOSSES",
    "REDUCTION",
    "Contestant",
    "Loss",
    "baselines",
    "choose",
    "contestants",
    "family",
    "loss_options",
    "names",
]
