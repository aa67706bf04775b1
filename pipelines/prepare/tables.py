"""Turns a raw log into dense ids and a split, as tables of the engine.

The filters are those of the paper's authors: items with at least n interactions in the log are
kept, then users with at least n interactions with those items. With ``core`` both filters are
repeated until nothing changes. The result depends on the log and the seed, not on the engine, its
threads or its memory. The SQL is what DuckDB and Spark have in common.

The engine has read the log into table ``raw`` with user, item, time (a number, or NULL without
times), part (see ``rows.readers``) and a column that follows the order of the files.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UserError
from .engines.base import Engine, scalar
from .rows.readers import UNWANTED, extra_names
from .sources.base import (
    LEAVE_ONE_OUT,
    PAIRS_ARE_SPLIT,
    PARTS,
    SPLIT_USERS,
    TIME,
    USERS_ARE_SPLIT,
)

# What may give an empty split users with a history and a target.
_MORE_USERS = {
    SPLIT_USERS: "Set --min-user-count to 2 or more, change --split",
    USERS_ARE_SPLIT: "Set --min-user-count to 2 or more, change the files",
    PAIRS_ARE_SPLIT: "Change the files",
    LEAVE_ONE_OUT: "Each user should have at least 3 interactions. Change --split",
    TIME: "Change --split-at",
}


@dataclass(frozen=True)
class LogOptions:
    """How a log is filtered and split.

    Attributes:
      min_item_count, min_user_count: minimum number of interactions of an item and of a user.
      core: whether to repeat the filters until nothing changes.
      dedup: whether to keep only a user's first interaction with each item.
      shares: relative numbers of train, valid and test users, such as ``(8, 1, 1)``, if users are
        split.
      valid_share: share of each user's train pairs to hold out, if a log that is already split has
        no valid file.
      seed: seed of the shuffle of users.
      train_on_valid: whether the train split has the interactions of the valid split as well.
    """

    min_item_count: int
    min_user_count: int
    core: bool
    dedup: bool
    shares: tuple[int, int, int]
    valid_share: float
    seed: int
    train_on_valid: bool = False


def encode(engine: Engine, dedup: bool, keep_raw: bool = False) -> None:
    """Creates table ``log`` with user, item (codes), time, part and place from ``raw``.

    ``place`` increases in the order of the files. With ``dedup`` only a user's first interaction
    with each item is kept. ``keep_raw`` keeps ``raw`` for its further columns.
    """
    log = f"""
        SELECT users.code AS "user", items.code AS item, time, part, raw.{engine.row} AS place
        FROM raw
        JOIN user_names AS users ON raw."user" = users.name
        JOIN item_names AS items ON raw.item = items.name
        WHERE part <> {UNWANTED}"""
    if dedup:
        log = f"""
            SELECT "user", item, time, part, place
            FROM (
                SELECT *, row_number() OVER (
                    PARTITION BY "user", item ORDER BY part, time, place
                ) AS occurrence
                FROM ({log}) AS rows_with_codes
            ) AS occurrences WHERE occurrence = 1"""
    engine.create("log", log)
    if not keep_raw:
        engine.drop("raw")


def filter_log(engine: Engine, options: LogOptions) -> int:
    """Removes the rows of rare items and users from ``log``.

    Returns:
      The number of times that the filters were applied.

    Raises:
      UserError: no row is left.
    """
    rounds = 0
    while True:
        rounds += 1
        num_rows = engine.count("log")
        engine.create(
            "kept_items",
            f"""SELECT item FROM log GROUP BY item
            HAVING count(*) >= {options.min_item_count}""",
        )
        engine.create(
            "kept_users",
            f"""SELECT "user", count(*) AS num_rows FROM log SEMI JOIN kept_items USING (item)
            GROUP BY "user" HAVING count(*) >= {options.min_user_count}""",
        )
        num_left = scalar(engine, "SELECT sum(num_rows) FROM kept_users")
        if num_left == 0:
            raise UserError(
                f"no interactions are left with --min-item-count {options.min_item_count} and "
                f"--min-user-count {options.min_user_count}. Choose lower values."
            )
        if num_left < num_rows:
            engine.create(
                "log",
                """SELECT * FROM log
                SEMI JOIN kept_items USING (item) SEMI JOIN kept_users USING ("user")""",
            )
        if not options.core or num_left == num_rows:
            return rounds


def number_items(engine: Engine) -> int:
    """Creates table ``items`` with item (code), name, popularity and id; id 0 is the most popular.

    Popularity is counted in the filtered log, and ties are broken by name.

    Returns:
      The number of items.
    """
    select = """
        SELECT item, name, popularity
        FROM (SELECT item, count(*) AS popularity FROM log GROUP BY item) AS counts
        JOIN item_names ON code = item"""
    engine.number("items", select, "popularity DESC, item", "id")
    return engine.count("items")


def split_log(engine: Engine, split: str, options: LogOptions) -> dict[str, int]:
    """Creates a table of members for each split: user (code), name, total, history and position.

    ``position`` counts the users of a split from 0 in shuffled order. ``total`` is a user's number
    of interactions in the split, and ``history`` the number of them that precede the targets,
    unless users are split, whose histories are a share.

    Returns:
      The number of users dropped from each split because they have no history or no target.

    Raises:
      UserError: a split would be empty.
    """
    select = f"""
        SELECT "user", name, n0, n1, n2, md5('{options.seed}:' || name) AS draw
        FROM (
            SELECT "user", {", ".join(_count_part(part) for part in range(len(PARTS)))}
            FROM log GROUP BY "user"
        ) AS counts JOIN user_names ON code = "user" """
    engine.number("shuffled", select, "draw, name", "shuffled_position")
    history = dict.fromkeys(PARTS, "n0")
    trained = "n0 + n1" if options.train_on_valid else "n0"
    if split == PAIRS_ARE_SPLIT:
        wanted = {
            name: (f"n{part} > 0", "n0 > 0", f"n0 + n{part}") for part, name in enumerate(PARTS)
        }
    elif split in (LEAVE_ONE_OUT, TIME):
        history["test"] = "n0 + n1"
        wanted = {}
        for part, name in enumerate(PARTS[1:], start=1):
            # Leave-one-out has a target of every user, time of those who are there in the period.
            belongs = "true" if split == LEAVE_ONE_OUT else f"n{part} > 0"
            usable = f"n{part} > 0 AND {history[name]} > 0"
            wanted[name] = (belongs, usable, f"{history[name]} + n{part}")
    elif split == USERS_ARE_SPLIT:
        _check_apart(engine)
        wanted = {
            name: (f"n{part} > 0", f"n{part} > 1" if part else "true", f"n{part}")
            for part, name in enumerate(PARTS)
        }
    else:
        bounds = _bounds(engine.count("shuffled"), options.shares)
        wanted = {
            name: (
                f"shuffled_position BETWEEN {bounds[part]} AND {bounds[part + 1] - 1}",
                "n0 > 1",
                "n0",
            )
            for part, name in enumerate(PARTS)
        }
        # The users of valid follow those of train.
        end = bounds[2 if options.train_on_valid else 1]
        wanted["train"] = (f"shuffled_position < {end}", "true", "n0")
    if split != SPLIT_USERS:
        wanted["train"] = (f"{trained} > 0", "true", trained)
    dropped = {}
    for name in PARTS:
        belongs, usable, total = wanted[name]
        select = f"""
            SELECT "user", name, {total} AS total, {history[name]} AS history, shuffled_position
            FROM shuffled WHERE {belongs} AND {usable}"""
        engine.number(members(name), select, "shuffled_position", "position")
        belonging = scalar(engine, f"SELECT count(*) FROM shuffled WHERE {belongs}")
        dropped[name] = belonging - engine.count(members(name))
        if not engine.count(members(name)):
            raise UserError(
                f"the {name} split has no user with a history and a target "
                f"({dropped[name]:,} users without one or the other were dropped). "
                f"{_MORE_USERS[split]}, or use a larger log."
            )
    return dropped


def members(name: str) -> str:
    """The name of the table of a split's users."""
    return f"{name}_members"


def hold_out(engine: Engine, options: LogOptions) -> None:
    """Moves a share of every user's train pairs, chosen by the seed, into the valid part.

    Of n train pairs, n times the share, rounded down, but at least one are moved: with a share of
    0.1 the rule of the published tables. A user's only pair stays where it is.
    """
    engine.create(
        "held_out",
        f"""
        SELECT place, 1 AS held_part FROM (
            SELECT place, count(*) OVER (PARTITION BY "user") AS total,
                row_number() OVER (
                    PARTITION BY "user"
                    ORDER BY md5('{options.seed}:' || users.name || ':' || items.name), place
                ) AS draw
            FROM log
            JOIN user_names AS users ON users.code = log."user"
            JOIN item_names AS items ON items.code = log.item
            WHERE part = 0
        ) AS drawn
        WHERE draw <= greatest(floor(total * {options.valid_share}), 1) AND draw < total""",
    )
    engine.create(
        "log",
        """SELECT "user", item, time, coalesce(held_part, part) AS part, log.place
        FROM log LEFT JOIN held_out ON held_out.place = log.place""",
    )


def last_time(engine: Engine, split: str, options: LogOptions) -> int | float | None:
    """The last time of the training part as table ``log`` has it, or None without times."""
    found: int | float | None = engine.value(f"""
        SELECT max(time) FROM log
        JOIN {members(PARTS[0])} AS members ON members."user" = log."user"
        WHERE {_belongs(split, PARTS[0], options)}""")
    return found


def _belongs(split: str, name: str, options: LogOptions) -> str:
    """The condition under which a row of a split's user belongs to the split."""
    part = PARTS.index(name)
    if split == SPLIT_USERS:
        return "true"
    if name == "train":
        return f"log.part <= {int(options.train_on_valid)}"
    return {
        LEAVE_ONE_OUT: f"log.part <= {part}",
        TIME: f"log.part <= {part}",
        USERS_ARE_SPLIT: f"log.part = {part}",
        PAIRS_ARE_SPLIT: f"log.part IN (0, {part})",
    }[split]


def ordered_items(
    split: str, name: str, options: LogOptions, row: str = "", num_extras: int = 0
) -> str:
    """A SELECT of the item ids of a split, user by user, each in time order.

    With ``num_extras`` the further columns of ``raw`` follow, whose rows are numbered by its column
    ``row``.

    Pairs that were split at random have no time order. They are often sorted by item, which would
    teach a model to expect ever larger numbers, so they are sorted by a hash instead.
    """
    condition = _belongs(split, name, options)
    order = "log.time, place"
    if split == PAIRS_ARE_SPLIT:
        order = "log.part, md5('order:' || members.name || ':' || items.name), place"
    extras = "".join(f", raw.{extra}" for extra in extra_names(num_extras))
    raw = f"JOIN raw ON raw.{row} = log.place" if num_extras else ""
    return f"""
        SELECT items.id{extras}
        FROM log
        JOIN {members(name)} AS members ON members."user" = log."user"
        JOIN items ON items.item = log.item
        {raw}
        WHERE {condition}
        ORDER BY members.position, {order}"""


def _count_part(part: int) -> str:
    return f"count(*) FILTER (WHERE part = {part}) AS n{part}"


def _bounds(num_users: int, shares: tuple[int, int, int]) -> list[int]:
    """The bounds of train, valid and test; valid and test get at least one user each.

    >>> _bounds(25, (8, 1, 1))
    [0, 21, 23, 25]
    """
    valid, test = (max(1, num_users * share // sum(shares)) for share in shares[1:])
    train = num_users - valid - test
    if train < 1:
        raise UserError(
            f"{num_users} users are left after the filters, which is too few for three splits. "
            "Use a larger log, or lower --min-item-count and --min-user-count."
        )
    return [0, train, train + valid, num_users]


def _check_apart(engine: Engine) -> None:
    name = engine.value("""
        SELECT min(name) FROM shuffled
        WHERE CAST(n0 > 0 AS INTEGER) + CAST(n1 > 0 AS INTEGER) + CAST(n2 > 0 AS INTEGER) > 1""")
    if name is not None:
        raise UserError(
            f"user {name!r} is in more than one of the train, valid and test files, which "
            "should hold different users. Use --source presplit if each user's pairs are split."
        )
