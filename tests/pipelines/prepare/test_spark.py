"""``prepare --engine spark`` against the single-machine engine, byte by byte."""

import gzip
import importlib.util
import json
import random
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.rows import bad_rows
from pipelines.prepare.rows.values import INTEGER
from tests.pipelines.prepare import test_features as side
from tests.pipelines.prepare.test_bad_rows import BAD_LINES
from tests.pipelines.prepare.test_prepare import content, make_log, prepare, write_csv
from tests.support import odd_rows
from tests.support import prepare_oracle as oracle

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed"
    ),
    pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed"),
]

MASTER = "local[2]"
KEEP_ALL = ["--min-item-count", 1, "--min-user-count", 1]


@pytest.fixture(scope="module", autouse=True)
def spark():
    """One Spark for all tests, with splits so small that a small file has several."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master(MASTER)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        # Nothing here runs long enough to be worth the optimizing compiler.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    yield session
    session.stop()


# Several tasks for every step, and none of the work that only pays for large ones.
SMALL_TASKS = [
    "spark.sql.shuffle.partitions=2",
    "spark.sql.files.maxPartitionBytes=16384",
    "spark.sql.files.openCostInBytes=0",
    "spark.sql.codegen.wholeStage=false",
    "spark.sql.codegen.factoryMode=NO_CODEGEN",
    "spark.sql.adaptive.enabled=false",
]


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def manifest(folder):
    found = json.loads((folder / "manifest.json").read_text())
    return {
        key: value
        for key, value in found.items()
        if key not in ("created", "engine", "versions", "seconds")
    }


def compare(tmp_path, *arguments, num_files=14):
    """Runs both engines; the results must be the same in every byte."""
    folders = {}
    for engine in ("duckdb", "spark"):
        folders[engine] = tmp_path / f"by-{engine}"
        settings = ["--spark-master", MASTER]
        for setting in SMALL_TASKS:
            settings += ["--spark-conf", setting]
        command = [*arguments, "--out", folders[engine], "--overwrite"]
        assert prepare(*command, "--engine", engine, *settings) == 0
    one, other = map(files, folders.values())
    assert one.keys() == other.keys() and len(one) == num_files
    assert not [name for name in one if name != "manifest.json" and one[name] != other[name]]
    one, other = map(manifest, folders.values())
    assert one == other
    recorded = json.loads((folders["spark"] / "manifest.json").read_text())
    assert recorded["engine"] == "spark" and recorded["versions"]["pyspark"]
    return folders["spark"]


OPTIONS = {
    "dedup and core": ["--dedup", "--core", "--min-item-count", 6, "--min-user-count", 8],
    "seed and shares": [
        *("--seed", 9, "--split", "5:3:2", "--history-share", 0.29, "--train-on-valid"),
    ],
    "leave-one-out": ["--split", "leave-one-out", "--drop-repeated-targets"],
    "time by shares": [*KEEP_ALL, "--split", "time", "--drop-cold-targets", "--train-on-valid"],
}


@pytest.mark.parametrize("case", OPTIONS)
def test_a_log_with_ties_and_other_alphabets(tmp_path, case):
    # Every byte sorts in one engine as in the other, signs past the 16-bit ones too.
    log = [(f"{'uŭ😀ｚ'[int(user[1:]) % 4]}{user}", item, time) for user, item, time in make_log()]
    path = write_csv(tmp_path / "events.csv", log)
    compare(tmp_path, "--source", "csv", "--input", path, *OPTIONS[case])


SIDE_FEATURES = {
    "csv": ["--hold-out-items", 0.1],
    "csv with bad rows": ["--max-bad-rows", 4, "--dedup"],
    "parquet": ["--split", "leave-one-out", "--drop-repeated-targets"],
}


@pytest.mark.parametrize("case", SIDE_FEATURES)
def test_side_features_of_every_kind(tmp_path, case):
    options = side.write_all(tmp_path)
    log = side.log_with_columns()
    if case == "csv with bad rows":
        for name in ("log", "items", "users"):
            with open(tmp_path / f"{name}.csv", "ab") as file:
                file.write(b"only one column\n")
        with open(tmp_path / "log.csv", "ab") as file:
            # A context over two lines, and one that is not UTF-8.
            file.write(b'u1,i1\xc3\xa9,7,"a\r\nb",0001,2020-01-01\nu1,i1\xc3\xa9,8,\xff,2,\n')
    elif case == "parquet":
        path = side.as_parquet(tmp_path / "log.parquet", side.HEADER, log)
        options = ["--source", "parquet", "--input", path, *options[4:]]
    out = compare(tmp_path, *options, *side.FEATURES, *SIDE_FEATURES[case], num_files=43)
    features = manifest(out)["features"]
    assert [len(features[of]) for of in ("item", "user", "context")] == [5, 2, 4]
    assert manifest(out)["statistics"]["side_tables"].keys() == {"item", "user"}


def test_dates_cut_milliseconds_where_they_cut_them_in_duckdb(tmp_path):
    users, items, times = zip(*make_log())
    table = {"user": users, "item": items, "time": pa.array([10**8 * time for time in times])}
    table["time"] = table["time"].cast(pa.timestamp("ms"))
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    command = ["--source", "parquet", "--input", tmp_path / "log.parquet", *KEEP_ALL]
    # The log has 500 times, from the first of January 1970 on, of 100,000 seconds each.
    out = compare(tmp_path, *command, "--split", "time", "--split-at", "1971-03-01", "1971-06-01")
    statistics = manifest(out)["statistics"]["splits"]
    num_earlier = sum(10**8 * time < 424 * 86_400_000 for time in times)
    assert statistics["train"]["interactions"] == num_earlier


def test_the_result_is_that_of_the_oracle(tmp_path):
    log = make_log()
    out = compare(tmp_path, "--source", "csv", "--input", write_csv(tmp_path / "e.csv", log))
    assert content(out) == oracle.prepare(log)


def csv_lines(log):
    return [",".join(map(str, row)).encode() for row in log]


def test_every_kind_of_bad_row_with_its_line(tmp_path):
    lines = csv_lines(make_log())
    for place, (line, _) in enumerate(BAD_LINES.values()):
        lines.insert(140 * place + 7, line)
    lines[5:5] = [b"", b"\r"]
    path = tmp_path / "x.csv"
    path.write_bytes(b"\r\n".join([b"\xef\xbb\xbfuser,item,time", *lines]))
    out = compare(tmp_path, "--source", "csv", "--input", path, "--max-bad-rows", len(BAD_LINES))
    found = manifest(out)["statistics"]["bad_rows_by_kind"]
    assert {entry["kind"] for entry in found} == {kind for _, kind in BAD_LINES.values()}
    assert sum(entry["rows"] for entry in found) == len(BAD_LINES)


def test_too_many_bad_rows_are_the_same_error(tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_bytes(b"\n".join([b"user,item,time", *csv_lines(make_log()), b"a,x", b",x,1"]))
    messages = []
    for engine in ("duckdb", "spark"):
        command = ["--source", "csv", "--input", path, "--out", tmp_path / "out"]
        assert prepare(*command, "--engine", engine, "--spark-master", MASTER) == 2
        shown = capsys.readouterr().err
        messages.append(shown[shown.index("error: ") :])
    assert messages[0] == messages[1]
    assert f"{bad_rows.MISSING_USER}: 1 (line 3003)" in messages[0]
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.csv"]


def test_quoted_fields_and_records_over_several_lines(tmp_path):
    lines = []
    for place, (user, item, time) in enumerate(make_log(1500)):
        note = ['"a, ""note"""', "plain", '""', 'in"ner', '"two\n\nlines"'][place % 5]
        if place > 1000 and place % 5 == 4:
            note = '"two, lines\nu1,i1,5,"""'
        lines.append(f'"{user}, ""x""",{item},{time},{note}'.encode())
    lines[700:700] = [b'a,"stray,1,x', b'a,b"b,1,"x"y']
    path = tmp_path / "x.csv"
    path.write_bytes(b"\n".join([b"user,item,time,note", *lines]) + b"\n")
    compare(tmp_path, "--source", "csv", "--input", path, "--max-bad-rows", 2)


def test_several_files_plain_and_packed_are_one_log(tmp_path):
    log = [
        (user, item, time if place % 2 else f"{time}.5")
        for place, (user, item, time) in enumerate(make_log(2000))
    ]
    paths = []
    for place, name in enumerate(["z.csv", "_hidden", "x{1,2}*.gz", "day/z.csv"]):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        text = "\n".join(
            ["user\titem\ttime", "broken", *("\t".join(map(str, row)) for row in log[place::4])]
        ).encode()
        path.write_bytes(gzip.compress(text) if place % 2 else text)
        paths.append(path)
    compare(tmp_path, "--source", "tsv", "--input", *paths, "--max-bad-rows", 4)


@pytest.mark.parametrize(
    "write_time",
    [
        lambda time: f"2020-01-01T00:{time % 60:02d}:00" + ["Z", ".125", "", "+05:30"][time % 4],
        lambda time: [
            f"2020-01-{time % 28 + 1:02d}",
            "2020-01-05 10:20",
            "20200105T101112Z",
            " 2020-01-05T10:20:30z ",
        ][time % 4],
        lambda time: [f"{1_700_000_000_000_000_000 + time}", f" {time}", f"+{time}"][time % 3],
    ],
    ids=["dates", "odd dates", "nanoseconds"],
)
def test_times_in_many_forms(tmp_path, write_time):
    log = [(user, item, write_time(time)) for user, item, time in make_log(600, 30, 40)]
    path = write_csv(tmp_path / "x.csv", log)
    compare(tmp_path, "--source", "csv", "--input", path)


def test_without_times_the_order_of_the_files_counts(tmp_path):
    path = write_csv(tmp_path / "x.csv", make_log())
    compare(tmp_path, "--source", "csv", "--input", path, "--time-column", "none")


def test_json_lines(tmp_path):
    lines = [
        json.dumps(
            {"reviewerID": user, "asin": item, "reviewText": 'a "tab\t" é', "unixReviewTime": time},
            ensure_ascii=place % 2 == 0,
        ).encode()
        for place, (user, item, time) in enumerate(make_log(1500))
    ]
    odd = [
        b"{broken",
        b'["a", "x", 1]',
        b'{"reviewerID": ["a"], "asin": "x", "unixReviewTime": 1}',
        b'{"asin": "x", "unixReviewTime": 1}',
        b'{"reviewerID": "a", "asin": "x"}',
        b'{"reviewerID": "a", "asin": "\xff", "unixReviewTime": 1}',
        b'{"reviewerID": "a", "asin": "\\ud800", "unixReviewTime": 1}',
        b'{"reviewerID": "a", "asin": "x", "unixReviewTime": 1} {}',
        b'{"reviewerID": 7, "asin": 1.50, "unixReviewTime": "12"}',
        b" ",
        b'{"reviewerID": "a", "asin": "\\ud83d\\ude00", "unixReviewTime": 5}',
    ]
    for place, line in enumerate(odd):
        lines.insert(100 * place, line)
    path = tmp_path / "reviews.json.gz"
    path.write_bytes(gzip.compress(b"\n".join(lines)))
    compare(tmp_path, "--source", "amazon-reviews", "--input", path, "--max-bad-rows", 9)


def test_published_forms(tmp_path):
    ratings = tmp_path / "ratings.csv"
    ratings.write_text(
        "user_id,parent_asin,rating,timestamp\n"
        + "".join(f"{user},{item},5.0,{time}\n" for user, item, time in make_log(800))
    )
    compare(tmp_path, "--source", "amazon-ratings", "--input", ratings)
    taobao = tmp_path / "UserBehavior.csv"
    taobao.write_text(
        "".join(
            f"{user},{item},9,{'pv' if place % 3 else 'buy'},{time}\n"
            for place, (user, item, time) in enumerate(make_log(2000, 60, 60))
        )
    )
    out = compare(tmp_path, "--source", "taobao", "--input", taobao)
    assert manifest(out)["statistics"]["unwanted_rows"] > 0


def test_sequences_and_logs_that_come_split(tmp_path):
    log = make_log(900, 40, 40)
    sequences = tmp_path / "sequences.txt"
    items = oracle.sequences(log)
    sequences.write_text("".join(" ".join(row) + "\n" for row in items.values()))
    compare(tmp_path, "--source", "sequences", "--input", sequences, *KEEP_ALL)
    split = tmp_path / "split"
    split.mkdir()
    for name, pairs in (("train", log[:700]), ("test", log[700:])):
        (split / f"{name}.txt").write_text("".join(f"{user} {item}\n" for user, item, _ in pairs))
    compare(tmp_path, "--source", "presplit", "--input", split, "--valid-share", 0.2)


@pytest.mark.parametrize("kind", ["text", "seconds", "nanoseconds and integers", "decimals"])
def test_parquet(tmp_path, kind):
    users, items, times = map(list, zip(*make_log(1200)))
    arrays = {
        "Who?": pa.array(users),
        "a`b": pa.array(items).dictionary_encode(),
        "when": pa.array(times),
    }
    bad = 0
    if kind == "text":
        bad = 5
        odd_users = [None, "a", " ", "a", "a"]
        odd_items = [b"x", None, b"x", b"x\n", b"\xff"]
        arrays = {
            "Who?": pa.array([*odd_users, *users]),
            "a`b": pa.array([*odd_items, *(item.encode() for item in items)]),
            "when": pa.array(list(map(str, [1] * 5 + times))),
        }
    if kind == "seconds":
        arrays["when"] = pa.array(times, pa.timestamp("s", "Europe/Berlin"))
    if kind == "nanoseconds and integers":
        arrays["Who?"] = pa.array([int(user[1:]) for user in users], pa.uint64())
        arrays["when"] = pa.array(times, pa.timestamp("ns"))
    if kind == "decimals":
        bad = 2
        arrays["when"] = pa.array([None, float("nan"), *(time / 8 for time in times[2:])])
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(arrays), path, row_group_size=100)
    compare(
        tmp_path,
        "--source",
        "parquet",
        "--input",
        path,
        "--user-column",
        "Who?",
        "--item-column",
        "a`b",
        "--time-column",
        "when",
        "--max-bad-rows",
        bad,
    )


def test_what_is_there_is_found_whichever_engine_made_it(tmp_path, capsys):
    path = write_csv(tmp_path / "x.csv", make_log(900))
    command = ["--source", "csv", "--input", path, "--out", tmp_path / "out"]
    assert prepare(*command) == 0
    assert prepare(*command, "--engine", "spark") == 0
    assert "already exists" in capsys.readouterr().out


def test_damaged_files_are_clear_errors_and_the_old_result_stays(tmp_path, capsys):
    command = ["--source", "csv", "--out", tmp_path / "out", "--overwrite"]
    spark = ["--engine", "spark", "--spark-master", MASTER]
    assert prepare(*command, "--input", write_csv(tmp_path / "x.csv", make_log(900)), *spark) == 0
    before = files(tmp_path / "out")
    cut = tmp_path / "cut.csv"
    text = write_csv(tmp_path / "y.csv", make_log(9000)).read_bytes()
    cut.write_bytes(gzip.compress(text)[:-30])
    assert prepare(*command, "--input", cut, *spark) == 2
    assert "damaged gzip" in capsys.readouterr().err
    assert files(tmp_path / "out") == before
    assert not list(tmp_path.glob(".tmp-*"))


def test_settings_that_cannot_work_are_clear_errors(tmp_path, capsys, monkeypatch):
    path = write_csv(tmp_path / "x.csv", make_log(900))
    command = ["--source", "csv", "--input", path, "--out", tmp_path / "out", "--engine", "spark"]
    assert prepare(*command, "--threads", 3) == 2
    assert "local[3]" in capsys.readouterr().err
    assert prepare(*command, "--spark-master", "local[1]") == 2
    assert "already runs in this process with the master local[2]" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        prepare(*command, "--spark-conf", "spark.executor.memory")
    assert "KEY=VALUE" in capsys.readouterr().err
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert prepare(*command) == 2
    assert "needs Java 17" in capsys.readouterr().err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert prepare(*command) == 2
    assert "tfrs-croloss[pipelines,spark]" in capsys.readouterr().err


def test_a_process_of_its_own(tmp_path, run_python):
    path = write_csv(tmp_path / "x.csv", make_log(900))
    command = [
        "prepare",
        "--source",
        "csv",
        "--input",
        str(path),
        "--out",
        str(tmp_path / "out"),
        "--engine",
        "spark",
    ]
    shown = run_python(f"""
import contextlib, io
from pipelines.__main__ import main
for master in ("spark://127.0.0.1:9", "nonsense://x", "local[1]"):
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main({command!r} + ["--spark-master", master])
    print(code, master, errors.getvalue())
""")
    refused, wrong, done = shown.split("2 nonsense")[0], shown.split("2 nonsense")[1], shown
    assert "2 spark://127.0.0.1:9" in refused and "cannot be reached" in refused
    assert "did not start" in wrong and "--spark-master nonsense://x" in wrong
    assert "0 local[1]" in done and "[5/5] writing" in done
    assert content(tmp_path / "out") == oracle.prepare(make_log(900))


@pytest.mark.parametrize("source", ["csv", "amazon-reviews", "parquet"])
def test_thousands_of_odd_rows(tmp_path, source):
    """Rows that one reader might take for good and another for bad, among many good ones."""
    draw = random.Random(source)
    path = tmp_path / "odd"
    if source == "csv":
        good = [f"{u},{i},{t}\n".encode() for u, i, t in make_log()]
        rows = [*good, *odd_rows.csv_lines(draw, 3_000, INTEGER)]
        draw.shuffle(rows)
        path.write_bytes(b"user,item,time\n" + b"".join(rows))
    elif source == "amazon-reviews":
        names = {"user": "reviewerID", "item": "asin", "time": "unixReviewTime"}
        good = [json.dumps(dict(zip(names.values(), row))).encode() + b"\n" for row in make_log()]
        odd = odd_rows.json_lines(draw, 3_000)
        for name, key in names.items():
            odd = [line.replace(f'"{name}"'.encode(), f'"{key}"'.encode()) for line in odd]
        rows = [*good, *odd]
        draw.shuffle(rows)
        path.write_bytes(b"".join(rows))
    else:
        values = [*odd_rows.IDS, *odd_rows.BAD_IDS, None]
        log = [(user, item, str(time)) for user, item, time in make_log()]
        times = [*odd_rows.TIMES, *odd_rows.odd_times(draw, 1_000), None]
        log += [
            (draw.choice(values), draw.choice(values), draw.choice(times)) for _ in range(3_000)
        ]
        draw.shuffle(log)
        users, items, stamps = zip(*log)
        table = {"user": users, "item": items, "time": stamps}
        pq.write_table(
            pa.table({name: pa.array(v, pa.string()) for name, v in table.items()}), path
        )
    words = ("--source", source, "--input", path, "--max-bad-rows", 10_000, *KEEP_ALL)
    found = manifest(compare(tmp_path, *words))["statistics"]
    assert found["bad_rows"] > 300 and found["rows"] > len(make_log()) + 300
