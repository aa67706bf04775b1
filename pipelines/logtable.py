"""From a raw log to dense ids and a split, as tables of the engine.

The filters are those of the paper's authors: items with at least n interactions in the log stay,
then users with at least n interactions with those items. With ``core`` both are repeated until
nothing changes. Everything here is deterministic: it depends on the log and the seed, not on
threads or memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

from pipelines.errors import UserError
from pipelines.logsource import PAIRS_ARE_SPLIT, PARTS, SPLIT_USERS, USERS_ARE_SPLIT
from pipelines.rawlog import scalar
from pipelines.readers import UNWANTED


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


def encode(connection: duckdb.DuckDBPyConnection, dedup: bool) -> None:
    """Makes table ``log`` of user, item (codes), time, part and row out of ``raw``.

    With ``dedup`` of the rows with one user and item only the first in time stays.
    """
    first = "PARTITION BY users.code, items.code ORDER BY part, time, raw.rowid"
    connection.execute(f"""
        CREATE TABLE log AS
        SELECT users.code AS "user", items.code AS item, time, part, raw.rowid AS row
        FROM raw
        JOIN user_names AS users ON raw."user" = users.name
        JOIN item_names AS items ON raw.item = items.name
        WHERE part <> {UNWANTED}
        {f"QUALIFY row_number() OVER ({first}) = 1" if dedup else ""}""")
    connection.execute("DROP TABLE raw")


def filter_log(connection: duckdb.DuckDBPyConnection, options: LogOptions) -> int:
    """Takes the rows of rare items and users out of ``log``.

    Returns:
      How often the filters were applied.

    Raises:
      UserError: Nothing is left.
    """
    rounds = 0
    while True:
        rounds += 1
        rows = scalar(connection, "SELECT count(*) FROM log")
        connection.execute(f"""
            CREATE OR REPLACE TABLE kept_items AS
            SELECT item FROM log GROUP BY item HAVING count(*) >= {options.min_item_count}""")
        connection.execute(f"""
            CREATE OR REPLACE TABLE kept_users AS
            SELECT "user", count(*) AS rows FROM log SEMI JOIN kept_items USING (item)
            GROUP BY "user" HAVING count(*) >= {options.min_user_count}""")
        rows_left = scalar(connection, "SELECT sum(rows) FROM kept_users")
        if rows_left == 0:
            raise UserError(
                f"no interactions are left with --min-item-count {options.min_item_count} and "
                f"--min-user-count {options.min_user_count}. Choose lower ones."
            )
        if rows_left < rows:
            connection.execute("""
                CREATE OR REPLACE TABLE log AS FROM log
                SEMI JOIN kept_items USING (item) SEMI JOIN kept_users USING ("user")""")
        if not options.core or rows_left == rows:
            return rounds


def number_items(connection: duckdb.DuckDBPyConnection) -> int:
    """Makes table ``items`` of item (code), id and name; id 0 is the most popular item.

    Popularity is counted in the filtered log, and ties are in the order of the names.

    Returns:
      The number of items.
    """
    connection.execute("""
        CREATE TABLE items AS
        SELECT item, name, CAST(row_number() OVER (ORDER BY count DESC, item) - 1 AS INTEGER) AS id
        FROM (SELECT item, count(*) AS count FROM log GROUP BY item)
        JOIN item_names ON code = item""")
    return scalar(connection, "SELECT count(*) FROM items")


def split_log(
    connection: duckdb.DuckDBPyConnection, split: str, options: LogOptions
) -> dict[str, int]:
    """Makes table ``members`` of split, user (code), name, position, total and history.

    ``position`` counts the users of a split from 0 in shuffled order. ``total`` is the number of
    interactions that they have there, and ``history`` how many of these are known before the
    targets, where the log itself says so.

    Returns:
      Users that were dropped from valid and test: they have no history or no target.

    Raises:
      UserError: A split would be empty.
    """
    connection.execute(f"""
        CREATE TABLE shuffled AS
        SELECT "user", name, n0, n1, n2,
            row_number() OVER (ORDER BY md5('{options.seed}:' || name), name) - 1 AS position
        FROM (
            SELECT "user", {", ".join(_count_part(part) for part in range(len(PARTS)))}
            FROM log GROUP BY "user"
        ) JOIN user_names ON code = "user" """)
    if split == PAIRS_ARE_SPLIT:
        wanted = {
            name: (f"n{part} > 0", "n0 > 0", f"n0 + n{part}" if part else "n0")
            for part, name in enumerate(PARTS)
        }
    elif split == USERS_ARE_SPLIT:
        _check_apart(connection)
        wanted = {
            name: (f"n{part} > 0", f"n{part} > 1" if part else "true", f"n{part}")
            for part, name in enumerate(PARTS)
        }
    else:
        bounds = _bounds(scalar(connection, "SELECT count(*) FROM shuffled"), options.shares)
        wanted = {
            name: (
                f"position BETWEEN {bounds[part]} AND {bounds[part + 1] - 1}",
                "n0 > 1" if part else "true",
                "n0",
            )
            for part, name in enumerate(PARTS)
        }
    dropped = {}
    connection.execute("""
        CREATE TABLE members (split VARCHAR, "user" INTEGER, name VARCHAR,
            position INTEGER, total BIGINT, history BIGINT)""")
    for name, (belongs, usable, total) in wanted.items():
        connection.execute(f"""
            INSERT INTO members
            SELECT '{name}', "user", name, row_number() OVER (ORDER BY position) - 1, {total}, n0
            FROM shuffled WHERE {belongs} AND {usable}""")
        dropped[name] = scalar(
            connection, f"SELECT count(*) FROM shuffled WHERE {belongs} AND NOT ({usable})"
        )
        if not scalar(connection, f"SELECT count(*) FROM members WHERE split = '{name}'"):
            raise UserError(
                f"the {name} split has no user with a history and a target "
                f"({dropped[name]:,} were dropped for having only one interaction there). "
                "Set --min-user-count to 2 or more, change --split, or use a larger log."
            )
    return dropped


def hold_out(connection: duckdb.DuckDBPyConnection, options: LogOptions) -> None:
    """Moves a share of every user's train pairs, chosen by the seed, into the valid part.

    A user with n train pairs gives n times the share, rounded.
    """
    connection.execute(f"""
        CREATE TABLE held_out AS
        SELECT row FROM (
            SELECT row, count(*) OVER (PARTITION BY "user") AS total,
                row_number() OVER (
                    PARTITION BY "user"
                    ORDER BY md5('{options.seed}:' || users.name || ':' || items.name), row
                ) AS place
            FROM log
            JOIN user_names AS users ON users.code = log."user"
            JOIN item_names AS items ON items.code = log.item
            WHERE part = 0
        ) WHERE place <= floor(total * {options.valid_share} + 0.5) AND place < total""")
    connection.execute("UPDATE log SET part = 1 WHERE row IN (FROM held_out)")


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
    order = "time, row"
    if split == PAIRS_ARE_SPLIT:
        order = "part, md5('order:' || members.name || ':' || items.name), row"
    return f"""
        SELECT items.id
        FROM log
        JOIN (FROM members WHERE split = '{name}') AS members ON members."user" = log."user"
        JOIN items ON items.item = log.item
        WHERE {condition}
        ORDER BY members.position, {order}"""


def _count_part(part: int) -> str:
    return f"count(*) FILTER (part = {part}) AS n{part}"


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


def _check_apart(connection: duckdb.DuckDBPyConnection) -> None:
    [(name,)] = connection.execute("""
        SELECT min(name) FROM shuffled
        WHERE (n0 > 0)::INTEGER + (n1 > 0)::INTEGER + (n2 > 0)::INTEGER > 1""").fetchall()
    if name is not None:
        raise UserError(
            f"user {name!r} is in more than one of the train, valid and test files, which "
            "should hold different users. Use --source presplit for pairs of one user."
        )
