"""Step ``evaluate``: exact Recall@N of a run's best weights, next to baselines.

Writes ``recall.json``, ``report.md`` and ``recall_curves.png`` into the folder of the run;
``report`` formats them.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from tfrs_croloss.metrics import popularity_ranks, summarize_ranks

from .. import cli
from ..common.files import installed_versions, replace_file, write_json
from ..common.program import command
from ..data.batches import EvaluationInput
from ..data.prepared import PreparedData
from ..errors import UserError
from ..runs import distribution, losses
from ..runs.folder import Run, open_run
from ..runs.ranks import (
    evaluation_users,
    expected_recall_alpha,
    pairs_of,
    ranks_by_chance,
    trained_report,
    with_validation,
)
from ..runs.settings import TrainSettings
from ..train.loop import train
from .report import Contender, draw_recall_curves, markdown, text_table

TRAINED_BASELINES = losses.names("conventional")
_UNTRAINED = {
    "popularity": "the items most often chosen in training, for every user",
    "random": "items in random order",
}
BASELINES = (*_UNTRAINED, *TRAINED_BASELINES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this step."""
    cli.add_run(parser)
    parser.add_argument(
        "--cutoffs",
        nargs="+",
        type=cli.positive,
        metavar="N",
        default=[50, 100, 200, 500],
        help="cutoffs N of Recall@N (50 100 200 500)",
    )
    parser.add_argument(
        "--split", choices=("valid", "test"), default="test", help="split to evaluate (test)"
    )
    parser.add_argument(
        "--exclude-history",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="leave items of the user's history out of the ranking; a target among them is a miss "
        "(off, as in the paper)",
    )
    parser.add_argument(
        "--exclude-validation",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="with --exclude-history, leave a test user's items of the validation split out as "
        "well, for data that comes split (off, as in the published tables)",
    )
    parser.add_argument(
        "--baselines",
        nargs="*",
        choices=BASELINES,
        default=["popularity", "random"],
        help="baselines to compare with; a loss is trained once, with the run's other settings, "
        "into RUN/baselines (popularity random)",
    )
    distribution.add_arguments(parser, "evaluate")


def run(args: argparse.Namespace) -> None:
    """Evaluates a run."""
    distribution.check_replicas(args.strategy, args.replicas)
    if args.exclude_validation and (args.split != "test" or not args.exclude_history):
        raise UserError(
            "--exclude-validation requires --split test and --exclude-history. Received: "
            f"--split {args.split}, history "
            f"{'excluded' if args.exclude_history else 'not excluded'}. Add --exclude-history."
        )
    trained = [name for name in args.baselines if name in TRAINED_BASELINES]
    if trained and args.strategy != "none":
        raise UserError(
            "--baselines that have to be trained cannot be combined with --strategy. Received: "
            f"{' '.join(trained)} and {args.strategy}. Leave one of the two out."
        )
    evaluated = Run.load(args.run_folder)
    data = evaluated.open_data(args.data)
    with distribution.watched(args.strategy):
        cluster = distribution.connect(args.strategy, args.replicas)
        contenders, users = _contenders(args, evaluated, data, cluster)
        # No process exits while others are still counting.
        cluster.numbers_of_all(0)
    if cluster.is_chief:
        _write(evaluated, args, users, contenders, _cold(data, users, contenders))


def _cold(
    data: PreparedData, users: EvaluationInput, contenders: list[Contender]
) -> list[Contender]:
    """The contenders on the targets that no training user has; empty if there are none."""
    cold = np.asarray(data.item_counts)[users.targets] == 0
    if not cold.any():
        return []
    return [
        dataclasses.replace(
            contender,
            report=summarize_ranks(
                contender.report.ranks[cold],
                num_items=data.num_items,
                user_rows=users.users[cold],
                cutoffs=contender.report.cutoffs,
                alpha=contender.report.alpha,
            ),
        )
        for contender in contenders
    ]


def popularity_note(contenders: list[Contender], settings: TrainSettings) -> str | None:
    """What to try where a list of popular items, the same for every user, beats the model.

    Args:
      contenders: the model, and what it is compared with.
      settings: settings of the model's run.

    Returns:
      A line for the user; None if the model is ahead, or popularity was not measured.
    """
    recalls = {contender.name: contender.report.users.recall for contender in contenders}
    popular = recalls.get("popularity", {})
    behind = [f"{n}" for n, recall in popular.items() if recall > recalls["model"][n]]
    if not behind:
        return None
    remedies = ["train longer"]
    takes_easing = "easing" in losses.LOSSES[settings.loss].options
    makes_place = settings.item_bias or settings.easing or settings.pull != 1.0
    if settings.similarity == "cosine" and not makes_place:
        # A cosine has no place for popularity. Both at once are worse than either.
        eases = settings.tower == "matrix-factorization" and takes_easing
        remedies.append("ease the pull, --easing 0.03" if eases else "add --item-bias")
    return (
        f"note: the most popular items alone have a higher recall than the model at N = "
        f"{', '.join(behind)}. Things to try: {'; '.join(remedies)}."
    )


def _contenders(
    args: argparse.Namespace, evaluated: Run, data: PreparedData, cluster: distribution.Cluster
) -> tuple[list[Contender], EvaluationInput]:
    """The model and the baselines with their reports, and the users whose targets were ranked."""
    if evaluated.result is None and cluster.is_chief:
        print(f"note: {evaluated.path} is not finished; this is its best validation so far.")
    users = evaluation_users(data, args.split, evaluated.settings)
    if args.exclude_validation:
        users = with_validation(users, data)
    options = {"cutoffs": args.cutoffs, "alpha": expected_recall_alpha(evaluated.settings)}
    model = trained_report(evaluated, data, users, args.exclude_history, cluster, **options)
    contenders = [Contender("model", evaluated.settings.loss_title, model)]
    for name in dict.fromkeys(args.baselines):
        if name in TRAINED_BASELINES:
            baseline = _baseline_run(evaluated, data, name)
            title = baseline.settings.loss_title
            report = trained_report(baseline, data, users, args.exclude_history, **options)
        else:
            title = _UNTRAINED[name]
            report = summarize_ranks(
                _untrained_ranks(name, evaluated, data, users, args.exclude_history),
                num_items=data.num_items,
                user_rows=users.users,
                **options,
            )
        contenders.append(Contender(name, title, report))
    return contenders, users


def _untrained_ranks(
    name: str, evaluated: Run, data: PreparedData, users: EvaluationInput, exclude_history: bool
) -> np.ndarray:
    """Ranks ``[num_pairs]`` by popularity or by chance."""
    if name == "random":
        return ranks_by_chance(users, data.num_items, exclude_history, evaluated.settings.seed)
    return popularity_ranks(
        data.item_counts,
        users.targets,
        **pairs_of(users, exclude_history),
        num_queries=len(users.histories),
    )


def _baseline_run(evaluated: Run, data: PreparedData, loss: str) -> Run:
    """The run with another loss, trained now unless it is finished."""
    settings = evaluated.settings.with_loss(loss)
    with open_run(evaluated.path / "baselines" / loss, data, settings) as baseline:
        if baseline.result is None:
            print(f"baseline {loss}: training with the settings of {evaluated.path}")
            train(baseline, data)
            print()
    return baseline


def _write(
    evaluated: Run,
    args: argparse.Namespace,
    users: EvaluationInput,
    contenders: list[Contender],
    cold: list[Contender],
) -> None:
    folder = evaluated.path
    title = (
        f"{folder}, {args.split} split: {len(users.targets):,} targets of "
        f"{len(np.unique(users.users)):,} users among {contenders[0].report.num_items:,} items, "
        f"history {'excluded' if args.exclude_history else 'not excluded'}"
        + (", validation excluded" if args.exclude_validation else "")
    )
    systems: dict[str, Any] = {
        contender.name: {"title": contender.title, **contender.report.as_dict()}
        for contender in contenders
    }
    for contender in cold:
        systems[contender.name]["cold_targets"] = contender.report.as_dict()
    write_json(
        folder / "recall.json",
        {
            "split": args.split,
            "exclude_history": args.exclude_history,
            "exclude_validation": args.exclude_validation,
            "cutoffs": list(contenders[0].report.cutoffs),
            "systems": systems,
            "settings": evaluated.settings.as_dict(),
            "seed": evaluated.settings.seed,
            "versions": installed_versions(),
        },
    )
    draw_recall_curves(folder / "recall_curves.png", contenders)
    replace_file(folder / "report.md", markdown(title, contenders, evaluated).encode())
    print(f"{title}\n")
    print(text_table(contenders))
    if cold:
        print(
            f"\n{cold[0].report.pairs.num:,} of the targets are cold: no training user has them.\n"
        )
        print(text_table(cold))
    if note := popularity_note(contenders, evaluated.settings):
        print(f"\n{note}")
    print(
        f"\nreport: {folder / 'report.md'}, numbers: {folder / 'recall.json'}\n\nNext:\n  "
        + command(
            "export",
            *("--run", args.run_folder),
            *("--out", f"saved_models/{Path(args.run_folder).resolve().name}"),
        )
    )
