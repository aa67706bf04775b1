"""The side features that a user asks for on the command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...data.features import AGE, BELONGINGS, CONTEXT, ITEM, KINDS, RESERVED, USER
from ...errors import UserError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

# Sources whose files have further columns.
WITH_COLUMNS = ("csv", "tsv", "parquet", "movielens")


@dataclass(frozen=True)
class Request:
    """A feature that the user asks for.

    Attributes:
      of: what it belongs to: ``item``, ``user`` or ``context``.
      name: its name.
      column: name of its column.
      kind: its kind, or None if it is to be inferred.
    """

    of: str
    name: str
    column: str
    kind: str | None = None

    @property
    def option(self) -> str:
        """The option that asks for it."""
        return f"--{self.of}-features"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of side features."""
    group = parser.add_argument_group(
        "side features",
        "FEATURES is a list such as 'brand,price:quantiles,hour=time:hour': names of columns,\n"
        "each perhaps with a kind, and with a name of its own before '='. Kinds: category, tags\n"
        "(a|b), number, quantiles, hour, weekday, age (of an item, from its time), text. Without\n"
        "a kind, it is inferred from the training part, and shown.",
    )
    for of, what in (
        (ITEM, "columns of --items"),
        (USER, "columns of --users"),
        (CONTEXT, "columns of the log itself (csv, tsv, parquet, movielens)"),
    ):
        group.add_argument(
            f"--{of}-features",
            metavar="FEATURES",
            help=what + ("" if of == CONTEXT else "; for movielens, of the log itself") + " (none)",
        )
    for of in (ITEM, USER):
        group.add_argument(
            f"--{of}s",
            metavar="FILE",
            help=f"table with a row for each {of}: .csv, .tsv (with a header; also .gz) or "
            ".parquet (none)",
        )
        group.add_argument(
            f"--{of}s-id",
            metavar="COLUMN",
            help=f"column of --{of}s with the ids of the log (that of --{of}-column, or {of})",
        )


def requests(args: argparse.Namespace) -> list[Request]:
    """The features that the command line asks for.

    Raises:
      UserError: a feature cannot be, or an option is missing that it needs.
    """
    found = [
        request for of in BELONGINGS for request in parse(of, getattr(args, f"{of}_features") or "")
    ]
    names = [request.name for request in found]
    for request in found:
        if names.count(request.name) > 1:
            raise UserError(
                f"{request.option} should have names that no other feature has, whatever they "
                f"belong to. Received: {request.name!r} more than once. Write NAME=COLUMN."
            )
    for of in (ITEM, USER):
        table, features = getattr(args, f"{of}s"), getattr(args, f"{of}_features")
        if table and args.source == "movielens":
            raise UserError(
                f"--{of}s should be left out with --source movielens, whose rows have the columns "
                f"of --{of}-features themselves. Received: {table}."
            )
        if table and not features:
            raise UserError(
                f"--{of}s requires --{of}-features, which names the columns to use. "
                "Received: none. Name them, or leave the table out."
            )
        if features and not table and args.source != "movielens":
            raise UserError(
                f"--{of}-features requires --{of}s, the table that has the columns. "
                "Received: no table. Pass the file; columns of the log are --context-features."
            )
        if getattr(args, f"{of}s_id") and not table:
            raise UserError(f"--{of}s-id requires --{of}s. Pass the table.")
    if args.context_features and args.source not in WITH_COLUMNS:
        raise UserError(
            f"--context-features requires --source {', '.join(WITH_COLUMNS)}. Received: "
            f"--source {args.source}, whose columns are fixed. Read the files with --source csv."
        )
    return found


def parse(of: str, text: str) -> list[Request]:
    """Parses a list of features.

    >>> parse("item", "brand,price:quantiles,year=released:age")[2]
    Request(of='item', name='year', column='released', kind='age')

    Raises:
      UserError: an entry is wrong.
    """
    return [_entry(of, entry.strip(" ")) for entry in text.split(",") if entry.strip(" ")]


def _entry(of: str, entry: str) -> Request:
    option = f"--{of}-features"
    name, has_column, column = entry.partition("=")
    rest, has_kind, kind = (column if has_column else name).rpartition(":")
    if not has_kind:
        rest, kind = kind, ""
    name, column = (name, rest) if has_column else (rest, rest)
    if has_kind and kind not in KINDS:
        raise UserError(
            f"{option} should have kinds out of {', '.join(KINDS)}. Received: {entry!r}."
        )
    if kind == AGE and of != ITEM:
        raise UserError(
            f"{option} should not have the kind age, which is that of items. Received: {entry!r}. "
            "Choose hour or weekday for a time, and number for years."
        )
    if not _NAME.fullmatch(name) or not column:
        raise UserError(
            f"{option} should have names of letters, digits and '_', since they become inputs of "
            f"the model. Received: {entry!r}. Write NAME={column or 'COLUMN'}."
        )
    if name in RESERVED:
        raise UserError(
            f"{option} should not have the name {name!r}, which the model has an input of already. "
            f"Write another name before the column: my_{name}={column}."
        )
    return Request(of, name, column, kind or None)


def columns_of(requests: Sequence[Request], of: str) -> tuple[str, ...]:
    """The columns of the features that belong to ``of``, each once."""
    return tuple(dict.fromkeys(request.column for request in requests if request.of == of))
