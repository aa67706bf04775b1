"""One definition of a good row: DuckDB and the careful reader agree on every row."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.prepare.engines.duckdb import open_duckdb
from pipelines.prepare.rows.json_objects import parse_object
from pipelines.prepare.rows.values import DATE, DECIMAL, INTEGER, BadValue, parse_time
from tests.support.odd_rows import (
    TIMES,
    Judge,
    csv_file,
    csv_lines,
    json_file,
    json_lines,
    odd_times,
    parquet_file,
    parquet_rows,
    sql_times,
)

SEED = 20261117


@pytest.fixture
def judge(tmp_path):
    with Judge(tmp_path) as one:
        yield one


@pytest.mark.parametrize("form", [INTEGER, DECIMAL, DATE])
def test_times(judge, form):
    times = [*TIMES, *odd_times(random.Random(SEED), 5_000)]
    num_read = 0
    for text, found in zip(times, sql_times(judge, times, form)):
        if found is None:
            continue
        num_read += 1
        try:
            expected: object = parse_time(text, form == DATE)
        except BadValue:
            expected = "a bad time"
        assert found == expected, text[:80]
    # Otherwise DuckDB has not been tested at all.
    assert num_read > 100


def compare_csv(judge: Judge, seed: int, count: int) -> None:
    for form in (INTEGER, DECIMAL, DATE):
        for separator, header in ((",", True), ("\t", False)):
            draw = random.Random(f"{seed} {form} {separator}")
            write = csv_file(judge.folder / "x.csv", form, header, separator)
            lines = csv_lines(draw, count // 6, form, separator)
            judge.compare_all(lines, write, form == DATE)


def compare_json(judge: Judge, seed: int, count: int) -> None:
    lines = json_lines(random.Random(seed), count)
    judge.compare_all(lines, json_file(judge.folder / "x.json"), dates=False)


def compare_parquet(judge: Judge, seed: int, count: int) -> None:
    for ids, times, rows in parquet_rows(random.Random(seed), count):
        is_decimal = pa.types.is_floating(times) or pa.types.is_decimal(times)
        forms = [DECIMAL] if is_decimal else [INTEGER]
        for form in [INTEGER, DECIMAL, DATE] if pa.types.is_string(times) else forms:
            write = parquet_file(judge.folder / "x.parquet", ids, times, form)
            judge.compare_all(rows, write, form == DATE)


FORMATS = {"csv": compare_csv, "json": compare_json, "parquet": compare_parquet}


@pytest.mark.parametrize("count", [300, pytest.param(1_200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORMATS)
def test_rows(judge, name, count):
    """`make attack` draws others for as long as it may."""
    FORMATS[name](judge, SEED, count)
    assert judge.read > 10 and judge.refused > 10


def test_the_rows_of_the_report(judge):
    """Each of these was a good row for one reader and a bad one, or another, for the other."""
    csv = csv_file(judge.folder / "x.csv", DATE, True)
    for time in ("infinity", "2011-10-18 24:00", "epoch"):
        assert judge.fast(csv([f"u,i,{time}\n".encode()])) is None
    decimal = csv_file(judge.folder / "x.csv", DECIMAL, True)
    assert judge.fast(decimal([b"u,i,1_0\n"])) is None
    integer = csv_file(judge.folder / "x.csv", INTEGER, True)
    row = b"u,i," + b"9" * 5000 + b"\n"
    assert judge.careful(integer([row]), dates=False) == ([], 1)
    assert judge.fast(integer([b"\ru,i,1\n"])) is None
    lines = json_file(judge.folder / "x.json")
    for value in ("true", '["a"]', '{"a": 1}', "1.5"):
        row = f'{{"user": {value}, "item": "i", "time": 1}}\n'.encode()
        assert judge.fast(lines([row])) is None
        assert judge.careful(lines([row]), dates=False) == ([], 1)


def test_a_row_that_duckdb_cannot_quote(tmp_path):
    """DuckDB's message about a key that stands twice ends in the middle of a character."""
    row = '{"time":"","item":"\\u200b","us\\u0065r":"again","user": "a\u2028b"}\n'
    reader = json_file(tmp_path / "x.json")([row.encode()])
    with open_duckdb(tmp_path, memory_limit=None, threads=1) as engine:
        assert not engine.read_fast([reader])


@pytest.mark.parametrize(
    "text, expected",
    [
        ('{"a": 1, "b": "x",}', {"a": "1", "b": "x"}),
        ('{"a": [1, {"b": 2,},], "c": -Inf}', {"a": [], "c": "-Inf"}),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + ', "b": null}', {"a": [], "b": None}),
        ("{}", {}),
        ('{"a" 1,}', None),
        ('{"a": 1,,}', None),
        ('{"a": ,}', None),
        ('{"a",}', None),
        ('{"a": [1}],}', None),
        ('{"a": 01,}', None),
        ('{"a": 1,} x', None),
        ("[1,]", None),
        ("", None),
    ],
)
def test_objects_as_duckdb_reads_them(text, expected):
    assert parse_object(text) == expected


def test_columns_that_differ_by_case_alone(tmp_path, judge):
    import pyarrow.parquet as pq

    from pipelines.prepare.rows.parquet import ParquetReader

    pq.write_table(pa.table({"User": ["wrong"], "user": ["u"], "item": ["i"]}), tmp_path / "x")
    reader = ParquetReader(Path(tmp_path / "x"), "user", "item")
    assert judge.fast(reader) in (None, [("u", "i", None, 0)])
