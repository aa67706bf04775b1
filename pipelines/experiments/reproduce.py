"""Step ``reproduce``: the paper's tables and figures, on any prepared data; and published splits.

::

    OUT/results/KEY.json              one trained and measured cell
    OUT/report.html, report.md, *.png the report on all finished cells
    OUT/summary.json                  its numbers

The same command on the same folder continues with the cells that are missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import Any

from .. import cli
from ..common.files import write_json
from ..common.options import dashed
from ..common.page import Block, Heading, Picture, Text, write_page
from ..data.prepared import PreparedData
from ..errors import UserError
from ..runs.command_line import add_shared_settings, shared_settings
from ..runs.settings import TrainSettings
from . import pictures, report
from .cells import SHARED_SETTINGS, Cell, data_defaults, experiment_folder, seed_by_seed
from .measure import paired_test
from .paper_numbers import published_dataset
from .paper_tables import (
    NAMES,
    PROTOCOLS,
    SIZES,
    Entry,
    Table,
    paper_settings,
    paper_table,
    quick,
)
from .published_splits import BENCHMARKS
from .runner import Runner

SECONDS_BETWEEN_REPORTS = 300.0

_OF_BENCHMARKS = ("sets", "losses", "trials", "refit")
"""The options of tables with published results, which all are off by default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this step."""
    parser.add_argument(
        "--data",
        required=True,
        help="folder of prepared data; for leaderboard and sequences, the folder with the data "
        "sets as they were published",
    )
    parser.add_argument(
        "--table",
        nargs="+",
        choices=(*NAMES, "all", SIZES, *BENCHMARKS),
        default=["main"],
        help="tables and figures to reproduce; all stands for all of the paper's. Not in the paper "
        "are sizes, which compares --retrieval-size with --alpha, and two that come alone and tune "
        "losses on data with published results: leaderboard, with matrix factorisations, and "
        "sequences, with self-attention (main)",
    )
    parser.add_argument("--out", help="folder of the experiment (DATA-reproduce)")
    parser.add_argument(
        "--protocol",
        choices=PROTOCOLS,
        help="data set of the paper whose settings and losses are used (taobao for Taobao data, "
        "books otherwise)",
    )
    _add_benchmark_arguments(parser)
    add_common_arguments(parser)
    add_shared_settings(parser, SHARED_SETTINGS)


def _add_benchmark_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("leaderboard and sequences")
    defaults = {
        name: "; ".join(
            f"{' '.join(getattr(benchmark, name))} for {table}"
            for table, benchmark in BENCHMARKS.items()
        )
        for name in ("sets", "losses")
    }
    group.add_argument(
        "--sets",
        nargs="+",
        metavar="SET",
        help=f"data sets, by their names in --data ({defaults['sets']})",
    )
    group.add_argument(
        "--losses", nargs="+", metavar="LOSS", help=f"losses, as in compare ({defaults['losses']})"
    )
    trials = ", ".join(f"{table} {benchmark.trials}" for table, benchmark in BENCHMARKS.items())
    group.add_argument(
        "--trials",
        type=cli.positive,
        metavar="N",
        help=f"number of trials for each loss ({trials})",
    )
    group.add_argument(
        "--refit",
        action="store_true",
        help="for the test, train the chosen settings on the interactions of training and "
        "validation together, for as many passes as were best in validation (off)",
    )


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that ``reproduce`` and ``compare`` have in common."""
    parser.add_argument(
        "--seeds", type=cli.positive, default=3, metavar="N", help="number of seeds (%(default)s)"
    )
    parser.add_argument(
        "--first-seed",
        type=cli.count,
        default=1,
        metavar="N",
        help="first seed; the others follow it (%(default)s)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="train for few steps and one seed, for a first look"
    )
    parser.add_argument(
        "--average",
        choices=("users", "pairs"),
        default="users",
        help="how the report averages recall: over users, as the authors' code does, or over pairs "
        "of user and target, as the paper's formula does (%(default)s)",
    )
    parser.add_argument(
        "--report-only", action="store_true", help="write the report again without training"
    )
    parser.add_argument(
        "--keep-runs", action="store_true", help="keep the weights and logs of finished runs"
    )


def run(args: argparse.Namespace) -> None:
    """Reproduces tables."""
    for table in BENCHMARKS:
        if table not in args.table:
            continue
        if set(args.table) != {table}:
            raise UserError(
                f"--table {table} cannot be combined with other tables, since its data are not "
                f"prepared. Received: {' '.join(args.table)}. Run the other tables by themselves."
            )
        from .leaderboard import run_leaderboard

        run_leaderboard(table, args, shared_settings(args, SHARED_SETTINGS))
        return
    for option in _OF_BENCHMARKS:
        if getattr(args, option):
            raise UserError(
                f"{dashed(option)} requires --table {' or '.join(BENCHMARKS)}. Received: --table "
                f"{' '.join(args.table)}. Leave it out."
            )
    data = PreparedData.load(args.data)
    dataset = published_dataset(data.manifest)
    protocol = args.protocol or dataset or "books"
    base = paper_settings(protocol)
    if args.quick:
        base = quick(base)
    given = shared_settings(args, SHARED_SETTINGS)
    base = dataclasses.replace(base, **{**data_defaults(data), **given})
    names = list(dict.fromkeys(args.table))
    if "all" in names:
        names = [*NAMES, *(name for name in names if name == SIZES)]
    tables = [paper_table(name, protocol) for name in names]
    seeds = range(args.first_seed, args.first_seed + (1 if args.quick else args.seeds))
    variants = [entry.variant for table in tables for entry in table.entries]
    cells = seed_by_seed(variants, base, seeds)
    out = experiment_folder(args, "reproduce")
    runner = Runner(out, data, args.keep_runs)
    page = Page(runner, tables, cells, base, args.average, dataset == protocol)
    with runner.lock():
        if not args.report_only:
            runner.run(cells, after=page.write_now_and_then)
        page.write()
    print(f"\nreport: {out / 'report.html'} and report.md, numbers: {out / 'summary.json'}")


class Page:
    """The report of an experiment in progress.

    Args:
      runner: runner that has the results.
      tables: tables to show.
      cells: all cells of the experiment.
      base: settings that the cells share.
      average: ``users`` or ``pairs``.
      same_data: whether the paper's numbers are for this data.
    """

    def __init__(
        self,
        runner: Runner,
        tables: list[Table],
        cells: list[Cell],
        base: TrainSettings,
        average: str,
        same_data: bool,
    ) -> None:
        self._runner = runner
        self._tables = tables
        self._cells = cells
        self._base = base
        self._average = average
        self._same_data = same_data
        self._written = time.monotonic()

    def write_now_and_then(self) -> None:
        """Writes the page, unless it was written a short while ago."""
        if time.monotonic() - self._written > SECONDS_BETWEEN_REPORTS:
            self.write()

    def write(self) -> None:
        """Writes the page from the results so far."""
        results = self._runner.results(self._cells)
        found = [result for result in results if result is not None]
        unique = list({result["key"]: result for result in found}.values())
        by_name: dict[str, list[Any]] = {}
        for cell, result in zip(self._cells, results):
            by_name.setdefault(cell.name, []).append(result)
        rows = {name: report.by_seed(mine) for name, mine in by_name.items()}
        filled = {name: seeds for name, seeds in rows.items() if seeds}
        data = self._runner.data
        blocks: list[Block] = report.data_blocks(data, filled, self._average)
        missing = len({cell.key(data) for cell in self._cells}) - len(unique)
        if missing:
            blocks.append(Text(f"Not finished: {missing} runs are still missing."))
        if self._same_data:
            blocks.append(Text("“paper” is the number in the paper for this data set."))
        summary: dict[str, Any] = {}
        for table in self._tables:
            mine = {
                entry: rows[entry.variant.name]
                for entry in table.entries
                if rows.get(entry.variant.name)
            }
            blocks.append(Heading(table.title[0].upper() + table.title[1:]))
            if mine:
                blocks += self._table_blocks(table, mine)
                summary[table.name] = report.summary_json(
                    {_label(entry): seeds for entry, seeds in mine.items()},
                    self._average,
                    table.reference,
                )
        blocks += report.settings_blocks(unique)
        write_page(self._runner.folder, f"The paper's experiments on {data.path.name}", blocks)
        write_json(
            self._runner.folder / "summary.json",
            {"average": self._average, "data": data.path.name, "tables": summary},
        )
        self._written = time.monotonic()

    def _table_blocks(self, table: Table, found: dict[Entry, report.Seeds]) -> list[Block]:
        if table.name == "figures":
            return self._figure_blocks(found)
        published = None
        if not table.columns:
            rows = {entry.row: seeds for entry, seeds in found.items()}
            if self._same_data:
                published = {entry.row: entry.published or {} for entry in table.entries}
            blocks = report.flat_blocks(rows, self._average, table.reference, published)
            if table.name == "mining":
                blocks += self._mining_blocks(rows)
            return blocks + report.picture_blocks(rows, self._average, table.reference, table.name)
        grid: dict[str, dict[str, report.Seeds]] = {}
        printed: dict[str, dict[str, dict[int, float]]] = {}
        for entry in table.entries:
            grid.setdefault(entry.row, {})[entry.column] = found.get(entry, {})
            printed.setdefault(entry.row, {})[entry.column] = entry.published or {}
        blocks = report.grid_blocks(grid, self._average, printed if self._same_data else None)
        chosen = _best_of_each_row(found, self._average, self._base.monitor_cutoff)
        text = f"The pictures show the α of each kernel with the best {self._base.monitor}."
        return [*blocks, Text(text)] + report.picture_blocks(
            chosen, self._average, None, table.name
        )

    def _mining_blocks(self, rows: report.Rows) -> list[Block]:
        groups = {}
        for name in ("triplet", "BPR"):
            plain, mined = rows.get(name), rows.get(f"{name}, α=1")
            if plain and mined:
                groups[name] = _improvements(plain, mined, self._average)
        if not groups:
            return []
        png = pictures.bars_over_sizes(groups, "improvement of Recall@N by α=1, percentage points")
        return [Picture("mining_improvement", "Improvement by α=1", png)]

    def _figure_blocks(self, found: dict[Entry, report.Seeds]) -> list[Block]:
        sizes = report.sizes_of({_label(entry): seeds for entry, seeds in found.items()})
        columns = list(dict.fromkeys(entry.column for entry in found))
        sigmoid, kernels = {}, {}
        for entry, seeds in found.items():
            if entry.row == "sigmoid" and entry.column in (columns[0], columns[-1]):
                sigmoid[entry.column] = [self._point(seeds, size) for size in sizes]
        for kernel in dict.fromkeys(entry.row for entry in found):
            mine = [seeds for entry, seeds in found.items() if entry.row == kernel]
            kernels[kernel] = [
                max((self._point(seeds, size) for seeds in mine), key=lambda point: point[1])
                for size in sizes
            ]
        blocks: list[Block] = []
        if sigmoid:
            blocks += [
                Heading("α against N, sigmoid kernel", 3),
                Picture(
                    "alpha_against_size",
                    "Recall@N for a small and a large alpha",
                    pictures.lines_over_sizes(sigmoid, f"Recall@N over {self._average}, %"),
                ),
            ]
        return [
            *blocks,
            Heading("Kernels against N, each with its best α at each N", 3),
            Picture(
                "kernels_against_size",
                "Recall@N for four kernels",
                pictures.lines_over_sizes(kernels, f"Recall@N over {self._average}, %"),
            ),
        ]

    def _point(self, seeds: report.Seeds, size: int) -> tuple[int, float, float | None]:
        summary = report.recall_summary(seeds, size, self._average)
        return size, summary.mean, summary.standard_error


def _label(entry: Entry) -> str:
    return f"{entry.row} {entry.column}".strip()


def _best_of_each_row(found: dict[Entry, report.Seeds], average: str, size: int) -> report.Rows:
    best: dict[str, tuple[float, str, report.Seeds]] = {}
    for entry, seeds in found.items():
        mean = report.recall_summary(seeds, size, average).mean
        if entry.row not in best or mean > best[entry.row][0]:
            best[entry.row] = (mean, _label(entry), seeds)
    return {label: seeds for _, label, seeds in best.values()}


def _improvements(
    plain: report.Seeds, mined: report.Seeds, average: str
) -> dict[int, tuple[float, float | None]]:
    sizes = report.sizes_of({"plain": plain})
    improvements = {}
    for size in sizes:
        test = paired_test(
            report.recalls(mined, size, average), report.recalls(plain, size, average)
        )
        difference = (
            report.recall_summary(mined, size, average).mean
            - report.recall_summary(plain, size, average).mean
        )
        improvements[size] = (difference, None if test is None else test.standard_error)
    return improvements
