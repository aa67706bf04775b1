"""Reads a log into Spark's table ``raw`` with user, item, time, part and row.

Spark reads all files and keeps the rows that are certainly good. The doubtful lines, and the first
lines with header and byte-order mark, go with their numbers to the careful reader in Python, which
decides whether they are good or bad, and of which kind. The result is that of reading every row
carefully, at a cost that grows with the number of doubtful lines only.

Files that Spark cannot parse (sequences) are read in Python as a whole.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from ...rows import text_files
from ...rows.bad_rows import BadRows
from ...rows.careful import CleanLog, are_dates
from ...rows.parquet import ParquetReader
from ...rows.readers import DelimitedReader, JsonReader, Reader, Row, TextReader, extra_names
from ..base import Note, sql_extra
from . import rows as spark_rows
from .tables import SparkTables, url

# The position of a row in the log is the number of its file times this, plus its line.
LINES_PER_FILE = 1 << 40

# A doubtful row: file number, line number, and the line itself or the values of its columns.
_Doubtful = tuple[int, int, list[Any]]


def read_raw(
    engine: SparkTables, readers: Sequence[Reader], max_bad_rows: int, note: Note
) -> BadRows:
    """Fills ``raw``; see ``Engine.read`` for the arguments."""
    bad_rows = BadRows()
    dates = are_dates(readers)
    inputs = engine.folder / "input"
    inputs.mkdir()
    groups = [
        _Group(engine, number, members, inputs, dates)
        for number, members in enumerate(_alike(readers))
    ]
    with ThreadPoolExecutor() as threads:
        # Java's readers do not notice all that is wrong with a gzip file.
        checks = [threads.submit(reader.check) for reader in readers if _is_gzip(reader)]
        try:
            for group in groups:
                group.read(note)
        except Py4JError:
            for reader in readers:
                reader.check()
            raise
        for check in checks:
            check.result()
    clean = engine.folder / "clean.parquet"
    doubtful = heapq.merge(*(group.doubtful() for group in groups), key=lambda row: row[:2])
    held = readers[0].extra_types
    extras = extra_names(len(held))
    with CleanLog(clean, dates, bad_rows, len(extras)) as log:
        _look_closer(readers, doubtful, log, bad_rows)
    bad_rows.check(max_bad_rows)
    whole = log.all_integers and not any(group.num_fractions for group in groups)
    time = f"CAST(time AS {'BIGINT' if whole else 'DOUBLE'}) AS time"
    rows = engine.session.read.parquet(url(clean)).selectExpr(
        '"user"', "item", "part", time, '"row"', *map(_spark_extra, extras, held)
    )
    for group in groups:
        rows = rows.unionByName(group.good(whole))
    engine.view("raw", rows, [path for group in groups for path in group.take_folders()])
    return bad_rows


def _alike(readers: Sequence[Reader]) -> list[dict[int, Reader]]:
    """The files that Spark can parse, by their numbers, grouped by layout."""
    groups: dict[object, dict[int, Reader]] = {}
    for number, reader in enumerate(readers):
        if isinstance(reader, (DelimitedReader, JsonReader)):
            key: object = dataclasses.replace(reader, path=Path(), time_form="")
        elif isinstance(reader, ParquetReader):
            times = [reader.time] if reader.time else []
            names = [reader.user, reader.item, *times, *reader.extras]
            key = tuple((name, str(reader.type_of(name))) for name in names)
        else:
            continue
        groups.setdefault(key, {})[number] = reader
    return list(groups.values())


class _Group:
    """Files of one layout, which are read together.

    The view of the group has the columns of ``rows``, ``line`` and ``is_head``.
    """

    def __init__(
        self,
        engine: SparkTables,
        number: int,
        readers: dict[int, Reader],
        inputs: Path,
        dates: bool,
    ):
        self._engine = engine
        self._readers = readers
        self._dates = dates
        self._table = f"parsed_{number}"
        self._view = f"numbered_{number}"
        self._after_quote = f"after_quote_{number}"
        self._first = next(iter(readers.values()))
        self.num_fractions = self._num_doubtful = self._num_open = 0
        # Links, since Spark judges a file by its extension and expands patterns in its name.
        self._links = [_link(reader, file, inputs) for file, reader in readers.items()]

    def read(self, note: Note) -> None:
        """Parses the files and numbers their lines."""
        session = self._engine.session
        session.sql("SELECT CAST(0 AS INT) AS file, 0L AS line LIMIT 0").createOrReplaceTempView(
            self._after_quote
        )
        self._parse(keep_all=False)
        if self._num_open:
            note("a closer look at quotes that are not closed on their line")
            self._parse(keep_all=True)
            self._engine.create(
                self._after_quote,
                f"""SELECT DISTINCT file, line FROM (
                    SELECT file,
                        explode(sequence(line, line + {text_files.MAX_RECORD_LINES})) AS line
                    FROM {self._view} WHERE open
                ) AS following""",
            )

    def doubtful(self) -> Iterator[_Doubtful]:
        """Yields the rows that need a closer look, in the order of the log."""
        if not self._num_doubtful:
            return
        select = f"""
            SELECT file, line, raw FROM {self._view}
            LEFT JOIN (SELECT *, true AS is_after FROM {self._after_quote}) AS after_quote
                USING (file, line)
            WHERE NOT is_head AND (NOT plain OR is_after) ORDER BY file, line"""
        for batch in self._engine.batches(select):
            yield from zip(*(column.to_pylist() for column in batch.columns))

    def good(self, whole: bool) -> DataFrame:
        """The rows that are certainly good."""
        time = "whole" if whole else "coalesce(fraction, CAST(whole AS DOUBLE)) + 0D"
        extras = "".join(f", {name}" for name in extra_names(len(self._first.extra_types)))
        return self._engine.session.sql(f"""
            SELECT "user", item, CAST(part AS TINYINT) AS part, {time} AS time,
                file * {LINES_PER_FILE}L + line AS "row"{extras}
            FROM {self._view} ANTI JOIN {self._after_quote} USING (file, line)
            WHERE plain AND NOT is_head""")

    def take_folders(self) -> list[Path]:
        """Hands over the folders of the group, which the caller has to remove."""
        return self._engine.release(self._table) + self._engine.release(self._after_quote)

    def _parse(self, keep_all: bool) -> None:
        engine, first = self._engine, self._first
        if isinstance(first, ParquetReader):
            rows = spark_rows.parquet(engine.session, self._links, first, self._dates)
        else:
            assert isinstance(first, (DelimitedReader, JsonReader))
            rows = spark_rows.text(engine.session, self._links, first, self._dates, keep_all)
        engine.keep(self._table, rows)
        blocks = engine.session.sql(f"""
            SELECT file, block, min(serial) AS first, count(*) AS num_rows,
                count_if(plain AND fraction IS NOT NULL) AS fractions,
                count_if(NOT plain) AS doubtful, count_if(open) AS open
            FROM {self._table} GROUP BY file, block ORDER BY file, block""").collect()
        self.num_fractions = sum(block.fractions for block in blocks)
        self._num_doubtful = sum(block.doubtful for block in blocks)
        self._num_open = sum(block.open for block in blocks)
        # Each task has counted the rows of its block of a file; the preceding blocks are added.
        shifts = []
        for file, own in itertools.groupby(blocks, key=lambda block: block.file):
            before = 1
            for block in own:
                head = _head(self._readers[file])
                shifts.append(f"({file}, {block.block}L, {before - block.first}L, {head})")
                before += block.num_rows
        table = f"VALUES {', '.join(shifts)}" if shifts else "SELECT 0, 0L, 0L, 0 LIMIT 0"
        engine.session.sql(f"""
            SELECT /*+ BROADCAST(shifts) */ parsed.*, serial + shift AS line,
                serial + shift <= head AS is_head
            FROM {self._table} AS parsed
            JOIN ({table}) AS shifts(file, block, shift, head) USING (file, block)
            """).createOrReplaceTempView(self._view)


def _spark_extra(name: str, held: str) -> str:
    return sql_extra(name, held).replace("VARCHAR", "STRING")


def _is_gzip(reader: Reader) -> bool:
    return not isinstance(reader, ParquetReader) and text_files.is_gzip(reader.path)


def _head(reader: Reader) -> int:
    """The number of lines that are always read in Python."""
    return max(1, reader.header_lines) if isinstance(reader, (DelimitedReader, JsonReader)) else 0


def _look_closer(
    readers: Sequence[Reader], doubtful: Iterable[_Doubtful], log: CleanLog, bad_rows: BadRows
) -> None:
    """Writes the doubtful rows that are good, and the first lines of all files."""
    by_file = itertools.groupby(doubtful, key=lambda row: row[0])
    file, rows = next(by_file, (-1, iter(())))
    for number, reader in enumerate(readers):
        own: Iterator[_Doubtful] = rows if number == file else iter(())
        log.add(_rows_of(reader, number, own, bad_rows), reader.path.name)
        if number == file:
            file, rows = next(by_file, (-1, iter(())))


def _rows_of(
    reader: Reader, number: int, doubtful: Iterator[_Doubtful], bad_rows: BadRows
) -> Iterator[tuple[int, Row]]:
    start = number * LINES_PER_FILE
    if isinstance(reader, ParquetReader):
        for _, line, values in doubtful:
            values = values if reader.time else [*values[:2], *values[3:]]
            yield from ((start + line, row) for row in reader.parse(line, values, bad_rows))
    elif isinstance(reader, (DelimitedReader, JsonReader)):
        head = enumerate(itertools.islice(text_files.read_lines(reader.path), _head(reader)), 1)
        others = ((line, raw.rstrip(b"\r\n")) for _, line, [raw] in doubtful)
        for row in _parse_runs(reader, itertools.chain(head, others), bad_rows):
            yield start + row.line, row
    else:
        yield from enumerate(reader.rows(bad_rows), start)


def _parse_runs(
    reader: TextReader, lines: Iterable[tuple[int, bytes]], bad_rows: BadRows
) -> Iterator[Row]:
    """Parses each run of consecutive lines separately."""
    # Within a run, the line number minus the position in the list is constant.
    for _, run in itertools.groupby(enumerate(lines), key=lambda entry: entry[1][0] - entry[0]):
        yield from reader.parse((line for _, line in run), bad_rows)


def _link(reader: Reader, file: int, folder: Path) -> str:
    if isinstance(reader, ParquetReader):
        ending = ".parquet"
    else:
        ending = ".txt.gz" if text_files.is_gzip(reader.path) else ".txt"
    link = folder / f"input-{file}{ending}"
    link.symlink_to(reader.path.resolve())
    return url(link)
