"""The tables ``leaderboard`` and ``sequences``: losses on data with published results.

Every loss has the same number of trials, which successive halving cuts short. The best trial in
validation decides its settings, which are then trained with several seeds and measured on the test
split, beside the published numbers.

::

    OUT/SET/items.csv                 the attributes of the items, if the data set has some
    OUT/SET/data                      the prepared data
    OUT/SET/LOSS/study.db, results/   the search of a loss
    OUT/SET/finals/results/           the chosen settings, each with its seeds
    OUT/SET/refit/...                 data and runs of --refit, instead of finals
    OUT/report.html, report.md, summary.json

The same command on the same folder continues with what is missing. ``protocols`` has the data and
the model of each table, ``published_splits`` the published numbers.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from .. import prepare
from ..data.prepared import PreparedData
from ..data.sequences import training_input
from ..errors import UserError
from ..runs.losses import Contestant
from ..runs.settings import TrainSettings
from ..runs.spaces import Range
from . import report
from .cells import Cell, Variant
from .compare import chosen_contestants
from .item_attributes import COLUMN, write_attribute_table
from .leaderboard_page import write
from .protocols import PROTOCOLS, SEARCH_SEED, Protocol
from .published_splits import BENCHMARKS, Benchmark
from .runner import Runner
from .study import study_database
from .tune import STUDY, Search, check_same_search, drawing, import_optuna


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line decides.

    Attributes:
      table: name of the table.
      raw: folder with the data sets as they were published.
      out: folder of the experiment.
      sets: names of the data sets.
      contestants: the losses by name.
      trials: number of trials of each loss.
      seeds: seeds of the chosen settings.
      given: settings of every run that differ from the published ones.
      train: whether to train; otherwise the page is written from the results at hand.
      keep_runs: whether to keep the weights of finished runs.
      refit: whether to train the chosen settings on the interactions of validation, too.
    """

    table: str
    raw: Path
    out: Path
    sets: tuple[str, ...]
    contestants: dict[str, Contestant]
    trials: int
    seeds: tuple[int, ...]
    given: dict[str, Any]
    train: bool = True
    keep_runs: bool = False
    refit: bool = False

    @property
    def benchmark(self) -> Benchmark:
        """The published numbers."""
        return BENCHMARKS[self.table]

    @property
    def protocol(self) -> Protocol:
        """The data and the model."""
        return PROTOCOLS[self.table]

    @property
    def metrics(self) -> tuple[str, str]:
        """The metrics with published numbers."""
        return f"recall@{self.benchmark.size}", f"ndcg@{self.benchmark.size}"


def run_leaderboard(table: str, args: argparse.Namespace, given: dict[str, Any]) -> None:
    """Searches, trains and writes the page.

    Args:
      table: name of the table.
      args: options of ``reproduce``.
      given: settings that were given for every run.
    """
    options = read_options(table, args, given)
    boards = [Board(name, options) for name in options.sets]
    for board in boards:
        board.run()
        write(boards, options)
    print(f"\nreport: {options.out / 'report.html'} and report.md")


def read_options(table: str, args: argparse.Namespace, given: dict[str, Any]) -> Options:
    """The options, checked.

    Raises:
      UserError: a data set is unknown or missing, or the seeds of search and test are the same.
    """
    raw, benchmark, protocol = Path(args.data), BENCHMARKS[table], PROTOCOLS[table]
    sets, losses = args.sets or benchmark.sets, args.losses
    if not losses:
        has_attributes = all(protocol.attributes_of(raw, name) for name in sets)
        losses = [
            loss
            for loss in benchmark.losses
            if has_attributes or not protocol.needs_attributes(loss)
        ]
    trials = args.trials or benchmark.trials
    seeds = range(args.first_seed, args.first_seed + (1 if args.quick else args.seeds))
    if SEARCH_SEED in seeds:
        raise UserError(
            f"--first-seed should be above {SEARCH_SEED}, the seed of the search. Received: "
            f"{args.first_seed}."
        )
    contestants = chosen_contestants(losses, protocol.contestants)
    for name in sets:
        protocol.input(raw, name)
        protocol.check_attributes(raw, name, contestants)
    return Options(
        table=table,
        raw=raw,
        out=Path(args.out or table),
        sets=tuple(dict.fromkeys(sets)),
        contestants=contestants,
        trials=min(trials, 2) if args.quick else trials,
        seeds=tuple(seeds),
        given={**({"max_steps": 40, "steps_per_epoch": 20} if args.quick else {}), **given},
        train=not args.report_only,
        keep_runs=args.keep_runs,
        refit=args.refit,
    )


def suggest(
    trial: Any, name: str, contestant: Contestant, base: TrainSettings, protocol: Protocol
) -> Variant:
    """A trial of Optuna as a loss with its options: temperature, learning rate and its own space.

    Args:
      trial: trial of Optuna.
      name: name of the loss in reports.
      contestant: the loss and its search spaces.
      base: settings that are not searched; the searched learning rates are relative to its own.
      protocol: the ranges of temperatures and learning rates.
    """
    draw = drawing(trial)
    rates = Range(
        base.learning_rate * protocol.rates.low,
        base.learning_rate * protocol.rates.high,
        logarithmic=True,
    )
    options = {
        **contestant.options,
        "temperature": draw("temperature", protocol.temperatures),
        "learning_rate": draw("learning_rate", rates),
        **{own: draw(own, space) for own, space in contestant.space.items()},
    }
    if contestant.sized:
        options["retrieval_size"] = base.monitor_cutoff
    return Variant(name, contestant.loss, options)


class Board:
    """The losses on one data set.

    Args:
      name: name of the data set.
      options: options of the experiment.
    """

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.options = options
        self._folder = options.out / name
        self.rows: report.Rows = {}
        self.chosen: dict[str, TrainSettings] = {}
        self.budgets: dict[str, dict[str, int]] = {}
        self._passes: dict[str, float] = {}
        self.data: PreparedData | None = None
        self._finals: Runner | None = None

    def run(self) -> None:
        """Prepares, searches, and trains the chosen settings."""
        self.data = self._prepared(self._folder / "data")
        protocol, benchmark = self.options.protocol, self.options.benchmark
        base = protocol.settings(self.data, self.options.given, benchmark.size)
        for name, contestant in self.options.contestants.items():
            self.chosen[name] = self._search(name, contestant, base)
        finals = self._folder / "finals"
        if self.options.refit:
            self.data = self._prepared(self._folder / "refit" / "data", "--train-on-valid")
            finals = self._folder / "refit" / "finals"
            for name, settings in self.chosen.items():
                self.chosen[name] = _refitted(settings, self.data, self._passes[name])
        self._finals = Runner(finals, self.data, self.options.keep_runs, keep_ranks=True)
        cells = [
            Cell(name, dataclasses.replace(settings, seed=seed))
            for seed in self.options.seeds
            for name, settings in self.chosen.items()
        ]
        with self._finals.lock():
            if self.options.train:
                print(f"{self.name}: {len(cells)} runs, measured on the test split", flush=True)
                self._finals.run(cells)
            results = self._finals.results(cells)
        for name in self.chosen:
            mine = [result for cell, result in zip(cells, results) if cell.name == name]
            if seeds := report.by_seed(mine):
                self.rows[name] = seeds

    def by_user(self, name: str, metric: str) -> dict[int, Any]:
        """The values of a metric, in percent, for each test user, by seed."""
        assert self._finals is not None
        return {
            seed: 100 * self._finals.by_user(result, self.options.benchmark.size)[metric]
            for seed, result in self.rows[name].items()
        }

    def _prepared(self, out: Path, *options: str) -> PreparedData:
        if not self.options.train:
            return PreparedData.load(out)
        parser = argparse.ArgumentParser()
        prepare.add_arguments(parser)
        source = self.options.protocol.input(self.options.raw, self.name)
        words = [*self.options.protocol.prepare, *options, "--input", str(source)]
        attributes = self.options.protocol.attributes_of(self.options.raw, self.name)
        if attributes is not None:
            table = self._folder / "items.csv"
            write_attribute_table(attributes, table)
            words += ["--items", str(table), "--item-features", f"{COLUMN}:tags"]
        try:
            prepare.run(parser.parse_args([*words, "--out", str(out)]))
        except UserError as error:
            if not out.exists():
                raise
            read = f"{source} and {attributes}" if attributes else f"{source} alone"
            raise UserError(
                f"--out {self.options.out} holds results on other files than {read}, "
                "or of another version. Choose another folder."
            ) from error
        return PreparedData.load(out)

    def _search(self, name: str, contestant: Contestant, base: TrainSettings) -> TrainSettings:
        """The settings that were best in validation."""
        assert self.data is not None
        runner = Runner(self._folder / name, self.data)
        protocol = self.options.protocol

        def draw(trial: Any) -> TrainSettings:
            return suggest(trial, name, contestant, base, protocol).settings(base, SEARCH_SEED)

        optuna = import_optuna()
        database = study_database(runner.folder / STUDY, optuna)
        with runner.lock(), database as storage:
            check_same_search(runner.folder, base, (contestant.loss,), self.data)
            search = Search(optuna, runner, base, draw, storage)
            if self.options.train:
                print(f"{self.name}, {name}: {self.options.trials} trials", flush=True)
                # The published settings come first, then the same with twice the learning rate:
                # training is shorter than the published one.
                first = {"temperature": protocol.temperature, **contestant.first}
                search.enqueue(
                    *({**first, "learning_rate": times * base.learning_rate} for times in (1, 2))
                )
                search.run(self.options.trials)
            elif len(search.finished()) < self.options.trials:
                raise UserError(
                    f"--report-only requires a finished search, but for {name} on {self.name} only "
                    f"{len(search.finished())} of {self.options.trials} trials are finished. Run "
                    "the command without it."
                )
            self.budgets[name] = search.budget()
            settings = search.finish(str(self.data.path))
            best = runner.result(Cell(name, settings, split="valid"))
            assert best is not None
            self._passes[name] = best["best"]["epoch"]
            return settings


def _refitted(settings: TrainSettings, data: PreparedData, passes: float) -> TrainSettings:
    """The settings for as many passes over other data, after which the last weights count."""
    examples = training_input(data.split("train"), data.num_items, settings.window_options)
    steps = max(round(passes * examples.steps_per_epoch), 1)
    return dataclasses.replace(
        settings, max_steps=steps, steps_per_epoch=steps, early_stopping_patience=0
    )
