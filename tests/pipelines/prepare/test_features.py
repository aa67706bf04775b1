"""``prepare`` with side features: from a log and tables with every fault to encoded columns."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.prepared import PreparedData
from tests.pipelines.prepare.test_prepare import content, make_log, prepare, write_csv
from tests.support import prepare_oracle as oracle
from tests.support.tfds_files import write_tfds

SPLITS = ("train", "valid", "test")
FEATURES = [
    "--item-features",
    "brand,price:quantiles,tags,title,made=release date",
    "--user-features",
    "country,years=age:number",
    "--context-features",
    "device,amount:number,hour=when:hour,day=when:weekday",
]


def write_table(path: Path, rows: Sequence[Sequence[object]], separator: str = ",") -> Path:
    text = io.StringIO()
    csv.writer(text, delimiter=separator, lineterminator="\n").writerows(rows)
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def log_with_columns() -> list[tuple[Any, ...]]:
    """Rows of a log with a device, an amount that is the number of the row, and a date."""
    rng = random.Random(1)
    return [
        (
            *row,
            rng.choice(["phone", "desk, new", 'a "pad"', ""]),
            number,
            f"2020-01-{1 + row[2] % 28:02}T{row[2] % 24:02}:00:00",
        )
        for number, row in enumerate(make_log())
    ]


HEADER = ("user", "item", "time", "device", "amount", "when")


def item_rows(log: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    rng = random.Random(2)
    names = sorted({row[1] for row in log})
    return [
        (
            name,
            rng.choice(["acme", "Ajax", "öl", ""]),
            rng.choice([f"{100 * rng.random():.2f}", ""]),
            "|".join(rng.sample(["x", "y", "z"], rng.randint(0, 3))),
            f"{rng.choice('abc')} film, about the number {place}",
            f"20{rng.randint(10, 19)}-0{rng.randint(1, 9)}-15",
        )
        for place, name in enumerate(names)
    ]


ITEM_HEADER = ("item", "brand", "price", "tags", "title", "release date")


def user_rows(log: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    rng = random.Random(3)
    names = sorted({row[0] for row in log})
    return [(name, rng.choice(["DE", "FR", ""]), rng.choice(["20", "30", ""])) for name in names]


USER_HEADER = ("user", "country", "age")


def write_all(folder: Path) -> list[object]:
    """A log and its tables, and the options that read them."""
    folder.mkdir(exist_ok=True)
    log = log_with_columns()
    return [
        *("--source", "csv", "--input", write_table(folder / "log.csv", [HEADER, *log])),
        *("--items", write_table(folder / "items.csv", [ITEM_HEADER, *item_rows(log)])),
        *("--users", write_table(folder / "users.csv", [USER_HEADER, *user_rows(log)])),
    ]


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("manifest.json", ".verified.json")
    }


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return found


def test_items_and_users_have_the_values_of_their_rows(tmp_path: Path) -> None:
    options = write_all(tmp_path)
    assert prepare(*options, *FEATURES, "--out", tmp_path / "out") == 0
    data = PreparedData.load(tmp_path / "out")
    log = log_with_columns()
    rows = {row[0]: row for row in item_rows(log)}
    columns = data.item_features()
    assert [column.spec.kind for column in columns.values()] == [
        "category",
        "quantiles",
        "tags",
        "text",
        "age",
    ]
    brands, tags = columns["brand"], columns["tags"]
    assert brands.spec.vocabulary is not None and tags.spec.vocabulary is not None
    assert tags.offsets is not None
    bounds = columns["price"].spec.options["boundaries"]
    for item, name in enumerate(data.item_ids()):
        _, brand, price, own, _, _ = rows[name]
        assert ("", *brands.spec.vocabulary)[brands.values[item]] == brand
        codes = tags.values[tags.offsets[item] : tags.offsets[item + 1]]
        assert "|".join(tags.spec.vocabulary[code - 1] for code in codes) == own
        bucket = 1 + sum(bound <= float(price) for bound in bounds) if price else 0
        assert columns["price"].values[item] == bucket
    people = {row[0]: row for row in user_rows(log)}
    for name in SPLITS:
        split = data.split(name)
        found = split.user_features()
        countries, years = found["country"], found["years"]
        assert countries.spec.vocabulary is not None
        mean, deviation = (years.spec.options[key] for key in ("mean", "deviation"))
        for user, user_name in enumerate(split.user_ids()):
            _, country, age = people[user_name]
            assert ("", *countries.spec.vocabulary)[countries.values[user]] == country
            expected = np.float32((float(age) - mean) / deviation) if age else np.float32(np.nan)
            np.testing.assert_array_equal(years.values[user], expected)
    train_ages = [
        float(people[name][2]) for name in data.split("train").user_ids() if people[name][2]
    ]
    years = data.split("train").user_features()["years"]
    assert years.spec.options["mean"] == pytest.approx(np.mean(train_ages))
    assert years.spec.options["deviation"] == pytest.approx(np.std(train_ages))
    # The log's times are seconds, and its train users are there until close to the last of 500.
    assert 490 < columns["made"].spec.options["until"] < 500


OPTIONS = {
    "users": [],
    "dedup and core": ["--dedup", "--core", "--min-item-count", 6, "--min-user-count", 8],
    "leave-one-out": ["--split", "leave-one-out", "--drop-repeated-targets"],
    "time": [
        "--min-item-count",
        1,
        "--min-user-count",
        1,
        "--split",
        "time",
        "--drop-cold-targets",
    ],
    "held out": ["--hold-out-items", 0.2],
    "held out, cold dropped": ["--hold-out-items", 0.2, "--drop-cold-targets"],
}


@pytest.mark.parametrize("case", OPTIONS)
def test_every_interaction_has_the_context_of_its_row(tmp_path: Path, case: str) -> None:
    log = log_with_columns()
    path = write_table(tmp_path / "log.csv", [HEADER, *log])
    command = ["--source", "csv", "--input", path, *OPTIONS[case]]
    assert prepare(*command, "--out", tmp_path / "without") == 0
    assert prepare(*command, *FEATURES[4:], "--out", tmp_path / "with") == 0
    without, found = files(tmp_path / "without"), files(tmp_path / "with")
    assert {name: found[name] for name in without} == without and len(without) == 13
    data = PreparedData.load(tmp_path / "with")
    ids = data.item_ids()
    for name in SPLITS:
        split = data.split(name)
        columns = split.context_features()
        spec = columns["amount"].spec
        numbers = columns["amount"].values * spec.options["deviation"] + spec.options["mean"]
        numbers = np.round(numbers).astype(int)
        users = np.repeat(split.user_ids(), np.diff(split.offsets))
        assert len(numbers) == len(split.items) > 0
        devices = columns["device"].spec.vocabulary
        assert devices is not None and set(devices) == {"phone", "desk, new", 'a "pad"'}
        for place, number in enumerate(numbers):
            user, item, time, device, _, _ = log[number]
            assert (users[place], ids[split.items[place]]) == (user, item)
            assert ("", *devices)[columns["device"].values[place]] == device
            assert columns["hour"].values[place] == time % 24 + 1
            # The first of January 2020 was a Wednesday.
            assert columns["day"].values[place] == (time % 28 + 2) % 7 + 1


def test_faults_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = log_with_columns()
    rows = item_rows(log)
    clean = write_all(tmp_path)
    assert prepare(*clean, *FEATURES, "--out", tmp_path / "clean") == 0
    twice = (rows[3][0], "other", "1", "", "", "")
    lines = write_table(tmp_path / "items.csv", [ITEM_HEADER, *rows, twice]).read_bytes()
    wrong = b"one,two\n,a,1,x,y,\n\xff,a,1,x,y,\nnew,a,cheap,x,y,soon\n"
    (tmp_path / "items.csv").write_bytes(lines + wrong)
    command = [*clean, *FEATURES, "--out", tmp_path / "out"]
    capsys.readouterr()
    assert prepare(*command, "--max-bad-rows", 2) == 2
    shown = capsys.readouterr().err
    line = len(rows) + 3
    assert "3 rows of the input cannot be used, and --max-bad-rows is 2" in shown
    assert f"items.csv: wrong column count: 1 (line {line})" in shown
    assert f"items.csv: missing item: 1 (line {line + 1})" in shown
    assert f"items.csv: not UTF-8: 1 (line {line + 2})" in shown
    assert prepare(*command, "--max-bad-rows", 3) == 0
    statistics = manifest(tmp_path / "out")["statistics"]
    assert statistics["bad_rows"] == 0 and len(statistics["bad_rows_by_kind"]) == 3
    num_items = len(PreparedData.load(tmp_path / "out").item_ids())
    assert statistics["side_tables"]["item"] == {
        "file": "items.csv",
        "rows": len(rows) + 2,
        "repeated_ids": 1,
        "ids_not_in_log": len(rows) + 1 - num_items,
        "items_without_a_row": 0,
    }
    # The rows that were left out change nothing, however the table was read.
    assert files(tmp_path / "out") == files(tmp_path / "clean")
    shown = capsys.readouterr().out
    assert "category of 3, inferred" in shown and "age, inferred" in shown
    assert "1 with a repeated id, of which the first is used" in shown


def test_values_that_cannot_be_read_and_items_without_a_row(tmp_path: Path) -> None:
    log = log_with_columns()
    rows = [list(row) for row in item_rows(log)]
    popular = oracle.number_items(log)[:4]
    for row in rows:
        if row[0] in popular[:2]:
            row[2], row[5] = "cheap", "soon"
    rows = [row for row in rows if row[0] not in popular[2:]]
    options = write_all(tmp_path)
    write_table(tmp_path / "items.csv", [ITEM_HEADER, *rows])
    assert prepare(*options, *FEATURES, "--out", tmp_path / "out") == 0
    features = manifest(tmp_path / "out")["features"]["item"]
    assert (features["price"]["unreadable"], features["made"]["unreadable"]) == (2, 2)
    assert features["made"]["kind"] == "age" and features["made"]["missing"] == 2
    data = PreparedData.load(tmp_path / "out")
    assert data.item_ids()[:4] == popular
    columns = data.item_features()
    assert columns["price"].values[:4].tolist() == [0] * 4
    assert np.isnan(columns["made"].values[:4]).all()
    assert columns["brand"].values[2:4].tolist() == [0, 0]
    statistics = manifest(tmp_path / "out")["statistics"]["side_tables"]["item"]
    assert statistics["items_without_a_row"] == 2


def as_parquet(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    columns = {name: [row[place] for row in rows] for place, name in enumerate(header)}
    arrays: dict[str, pa.Array] = {}
    for name, values in columns.items():
        known = [None if value == "" else value for value in values]
        if name == "age":
            known = [None if value is None else float(value) for value in known]
        array = pa.array(known)
        if name == "price":
            array = array.cast(pa.decimal128(20, 9))
        if name == "tags":
            array = pa.array([None if value is None else value.split("|") for value in known])
        elif name in ("when", "release date"):
            kind = pa.timestamp("ms") if name == "when" else pa.date32()
            array = pa.array(known).cast(pa.timestamp("s")).cast(kind)
        elif name in ("brand", "device"):
            array = array.dictionary_encode()
        arrays[name] = array
    pq.write_table(pa.table(arrays), path, row_group_size=300)
    return path


@pytest.mark.parametrize("form", ["tsv.gz", "parquet", "bad row"])
def test_every_format_gives_the_same_bytes(tmp_path: Path, form: str) -> None:
    options = write_all(tmp_path)
    assert prepare(*options, *FEATURES, "--out", tmp_path / "csv") == 0
    log = log_with_columns()
    tables = {
        "log": (HEADER, log),
        "items": (ITEM_HEADER, item_rows(log)),
        "users": (USER_HEADER, user_rows(log)),
    }
    more: list[object] = []
    if form == "bad row":
        # A bad row sends the log and the tables through the careful reader.
        found = {}
        for name in tables:
            found[name] = tmp_path / f"{name}.csv"
            with open(found[name], "ab") as file:
                file.write(b"only one column\n")
        more = ["--max-bad-rows", 3]
    elif form == "parquet":
        found = {
            name: as_parquet(tmp_path / f"{name}.parquet", *table) for name, table in tables.items()
        }
    else:
        found = {
            name: write_table(tmp_path / f"{name}.{form}", [table[0], *table[1]], "\t")
            for name, table in tables.items()
        }
    source = {"tsv.gz": "tsv", "parquet": "parquet"}.get(form, "csv")
    command = ["--source", source, "--input", found["log"], "--items", found["items"]]
    command += ["--users", found["users"], *more]
    assert prepare(*command, *FEATURES, "--out", tmp_path / "other") == 0
    one, other = files(tmp_path / "csv"), files(tmp_path / "other")
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []


def test_a_changed_table_is_another_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*write_all(tmp_path), *FEATURES, "--out", tmp_path / "out"]
    assert prepare(*command) == 0
    assert prepare(*command) == 0
    assert "already exists and was made from this input" in capsys.readouterr().out
    with open(tmp_path / "items.csv", "a") as file:
        file.write("new,a,1,x,y,\n")
    assert prepare(*command) == 2
    assert "from another input, or the input has changed" in capsys.readouterr().err
    assert prepare(*command, "--context-features", "device", "--overwrite") == 0
    assert list(manifest(tmp_path / "out")["features"]["context"]) == ["device"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--item-features", "brand"], "--item-features requires --items"),
        (["--users", "users.csv"], "--users requires --user-features"),
        (["--users-id", "x"], "--users-id requires --users"),
        (["--items", "none.csv", "--item-features", "brand"], "none.csv does not exist"),
        (["--items", "x.json", "--item-features", "brand"], "should end in .csv, .tsv or .parquet"),
        (["--items", "items.csv", "--item-features", "colour"], "column 'colour' is not in the"),
        (["--items", "users.csv", "--item-features", "age"], "column 'item' is not .*--items-id"),
        (["--context-features", "colour"], "column 'colour' is not in the file.*context-features"),
        (["--context-features", "device,device"], "'device' more than once. Write NAME=COLUMN"),
        (
            ["--items", "log.csv", "--item-features", "when:age", "--time-column", "none"],
            "with times",
        ),
    ],
)
def test_what_cannot_be_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    import re

    write_all(tmp_path)
    (tmp_path / "x.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert prepare("--source", "csv", "--input", "log.csv", "--out", "out", *arguments) == 2
    shown = capsys.readouterr().err
    assert re.search(message, shown), shown
    assert not (tmp_path / "out").exists()


def test_sources_with_fixed_columns_have_no_context(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.txt"
    path.write_text("a b c\n")
    command = ["--source", "sequences", "--input", path, "--out", tmp_path / "out"]
    assert prepare(*command, "--context-features", "device") == 2
    assert "--context-features requires --source csv, tsv" in capsys.readouterr().err


def test_items_are_held_out_of_training(tmp_path: Path) -> None:
    log = make_log()
    path = write_csv(tmp_path / "log.csv", log)
    command = ["--source", "csv", "--input", path, "--hold-out-items"]
    assert prepare("--source", "csv", "--input", path, "--out", tmp_path / "all") == 0
    assert prepare(*command, 0.25, "--out", tmp_path / "out") == 0
    assert prepare(*command, 0.25, "--seed", 1, "--out", tmp_path / "other") == 0
    whole, found = content(tmp_path / "all"), content(tmp_path / "out")
    assert found["item_ids"] == whole["item_ids"]
    assert (found["valid"], found["test"]) == (whole["valid"], whole["test"])
    cold = {item for item, count in enumerate(found["item_counts"]) if not count}
    assert len(cold) == len(whole["item_ids"]) // 4
    expected = [
        (user, [item for item in items if item not in cold], length)
        for user, items, length in whole["train"]
    ]
    assert found["train"] == [row for row in expected if row[1]]
    statistics = manifest(tmp_path / "out")["statistics"]
    removed = sum(whole["item_counts"][item] for item in cold)
    assert statistics["held_out_items"] == len(cold)
    assert statistics["held_out_interactions"] == removed
    targets = [item for _, items, length in found["test"] for item in items[length:]]
    assert statistics["splits"]["test"]["cold_targets"] == sum(item in cold for item in targets) > 0
    others = content(tmp_path / "other")["item_counts"]
    assert {item for item, count in enumerate(others) if not count} != cold


def test_descriptions_know_the_training_part_alone(tmp_path: Path) -> None:
    command = [*write_all(tmp_path), "--out", tmp_path / "out", "--hold-out-items", 0.25]
    command += ["--item-features", "own=item:category", "--user-features", "own_user=user:category"]
    assert prepare(*command) == 0
    data = PreparedData.load(tmp_path / "out")
    trained = {name for name, count in zip(data.item_ids(), data.item_counts) if count}
    assert set(data.features("item")["own"].vocabulary or ()) == trained
    entry = manifest(tmp_path / "out")["features"]["item"]["own"]
    assert entry["unknown"] == data.num_items - len(trained) > 0
    users = data.features("user")["own_user"].vocabulary
    assert sorted(users or ()) == sorted(data.split("train").user_ids())


def test_movielens_brings_its_features_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = [(user, item, place) for place, (user, item, _) in enumerate(make_log(1000))]
    write_tfds(tmp_path / "tfds", log, side_features=True)
    command = ["--source", "movielens", "--tfds-data-dir", tmp_path / "tfds", "--tfds-name", "tiny"]
    command += ["--out", tmp_path / "out", "--item-features", "movie_genres,movie_title:category"]
    command += ["--user-features", "user_gender,bucketized_user_age,user_occupation_label"]
    assert prepare(*command, "--context-features", "hour=timestamp:hour,user_rating") == 0
    data = PreparedData.load(tmp_path / "out")
    features = data.item_features()
    assert [column.spec.kind for column in features.values()] == ["tags", "category"]
    genres, titles = features["movie_genres"], features["movie_title"]
    assert set(genres.spec.vocabulary or ()) == {"Action", "Comedy", "Drama"}
    assert genres.offsets is not None and titles.spec.vocabulary is not None
    for item, name in enumerate(data.item_ids()):
        number = int(name[1:-1])
        codes = genres.values[genres.offsets[item] : genres.offsets[item + 1]]
        names = [(genres.spec.vocabulary or ())[code - 1] for code in codes]
        assert names == ["Action", "Comedy", "Drama"][number % 3 :]
        assert titles.spec.vocabulary[titles.values[item] - 1] == f"film {name}"
    split = data.split("test")
    users = split.user_features()
    values = {
        key: [("", *(column.spec.vocabulary or ()))[code] for code in column.values]
        for key, column in users.items()
    }
    numbers = [int(name[1:]) for name in split.user_ids()]
    assert values == {
        "user_gender": ["true" if number % 2 else "false" for number in numbers],
        "bucketized_user_age": [str(18 + number % 3) for number in numbers],
        "user_occupation_label": [["artist", "doctor"][number % 2] for number in numbers],
    }
    assert users["bucketized_user_age"].spec.options["integers"]
    capsys.readouterr()
    assert prepare(*command, "--item-features", "colour", "--overwrite") == 2
    assert "has no colour. It has " in capsys.readouterr().err
