"""Every source, against a plain-Python oracle."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.prepared import PreparedData
from tests.pipelines.prepare.test_prepare import content, make_log, prepare, write_csv
from tests.support import prepare_oracle as oracle
from tests.support.tfds_files import write_tfds

# Rows that survive every filter of 1: users a to e, each with three items.
LOG = [(user, item, 10 * place + ord(user)) for place, item in enumerate("xyz") for user in "abcde"]
KEEP_ALL = ["--min-item-count", 1, "--min-user-count", 1]


def text_of(log, separator=",", columns=(0, 1, 2)):
    return "".join(separator.join(str(row[column]) for column in columns) + "\n" for row in log)


def check(tmp_path, log, *arguments, **keywords):
    """Runs prepare without filters and compares it with the oracle."""
    out = tmp_path / "out"
    assert prepare("--out", out, *KEEP_ALL, *arguments) == 0
    expected = oracle.prepare(log, min_item_count=1, min_user_count=1, **keywords)
    assert content(out) == expected
    return PreparedData.load(out).manifest


def write(path, text):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_csv_with_other_columns_quotes_and_windows_lines(tmp_path):
    text = 'note,when,"who",what\r\n' + "".join(
        f'"a ""note"", with commas",{time},{user},"{item}"\r\n' for user, item, time in LOG
    )
    path = write(tmp_path / "x.csv", text)
    check(
        tmp_path,
        LOG,
        "--source",
        "csv",
        "--input",
        path,
        "--user-column",
        "who",
        "--item-column",
        "what",
        "--time-column",
        "when",
    )


def test_gzip_is_recognised_by_content(tmp_path):
    path = write(tmp_path / "x.csv", gzip.compress(("user,item,time\n" + text_of(LOG)).encode()))
    check(tmp_path, LOG, "--source", "csv", "--input", path)


def test_byte_order_mark_and_no_last_newline(tmp_path):
    path = write(tmp_path / "x.csv", "\ufeffuser,item,time\n" + text_of(LOG).rstrip("\n"))
    check(tmp_path, LOG, "--source", "csv", "--input", path)


def test_tsv_by_column_numbers(tmp_path):
    path = write(tmp_path / "x.tsv", text_of(LOG, "\t", (2, 1, 0)))
    check(
        tmp_path,
        LOG,
        "--source",
        "tsv",
        "--input",
        path,
        "--no-header",
        "--user-column",
        3,
        "--item-column",
        2,
        "--time-column",
        1,
    )


def test_blanks_as_separator_in_file_order(tmp_path):
    log = [(user, item, place) for place, (user, item, _) in enumerate(LOG)]
    path = write(tmp_path / "x.txt", text_of(log, " ", (0, 1)))
    check(tmp_path, log, "--source", "csv", "--separator", "space", "--no-header", "--input", path)


def test_several_files_are_one_log(tmp_path):
    log = [(user, item, 7) for user, item, _ in LOG]  # Only the order of files tells the time.
    paths = [
        write_csv(tmp_path / f"{name}.csv", part) for name, part in (("z", log[:7]), ("a", log[7:]))
    ]
    check(tmp_path, log, "--source", "csv", "--input", *paths)


@pytest.mark.parametrize(
    "write_time",
    [
        lambda time: f"{time / 8}",
        lambda time: f"{1_700_000_000_000_000_000 + time}",
        lambda time: f"2020-01-01T00:00:{time % 60:02d}.{time:03d}Z",
        lambda time: f"2020-01-{time % 28 + 1:02d}",
        lambda time: f"2020-01-01 {time % 5:02d}:00:00+0{time % 5}:00",
        lambda time: f"2020-01-01 12:{time % 60:02d}:00" + ("-00:20" if time % 2 else ""),
    ],
    ids=["decimal", "nanoseconds", "date and time", "date", "zones", "some with zone"],
)
def test_times_in_every_form(tmp_path, write_time):
    from datetime import datetime

    def key(time):
        text = write_time(time).replace("Z", "+00:00")
        try:
            return int(text)
        except ValueError:
            pass
        try:
            return float(text)
        except ValueError:
            date = datetime.fromisoformat(text)
            return date.replace(tzinfo=None) - (date.utcoffset() or datetime.resolution * 0)

    written = [(user, item, write_time(time * 37 % 101)) for user, item, time in LOG]
    expected = [(user, item, key(time * 37 % 101)) for user, item, time in LOG]
    path = write_csv(tmp_path / "x.csv", written)
    check(tmp_path, expected, "--source", "csv", "--input", path)
    # The same through the careful reader, which one bad row brings in.
    slow = write(tmp_path / "y.csv", path.read_text() + "broken\n")
    check(
        tmp_path, expected, "--source", "csv", "--input", slow, "--max-bad-rows", 1, "--overwrite"
    )


def test_a_decimal_far_down_is_not_rounded(tmp_path):
    log = [("a", f"i{place}", 10_000 - place) for place in range(1000)]
    log += [("a", "late", 9000.75), ("a", "early", 9000.25)]
    log += [(user, "late", 1) for user in "bcde" for _ in range(3)]
    path = write_csv(tmp_path / "x.csv", log)
    check(tmp_path, log, "--source", "csv", "--input", path)


@pytest.mark.parametrize("kind", ["text", "integers", "bytes", "dictionary", "timestamps"])
def test_parquet(tmp_path, kind):
    users, items, times = map(list, zip(*LOG))
    log = LOG
    table = {"user": pa.array(users), "item": pa.array(items), "time": pa.array(times)}
    if kind == "integers":
        table["user"] = pa.array([ord(user) for user in users], pa.int32())
        log = [(str(ord(user)), item, time) for user, item, time in LOG]
    if kind == "bytes":
        table["item"] = pa.array([item.encode() for item in items], pa.binary())
    if kind == "dictionary":
        table["user"] = table["user"].dictionary_encode()
    if kind == "timestamps":
        table["time"] = pa.array(times, pa.timestamp("us", "Europe/Berlin"))
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    check(tmp_path, log, "--source", "parquet", "--input", tmp_path / "x.parquet")


def test_sequences(tmp_path):
    lines = ["x y z", "z", "", "y y x", "x  z "] * 12
    log = [
        (str(number), item, place)
        for number, line in enumerate(lines, start=1)
        for place, item in enumerate(line.split())
    ]
    path = write(tmp_path / "s.txt.gz", gzip.compress("\n".join(lines).encode()))
    check(tmp_path, log, "--source", "sequences", "--input", path)


def test_amazon_reviews(tmp_path):
    lines = [
        json.dumps(
            {
                "reviewerID": user,
                "asin": item,
                "overall": 5.0,
                "reviewText": "tab\t",
                "unixReviewTime": time,
            }
        )
        for user, item, time in LOG
    ]
    path = write(tmp_path / "reviews_5.json.gz", gzip.compress("\n".join(lines).encode()))
    check(tmp_path, LOG, "--source", "amazon-reviews", "--input", path)


@pytest.mark.parametrize("form", ["2023", "2014", "2018"])
def test_amazon_ratings(tmp_path, form):
    log = [(f"A3{user}SB09XLF4", f"00000000{item}X", time) for user, item, time in LOG]
    header, order = {
        "2023": ("user_id,parent_asin,rating,timestamp\n", "{0},{1},5.0,{2}\n"),
        "2014": ("", "{0},{1},5.0,{2}\n"),
        "2018": ("", "{1},{0},5.0,{2}\n"),
    }[form]
    path = write(tmp_path / "r.csv", header + "".join(order.format(*row) for row in log))
    check(tmp_path, log, "--source", "amazon-ratings", "--input", path)


def test_amazon_ratings_that_cannot_be_told_apart(tmp_path, capsys):
    path = write(tmp_path / "r.csv", "AAAAAAAAAA,BBBBBBBBBB,5.0,7\n")
    assert prepare("--source", "amazon-ratings", "--input", path, "--out", tmp_path / "o") == 2
    assert "--user-column" in capsys.readouterr().err


def test_taobao_uses_page_views_only(tmp_path):
    views = text_of([(user, item, f"7,pv,{time}") for user, item, time in LOG])
    path = write(tmp_path / "UserBehavior.csv", "a,x,7,buy,1\n" + views + "b,q,7,fav,2\n")
    manifest = check(tmp_path, LOG, "--source", "taobao", "--input", path)
    assert manifest["statistics"]["unwanted_rows"] == 2


def test_taobao_filters_at_20_by_default(tmp_path):
    log = make_log(num_times=100_000)
    path = write(tmp_path / "t.csv", text_of([(u, i, f"7,pv,{t}") for u, i, t in log]))
    assert prepare("--source", "taobao", "--input", path, "--out", tmp_path / "out") == 0
    assert content(tmp_path / "out") == oracle.prepare(log, min_item_count=20, min_user_count=20)


def test_movielens_through_tensorflow_datasets(tmp_path, capsys):
    # All times differ: tensorflow-datasets shuffles the rows when it writes them.
    log = [(user, item, place) for place, (user, item, _) in enumerate(LOG)]
    write_tfds(tmp_path / "tfds", log)
    options = ["--source", "movielens", "--tfds-data-dir", tmp_path / "tfds", "--tfds-name"]
    check(tmp_path, log, *options, "tiny")
    capsys.readouterr()
    assert prepare(*options, "tiny", "--out", tmp_path / "o", "--item-column", "title") == 2
    assert "has no title" in capsys.readouterr().err
    assert prepare(*options, "no_such_data_set", "--out", tmp_path / "o") == 2
    assert "--tfds-name no_such_data_set" in capsys.readouterr().err


def write_authors(folder, parts):
    for name, log in parts.items():
        path = folder / f"book_{name}.txt"
        write(path, "".join(f"{user},{item},{place}\n" for user, item, place in log))


def test_authors_files_keep_their_users(tmp_path):
    parts = {
        "train": [("1", "x", 0), ("1", "y", 1), ("2", "y", 1), ("2", "z", 0)],
        "valid": [("3", f"{item}", place) for place, item in enumerate("yxzxy")] + [("4", "x", 0)],
        "test": [("5", "q", 1), ("5", "y", 0)],
    }
    folder = tmp_path / "data"
    folder.mkdir()
    write_authors(folder, parts)
    for place in (folder, folder / "book"):
        assert (
            prepare(
                "--source", "authors", "--input", place, "--out", tmp_path / "out", "--overwrite"
            )
            == 0
        )
        found = content(tmp_path / "out")
        # y 5 times, x 4, z 2, q 1.
        assert found["item_ids"] == ["y", "x", "z", "q"]
        assert found["item_counts"] == [2, 1, 1, 0]
        assert sorted(found["train"]) == [("1", [1, 0], None), ("2", [2, 0], None)]
        assert [user for user, *_ in found["train"]] == oracle.shuffled(["1", "2"], 0)
        assert found["valid"] == [("3", [0, 1, 2, 1, 0], 4)]
        assert found["test"] == [("5", [0, 3], 1)]
        splits = PreparedData.load(tmp_path / "out").manifest["statistics"]["splits"]
        assert splits["valid"]["dropped_users"] == 1


def test_authors_train_file_alone_is_split_like_any_log(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    write_authors(folder, {"train": LOG})
    check(tmp_path, LOG, "--source", "authors", "--input", folder)


def test_authors_errors(tmp_path, capsys):
    folder = tmp_path / "data"
    folder.mkdir()
    command = ["--source", "authors", "--input", folder, "--out", tmp_path / "out"]
    assert prepare(*command) == 2
    assert "NAME_train.txt" in capsys.readouterr().err
    write_authors(folder, {"train": LOG, "test": LOG})
    assert prepare(*command) == 2
    assert "valid file is missing" in capsys.readouterr().err
    write_authors(folder, {"valid": LOG})
    assert prepare(*command) == 2
    assert "user 'a' is in more than one" in capsys.readouterr().err


PAIRS = {
    "train": [("1", "x"), ("1", "y"), ("2", "y"), ("2", "z"), ("2", "y"), ("4", "y")],
    "valid": [("1", "z"), ("2", "x"), ("3", "x")],
    "test": [("2", "q"), ("2", "x"), ("1", "q"), ("3", "y")],
}


@pytest.mark.parametrize("header", [True, False])
def test_presplit_with_valid(tmp_path, header):
    folder = tmp_path / "data"
    folder.mkdir()
    log = {
        part: [(str(ord(user)), str(ord(item))) for user, item in pairs]
        for part, pairs in PAIRS.items()
    }
    for part, pairs in log.items():
        lines = ["u_id\ti_id"] * header + ["\t".join(pair) for pair in pairs]
        write(folder / f"{part}.tsv", "\n".join(lines))
    assert prepare("--source", "presplit", "--input", folder, "--out", tmp_path / "out") == 0
    found = content(tmp_path / "out")
    x, y, z, q = (str(ord(item)) for item in "xyzq")
    one, two, four = (str(ord(user)) for user in "124")
    # y 5 times, x 4, z 2, q 2 (q before z by its name, "113" before "122").
    assert found["item_ids"] == [y, x, q, z]
    assert found["item_counts"] == [4, 1, 0, 1]
    assert [user for user, *_ in found["train"]] == oracle.shuffled([one, two, four], 0)

    def numbers(user, *items):
        return [found["item_ids"].index(item) for item in oracle.without_order(user, items)]

    assert {user: items for user, items, _ in found["train"]} == {
        one: numbers(one, x, y),
        two: numbers(two, y, z, y),
        four: [0],
    }
    assert sorted(found["valid"]) == [
        (one, numbers(one, x, y) + numbers(one, z), 2),
        (two, numbers(two, y, z, y) + numbers(two, x), 3),
    ]
    assert sorted(found["test"]) == [
        (one, numbers(one, x, y) + numbers(one, q), 2),
        (two, numbers(two, y, z, y) + numbers(two, q, x), 3),
    ]
    splits = PreparedData.load(tmp_path / "out").manifest["statistics"]["splits"]
    # User 3 has nothing to predict from.
    assert [splits[name]["dropped_users"] for name in ("train", "valid", "test")] == [0, 1, 1]


def test_presplit_without_valid_holds_out_a_share_by_seed(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    sizes = {0: 1, **{user: 2 + 3 * user for user in range(1, 12)}}
    train = [(user, item) for user, size in sizes.items() for item in range(size)]
    write(folder / "train.txt", text_of(train, " ", (0, 1)))
    write(folder / "test.txt", text_of([(user, 99) for user in sizes], " ", (0, 1)))
    held = {}
    for seed in (0, 1):
        out = tmp_path / f"out-{seed}"
        assert (
            prepare(
                "--source",
                "presplit",
                "--input",
                folder,
                "--out",
                out,
                "--valid-share",
                0.2,
                "--seed",
                seed,
            )
            == 0
        )
        found = content(out)
        names = found["item_ids"]
        known = {user: items for user, items, _ in found["train"]}
        held[seed] = {
            user: [names[item] for item in items[length:]] for user, items, length in found["valid"]
        }
        for user, items, length in found["valid"] + found["test"]:
            assert items[:length] == known[user]
        # The published rule; the only pair of user 0 is kept for training.
        assert {int(user): len(items) for user, items in held[seed].items()} == {
            user: max(size // 5, 1) for user, size in sizes.items() if user
        }
        assert all(
            len(known[str(user)]) + len(held[seed].get(str(user), [])) == size
            for user, size in sizes.items()
        )
    assert held[0] != held[1]


def test_presplit_needs_train_and_test(tmp_path, capsys):
    write(tmp_path / "train.txt", "1 2\n")
    assert prepare("--source", "presplit", "--input", tmp_path, "--out", tmp_path / "o") == 2
    assert "no test.txt" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, users, items, rows",
    [
        pytest.param(
            ["--source", "sequences", "--input", "cds/sequences.txt.gz"],
            17_052,
            35_118,
            472_265,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            [
                "--source",
                "csv",
                "--separator",
                "space",
                "--no-header",
                "--input",
                "video-games/interactions.txt.gz",
            ],
            31_013,
            23_715,
            287_107,
            marks=pytest.mark.slow,
        ),
        (
            [
                "--source",
                "tsv",
                "--no-header",
                "--time-column",
                "3",
                "--input",
                "beauty-timestamps/interactions.tsv.gz",
            ],
            22_363,
            12_101,
            198_502,
        ),
        (["--source", "authors", "--input", "books-sample"], 1_467, 17_049, 20_000),
        (["--source", "presplit", "--input", "health"], 1_974, 1_200, 48_189),
        pytest.param(
            ["--source", "presplit", "--input", "electronic"],
            13_455,
            8_360,
            234_521,
            marks=pytest.mark.slow,
        ),
        # The description counts the ids 0 to 8,692; one of them does not occur.
        pytest.param(
            ["--source", "presplit", "--input", "beauty"],
            15_603,
            8_692,
            139_554,
            marks=pytest.mark.slow,
        ),
    ],
    ids=[
        "cds",
        "video-games",
        "beauty-timestamps",
        "books-sample",
        "health",
        "electronic",
        "beauty",
    ],
)
def test_shared_data(tmp_path, shared_data, arguments, users, items, rows):
    place = arguments.index("--input") + 1
    arguments = [*arguments[:place], shared_data / arguments[place]]
    out = tmp_path / "out"
    # The figures of the data sets' description.
    assert prepare(*arguments, "--out", out, *KEEP_ALL) == 0
    statistics = PreparedData.load(out).manifest["statistics"]
    assert (statistics["raw_users"], statistics["raw_items"]) == (users, items)
    assert statistics["rows"] == statistics["interactions"] == rows
