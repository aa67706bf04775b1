"""Step ``compare``: losses on equal terms.

Every loss has the same model, data, negatives, steps and number of trials to find its temperature
and the one setting of its own. The choice is made on the validation split and written down
(``choices.json``); only then are the chosen settings trained with new seeds, and the test read.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from pathlib import Path
from typing import Any

from .. import cli
from ..common.files import write_json
from ..common.page import Block, Field, Grid, Heading, Text, write_page
from ..data.prepared import PreparedData
from ..errors import UserError
from ..runs.build import build_loss
from ..runs.contestants import (
    CONTESTANTS,
    GROUPS,
    Range,
    named,
    trial,
)
from ..runs.settings import TrainSettings
from . import report
from .cells import (
    Cell,
    Variant,
    add_overrides,
    data_defaults,
    overrides,
    seed_by_seed,
)
from .paper_tables import quick
from .reproduce import SECONDS_BETWEEN_REPORTS, add_common_arguments
from .runner import Result, Runner, monitored

REFERENCE = "softmax"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this step."""
    parser.add_argument("--data", required=True, help="folder of prepared data")
    parser.add_argument(
        "--losses",
        nargs="+",
        default=["all"],
        help=f"of {', '.join(CONTESTANTS)}, or groups of them: {', '.join(GROUPS)} (all)",
    )
    parser.add_argument("--out", help="folder of the experiment (DATA-compare)")
    parser.add_argument(
        "--retrieval-size",
        type=cli.positive,
        default=50,
        help="the N of the Recall@N that decides (%(default)s)",
    )
    parser.add_argument("--trials", type=cli.positive, default=8, help="of each loss (%(default)s)")
    parser.add_argument(
        "--temperatures",
        nargs=2,
        type=float,
        metavar=("LOW", "HIGH"),
        default=[0.05, 0.3],
        help="to search (0.05 0.3)",
    )
    parser.add_argument(
        "--search-seed", type=cli.count, default=0, help="of all trials (%(default)s)"
    )
    add_common_arguments(parser)
    add_overrides(parser)


def comparison_settings(retrieval_size: int, tower: str) -> TrainSettings:
    """What all losses share, before anything is given on the command line.

    The matrix factorisation is that of the published tables: batches of 1,024 pairs with as many
    uniform negatives, and a large learning rate.
    """
    settings = TrainSettings(
        monitor=f"recall@{retrieval_size}",
        cutoffs=tuple(sorted({20, 50, 100, 200, 500, retrieval_size})),
        tower=tower,
        max_steps=20_000,
        steps_per_epoch=500,
        early_stopping_patience=5,
    )
    if tower == "history":
        return settings
    return dataclasses.replace(
        settings,
        dim=64,
        min_history=0,
        batch_size=1_024,
        negatives_per_example=1,
        mask_known_positives=True,
        temperature=0.2,
        learning_rate=0.1,
        max_steps=6_000,
        steps_per_epoch=200,
    )


def run(args: argparse.Namespace) -> None:
    """Compares losses."""
    data = PreparedData.load(args.data)
    base = comparison_settings(args.retrieval_size, args.tower or "history")
    if args.quick:
        base = quick(base)
    base = dataclasses.replace(base, **{**data_defaults(data), **overrides(args)})
    num_trials = min(args.trials, 2) if args.quick else args.trials
    seeds = range(args.first_seed, args.first_seed + (1 if args.quick else args.seeds))
    _check(args, seeds)
    temperatures = Range(args.temperatures[0], args.temperatures[1], logarithmic=True)
    variants = {
        name: [trial(name, contestant, number, base, temperatures) for number in range(num_trials)]
        for name, contestant in named(args.losses).items()
    }
    # Better now than after hours of training the others.
    for variant in itertools.chain.from_iterable(variants.values()):
        try:
            build_loss(variant.settings(base, args.search_seed), data.num_items)
        except UserError as error:
            raise UserError(f"--losses {variant.name}: {error}") from error
    out = Path(args.out or f"{str(args.data).rstrip('/')}-compare")
    runner = Runner(out, data, args.keep_runs)
    comparison = Comparison(runner, variants, base, args.search_seed, list(seeds), args.average)
    with runner.lock():
        comparison.run(train=not args.report_only)
    print(f"\nreport: {out / 'report.html'} and report.md, numbers: {out / 'summary.json'}")


class Comparison:
    """The two rounds of a comparison.

    Args:
      runner: trains and keeps results.
      variants: the trials of each loss, as many for each.
      base: settings that all share.
      search_seed: of the trials.
      seeds: of the second round.
      average: ``users`` or ``pairs``, for the report.
    """

    def __init__(
        self,
        runner: Runner,
        variants: dict[str, list[Variant]],
        base: TrainSettings,
        search_seed: int,
        seeds: list[int],
        average: str,
    ) -> None:
        self._runner = runner
        self._variants = variants
        self._base = base
        self._search_seed = search_seed
        self._seeds = seeds
        self._average = average
        self._written = time.monotonic()

    def trials(self) -> list[Cell]:
        """The search: the first trial of every loss, then the second of every loss, and so on."""
        rounds = zip(*self._variants.values())
        return [
            cell
            for variants in rounds
            for cell in seed_by_seed(variants, self._base, [self._search_seed], split="valid")
        ]

    def run(self, train: bool) -> None:
        """Searches, chooses, trains the chosen and writes the page; or writes it alone."""
        trials = self.trials()
        if train:
            print(f"search: {len(trials)} runs, validated only", flush=True)
            self._runner.run(trials)
        results = self._runner.results(trials)
        if None in results:
            raise UserError(
                f"--report-only should find the search finished. {results.count(None)} of its "
                f"{len(results)} runs are missing in {self._runner.folder}. Run without it."
            )
        found = [result for result in results if result is not None]
        chosen = self._choose(found)
        finals = seed_by_seed(chosen.values(), self._base, self._seeds)

        def write_now_and_then() -> None:
            if time.monotonic() - self._written > SECONDS_BETWEEN_REPORTS:
                self._write(finals, found)

        if train:
            print(f"chosen settings: {len(finals)} runs, tested", flush=True)
            self._runner.run(finals, after=write_now_and_then)
        self._write(finals, found)

    def _choose(self, results: list[Result]) -> dict[str, Variant]:
        """The best trial of each loss in validation, also written to ``choices.json``."""
        chosen, listing = {}, {}
        for position, (name, variants) in enumerate(self._variants.items()):
            mine = results[position :: len(self._variants)]
            best = max(range(len(mine)), key=lambda number: monitored(mine[number]))
            if "failed" in mine[best]:
                raise UserError(
                    f"every trial of {name} diverged. Lower --learning-rate, or leave it out of "
                    "--losses."
                )
            chosen[name] = variants[best]
            listing[name] = {
                "chosen": best,
                "trials": [
                    {"options": dict(variant.options), self._base.monitor: monitored(result)}
                    for variant, result in zip(variants, mine)
                ],
            }
        write_json(self._runner.folder / "choices.json", listing)
        return chosen

    def _write(self, finals: list[Cell], search: list[Result]) -> None:
        data, average = self._runner.data, self._average
        rows: report.Rows = {}
        results: list[Any] = self._runner.results(finals)
        for name in self._variants:
            mine = [result for cell, result in zip(finals, results) if cell.name == name]
            if seeds := report.by_seed(mine):
                rows[name] = seeds
        found = [result for result in results if result is not None]
        blocks: list[Block] = report.data_blocks(data, rows, average)
        if len(found) < len(finals):
            blocks.append(Text(f"Not finished: {len(finals) - len(found)} runs are missing."))
        if rows:
            blocks.append(Heading("Test"))
            blocks += report.flat_blocks(rows, average, REFERENCE, None)
            blocks += report.picture_blocks(rows, average, REFERENCE, "compare")
        blocks += self._search_blocks(search)
        blocks += report.settings_blocks(found)
        size = self._base.monitor_cutoff
        write_page(self._runner.folder, f"Losses for Recall@{size} on {data.path.name}", blocks)
        summary = report.summary_json(rows, average, REFERENCE) if rows else {}
        write_json(
            self._runner.folder / "summary.json",
            {"average": average, "data": data.path.name, "losses": summary},
        )
        self._written = time.monotonic()

    def _search_blocks(self, search: list[Result]) -> list[Block]:
        num_trials = len(next(iter(self._variants.values())))
        lines = []
        for position, (name, variants) in enumerate(self._variants.items()):
            values = [monitored(result) for result in search[position :: len(self._variants)]]
            for variant, value in zip(variants, values):
                options = ", ".join(
                    f"{key} {option:g}" if isinstance(option, float) else f"{key} {option}"
                    for key, option in variant.options.items()
                )
                shown = "diverged" if value < 0 else f"{100 * value:.2f}"
                lines.append([Field(name), Field(options), Field(shown, best=value == max(values))])
        text = (
            f"Every loss had {num_trials} trials with seed {self._search_seed}, at the same "
            f"temperatures; the first has the defaults. Bold is what was chosen by validation "
            f"{self._base.monitor} (%), before the test was read."
        )
        header = ["loss", "options", f"validation {self._base.monitor}"]
        return [Heading("Search"), Text(text), Grid(header, lines)]


def _check(args: argparse.Namespace, seeds: range) -> None:
    low, high = args.temperatures
    if not 0 < low <= high < float("inf"):
        raise UserError(
            "--temperatures should be two numbers above 0, the lower first. Received: "
            f"{low} {high}."
        )
    if args.search_seed in seeds:
        raise UserError(
            f"--search-seed should not be one of the seeds that are tested ({seeds[0]} to "
            f"{seeds[-1]}). Received: {args.search_seed}. Pass another, or another --first-seed."
        )
