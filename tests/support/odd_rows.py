"""Rows that are odd in every way that we could think of, and what each reader makes of them.

The careful reader defines which rows are good. DuckDB reads a file only if all of its rows are
plain: it may refuse any row, but it must not read a bad one, nor read a good one differently.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare.engines.duckdb import STOPPED
from pipelines.prepare.rows.bad_rows import BadRows
from pipelines.prepare.rows.parquet import ParquetReader
from pipelines.prepare.rows.readers import DelimitedReader, JsonReader, Reader
from pipelines.prepare.rows.sql import LOOK, sql_time
from pipelines.prepare.rows.values import (
    DATE,
    DECIMAL,
    INTEGER,
    BadValue,
    check_ids,
    parse_time,
)

TIMES = [
    *("0", "-0", "+0", "7", "-7", "+7", "007", " 7", "7 ", "1318896000", "1.5", "-1.5", ".5", "5."),
    *("1e9", "1E-3", "1e400", "-1e400", "1_0", "0x10", "0b1", "1,5", "\u0661", "1 0", "", " "),
    *("nan", "NaN", "inf", "infinity", "-Infinity", "epoch", "today", "now", "true", "null"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "9" * 5000),
    *("0" * 5000, "0." + "1" * 5000, "123456789012345678.5", "9007199254740993", "1d", "1f"),
    *("2011-10-18", "2011-10-18 01:02", "2011-10-18T01:02:03Z", "2011-10-18T01:02:03.5+02:00"),
    *("2011-10-18 24:00", "2011-10-18T24:00:00", "2011-10-18 23:59:60", "2011-02-29", "2012-02-29"),
    *("2011-13-01", "2011-1-2", "11-10-18", "20111018", "2011/10/18", "18.10.2011", "0000-01-01"),
    *("0001-01-01", "9999-12-31", "10000-01-01", "2011-10-18 BC", "2011-10-18 01:02:03 UTC"),
    *("2011-10-18T01:02:03+0530", "2011-10-18T01:02:03+05", "2011-10-18T01:02:03-23:59"),
    *("2011-10-18t01:02:03z", "2011-10-18T01:02:03.123456789", "2011-W42-2", "20111018T0102Z"),
    *("2011-10-18 01:02:03.123", "2011-10-18 01:02:03.123456", "2011-10-18  01:02", "1969-12-31"),
    *("2011-10-18 01:02:03 Europe/Berlin", "infinity ", "-infinity", "2011-10-18T", "2011-10-18Z"),
]
IDS = [
    *(
        "u1",
        "item 2",
        "ü",
        "\u0661",
        "日本",
        "a\u2028b",
        "\xa0",
        "\u200b",
        "0",
        "-0",
        "1.0",
        "NULL",
    ),
    *(
        "NULL",
        "null",
        "\\N",
        "NaN",
        "true",
        "a'b",
        "a\\b",
        "#a",
        "'",
        "\\",
        "[a]",
        "{a}",
        " a",
        "a ",
    ),
]
BAD_IDS = ["", " ", "   ", "a\tb", "a\x00b", "\x7f", "a\x1fb", "\x0b", "a\rb"]

Verdict = list[tuple[Any, ...]] | None


class Judge:
    """Reads files with DuckDB and with care, and compares.

    Args:
      folder: folder for the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read = self.refused = 0
        self._connection = duckdb.connect(":memory:")
        self._connection.execute("SET TimeZone = 'UTC'; SET threads = 1")

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def fast(self, reader: Reader) -> Verdict:
        """The rows as DuckDB reads them; None if it asks for a closer look."""
        select = reader.select()
        if select is None or not reader.check():
            return None
        try:
            rows = self._connection.execute(select).fetchall()
        except STOPPED:
            return None
        for user, item, _, part in rows:
            if part >= 0 and (_is_odd(user) or _is_odd(item)):
                return None
        return [
            (user, item, time, part) if part >= 0 else (part,) for user, item, time, part in rows
        ]

    def careful(self, reader: Reader, dates: bool) -> tuple[list[tuple[Any, ...]], int]:
        """The good rows, and the number of bad ones."""
        bad_rows = BadRows()
        good: list[tuple[Any, ...]] = []
        bad = 0
        for row in reader.rows(bad_rows):
            if row.part < 0:
                good.append((row.part,))
                continue
            try:
                check_ids(row.user, row.item)
                time = None if row.time is None else parse_time(row.time, dates)
                good.append((row.user, row.item, time, row.part))
            except BadValue:
                bad += 1
        return good, bad + bad_rows.total

    def compare(self, reader: Reader, dates: bool, shown: object) -> None:
        """Asserts that DuckDB reads nothing else than the careful reader."""
        fast = self.fast(reader)
        if fast is None:
            self.refused += 1
            return
        good, bad = self.careful(reader, dates)
        self.read += 1
        assert not bad, f"DuckDB reads a bad row: {shown!r} as {fast!r}"
        assert fast == good, f"DuckDB reads {fast!r}, the careful reader {good!r}: {shown!r}"

    def compare_all(
        self, rows: Sequence[Any], write: Callable[[Sequence[Any]], Reader], dates: bool
    ) -> None:
        """Compares rows: the good ones together, and each of the others by itself."""
        good = []
        for row in rows:
            reader = write([row])
            if self.careful(reader, dates)[1]:
                self.compare(reader, dates, row)
            else:
                good.append(row)
        self._compare_good(good, write, dates)

    def _compare_good(
        self, rows: Sequence[Any], write: Callable[[Sequence[Any]], Reader], dates: bool
    ) -> None:
        if not rows:
            return
        reader = write(rows)
        before = self.read
        self.compare(reader, dates, rows if len(rows) < 5 else rows[:5])
        if self.read == before and len(rows) > 1:
            # Something in here is refused; the others should be compared nevertheless.
            middle = len(rows) // 2
            self._compare_good(rows[:middle], write, dates)
            self._compare_good(rows[middle:], write, dates)


def _is_odd(name: str | None) -> bool:
    return name is None or not name.strip(" ") or any(c < " " or c == "\x7f" for c in name)


def sql_times(judge: Judge, times: Sequence[str], form: str) -> list[Any]:
    """What DuckDB makes of times as text, all in one query; None where it asks for a look."""
    table = pa.table({"text": list(times)})
    connection = judge._connection
    connection.register("times", table)
    # TRY makes NULL of an error, but not of one that is raised on purpose.
    expression = sql_time("text", form).replace(f"error({LOOK})", "NULL")
    found = connection.execute(f"SELECT TRY({expression}) FROM times").fetchall()
    connection.unregister("times")
    return [value for (value,) in found]


def odd_times(draw: random.Random, count: int) -> list[str]:
    """Times from the list, and times with one character exchanged, added or left out."""
    return [_mutated(draw, draw.choice(TIMES), "0123456789-+:. TZe_") for _ in range(count)]


def _mutated(draw: random.Random, text: str, alphabet: str) -> str:
    if draw.random() < 0.3 or len(text) > 100:
        return text
    for _ in range(draw.choice((1, 1, 2))):
        place = draw.randrange(len(text) + 1)
        text = (
            text[:place]
            + draw.choice(["", draw.choice(alphabet)])
            + text[place + draw.randrange(2) :]
        )
    return text


def _id(draw: random.Random) -> str:
    return draw.choice(BAD_IDS) if draw.random() < 0.05 else draw.choice(IDS)


def _time(draw: random.Random, form: str) -> str:
    if draw.random() < 0.15:
        return draw.choice(TIMES)
    plain = {
        INTEGER: lambda: str(draw.randrange(-(10**9), 10**12)),
        DECIMAL: lambda: repr(draw.uniform(-1e9, 1e9)),
        DATE: lambda: f"{draw.randrange(1900, 2100)}-{draw.randrange(1, 13):02d}-05 01:02:03",
    }
    return plain[form]()


# ------------------------------------------------------------------------------------------- CSV


def csv_lines(draw: random.Random, count: int, form: str, separator: str = ",") -> list[bytes]:
    """Lines of a delimited file with three columns, most of them with something odd."""
    return [_csv_line(draw, form, separator) for _ in range(count)]


def _csv_line(draw: random.Random, form: str, separator: str) -> bytes:
    def field(text: str) -> str:
        style = draw.random()
        if style < 0.6:
            return text
        if style < 0.85:
            return '"' + text.replace('"', '""') + '"'
        pieces = ['"', '""', separator, " ", "\\", "\r", "'", "\n", "x", ""]
        place = draw.randrange(len(text) + 1)
        return text[:place] + draw.choice(pieces) + text[place:]

    fields = [field(_id(draw)), field(_id(draw)), field(_time(draw, form))]
    if draw.random() < 0.04:
        fields = draw.choice([fields[:2], [*fields, "x"], [], [""], ["", ""]])
    line = separator.join(fields).encode()
    if draw.random() < 0.03:
        place = draw.randrange(len(line) + 1)
        line = line[:place] + draw.choice([b"\xff", b"\xc3", b"\xed\xa0\x80", b"\0"]) + line[place:]
    return line + draw.choice([b"\n", b"\n", b"\n", b"\r\n", b"\n\n"])


def csv_file(
    path: Path, form: str, header: bool, separator: str = ","
) -> Callable[[Sequence[bytes]], Reader]:
    """A function that writes lines to a file, and returns its reader."""

    def write(lines: Sequence[bytes]) -> Reader:
        head = separator.join(("user", "item", "time")).encode() + b"\n" if header else b""
        path.write_bytes(head + b"".join(lines))
        return DelimitedReader(path, separator, header, 3, 0, 1, 2, form)

    return write


# ------------------------------------------------------------------------------------------ JSON


def json_lines(draw: random.Random, count: int) -> list[bytes]:
    """Lines of JSON, most of them with something odd."""
    return [_json_line(draw) for _ in range(count)]


def _json_line(draw: random.Random) -> bytes:
    def value(usual: str) -> str:
        if draw.random() < 0.8:
            return usual
        odd = [
            "true",
            "false",
            "null",
            "12",
            "-0",
            "1.5",
            "1e2",
            "1e999",
            "NaN",
            "-inf",
            "Infinity",
        ]
        odd += [
            "[]",
            '["a"]',
            "{}",
            '{"user": "x"}',
            "9" * 30,
            "9" * 5000,
            '""',
            '" "',
            '"\\u0000"',
        ]
        odd += ["Infinity", '"\\u0000"']
        odd += ['"\\ud83d\\ude00"', '"\\ud800"', '"\\t"', '"\t"', '"\\x"', "'a'", "01", "+1", ".5"]
        odd += ["[1,]", "[" * 2000 + "]" * 2000, "tru", '"\\/"', "1 2", "", "nan", "[,]", "/**/1"]
        return draw.choice(odd)

    text = str(draw.randrange(10**10))
    pairs = [
        ('"user"', value(json.dumps(_id(draw), ensure_ascii=draw.random() < 0.5))),
        ('"item"', value(json.dumps(_id(draw)))),
        ('"time"', value(draw.choice([text, f'"{text}"', json.dumps(draw.choice(TIMES))]))),
    ]
    if draw.random() < 0.4:
        pairs.append(('"more"', value('"text, with {brackets}"')))
    if draw.random() < 0.05:
        odd = ['"user"', '"USER"', '"us\\u0065r"', "user", '""', "1"]
        pairs.append((draw.choice(odd), value('"again"')))
    if draw.random() < 0.04:
        pairs.pop(draw.randrange(len(pairs)))
    draw.shuffle(pairs)
    line = ",".join(f"{key}:{draw.choice(['', ' '])}{text}" for key, text in pairs)
    line = (
        draw.choice(["", "", "", " ", "\t"])
        + "{"
        + line
        + draw.choice(["", "", "", ",", " "])
        + "}"
    )
    line += draw.choice(
        ["", "", "", "", "", " ", "\r", "\x0b", "\x0c", "x", "{}", ",", "\x00", "]"]
    )
    return line.encode("utf-8", "surrogatepass") + b"\n"


def json_file(path: Path) -> Callable[[Sequence[bytes]], Reader]:
    """A function that writes lines to a file, and returns its reader."""

    def write(lines: Sequence[bytes]) -> Reader:
        path.write_bytes(b"".join(lines))
        return JsonReader(path, "user", "item", "time")

    return write


# --------------------------------------------------------------------------------------- Parquet

_EXTREMES = [0, 1, -1, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63), -(2**63) + 1, None]
_FLOATS = [0.0, -0.0, 1.5, 1e300, -1e-300, float("nan"), float("inf"), -float("inf"), 0.1, None]

ID_VALUES: dict[pa.DataType, list[Any]] = {
    pa.string(): [*IDS, *BAD_IDS, None],
    pa.large_string(): [*IDS, *BAD_IDS, None],
    pa.binary(): [*(text.encode() for text in [*IDS, *BAD_IDS]), b"\xff", b"\xed\xa0\x80", None],
    pa.int64(): _EXTREMES,
    pa.uint64(): [0, 1, 2**63, 2**64 - 1, None],
    pa.int8(): [0, -1, 127, None],
}
TIME_VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): _EXTREMES,
    pa.uint64(): [0, 1, 2**63 - 1, 2**63, 2**64 - 1, None],
    pa.int32(): [0, -1, 2**31 - 1, None],
    pa.float64(): _FLOATS,
    pa.float32(): _FLOATS,
    pa.decimal128(20, 3): [Decimal("1.500"), Decimal("-12345678901234567.125"), Decimal(0), None],
    pa.decimal128(38, 0): [Decimal(10**37 + 1), Decimal(-1), None],
    pa.timestamp("us"): _EXTREMES,
    pa.timestamp("ms"): [*(value for value in _EXTREMES if value is None or abs(value) < 2**52)],
    pa.timestamp("ns"): _EXTREMES,
    pa.timestamp("us", "UTC"): _EXTREMES,
    pa.timestamp("us", "Europe/Berlin"): _EXTREMES,
    pa.date32(): [0, 1, -1, 2**31 - 1, -(2**31), 10**6, -(10**6), None],
    pa.string(): [*TIMES, None],
}


def parquet_rows(
    draw: random.Random, count: int
) -> Iterator[tuple[Any, Any, list[tuple[Any, ...]]]]:
    """Types of ids and of times, each with rows of values."""
    kinds = list(itertools.product(ID_VALUES, TIME_VALUES))
    draw.shuffle(kinds)
    for ids, times in kinds:
        rows = [
            (
                draw.choice(ID_VALUES[ids]),
                draw.choice(ID_VALUES[ids]),
                draw.choice(TIME_VALUES[times]),
            )
            for _ in range(max(1, count // len(kinds)))
        ]
        yield ids, times, rows


def parquet_file(
    path: Path, ids: pa.DataType, times: pa.DataType, form: str
) -> Callable[[Sequence[tuple[Any, ...]]], Reader]:
    """A function that writes rows to a file, and returns its reader."""
    number = pa.types.is_temporal(times)
    schema = pa.schema([("user", ids), ("item", ids), ("time", times)])

    def write(rows: Sequence[tuple[Any, ...]]) -> Reader:
        users, items, stamps = zip(*rows)
        raw = pa.int32() if pa.types.is_date32(times) else pa.int64()
        stamp = pa.array(stamps, raw).cast(times) if number else pa.array(stamps, times)
        table = pa.Table.from_arrays(
            [pa.array(users, ids), pa.array(items, ids), stamp], schema=schema
        )
        pq.write_table(table, path)
        return ParquetReader(path, "user", "item", "time", form)

    return write
