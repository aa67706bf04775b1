"""The results of an experiment, as the blocks of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..common.page import Block, Field, Grid, Heading, Picture, Text
from ..data.prepared import PreparedData
from . import pictures
from .measure import PairedTest, Summary, paired_test, summarize
from .runner import Result

Seeds = dict[int, Result]
Rows = dict[str, Seeds]
Published = Mapping[str, Mapping[int, float]]

_MAX_LINES = 14


def by_seed(results: Iterable[Result | None]) -> Seeds:
    """The results that have a test, by seed."""
    return {result["seed"]: result for result in results if result and "test" in result}


def figures(seeds: Seeds, metric: str, average: str) -> dict[int, float]:
    """A figure of the test in percent, such as that of recall@20, by seed."""
    return {seed: 100 * result["test"][average][metric] for seed, result in seeds.items()}


def recalls(seeds: Seeds, size: int, average: str) -> dict[int, float]:
    """Test Recall@N in percent, by seed."""
    return figures(seeds, f"recall@{size}", average)


def figure_summary(seeds: Seeds, metric: str, average: str) -> Summary:
    """Mean and standard error of a figure over the seeds, in percent."""
    return summarize(list(figures(seeds, metric, average).values()))


def recall_summary(seeds: Seeds, size: int, average: str) -> Summary:
    """Mean and standard error over the seeds, in percent."""
    return figure_summary(seeds, f"recall@{size}", average)


def sizes_of(rows: Rows) -> list[int]:
    """The N that all results were measured at."""
    figures = next(iter(next(iter(rows.values())).values()))["test"]["pairs"]
    return [int(name[7:]) for name in figures if name.startswith("recall@")]


def data_blocks(data: PreparedData, rows: Rows, average: str) -> list[Block]:
    """The data, the metric and the seeds."""
    statistics = data.manifest["statistics"]
    text = (
        f"Data: {data.path.name} (source {data.manifest['source']}), {data.num_items:,} items, "
        f"{statistics['splits']['train']['users']:,} training users."
    )
    if rows:
        result = next(iter(next(iter(rows.values())).values()))
        test, settings = result["test"], result["settings"]
        seeds = sorted({seed for seeds in rows.values() for seed in seeds})
        weights = f"the weights that were best in validation ({settings['monitor']})"
        if data.trains_on_valid:
            weights = "the last weights, which were trained on the interactions of validation, too"
        text += (
            f" Test: {test['num_targets']:,} targets of {test['num_users']:,} users; Recall@N is "
            f"in percent, averaged over {average}, by exact ranks over the whole catalogue, items "
            f"of the history {'excluded' if settings['exclude_history'] else 'not excluded'}. "
            f"Seeds: {', '.join(map(str, seeds))}; ± is one standard error over them. The test is "
            f"measured with {weights}."
        )
    return [Text(text)]


def flat_blocks(
    rows: Rows, average: str, reference: str | None, published: Published | None
) -> list[Block]:
    """A row for each loss, a column for each N; then the differences to the reference."""
    sizes = sizes_of(rows)
    blocks: list[Block] = [_flat_grid(rows, sizes, average, "Recall", published or {})]
    if reference in rows and len(rows) > 1:
        blocks += _difference_blocks(rows, sizes, average, reference)
    return [*blocks, Text("NDCG@N, in percent:"), _flat_grid(rows, sizes, average, "NDCG", {})]


def _flat_grid(
    rows: Rows, sizes: list[int], average: str, metric: str, published: Published
) -> Grid:
    summaries = {
        name: {size: figure_summary(seeds, f"{metric.lower()}@{size}", average) for size in sizes}
        for name, seeds in rows.items()
    }
    best = {size: max(summary[size].mean for summary in summaries.values()) for size in sizes}
    grid = [
        [Field(name)]
        + [
            Field(
                number(summary[size]),
                _published(published.get(name, {}).get(size)),
                summary[size].mean == best[size],
            )
            for size in sizes
        ]
        for name, summary in summaries.items()
    ]
    return Grid(["loss", *(f"{metric}@{size}" for size in sizes)], grid)


def _difference_blocks(rows: Rows, sizes: list[int], average: str, reference: str) -> list[Block]:
    base = {size: recalls(rows[reference], size, average) for size in sizes}
    grid = []
    for name, seeds in rows.items():
        if name == reference:
            continue
        line = [Field(name)]
        for size in sizes:
            mean = summarize(list(base[size].values())).mean
            test = paired_test(recalls(seeds, size, average), base[size])
            gain = recall_summary(seeds, size, average).mean / mean - 1 if mean else 0.0
            line.append(Field(f"{100 * gain:+.1f} %", _p_value(test)))
        grid.append(line)
    return [
        Text(
            f"Relative difference to {reference}; p is the p-value of a two-sided t-test, paired "
            "over seeds and not corrected for the number of comparisons."
        ),
        Grid(["loss", *(f"Recall@{size}" for size in sizes)], grid),
    ]


def grid_blocks(
    table: Mapping[str, Mapping[str, Seeds]],
    average: str,
    published: Mapping[str, Mapping[str, Mapping[int, float]]] | None,
) -> list[Block]:
    """For each N a table of rows by columns. The best of a row and of all are marked.

    Args:
      table: results by row and column.
      average: ``users`` or ``pairs``.
      published: percent by row, column and N.
    """
    filled = {
        row: {column: seeds for column, seeds in cells.items() if seeds}
        for row, cells in table.items()
    }
    filled = {row: cells for row, cells in filled.items() if cells}
    columns = list(dict.fromkeys(column for cells in table.values() for column in cells))
    blocks: list[Block] = []
    for size in sizes_of({row: next(iter(cells.values())) for row, cells in filled.items()}):
        summaries = {
            row: {column: recall_summary(seeds, size, average) for column, seeds in cells.items()}
            for row, cells in filled.items()
        }
        best = max(summary.mean for cells in summaries.values() for summary in cells.values())
        grid = []
        for row, cells in summaries.items():
            best_in_row = max(summary.mean for summary in cells.values())
            line = [Field(row)]
            for column in columns:
                if column not in cells:
                    line.append(Field("–"))
                    continue
                mark = "▲ " if cells[column].mean == best_in_row else ""
                figure = (published or {}).get(row, {}).get(column, {}).get(size)
                is_best = cells[column].mean == best
                line.append(Field(mark + number(cells[column]), _published(figure), is_best))
            grid.append(line)
        blocks += [Heading(f"Recall@{size}", 3), Grid(["kernel", *columns], grid)]
    return [Text("▲ marks the best value of a row, bold the best value of the table."), *blocks]


def picture_blocks(rows: Rows, average: str, reference: str | None, prefix: str) -> list[Block]:
    """Recall over N, training curves and the shares of the gradient."""
    shown = dict(list(rows.items())[:_MAX_LINES])
    return [
        Heading("Recall@N over N", 3),
        Picture(
            f"{prefix}_recall", "Recall@N over N", pictures.recall_curves(shown, average, reference)
        ),
        Heading("Training curves", 3),
        Picture(f"{prefix}_training", "Training curves", pictures.training_curves(shown)),
        Heading("Where the gradient goes", 3),
        Picture(
            f"{prefix}_gradient", "Share of the gradient by rank", pictures.gradient_bars(shown)
        ),
    ]


def settings_blocks(results: Sequence[Result]) -> list[Block]:
    """The settings that all runs share, those that differ, the time, and the versions."""
    if not results:
        return []
    all_settings = [result["settings"] for result in results]
    names = [name for name in all_settings[0] if name != "seed"]
    shared = {
        name: all_settings[0][name]
        for name in names
        if all(settings.get(name) == all_settings[0][name] for settings in all_settings)
    }
    differing = [name for name in names if name not in shared]
    runs = {result["name"]: result for result in results}
    grid = [
        [Field(name), *(Field(_value(result["settings"][field])) for field in differing)]
        for name, result in runs.items()
    ]
    blocks: list[Block] = [
        Heading("Settings"),
        Text("Settings that all runs share:"),
        Grid(["setting", "value"], [[Field(n), Field(_value(v))] for n, v in shared.items()]),
    ]
    if differing:
        blocks += [Text("Settings that differ:"), Grid(["run", *differing], grid)]
    failed = [result for result in results if "failed" in result]
    if failed:
        names_of_failed = ", ".join(f"{r['name']} (seed {r['seed']})" for r in failed)
        blocks.append(Text(f"Left out because training diverged: {names_of_failed}."))
    seconds = sum(result["wall_seconds"] for result in results)
    found = {tuple(sorted(result["versions"].items())) for result in results}
    blocks += [
        Heading("Versions"),
        Text(f"{len(results)} runs, {seconds / 3600:.1f} hours of computing."),
        *(Text(", ".join(f"{name} {version}" for name, version in one)) for one in sorted(found)),
    ]
    return blocks


def summary_json(rows: Rows, average: str, reference: str | None) -> dict[str, Any]:
    """The numbers of ``flat_blocks`` as JSON."""
    summary: dict[str, Any] = {}
    for name, seeds in rows.items():
        summary[name] = {"loss": next(iter(seeds.values()))["loss"], "seeds": sorted(seeds)}
        for metric in ("recall", "ndcg"):
            for size in sizes_of(rows):
                values = figures(seeds, f"{metric}@{size}", average)
                found = summarize(list(values.values()))
                entry = {"mean": found.mean, "standard_error": found.standard_error}
                if reference in rows and name != reference:
                    others = figures(rows[reference], f"{metric}@{size}", average)
                    test = paired_test(values, others)
                    entry["p_value"] = None if test is None else test.p_value
                summary[name][f"{metric}@{size}"] = entry
    return summary


def number(summary: Summary) -> str:
    """A mean with its standard error, for a table."""
    error = "" if summary.standard_error is None else f" ± {summary.standard_error:.2f}"
    return f"{summary.mean:.2f}{error}"


def _published(value: float | None) -> str:
    return "" if value is None else f"paper {value:.2f}"


def _p_value(test: PairedTest | None) -> str:
    if test is None:
        return ""
    return "p < 0.001" if test.p_value < 0.001 else f"p = {test.p_value:.3f}"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
