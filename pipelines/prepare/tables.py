"""From a raw log to dense ids and a split, as tables of the engine.

The filters are those of the paper's authors: items with at least n interactions in the log stay,
then users with at least n interactions with those items. With ``core`` both are repeated until
nothing changes. Everything here is deterministic: it depends on the log and the seed, not on the
engine, its threads or its memory. The SQL is what DuckDB and Spark have in common.

An engine has read the log into table ``raw`` of user, item, time (a number, or NULL without times)
and part, with a column that follows the order of the files.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UserError
from .engines.base import Engine, scalar
from .rows.readers import UNWANTED
from .sources.base import PAIRS_ARE_SPLIT, PARTS, SPLIT_USERS, USERS_ARE_SPLIT


@dataclass(frozen=True)
class LogOptions:
    """How a log is filtered and split.

    Attributes:
      min_item_count, min_user_count: Items and users with fewer interactions are left out.
      core: Whether to repeat the filters until nothing changes.
      dedup: Whether to keep only the first interaction of a user with an item.
      shares: Sizes of train, valid and test relative to each other, such as ``(8, 1, 1)``.
      valid_share: Share of each user's train pairs to hold out where a log that comes split has
        no valid file.
      seed: Of the shuffle of the users.
    """

    min_item_count: int
    min_user_count: int
    core: bool
    dedup: bool
    shares: tuple[int, int, int]
    valid_share: float
    seed: int


def create_names(engine: Engine) -> None:
    """Makes ``user_names`` and ``item_names`` out of ``raw``.

    They have a line per id: name, code (0, 1, … in the order of the names' bytes) and num_rows.
    """
    for column in ("user", "item"):
        select = f"""
            SELECT "{column}" AS name, count(*) AS num_rows
            FROM raw WHERE part <> {UNWANTED} GROUP BY "{column}" """
        engine.number(f"{column}_names", select, "name", "code")


def encode(engine: Engine, dedup: bool) -> None:
    """Makes table ``log`` of user, item (codes), time, part and place out of ``raw``.

    ``place`` grows in the order of the files. With ``dedup`` of the rows with one user and item
    only the first in time stays.
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
    engine.drop("raw")


def filter_log(engine: Engine, options: LogOptions) -> int:
    """Takes the rows of rare items and users out of ``log``.

    Returns:
      How often the filters were applied.

    Raises:
      UserError: Nothing is left.
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
                f"--min-user-count {options.min_user_count}. Choose lower ones."
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
    """Makes table ``items`` of item (code), name, popularity and id; id 0 is the most popular.

    Popularity is counted in the filtered log, and ties are in the order of the names.

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
    """Makes a table of members for each split: user (code), name, total, history and position.

    ``position`` counts the users of a split from 0 in shuffled order. ``total`` is the number of
    interactions that they have there, and ``history`` how many of these are known before the
    targets, where the log itself says so.

    Returns:
      Users that were dropped from valid and test: they have no history or no target.

    Raises:
      UserError: A split would be empty.
    """
    select = f"""
        SELECT "user", name, n0, n1, n2, md5('{options.seed}:' || name) AS draw
        FROM (
            SELECT "user", {", ".join(_count_part(part) for part in range(len(PARTS)))}
            FROM log GROUP BY "user"
        ) AS counts JOIN user_names ON code = "user" """
    engine.number("shuffled", select, "draw, name", "shuffled_position")
    if split == PAIRS_ARE_SPLIT:
        wanted = {
            name: (f"n{part} > 0", "n0 > 0", f"n0 + n{part}" if part else "n0")
            for part, name in enumerate(PARTS)
        }
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
                "n0 > 1" if part else "true",
                "n0",
            )
            for part, name in enumerate(PARTS)
        }
    dropped = {}
    for name, (belongs, usable, total) in wanted.items():
        select = f"""
            SELECT "user", name, {total} AS total, n0 AS history, shuffled_position
            FROM shuffled WHERE {belongs} AND {usable}"""
        engine.number(members(name), select, "shuffled_position", "position")
        belonging = scalar(engine, f"SELECT count(*) FROM shuffled WHERE {belongs}")
        dropped[name] = belonging - engine.count(members(name))
        if not engine.count(members(name)):
            raise UserError(
                f"the {name} split has no user with a history and a target "
                f"({dropped[name]:,} were dropped for having only one interaction there). "
                "Set --min-user-count to 2 or more, change --split, or use a larger log."
            )
    return dropped


def members(name: str) -> str:
    """The table of the users of a split."""
    return f"{name}_members"


def hold_out(engine: Engine, options: LogOptions) -> None:
    """Moves a share of every user's train pairs, chosen by the seed, into the valid part.

    A user with n train pairs gives n times the share, rounded.
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
        ) AS drawn WHERE draw <= floor(total * {options.valid_share} + 0.5) AND draw < total""",
    )
    engine.create(
        "log",
        """SELECT "user", item, time, coalesce(held_part, part) AS part, log.place
        FROM log LEFT JOIN held_out ON held_out.place = log.place""",
    )


def ordered_items(split: str, name: str) -> str:
    """A SELECT of the item ids of a split: user after user, each in the order of time.

    Pairs that come split at random have no such order. Often they are sorted by item, from which a
    model would learn to expect ever larger numbers, so they are put into the order of a hash.
    """
    part = PARTS.index(name)
    condition = {
        SPLIT_USERS: "true",
        USERS_ARE_SPLIT: f"part = {part}",
        PAIRS_ARE_SPLIT: f"part IN (0, {part})",
    }[split]
    order = "time, place"
    if split == PAIRS_ARE_SPLIT:
        order = "part, md5('order:' || members.name || ':' || items.name), place"
    return f"""
        SELECT items.id
        FROM log
        JOIN {members(name)} AS members ON members."user" = log."user"
        JOIN items ON items.item = log.item
        WHERE {condition}
        ORDER BY members.position, {order}"""


def _count_part(part: int) -> str:
    return f"count(*) FILTER (WHERE part = {part}) AS n{part}"


def _bounds(num_users: int, shares: tuple[int, int, int]) -> list[int]:
    """Where train, valid and test begin and end; valid and test get at least one user.

    >>> _bounds(25, (8, 1, 1))
    [0, 21, 23, 25]
    """
    valid, test = (max(1, num_users * share // sum(shares)) for share in shares[1:])
    train = num_users - valid - test
    if train < 1:
        raise UserError(
            f"{num_users} users are left after the filters, too few for three splits. "
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
            "should hold different users. Use --source presplit for pairs of one user."
        )
