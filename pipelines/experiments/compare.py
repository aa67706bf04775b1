"""Step ``compare``: losses on equal terms.

Every loss has the same model, data, negatives, steps and number of trials to find its temperature
and its own settings. The choice is made on the validation split and recorded in ``choices.json``;
only then are the chosen settings trained with new seeds and measured on the test split.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from collections.abc import Iterable, Mapping
from typing import Any

from scipy.stats import qmc

from .. import cli
from ..common.files import write_json
from ..common.page import Block, Field, Grid, Heading, Text, write_page
from ..data.prepared import PreparedData
from ..errors import UserError
from ..runs.build import build_loss
from ..runs.command_line import add_shared_settings, shared_settings
from ..runs.losses import GROUPS, LOSSES, Contestant, choose, contestants
from ..runs.settings import TrainSettings
from ..runs.spaces import Range
from . import report
from .cells import SHARED_SETTINGS, Cell, Variant, data_defaults, experiment_folder, seed_by_seed
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
        metavar="LOSS",
        help=f"losses to compare: {', '.join(contestants())}; or groups of them: all, "
        f"{', '.join(GROUPS)} (all)",
    )
    parser.add_argument("--out", help="folder of the experiment (DATA-compare)")
    parser.add_argument(
        "--retrieval-size",
        type=cli.positive,
        default=50,
        metavar="N",
        help="number of items that will be retrieved, the N of the Recall@N that chooses the "
        "settings (%(default)s)",
    )
    parser.add_argument(
        "--trials",
        type=cli.positive,
        default=8,
        metavar="N",
        help="number of trials for each loss (%(default)s)",
    )
    parser.add_argument(
        "--temperatures",
        nargs=2,
        type=float,
        metavar=("LOW", "HIGH"),
        default=[0.05, 0.3],
        help="range of temperatures to search (0.05 0.3)",
    )
    parser.add_argument(
        "--search-seed",
        type=cli.count,
        default=0,
        metavar="N",
        help="seed of all trials (%(default)s)",
    )
    add_common_arguments(parser)
    add_shared_settings(parser, SHARED_SETTINGS)


def comparison_settings(retrieval_size: int, tower: str) -> TrainSettings:
    """The settings that all losses share by default.

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


def base_settings(args: argparse.Namespace, data: PreparedData) -> TrainSettings:
    """The settings that all runs of ``compare`` or ``tune`` share."""
    if data.trains_on_valid:
        raise UserError(
            f"--data {data.path} was prepared with --train-on-valid, so validation cannot choose "
            "between settings. Prepare it without, and use this data for the last training alone."
        )
    given = shared_settings(args, SHARED_SETTINGS)
    base = comparison_settings(args.retrieval_size, given.get("tower", "history"))
    if args.quick:
        base = quick(base)
    return dataclasses.replace(base, **{**data_defaults(data), **given})


def chosen_contestants(
    words: Iterable[str], more: Mapping[str, Contestant] | None = None
) -> dict[str, Contestant]:
    """The contestants that ``--losses`` stands for, by name.

    Args:
      words: names of contestants or groups.
      more: further contestants, which no group contains.
    """
    known = contestants()
    members: dict[str, list[str]] = {"all": list(known)}
    for group in GROUPS:
        members[group] = [name for name, it in known.items() if LOSSES[it.loss].group == group]
    known.update(more or {})
    members.update({name: [name] for name in known})
    return {name: known[name] for name in choose(words, members, "--losses")}


def trial(
    name: str, contestant: Contestant, number: int, base: TrainSettings, temperatures: Range
) -> Variant:
    """Trial ``number`` of a search: trial 0 has the defaults, the others spread over the space.

    The temperatures are the same for all losses, so that no loss gets luckier ones.

    Args:
      name: name of the loss in reports.
      contestant: the loss and its search spaces.
      number: number of the trial, from 0.
      base: settings with the default temperature, and with the N that sized losses are given.
      temperatures: range of temperatures.
    """
    options = dict(contestant.options)
    if contestant.sized:
        options["retrieval_size"] = base.monitor_cutoff
    options["temperature"] = base.temperature
    if number:
        num_own = len(contestant.space)
        options["temperature"] = temperatures.at(_halton(number + 1, 1)[0])
        shares = _halton(number, 1 + num_own)[1:]
        for (own, space), share in zip(contestant.space.items(), shares):
            options[own] = space.at(share)
    return Variant(name, contestant.loss, options)


def _halton(number: int, dimensions: int) -> list[float]:
    """A point of the Halton sequence, which fills the unit cube evenly.

    >>> [_halton(number, 1) for number in (1, 2, 3, 4)]
    [[0.5], [0.25], [0.75], [0.125]]
    """
    points = qmc.Halton(dimensions, scramble=False).fast_forward(number)
    shares: list[float] = points.random(1)[0].tolist()
    return shares


def run(args: argparse.Namespace) -> None:
    """Compares losses."""
    data = PreparedData.load(args.data)
    base = base_settings(args, data)
    num_trials = min(args.trials, 2) if args.quick else args.trials
    seeds = range(args.first_seed, args.first_seed + (1 if args.quick else args.seeds))
    _check(args, seeds)
    temperatures = Range(args.temperatures[0], args.temperatures[1], logarithmic=True)
    variants = {
        name: [trial(name, contestant, number, base, temperatures) for number in range(num_trials)]
        for name, contestant in chosen_contestants(args.losses).items()
    }
    # Better now than after hours of training the others.
    for variant in itertools.chain.from_iterable(variants.values()):
        try:
            build_loss(variant.settings(base, args.search_seed), data.num_items)
        except UserError as error:
            raise UserError(f"--losses {variant.name}: {error}") from error
    out = experiment_folder(args, "compare")
    runner = Runner(out, data, args.keep_runs)
    comparison = Comparison(runner, variants, base, args.search_seed, list(seeds), args.average)
    with runner.lock():
        comparison.run(train=not args.report_only)
    print(f"\nreport: {out / 'report.html'} and report.md, numbers: {out / 'summary.json'}")


def open_ends(tried: Mapping[str, list[tuple[float, float]]]) -> list[str]:
    """Notes on losses whose best temperature is the lowest or the highest that was tried.

    A temperature that does not suit a loss may cost it more than any loss gains over another, so a
    comparison favours those whose best temperature has others on both sides.

    >>> (note,) = open_ends({"bpr": [(0.1, 0.25), (0.2, 0.31), (0.05, 0.2)]})
    >>> note[:62]
    'the best temperature is the highest that was tried for bpr, so'

    Args:
      tried: the temperatures of each loss, and what validation gave.
    """
    ends: dict[str, list[str]] = {"lowest": [], "highest": []}
    for name, trials in tried.items():
        temperatures = {temperature for temperature, _ in trials}
        best, _ = max(trials, key=lambda one: one[1])
        if len(temperatures) > 1:
            ends["lowest"] += [name] * (best == min(temperatures))
            ends["highest"] += [name] * (best == max(temperatures))
    return [
        f"the best temperature is the {end} that was tried for {', '.join(names)}, so a "
        f"{end.removesuffix('est')}er one may be better. Change --temperatures, or raise --trials."
        for end, names in ends.items()
        if names
    ]


class Comparison:
    """The two rounds of a comparison.

    Args:
      runner: runner that trains cells and keeps their results.
      variants: the trials of each loss, the same number for each.
      base: settings that all runs share.
      search_seed: seed of the trials.
      seeds: seeds of the second round.
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
        """Searches, chooses, trains the chosen settings and writes the report.

        Args:
          train: whether to train; otherwise the report is written from the results at hand.
        """
        trials = self.trials()
        if train:
            print(f"search: {len(trials)} runs, measured on the validation split", flush=True)
            self._runner.run(trials)
        results = self._runner.results(trials)
        if None in results:
            raise UserError(
                f"--report-only requires a finished search, but {results.count(None)} of its "
                f"{len(results)} runs are missing in {self._runner.folder}. Run the command "
                "without it."
            )
        found = [result for result in results if result is not None]
        chosen = self._choose(found)
        for note in self._open_ends(found):
            print(f"note: {note}", flush=True)
        finals = seed_by_seed(chosen.values(), self._base, self._seeds)

        def write_now_and_then() -> None:
            if time.monotonic() - self._written > SECONDS_BETWEEN_REPORTS:
                self._write(finals, found)

        if train:
            print(f"chosen settings: {len(finals)} runs, measured on the test split", flush=True)
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

    def _open_ends(self, search: list[Result]) -> list[str]:
        """What to say of the search for temperatures."""
        tried = {}
        for position, (name, variants) in enumerate(self._variants.items()):
            values = [monitored(result) for result in search[position :: len(self._variants)]]
            temperatures = [variant.options["temperature"] for variant in variants]
            tried[name] = list(zip(temperatures, values))
        return open_ends(tried)

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
            "temperatures; the first trial has the defaults. Bold marks the choice by validation "
            f"{self._base.monitor} (%), made before the test split was read."
        )
        header = ["loss", "options", f"validation {self._base.monitor}"]
        notes = [Text(note[0].upper() + note[1:]) for note in self._open_ends(search)]
        return [Heading("Search"), Text(text), Grid(header, lines), *notes]


def _check(args: argparse.Namespace, seeds: range) -> None:
    low, high = args.temperatures
    if not 0 < low <= high < float("inf"):
        raise UserError(
            "--temperatures should be two finite numbers above 0, the lower first. Received: "
            f"{low} {high}."
        )
    if args.search_seed in seeds:
        raise UserError(
            f"--search-seed should not be one of the seeds of the test ({seeds[0]} to "
            f"{seeds[-1]}). Received: {args.search_seed}. Change it, or change --first-seed."
        )
