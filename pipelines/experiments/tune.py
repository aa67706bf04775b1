"""Step ``tune``: searches losses, their settings, temperature and learning rate with Optuna.

Trials that fall behind in validation Recall@N are pruned, by default by successive halving over
steps; the test split is never read.

::

    OUT/study.db        all trials; the same command continues with it
    OUT/best.json       the best trial so far
    OUT/report.html, report.md
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import cli
from ..common.files import installed_versions, read_json, write_json
from ..common.json_shapes import check_shape
from ..common.page import Field, Grid, Text, write_page
from ..data.prepared import PreparedData
from ..errors import UserError
from ..runs.command_line import add_shared_settings, train_command
from ..runs.folder import data_checksum, training_differences
from ..runs.losses import GROUPS, LOSSES, choose, names
from ..runs.settings import TrainSettings
from ..runs.spaces import Choice, Draw, Range, Space
from .cells import SHARED_SETTINGS, Cell, Variant, experiment_folder
from .compare import base_settings
from .runner import HISTORY, Runner, monitored, read_history
from .study import study_database

STUDY = "study.db"
_CONFIG_SHAPE = {"settings": dict, "losses": [str], "data_checksum": str}
PRUNERS = ("halving", "median", "none")
_STARTUP_TRIALS = 5
_HALVING_FACTOR = 3
_TEMPERATURES = Range(0.03, 0.5, logarithmic=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this step."""
    parser.add_argument("--data", required=True, help="folder of prepared data")
    parser.add_argument("--out", help="folder of the search (DATA-tune)")
    parser.add_argument(
        "--retrieval-size",
        type=cli.positive,
        required=True,
        metavar="N",
        help="number of items that will be retrieved, the N of the Recall@N to maximize",
    )
    parser.add_argument(
        "--losses",
        nargs="+",
        default=["family"],
        metavar="LOSS",
        help=f"losses to search: {', '.join(LOSSES)}; or groups of them: all, {', '.join(GROUPS)} "
        "(family)",
    )
    parser.add_argument(
        "--trials",
        type=cli.positive,
        default=30,
        metavar="N",
        help="number of trials in the study, including those of earlier calls (%(default)s)",
    )
    parser.add_argument(
        "--pruner",
        choices=PRUNERS,
        default="halving",
        help="which trials end early: those outside the best third of all trials after about a "
        "ninth of the steps, and again after a third (halving); those that fall behind the median "
        "of the others (median); or none (%(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=cli.count,
        default=0,
        metavar="N",
        help="seed of the search and of the runs (%(default)s)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="train for few steps, for a first look"
    )
    add_shared_settings(parser, SHARED_SETTINGS)


def run(args: argparse.Namespace) -> None:
    """Searches."""
    optuna = import_optuna()
    data = PreparedData.load(args.data)
    base = dataclasses.replace(base_settings(args, data), seed=args.seed)
    losses = chosen_losses(args.losses)
    out = experiment_folder(args, "tune")
    runner = Runner(out, data)
    with runner.lock():
        check_same_search(out, base, losses, data)
        draw = functools.partial(suggest, base=base, losses=losses)
        with study_database(out / STUDY, optuna) as storage:
            search = Search(optuna, runner, base, draw, storage, args.pruner)
            search.run(args.trials)
            settings = search.finish(args.data)
    print(
        f"\nall trials: {out / 'report.html'} and report.md\n\nNext:\n  "
        + train_command(settings, args.data, f"{out}/winner")
    )


def chosen_losses(words: list[str]) -> tuple[str, ...]:
    """The names of the losses that ``--losses`` stands for, in the order of the registry."""
    members: dict[str, tuple[str, ...]] = {"all": names()}
    members.update({group: names(group) for group in GROUPS})
    members.update({name: (name,) for name in LOSSES})
    chosen = choose(words, members, "--losses")
    return tuple(name for name in LOSSES if name in chosen)


def import_optuna() -> Any:
    """Optuna, or an error that says how to install it."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise UserError(
            "step 'tune' needs Optuna, which is not installed. Run pip install "
            "'tfrs-croloss[tune]', or pip install optuna."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Search:
    """A study in the folder of a runner.

    Args:
      optuna: the module.
      runner: runner that trains the trials.
      base: settings that are not searched.
      draw: returns the settings of a trial of Optuna.
      storage: address of the study's database, or None for a study in memory.
      pruner: one of ``PRUNERS``.
    """

    def __init__(
        self,
        optuna: Any,
        runner: Runner,
        base: TrainSettings,
        draw: Callable[[Any], TrainSettings],
        storage: str | None,
        pruner: str = "halving",
    ) -> None:
        self._optuna = optuna
        self._runner = runner
        self._base = base
        self._draw = draw
        self._study = optuna.create_study(
            study_name="tune",
            storage=storage,
            load_if_exists=True,
            direction="maximize",
            pruner=_pruner(optuna, pruner, base),
        )
        # A new stream after an interruption: the old one would draw the same trials again.
        seed = (base.seed + len(self._study.trials)) % 2**32
        self._study.sampler = optuna.samplers.TPESampler(seed=seed)

    def enqueue(self, *trials: dict[str, Any]) -> None:
        """Lets the first trials of the study have these values; the others are drawn."""
        if not self._study.get_trials(deepcopy=False):
            for values in trials:
                self._study.enqueue_trial(values)

    def run(self, num_trials: int) -> None:
        """Runs trials until ``num_trials`` have ended."""
        states = self._optuna.trial.TrialState
        for left in self._study.get_trials(deepcopy=False, states=(states.RUNNING,)):
            # Its process is gone; a trial with the same settings continues from its checkpoint.
            self._study.tell(left.number, state=states.FAIL)
            self._study.enqueue_trial(left.params)
        while (done := len(self.finished())) < num_trials:
            trial = self._study.ask()
            settings = self._draw(trial)
            cell = Cell(f"trial {trial.number}", settings, split="valid")
            outcome = self._run_trial(trial, cell)
            print(
                f"[{done + 1}/{num_trials}] {cell.settings.loss_title}, temperature "
                f"{cell.settings.temperature:.3g}, learning rate "
                f"{cell.settings.learning_rate:.2g}: {outcome}",
                flush=True,
            )

    def finished(self) -> list[Any]:
        """The trials that were completed or pruned, or that diverged."""
        states = self._optuna.trial.TrialState
        return [
            trial
            for trial in self._study.get_trials(deepcopy=False)
            if trial.state in (states.COMPLETE, states.PRUNED)
            or (trial.state == states.FAIL and "diverged" in trial.user_attrs)
        ]

    def budget(self) -> dict[str, int]:
        """What the search took: ``trials``, those that ran to their ``end``, and all ``steps``."""
        trials = self.finished()
        return {
            "trials": len(trials),
            "end": sum(trial.state.name == "COMPLETE" for trial in trials),
            "steps": sum(max(trial.intermediate_values, default=0) for trial in trials),
        }

    def finish(self, data: str) -> TrainSettings:
        """Writes the report and the best trial, and returns its settings.

        Args:
          data: folder of the data, as it was given on the command line.
        """
        states = self._optuna.trial.TrialState
        complete = [trial for trial in self.finished() if trial.state == states.COMPLETE]
        if not complete:
            raise UserError(
                "every trial diverged or was pruned. Lower --learning-rate, or raise --trials."
            )
        best = max(complete, key=lambda trial: trial.value)
        settings = TrainSettings.from_dict(best.user_attrs["settings"])
        folder, monitor = self._runner.folder, self._base.monitor
        write_json(
            folder / "best.json",
            {
                "trial": best.number,
                monitor: best.value,
                "settings": settings.as_dict(),
                "command": train_command(settings, data, f"{folder}/winner"),
                "seed": self._base.seed,
                "versions": {**installed_versions(), "optuna": self._optuna.__version__},
            },
        )
        names = sorted({name for trial in self.finished() for name in trial.params})
        lines = [
            [
                Field(str(trial.number)),
                Field(_outcome(trial), best=trial.number == best.number),
                *(Field(_shown(trial.params.get(name, "–"))) for name in names),
            ]
            for trial in sorted(self.finished(), key=_value, reverse=True)
        ]
        text = (
            f"{len(lines)} trials on {self._runner.data.path.name}, seed {self._base.seed}; the "
            f"figure is the best validation {monitor} in percent. The test split was not read."
        )
        write_page(
            folder,
            f"Search for {monitor} on {self._runner.data.path.name}",
            [Text(text), Grid(["trial", monitor, *names], lines)],
        )
        return settings

    def _run_trial(self, trial: Any, cell: Cell) -> str:
        """Trains a trial, tells the study, and returns the outcome in words."""
        monitor, states = self._base.monitor, self._optuna.trial.TrialState
        trial.set_user_attr("settings", cell.settings.as_dict())

        def after_validation(row: dict[str, Any]) -> None:
            trial.report(row[monitor], row["step"])
            if trial.should_prune():
                raise self._optuna.TrialPruned()

        folder = self._runner.run_folder(cell)
        for row in read_history(folder) if (folder / HISTORY).is_file() else []:
            trial.report(row[monitor], row["step"])
        try:
            result = self._runner.result(cell) or self._runner.run_one(cell, after_validation)
        except self._optuna.TrialPruned:
            self._study.tell(trial, state=states.PRUNED)
            self._runner.discard(cell)
            return "pruned"
        if "failed" in result:
            trial.set_user_attr("diverged", True)
            self._study.tell(trial, state=states.FAIL)
            return "diverged"
        self._study.tell(trial, monitored(result))
        return f"validation {monitor} {monitored(result):.4f}"


def suggest(trial: Any, base: TrainSettings, losses: tuple[str, ...]) -> TrainSettings:
    """The settings of a trial.

    Args:
      trial: trial of Optuna.
      base: settings that are not searched; its learning rate is the middle of the searched range.
      losses: names of the losses to search.
    """
    draw = drawing(trial)
    rates = Range(base.learning_rate / 5, base.learning_rate * 5, logarithmic=True)
    loss = draw("loss", Choice(losses))
    options = {
        "temperature": draw("temperature", _TEMPERATURES),
        "learning_rate": draw("learning_rate", rates),
        **LOSSES[loss].draw_options(draw, base.monitor_cutoff),
    }
    return Variant("trial", loss, options).settings(base, base.seed)


def drawing(trial: Any) -> Draw:
    """Draws values from search spaces, as a trial of Optuna suggests them."""

    def draw(name: str, space: Space) -> Any:
        if isinstance(space, Choice):
            return trial.suggest_categorical(name, tuple(space.choices))
        return trial.suggest_float(name, space.low, space.high, log=space.logarithmic)

    return draw


def _pruner(optuna: Any, name: str, base: TrainSettings) -> Any:
    if name == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(
            min_resource=first_cut(base) or "auto", reduction_factor=_HALVING_FACTOR
        )
    if name == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=_STARTUP_TRIALS)
    return optuna.pruners.NopPruner()


def first_cut(base: TrainSettings) -> int | None:
    """The step at which halving first cuts trials: a validation after a ninth of all steps.

    A first validation of many says little: it prefers what learns fast to what learns well.

    >>> first_cut(TrainSettings(max_steps=1_700, steps_per_epoch=170))
    340
    """
    if not base.max_steps or not base.steps_per_epoch:
        return None
    share = base.max_steps / _HALVING_FACTOR**2
    return max(math.ceil(share / base.steps_per_epoch), 1) * base.steps_per_epoch


def check_same_search(
    out: Path, base: TrainSettings, losses: tuple[str, ...], data: PreparedData
) -> None:
    """Refuses to continue a search that had other settings, losses or data."""
    config: dict[str, Any] = {
        "settings": base.as_dict(),
        "losses": list(losses),
        "data_checksum": data_checksum(data),
    }
    path = out / "config.json"
    if not path.is_file():
        write_json(path, config)
        return
    found = read_json(path, dict)
    check_shape(path, found, _CONFIG_SHAPE, "Choose another folder.")
    # Settings that came after the search was started have their defaults in it.
    settings = TrainSettings.from_dict(found["settings"]).as_dict()
    different = training_differences({**found, "settings": settings}, config)
    # Searches of older versions had these losses, and did not say so.
    searched = found.get("losses", list(names("family")))
    if searched != config["losses"]:
        different.append(f"losses: {' '.join(searched)} there, {' '.join(losses)} now")
    if different:
        raise UserError(
            f"--out {out} holds a search with other settings or data ({'; '.join(different)}). "
            "Choose another folder."
        )


def _value(trial: Any) -> float:
    if trial.value is not None:
        return float(trial.value)
    return max(trial.intermediate_values.values(), default=-1.0) - 1.0


def _outcome(trial: Any) -> str:
    if trial.state.name == "COMPLETE":
        return f"{100 * trial.value:.2f}"
    return "diverged" if "diverged" in trial.user_attrs else "pruned"


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
