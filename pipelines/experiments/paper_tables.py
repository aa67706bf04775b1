"""The paper's tables and figures, and one of our own, as lists of losses to train."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..runs.settings import TrainSettings
from . import paper_numbers
from .cells import Variant

NAMES = ("main", "kernels", "lambda", "mining", "figures")
SIZES = "sizes"
PROTOCOLS = ("books", "taobao")

# The kernels that the paper found best on each of its data sets, and their alpha.
_BEST_KERNEL = {"books": "softplus", "taobao": "exponential"}
_BEST_ALPHA = {"books": 1.0, "taobao": 1.4}


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """One number of a table for each N; entries with equal contents are still different entries.

    Attributes:
      row: label of the row.
      variant: loss and options to train.
      column: label of the column, in a table of rows by columns.
      published: the paper's numbers, in percent.
    """

    row: str
    variant: Variant
    column: str = ""
    published: paper_numbers.Figures | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """A table or figure.

    Attributes:
      name: one of ``NAMES``, or ``SIZES``.
      title: title in the report.
      entries: entries of the table; all with columns, or all without.
      reference: the row that the others are tested against.
    """

    name: str
    title: str
    entries: tuple[Entry, ...]
    reference: str | None = None

    @property
    def columns(self) -> list[str]:
        """The labels of the columns; none where the columns are the N alone."""
        columns = dict.fromkeys(entry.column for entry in self.entries)
        return [column for column in columns if column]


def paper_settings(protocol: str) -> TrainSettings:
    """The settings of the paper's experiments on one of its data sets.

    The paper does not say how often it validates or when it stops: every 1,000 steps here, and
    after ten validations without a new best.
    """
    return TrainSettings(
        dim=32,
        temperature=0.1,
        margin=5.0,
        negatives_per_example=10,
        batch_size={"books": 256, "taobao": 512}[protocol],
        history_length={"books": 20, "taobao": 50}[protocol],
        positions="one-per-user",
        optimizer="auto",
        learning_rate=0.02,
        max_steps=100_000,
        steps_per_epoch=1_000,
        early_stopping_patience=10,
        monitor="recall@50",
        cutoffs=(20, 50, 100, 200, 500),
    )


def quick(settings: TrainSettings) -> TrainSettings:
    """Settings for a first look: minutes instead of hours, and numbers that mean little."""
    return dataclasses.replace(
        settings, max_steps=300, steps_per_epoch=100, max_validation_users=1_000
    )


def paper_table(name: str, protocol: str) -> Table:
    """A table by its name, with the losses that the paper had on the data set of ``protocol``."""
    makers = {
        SIZES: _sizes,
        "main": _main,
        "kernels": _kernels,
        "lambda": _lambda,
        "mining": _mining,
        "figures": _figures,
    }
    return makers[name](protocol)


def _croloss(kernel: str, alpha: float) -> Variant:
    return Variant(f"CROLoss {kernel} α={alpha:g}", "cro", {"kernel": kernel, "alpha": alpha})


def _lambda_croloss(rank_kernel: str, kernel: str, alpha: float) -> Variant:
    options: dict[str, Any] = {"rank_kernel": rank_kernel, "kernel": kernel, "alpha": alpha}
    return Variant(f"CROLoss-lambda {rank_kernel}/{kernel} α={alpha:g}", "lambda", options)


def _main(protocol: str) -> Table:
    kernel, alpha = _BEST_KERNEL[protocol], _BEST_ALPHA[protocol]
    variants = {
        "cross-entropy": Variant("cross-entropy", "softmax"),
        "triplet": Variant("triplet", "triplet"),
        "BPR": Variant("BPR", "bpr"),
        "CROLoss": _croloss(kernel, alpha),
        "CROLoss-lambda": _lambda_croloss("sigmoid", kernel, alpha),
    }
    figures = paper_numbers.MAIN[protocol]
    return Table(
        "main",
        "CROLoss against conventional losses (the paper's table 2)",
        tuple(Entry(row, variant, published=figures[row]) for row, variant in variants.items()),
        reference="cross-entropy",
    )


def _kernels(protocol: str) -> Table:
    entries = []
    for kernel in paper_numbers.KERNELS[protocol]:
        for alpha in paper_numbers.ALPHAS[protocol]:
            if kernel == "lambda":
                variant = _lambda_croloss("sigmoid", _BEST_KERNEL[protocol], alpha)
            else:
                variant = _croloss(kernel, alpha)
            figures = paper_numbers.kernel_figures(protocol, kernel, alpha)
            entries.append(Entry(kernel, variant, f"α={alpha:g}", figures))
    title = "comparison kernels and α (the paper's table 3)"
    return Table("kernels", title, tuple(entries))


def _lambda(protocol: str) -> Table:
    entries = []
    for rank_kernel in ("unit_step", "sigmoid"):
        for kernel in ("hinge", "exponential", "softplus"):
            variant = _lambda_croloss(rank_kernel, kernel, _BEST_ALPHA[protocol])
            figures = paper_numbers.LAMBDA[protocol][rank_kernel, kernel]
            row = f"{rank_kernel.replace('_', ' ')} / {kernel}"
            entries.append(Entry(row, variant, published=figures))
    title = "the Lambda method: kernel of the ranks / kernel of the gaps (the paper's table 4)"
    return Table("lambda", title, tuple(entries))


def _mining(protocol: str) -> Table:
    entries = []
    for row, loss, kernel in (("triplet", "triplet", "hinge"), ("BPR", "bpr", "softplus")):
        plain = paper_numbers.MAIN[protocol][row]
        mined = paper_numbers.kernel_figures(protocol, kernel, 1.0)
        entries.append(Entry(row, Variant(row, loss), published=plain))
        entries.append(Entry(f"{row}, α=1", _croloss(kernel, 1.0), published=mined))
    title = "hard negatives by α=1: hinge and softplus (the paper's figure 5)"
    return Table("mining", title, tuple(entries))


def _figures(protocol: str) -> Table:
    kernels = _kernels(protocol)
    entries = tuple(entry for entry in kernels.entries if entry.row != "lambda")
    return Table("figures", "kernels and α against N (the paper's figures 3 and 4)", entries)


def _sizes(protocol: str) -> Table:
    """Is choosing N as good as searching for alpha? Not in the paper, which has alpha alone."""
    kernel = _BEST_KERNEL[protocol]
    entries = [
        Entry(f"α={alpha:g}", _lambda_croloss("sigmoid", kernel, alpha))
        for alpha in sorted({alpha for grid in paper_numbers.ALPHAS.values() for alpha in grid})
    ]
    for size in paper_settings(protocol).cutoffs:
        options = {"rank_kernel": "sigmoid", "kernel": kernel, "retrieval_size": size}
        row = f"retrieval size {size}"
        entries.append(Entry(row, Variant(f"CROLoss-lambda {row}", "lambda", options)))
    title = f"retrieval size against α, CROLoss-lambda sigmoid/{kernel} (not in the paper)"
    return Table(SIZES, title, tuple(entries), reference="α=1")
