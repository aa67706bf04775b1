"""Results of an evaluation for readers: a table, a Markdown report and a figure."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from tfrs_croloss.metrics import Averages, RankingReport

from ..common.files import replace_file
from ..common.page import markdown_table, picture
from ..runs.folder import Run

_AVERAGES = (
    ("users", "over users: each user's share of targets found, then the mean"),
    ("pairs", "over pairs: the share of all targets found"),
)


@dataclasses.dataclass(frozen=True)
class Contender:
    """A model or baseline, with its results.

    Attributes:
      name: short name, one word.
      title: description.
      report: ranks of the targets, and the metrics that follow from them.
    """

    name: str
    title: str
    report: RankingReport


def text_table(contenders: list[Contender]) -> str:
    """Recall and its standard error for each contender and cutoff, in both averages."""
    cutoffs = contenders[0].report.cutoffs
    width = max(len(contender.name) for contender in contenders) + 4
    lines = []
    for name, meaning in _AVERAGES:
        lines.append(f"{'':<{width}}" + "".join(f"{f'recall@{n}':>18}" for n in cutoffs))
        for contender in contenders:
            cells = _cells(getattr(contender.report, name), "recall")
            label = f"  {contender.name:<{width - 2}}"
            lines.append(label + "".join(f"{cell:>18}" for cell in cells))
        lines.append(f"  ({meaning}; ± one standard error)\n")
    return "\n".join(lines).rstrip()


def markdown(title: str, contenders: list[Contender], evaluated: Run) -> str:
    """The report of an evaluation."""
    lines = [f"# Recall of {evaluated.path.name}", "", f"{title}.", ""]
    lines += [f"- **{contender.name}**: {contender.title}" for contender in contenders]
    lines += ["", "![Recall over N](recall_curves.png)", ""]
    cutoffs = contenders[0].report.cutoffs
    for name, meaning in _AVERAGES:
        header = [
            "",
            *(f"Recall@{n}" for n in cutoffs),
            *(f"NDCG@{n}" for n in cutoffs),
            "MRR",
            "mean rank",
            f"E[Recall], α={contenders[0].report.alpha:g}",
        ]
        rows = []
        for contender in contenders:
            averages: Averages = getattr(contender.report, name)
            rows.append(
                [
                    contender.name,
                    *_cells(averages, "recall"),
                    *_cells(averages, "ndcg"),
                    f"{averages.mrr:.4f}",
                    f"{averages.mean_rank:,.1f}",
                    f"{averages.expected_recall:.4f}",
                ]
            )
        lines += [f"## {meaning[0].upper()}{meaning[1:]}", "", markdown_table(header, rows), ""]
    settings = [[name, f"`{value}`"] for name, value in evaluated.settings.as_dict().items()]
    lines += [
        "± is one standard error. Ranks are exact, over the whole catalogue; ties count against "
        "the target.",
        "",
        "## Settings",
        "",
        markdown_table(["setting", "value"], settings, align="ll"),
    ]
    return "\n".join(lines) + "\n"


def draw_recall_curves(path: Path, contenders: list[Contender]) -> None:
    """Recall@N over pairs, for every N."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    num_items = contenders[0].report.num_items
    sizes = np.unique(np.geomspace(1, num_items, 200).astype(np.int64))
    for contender in contenders:
        ranks = np.sort(contender.report.ranks)
        found = np.searchsorted(ranks, sizes, side="right")
        axes.plot(sizes, found / len(ranks), label=contender.name)
    for cutoff in contenders[0].report.cutoffs:
        if cutoff < num_items:
            axes.axvline(cutoff, color="grey", linestyle=":", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("N, items retrieved")
    axes.set_ylabel("Recall@N over pairs")
    axes.set_ylim(0.0, 1.0)
    axes.grid(alpha=0.3)
    axes.legend()
    replace_file(path, picture(figure))


def _cells(averages: Averages, figure: str) -> list[str]:
    values = getattr(averages, figure)
    errors = averages.standard_errors
    cells = []
    for cutoff, value in values.items():
        error = errors[f"{figure}@{cutoff}"]
        cells.append(f"{value:.4f} ± " + ("?" if error is None else f"{error:.4f}"))
    return cells
