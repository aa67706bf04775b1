"""The page and the numbers of the tables ``leaderboard`` and ``sequences``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..common.files import write_json
from ..common.page import Block, Field, Grid, Heading, Text, write_page
from . import report
from .compare import REFERENCE
from .measure import Interval, interval_over_seeds, interval_over_users
from .protocols import SEARCH_SEED

if TYPE_CHECKING:
    from .leaderboard import Board, Options


def write(boards: Iterable[Board], options: Options) -> None:
    """Writes the page and the numbers of the data sets that are finished."""
    trials = "1 trial" if options.trials == 1 else f"{options.trials} trials"
    blocks: list[Block] = [
        Text(
            f"Every loss had {trials}, shortened by successive halving, with seed {SEARCH_SEED}; "
            "its temperature, learning rate and own settings are those of the best validation "
            f"Recall@{options.benchmark.size}, and the test split was read only afterwards. Seeds "
            f"of the test: {', '.join(map(str, options.seeds))}. Figures are in "
            "percent, over users; ± is one standard error over seeds. “published” is a paper's "
            "number on this split, of the same loss or of another model."
        )
    ]
    if any(map(options.protocol.needs_attributes, options.contestants)):
        blocks.append(
            Text(
                "Losses with -attributes in their name have the attributes of the items as side "
                "features. Published models may know ids alone."
            )
        )
    if options.refit:
        blocks.append(
            Text(
                "For the test, the chosen settings were trained on the interactions of training "
                "and validation together, for as many passes as were best in validation, and the "
                "last weights were taken."
            )
        )
    summary: dict[str, Any] = {}
    for board in boards:
        if not board.rows or board.data is None:
            continue
        blocks += [Heading(board.name), *report.data_blocks(board.data, board.rows, "users")]
        blocks += _board_blocks(board)
        blocks += report.settings_blocks([r for s in board.rows.values() for r in s.values()])
        summary[board.name] = _summary(board)
    write_page(options.out, options.benchmark.title, blocks)
    write_json(options.out / "summary.json", summary)


def _board_blocks(board: Board) -> list[Block]:
    options = board.options
    published = options.benchmark.published.get(board.name, {})
    means = {
        name: [report.figure_summary(seeds, metric, "users") for metric in options.metrics]
        for name, seeds in board.rows.items()
    }
    best = [max(found[column].mean for found in means.values()) for column in range(2)]
    lines = [
        (
            figures[0].mean,
            [Field(name)]
            + [
                Field(
                    report.number(found),
                    f"published {published[name][column]:.2f}" if name in published else "",
                    found.mean == best[column],
                )
                for column, found in enumerate(figures)
            ],
        )
        for name, figures in means.items()
    ]
    lines += [
        (values[0], [Field(f"{name}, published"), *(Field(f"{value:.2f}") for value in values)])
        for name, values in published.items()
        if name not in means
    ]
    grid = [line for _, line in sorted(lines, key=lambda entry: -entry[0])]
    header = [f"Recall@{options.benchmark.size}", f"NDCG@{options.benchmark.size}"]
    blocks: list[Block] = [Grid(["loss", *header], grid)]
    if REFERENCE in board.rows and len(board.rows) > 1:
        differences = []
        for name in board.rows:
            if name != REFERENCE:
                found = (_intervals(board, name, REFERENCE, metric) for metric in options.metrics)
                differences.append([Field(name), *(Field(*_shown(pair)) for pair in found)])
        blocks += [
            Text(
                f"Difference to {REFERENCE} in percentage points, with intervals of 95 %: over "
                "users, paired by user after averaging over seeds, and over seeds, paired by seed."
            ),
            Grid(["loss", *header], differences),
        ]
    return [*blocks, *report.flat_blocks(board.rows, "users", None, None), *_search_blocks(board)]


def _search_blocks(board: Board) -> list[Block]:
    lines = []
    for name, budget in board.budgets.items():
        settings = board.chosen[name]
        lines.append(
            [
                Field(name),
                Field(f"{budget['trials']}"),
                Field(f"{budget['end']}"),
                Field(f"{budget['steps']:,}"),
                Field(settings.loss_title),
                Field(f"{settings.temperature:.3g}"),
                Field(f"{settings.learning_rate:.3g}"),
            ]
        )
    header = ["loss", "trials", "not cut short", "steps", "chosen", "temperature", "learning rate"]
    return [Text("The search, and what it chose:"), Grid(header, lines)]


def _intervals(
    board: Board, name: str, reference: str, metric: str
) -> tuple[Interval | None, Interval | None]:
    """The difference of two losses, over users and over seeds."""
    mine, others = board.by_user(name, metric), board.by_user(reference, metric)
    over_seeds = interval_over_seeds(
        {seed: float(values.mean()) for seed, values in mine.items()},
        {seed: float(values.mean()) for seed, values in others.items()},
    )
    return interval_over_users(mine, others), over_seeds


def _shown(intervals: tuple[Interval | None, Interval | None]) -> tuple[str, str]:
    users, seeds = intervals
    if users is None:
        return "–", ""
    text = f"users {users.low:+.2f} to {users.high:+.2f}"
    if seeds is not None:
        text += f"; seeds {seeds.low:+.2f} to {seeds.high:+.2f}"
    return f"{users.mean:+.2f}", text


def _summary(board: Board) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for name, seeds in board.rows.items():
        entry: dict[str, Any] = {
            "settings": board.chosen[name].as_dict(),
            "seeds": sorted(seeds),
            "search": board.budgets[name],
        }
        for column, metric in enumerate(board.options.metrics):
            found = report.figure_summary(seeds, metric, "users")
            published = board.options.benchmark.published.get(board.name, {}).get(name)
            entry[metric] = {
                "mean": found.mean,
                "standard_error": found.standard_error,
                "published": None if published is None else published[column],
            }
            if REFERENCE in board.rows and name != REFERENCE:
                users, over_seeds = _intervals(board, name, REFERENCE, metric)
                for key, interval in (("over_users", users), ("over_seeds", over_seeds)):
                    entry[metric][key] = None if interval is None else dataclasses.asdict(interval)
        summary[name] = entry
    return summary
