"""Rows that cannot be used are counted by kind, with line numbers, up to the user's limit."""

import gzip
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.prepared import PreparedData
from pipelines.prepare.engines.duckdb import DuckDBEngine
from pipelines.prepare.rows import bad_rows
from tests.pipelines.prepare.test_prepare import content, prepare
from tests.pipelines.prepare.test_sources import KEEP_ALL, LOG, text_of, write
from tests.support import prepare_oracle as oracle

HEADER = "user,item,time\n"

# One bad row each, as it stands in a CSV file.
BAD_LINES = {
    "too few columns": (b"a,x", bad_rows.WRONG_COLUMN_COUNT),
    "too many columns": (b"a,x,1,2", bad_rows.WRONG_COLUMN_COUNT),
    "blanks only": (b"   ", bad_rows.WRONG_COLUMN_COUNT),
    "no user": (b",x,1", bad_rows.MISSING_USER),
    "blank user": (b"  ,x,1", bad_rows.MISSING_USER),
    "no item": (b'a,"",1', bad_rows.MISSING_ITEM),
    "no time": (b"a,x,", bad_rows.MISSING_TIME),
    "word as time": (b"a,x,soon", bad_rows.BAD_TIME),
    "not a number": (b"a,x,nan", bad_rows.BAD_TIME),
    "infinite time": (b"a,x,inf", bad_rows.BAD_TIME),
    "huge time": (b"a,x,99999999999999999999", bad_rows.BAD_TIME),
    "digits with underscore": (b"a,x,1_0", bad_rows.BAD_TIME),
    "hexadecimal time": (b"a,x,0x10", bad_rows.BAD_TIME),
    "date among numbers": (b"a,x,2020-01-01", bad_rows.BAD_TIME),
    "Latin-1 user": (b"caf\xe9,x,1", bad_rows.NOT_UTF8),
    "Latin-1 item": (b"a,caf\xe9,1", bad_rows.NOT_UTF8),
    "cut-off UTF-8": (b"a,\xe2\x82,1", bad_rows.NOT_UTF8),
    "tab in item": (b"a,x\tx,1", bad_rows.CONTROL_CHARACTER),
    "NUL in user": (b"a\x00,x,1", bad_rows.CONTROL_CHARACTER),
    "unclosed quote": (b'a,"x,1', bad_rows.UNCLOSED_QUOTE),
    "text after a quote": (b'a,"x"x,1', bad_rows.UNCLOSED_QUOTE),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_every_kind_in_csv(tmp_path, case):
    line, kind = BAD_LINES[case]
    rows = text_of(LOG).encode().splitlines()
    lines = [HEADER.strip().encode(), *rows[:4], line, *rows[4:]]
    path = write(tmp_path / "x.csv", b"\n".join(lines) + b"\n")
    out = tmp_path / "out"
    command = ["--source", "csv", "--input", path, "--out", out, *KEEP_ALL]
    assert prepare(*command, "--max-bad-rows", 1) == 0
    assert content(out) == oracle.prepare(LOG, min_item_count=1, min_user_count=1)
    statistics = PreparedData.load(out).manifest["statistics"]
    assert statistics["bad_rows_by_kind"] == [
        {"file": "x.csv", "kind": kind, "rows": 1, "first_lines": [6]}
    ]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_bad_rows_of_all_kinds_are_refused_by_line(tmp_path, capsys, packed):
    # More rows between the bad ones than a quoted field may span.
    log = LOG * 200
    lines = [HEADER.strip().encode(), *text_of(log).encode().splitlines()]
    found = {}
    for place, (line, kind) in enumerate(BAD_LINES.values(), start=1):
        lines.insert(120 * place, line)
        found.setdefault(kind, []).append(120 * place + 1)
    text = b"\n".join(lines) + b"\n"
    path = write(tmp_path / "x.csv", gzip.compress(text) if packed else text)
    out = tmp_path / "out"
    command = ["--source", "csv", "--input", path, "--out", out, *KEEP_ALL]
    assert prepare(*command) == 2
    message = capsys.readouterr().err
    for kind, numbers in found.items():
        shown = ", ".join(map(str, numbers[:5])) + ", ..." * (len(numbers) > 5)
        word = "line" if len(numbers) == 1 else "lines"
        assert f"x.csv: {kind}: {len(numbers)} ({word} {shown})" in message
    assert f"Fix the input, or pass --max-bad-rows {len(BAD_LINES)}" in message
    assert not out.exists()

    assert prepare(*command, "--max-bad-rows", len(BAD_LINES)) == 0
    assert content(out) == oracle.prepare(log, min_item_count=1, min_user_count=1)


def test_a_quoted_newline_is_bad_in_an_id_and_fine_elsewhere(tmp_path, capsys):
    rows = "".join(f'{user},{item},{time},"two\nlines"\n' for user, item, time in LOG)
    path = write(tmp_path / "x.csv", "user,item,time,note\n" + rows)
    out = tmp_path / "out"
    command = ["--source", "csv", "--input", path, "--out", out, *KEEP_ALL]
    assert prepare(*command) == 0
    good = content(out)
    write(path, path.read_text() + 'a,"x\nx",1,note\n' + "a,x,y,note\n")
    assert prepare(*command, "--overwrite") == 2
    message = capsys.readouterr().err
    # One line of header and two lines for each of the rows come before.
    first = 1 + 2 * len(LOG) + 1
    assert f"{bad_rows.CONTROL_CHARACTER}: 1 (line {first})" in message
    assert f"{bad_rows.BAD_TIME}: 1 (line {first + 2})" in message
    assert prepare(*command, "--overwrite", "--max-bad-rows", 2) == 0
    assert content(out) == good


def test_an_unclosed_quote_does_not_swallow_good_rows(tmp_path, capsys):
    rows = text_of(LOG * 30).splitlines(keepends=True)
    stray = [*rows[:10], 'a,"x,1\n', *rows[10:300], 'b,"y,1\n', *rows[300:]]
    path = write(tmp_path / "x.csv", HEADER + "".join(stray))
    out = tmp_path / "out"
    command = ["--source", "csv", "--input", path, "--out", out, *KEEP_ALL]
    assert prepare(*command) == 2
    assert f"{bad_rows.UNCLOSED_QUOTE}: 2 (lines 12, 303)" in capsys.readouterr().err
    assert prepare(*command, "--max-bad-rows", 2) == 0
    assert PreparedData.load(out).manifest["statistics"]["rows"] == len(rows)


def test_first_lines_are_shown_and_all_are_counted(tmp_path, capsys):
    path = write(tmp_path / "x.csv", HEADER + text_of(LOG) + "a,x\n" * 8 + "\n,x,1\n")
    command = ["--source", "csv", "--input", path, "--out", tmp_path / "out", *KEEP_ALL]
    assert prepare(*command, "--max-bad-rows", 8) == 2
    message = capsys.readouterr().err
    first = len(LOG) + 2
    lines = ", ".join(str(first + place) for place in range(5))
    assert f"{bad_rows.WRONG_COLUMN_COUNT}: 8 (lines {lines}, ...)" in message
    assert f"{bad_rows.MISSING_USER}: 1 (line {first + 9})" in message  # A blank line is before it.
    assert "9 rows of the input" in message and "--max-bad-rows is 8" in message
    assert prepare(*command, "--max-bad-rows", 9) == 0
    shown = capsys.readouterr()
    assert f"{bad_rows.WRONG_COLUMN_COUNT}: 8" in shown.out
    assert "a closer look at every row" in shown.err


def test_mixed_line_endings_are_not_bad(tmp_path):
    rows = text_of(LOG).splitlines()
    text = HEADER + "".join(row + ("\r\n" if place % 2 else "\n") for place, row in enumerate(rows))
    path = write(tmp_path / "x.csv", text)
    assert prepare("--source", "csv", "--input", path, "--out", tmp_path / "out", *KEEP_ALL) == 0
    expected = oracle.prepare(LOG, min_item_count=1, min_user_count=1)
    assert content(tmp_path / "out") == expected


def test_json_lines(tmp_path, capsys):
    good = [
        json.dumps({"reviewerID": user, "asin": item, "unixReviewTime": time})
        for user, item, time in LOG
    ]
    bad = {
        b"{broken": bad_rows.BROKEN_JSON,
        b'["a", "x", 1]': bad_rows.BROKEN_JSON,
        b'{"reviewerID": ["a"], "asin": "x", "unixReviewTime": 1}': bad_rows.BROKEN_JSON,
        b'{"asin": "x", "unixReviewTime": 1}': bad_rows.MISSING_USER,
        b'{"reviewerID": "a", "asin": null, "unixReviewTime": 1}': bad_rows.MISSING_ITEM,
        b'{"reviewerID": "a", "asin": "x"}': bad_rows.MISSING_TIME,
        b'{"reviewerID": "a", "asin": "x", "unixReviewTime": "soon"}': bad_rows.BAD_TIME,
        b'{"reviewerID": "a", "asin": "x\\n", "unixReviewTime": 1}': bad_rows.CONTROL_CHARACTER,
        b'{"reviewerID": "a", "asin": "\xff", "unixReviewTime": 1}': bad_rows.NOT_UTF8,
    }
    text = b"\n".join([*map(str.encode, good), *bad]) + b"\n"
    path = write(tmp_path / "x.json", text)
    out = tmp_path / "out"
    command = ["--source", "amazon-reviews", "--input", path, "--out", out, *KEEP_ALL]
    assert prepare(*command) == 2
    assert f"{len(bad)} rows of the input cannot be used" in capsys.readouterr().err
    assert prepare(*command, "--max-bad-rows", len(bad)) == 0
    assert content(out) == oracle.prepare(LOG, min_item_count=1, min_user_count=1)
    entries = PreparedData.load(out).manifest["statistics"]["bad_rows_by_kind"]
    found = {line: entry["kind"] for entry in entries for line in entry["first_lines"]}
    assert found == dict(enumerate(bad.values(), start=len(good) + 1))


def test_sequences(tmp_path, capsys):
    path = write(tmp_path / "s.txt", b"x y\nx\ty z\n\xff z\n" + b"x y z\n" * 9)
    command = ["--source", "sequences", "--input", path, "--out", tmp_path / "out", *KEEP_ALL]
    assert prepare(*command) == 2
    message = capsys.readouterr().err
    assert f"{bad_rows.CONTROL_CHARACTER}: 1 (line 2)" in message
    assert f"{bad_rows.NOT_UTF8}: 1 (line 3)" in message


def test_parquet_rows(tmp_path, capsys):
    users, items, times = map(list, zip(*LOG))
    table = pa.table(
        {
            "user": pa.array([*users, None, "a", "a", "a"]),
            "item": pa.array([*items, "x", None, "x", "x\n"]),
            "time": pa.array([*map(float, times), 1.0, 1.0, float("nan"), 1.0]),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    command = [
        "--source",
        "parquet",
        "--input",
        tmp_path / "x.parquet",
        "--out",
        tmp_path / "out",
        *KEEP_ALL,
    ]
    assert prepare(*command) == 2
    message = capsys.readouterr().err
    kinds = [
        bad_rows.MISSING_USER,
        bad_rows.MISSING_ITEM,
        bad_rows.BAD_TIME,
        bad_rows.CONTROL_CHARACTER,
    ]
    for place, kind in enumerate(kinds, start=len(LOG) + 1):
        assert f"{kind}: 1 (line {place})" in message
    assert prepare(*command, "--max-bad-rows", 4) == 0
    expected = oracle.prepare(LOG, min_item_count=1, min_user_count=1)
    assert content(tmp_path / "out") == expected


@pytest.mark.parametrize(
    "text, said",
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (HEADER.encode(), "no rows to use"),
        (
            b"who,item,time\na,x,1\n",
            "column 'user' is not in the file. Its columns are who, item, time",
        ),
        (
            b"who,what,time\na,x,1\n",
            "columns 'user' and 'item' are not in the file. Its columns are who, what, time. "
            "Set --user-column and --item-column",
        ),
        (b"user,user,item\na,b,x\n", "column 'user' appears more than once"),
        (b"user;item;time\na;x;1\n", "--separator"),
        ((HEADER + text_of(LOG)).encode("utf-16"), "iconv"),
        (gzip.compress((HEADER + text_of(LOG * 500)).encode())[:-30], "gzip"),
        (HEADER.encode() + b"a,x\n", "wrong column count: 1 (line 2)"),
    ],
    ids=[
        "empty",
        "blank",
        "header only",
        "no column",
        "no columns",
        "twice",
        "separator",
        "UTF-16",
        "cut-off gzip",
        "bad rows only",
    ],
)
def test_files_that_are_no_log(tmp_path, capsys, text, said):
    path = write(tmp_path / "x.csv", text)
    assert prepare("--source", "csv", "--input", path, "--out", tmp_path / "out") == 2
    shown = capsys.readouterr().err
    assert "error: " in shown and said.lower() in shown.lower()
    assert "Traceback" not in shown
    assert not (tmp_path / "out").exists()


def test_missing_files(tmp_path, capsys):
    out = tmp_path / "out"
    assert prepare("--source", "csv", "--input", tmp_path / "x.csv", "--out", out) == 2
    assert "does not exist" in capsys.readouterr().err
    assert prepare("--source", "csv", "--input", tmp_path, "--out", out) == 2
    assert "is a folder" in capsys.readouterr().err
    assert prepare("--source", "csv", "--out", out) == 2
    assert "needs --input" in capsys.readouterr().err
    write(tmp_path / "x.parquet", "no parquet")
    assert prepare("--source", "parquet", "--input", tmp_path / "x.parquet", "--out", out) == 2
    assert "not a Parquet file" in capsys.readouterr().err


def _flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


GZIP_DAMAGE = {
    "the checksum": lambda packed: _flipped(packed, -6),
    "the length": lambda packed: _flipped(packed, -2),
    "a bit of the data": lambda packed: _flipped(packed, len(packed) // 2),
    "the last byte": lambda packed: packed[:-1],
    "a reserved flag": lambda packed: packed[:3] + b"\x80" + packed[4:],
    "something after the end": lambda packed: packed + b"more",
    "a second file that is cut off": lambda packed: packed + gzip.compress(b"x")[:-3],
}


@pytest.mark.parametrize("damage", GZIP_DAMAGE)
@pytest.mark.parametrize("source", ["csv", "amazon-reviews", "sequences"])
def test_a_gzip_file_is_read_to_the_end_of_its_checks(tmp_path, capsys, source, damage):
    """As ``gzip -t`` does; DuckDB alone reads most of these."""
    texts = {
        "csv": HEADER + "".join(f"{u},{i},{t}\n" for u, i, t in LOG),
        "amazon-reviews": "".join(
            json.dumps({"reviewerID": u, "asin": i, "unixReviewTime": t}) + "\n" for u, i, t in LOG
        ),
        "sequences": "x y z x\n" * 9,
    }
    path = tmp_path / "x.gz"
    path.write_bytes(GZIP_DAMAGE[damage](gzip.compress(texts[source].encode(), mtime=0)))
    arguments = ("--source", source, "--input", path, "--out", tmp_path / "out", *KEEP_ALL)
    assert prepare(*arguments, "--max-bad-rows", 1000) == 2
    assert f"{path} is a damaged gzip file" in capsys.readouterr().err


def append(path):
    with open(path, "ab") as file:
        file.write(b"\n")


def take_its_place(path):
    """Another file of the same size and times."""
    times, other = path.stat(), path.with_name("other")
    other.write_bytes(path.read_bytes().replace(b"a", b"b"))
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.rename(path)


@pytest.mark.parametrize("change", [append, take_its_place])
@pytest.mark.parametrize("which", ["--input", "--items"])
def test_a_file_that_changes_between_two_readers_is_named(
    tmp_path, capsys, monkeypatch, which, change
):
    """It is checked, read and described by different readers, one of which might see the other."""
    log = write(tmp_path / "log.csv", (HEADER + text_of(LOG)).encode())
    items = write(tmp_path / "items.csv", b"item,kind\n" + b"x,a\ny,b\nz,a\n")
    features = ("--items", items, "--item-features", "kind")
    command = ("--source", "csv", "--input", log, "--out", tmp_path / "out", *KEEP_ALL, *features)
    read = DuckDBEngine.read

    def read_and_change(self, readers, *arguments):
        found = read(self, readers, *arguments)
        change({"--input": log, "--items": items}[which])
        return found

    with monkeypatch.context() as patched:
        patched.setattr(DuckDBEngine, "read", read_and_change)
        assert prepare(*command) == 2
    changed = {"--input": log, "--items": items}[which]
    assert f"{changed} changed while it was read. Run the same command" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["items.csv", "log.csv"]
    assert prepare(*command) == 0


def test_gzip_files_one_after_the_other_and_zeros_at_the_end(tmp_path):
    rows = [f"{u},{i},{t}\n" for u, i, t in LOG]
    path = tmp_path / "x.gz"
    parts = [HEADER, *rows[:5]], rows[5:]
    path.write_bytes(b"".join(gzip.compress("".join(part).encode()) for part in parts) + b"\0" * 99)
    out = tmp_path / "out"
    assert prepare("--source", "csv", "--input", path, "--out", out, *KEEP_ALL) == 0
    assert PreparedData.load(out).manifest["statistics"]["rows"] == len(LOG)


@pytest.mark.parametrize("checksums", [True, False])
def test_a_damaged_parquet_file_is_named(tmp_path, capsys, checksums):
    path = tmp_path / "x.parquet"
    users, items, times = zip(*(LOG * 50))
    table = pa.table({"user": users, "item": items, "time": times})
    options = {"compression": "none" if checksums else "snappy", "use_dictionary": False}
    pq.write_table(table, path, write_page_checksum=checksums, write_statistics=False, **options)
    content = path.read_bytes()
    # Without checksums, a stretch of nonsense is what Snappy notices.
    damaged = _flipped(content, 300) if checksums else content[:60] + b"\xff" * 40 + content[100:]
    path.write_bytes(damaged)
    out = tmp_path / "out"
    words = ("--source", "parquet", "--input", path, "--out", out, "--max-bad-rows", 10**6)
    assert prepare(*words, *KEEP_ALL) == 2
    assert f"{path} is a damaged Parquet file" in capsys.readouterr().err
