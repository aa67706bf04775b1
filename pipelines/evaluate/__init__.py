"""Step ``evaluate``: exact Recall@N of a run's best weights, next to baselines.

Writes into the folder of the run: ``recall.json``, ``report.md`` and ``recall_curves.png``.
"""

from __future__ import annotations

import argparse
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
from ..runs.folder import Run, configure, exclusive
from ..runs.ranks import evaluation_users, pairs_of, ranks_by_chance, trained_ranks
from ..train.loop import train
from .report import Contender, draw_recall_curves, markdown, text_table

TRAINED_BASELINES = losses.names("conventional")
BASELINES = ("popularity", "random", *TRAINED_BASELINES)


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
    trained = [name for name in args.baselines if name in TRAINED_BASELINES]
    if trained and args.strategy != "none":
        raise UserError(
            "--baselines that have to be trained should come without --strategy. Received: "
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
        _write(evaluated, args, users, contenders)


def _contenders(
    args: argparse.Namespace, evaluated: Run, data: PreparedData, cluster: distribution.Cluster
) -> tuple[list[Contender], EvaluationInput]:
    """The model and the baselines with their ranks, and the users whose targets were ranked."""
    if evaluated.result is None and cluster.is_chief:
        print(f"note: {evaluated.path} is not finished; this is its best validation so far.")
    users = evaluation_users(data, args.split, evaluated.settings)
    ranks = {"model": trained_ranks(evaluated, data, users, args.exclude_history, cluster)}
    titles = {"model": evaluated.settings.loss_title}
    for name in dict.fromkeys(args.baselines):
        if name == "popularity":
            titles[name] = "the items most often chosen in training, for every user"
            ranks[name] = popularity_ranks(
                data.item_counts,
                users.targets,
                **pairs_of(users, args.exclude_history),
                num_queries=len(users.histories),
            )
        elif name == "random":
            titles[name] = "items in random order"
            ranks[name] = ranks_by_chance(
                users, data.num_items, args.exclude_history, evaluated.settings.seed
            )
        else:
            baseline = _baseline_run(evaluated, data, name)
            titles[name] = baseline.settings.loss_title
            ranks[name] = trained_ranks(baseline, data, users, args.exclude_history)
    contenders = [
        Contender(
            name,
            titles[name],
            ranks[name],
            summarize_ranks(
                ranks[name],
                num_items=data.num_items,
                cutoffs=args.cutoffs,
                user_rows=users.users,
                alpha=evaluated.settings.alpha,
            ),
        )
        for name in ranks
    ]
    return contenders, users


def _baseline_run(evaluated: Run, data: PreparedData, loss: str) -> Run:
    """The run with another loss, trained now unless it is finished."""
    settings = evaluated.settings.with_loss(loss)
    baseline = configure(evaluated.path / "baselines" / loss, data, settings, overwrite=False)
    with exclusive(baseline.path):
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
) -> None:
    folder = evaluated.path
    title = (
        f"{folder}, {args.split} split: {len(users.targets):,} targets of "
        f"{len(np.unique(users.users)):,} users among {contenders[0].report.num_items:,} items, "
        f"history {'excluded' if args.exclude_history else 'not excluded'}"
    )
    systems: dict[str, Any] = {
        contender.name: {"title": contender.title, **contender.report.as_dict()}
        for contender in contenders
    }
    write_json(
        folder / "recall.json",
        {
            "split": args.split,
            "exclude_history": args.exclude_history,
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
    print(
        f"\nreport: {folder / 'report.md'}, numbers: {folder / 'recall.json'}\n\nNext:\n  "
        + command(
            "export",
            *("--run", args.run_folder),
            *("--out", f"saved_models/{Path(args.run_folder).resolve().name}"),
        )
    )
