"""The pictures of a report, as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..common.page import picture
from .runner import Result

Seeds = Mapping[int, Result]
"""The results of one row of a table, by seed."""


def recall_curves(rows: Mapping[str, Seeds], average: str, reference: str | None) -> bytes:
    """Recall@N over N, and the difference to a reference in percent of it."""
    figure = _figure(12, 4.4)
    left, right = figure.subplots(1, 2)
    curves = {name: _curve(seeds, average) for name, seeds in rows.items()}
    base = curves.get(reference or "", next(iter(curves.values())))
    base_name = reference if reference in curves else next(iter(curves))
    for number, (name, (sizes, values)) in enumerate(curves.items()):
        style = {"color": f"C{number % 10}", "linestyle": "-" if number < 10 else "--"}
        mean = values.mean(axis=0)
        left.plot(sizes, 100 * mean, label=name, **style)
        shown = (sizes >= 5) & (base[1].mean(axis=0) > 0)
        baseline = base[1].mean(axis=0)[shown]
        gain = 100 * (mean[shown] / baseline - 1)
        right.plot(sizes[shown], gain, **style)
        if len(values) > 1:
            error = 100 * values.std(axis=0, ddof=1)[shown] / np.sqrt(len(values)) / baseline
            right.fill_between(
                sizes[shown], gain - error, gain + error, color=style["color"], alpha=0.15
            )
    left.set_ylabel(f"Recall@N over {average}, %")
    _legend(figure, left)
    right.set_ylabel(f"relative to {base_name}, %")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlabel("N, items retrieved")
        axes.grid(alpha=0.3)
    return picture(figure)


def training_curves(rows: Mapping[str, Seeds]) -> bytes:
    """Validation recall and training loss over the steps, a line for each seed."""
    figure = _figure(12, 4.4)
    left, right = figure.subplots(1, 2)
    for number, (name, seeds) in enumerate(rows.items()):
        for order, result in enumerate(seeds.values()):
            monitor = result["settings"]["monitor"]
            steps = [row["step"] for row in result["history"]]
            recall = [100 * row[monitor] for row in result["history"]]
            label = name if order == 0 else None
            color, linestyle = f"C{number % 10}", "-" if number < 10 else "--"
            options = {"color": color, "linestyle": linestyle, "linewidth": 1}
            left.plot(steps, recall, label=label, **options)
            losses = [row["loss"] for row in result["history"]]
            if losses[0]:
                right.plot(steps, [loss / losses[0] for loss in losses], **options)
            left.set_ylabel(f"validation {monitor}, %")
    right.set_ylabel("training loss, relative to the first")
    _legend(figure, left)
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    return picture(figure)


def gradient_bars(rows: Mapping[str, Seeds]) -> bytes:
    """For each row, the shares of the gradient that positives of each band of ranks receive."""
    figure = _figure(10, 1.4 + 0.38 * len(rows))
    axes = figure.subplots()
    bands = next(iter(next(iter(rows.values())).values()))["gradient"]
    labels = _band_labels([band["up_to"] for band in bands])
    colors = _colors(len(bands))
    for position, seeds in enumerate(rows.values()):
        shares = np.mean(
            [[band["gradient"] for band in result["gradient"]] for result in seeds.values()], axis=0
        )
        starts = np.concatenate([[0.0], np.cumsum(shares)[:-1]])
        for number, (start, share) in enumerate(zip(starts, shares)):
            label = labels[number] if position == 0 else None
            axes.barh(position, 100 * share, left=100 * start, color=colors[number], label=label)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of the gradient, %, by the rank of the positive (at the best weights)")
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5), title="rank")
    return picture(figure)


def lines_over_sizes(
    lines: Mapping[str, Sequence[tuple[int, float, float | None]]], ylabel: str
) -> bytes:
    """Lines of (N, value, standard error)."""
    figure = _figure(7, 4.6)
    axes = figure.subplots()
    for marker, (name, points) in zip("oxd^sv*+<>" * 3, lines.items()):
        sizes, values, errors = zip(*points)
        axes.errorbar(
            sizes, values, [error or 0.0 for error in errors], label=name, marker=marker, capsize=3
        )
    axes.set_xscale("log")
    ticks = sorted({point[0] for points in lines.values() for point in points})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("N")
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return picture(figure)


def bars_over_sizes(
    groups: Mapping[str, Mapping[int, tuple[float, float | None]]], ylabel: str
) -> bytes:
    """For each N a bar of every group, with its standard error."""
    figure = _figure(7, 4.6)
    axes = figure.subplots()
    sizes = sorted({size for bars in groups.values() for size in bars})
    width = 0.8 / len(groups)
    for number, (name, bars) in enumerate(groups.items()):
        shift = (number - (len(groups) - 1) / 2) * width
        places = [position + shift for position in range(len(sizes))]
        heights = [bars[size][0] for size in sizes]
        errors = [bars[size][1] or 0.0 for size in sizes]
        drawn = axes.bar(places, heights, width, yerr=errors, capsize=3, label=name)
        axes.bar_label(drawn, fmt="%.2f", fontsize="small")
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xlabel("N")
    axes.set_ylabel(ylabel)
    axes.legend(fontsize="small")
    return picture(figure)


def _curve(seeds: Seeds, average: str) -> tuple[np.ndarray, np.ndarray]:
    """Sizes, and ``[num_seeds, num_sizes]`` recalls."""
    curves = [result["test"]["curve"] for result in seeds.values()]
    return np.array(curves[0]["sizes"]), np.array([curve[average] for curve in curves])


def _band_labels(ends: Sequence[int]) -> list[str]:
    """Labels of bands of ranks that end at these ranks; 0 stands for the open band.

    >>> _band_labels([10, 50, 0])
    ['1–10', '11–50', 'over 50']
    """
    starts = [1, *(end + 1 for end in ends[:-1])]
    return [f"{start}–{end}" if end else f"over {start - 1}" for start, end in zip(starts, ends)]


def _colors(count: int) -> Any:
    import matplotlib

    return matplotlib.colormaps["viridis"](np.linspace(0.95, 0.1, count))


def _legend(figure: Any, axes: Any) -> None:
    """One legend beside all axes, from the lines of one of them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, fontsize="small", loc="outside right center")


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
