"""Leave-one-out and splits in time against the oracle, and what is said about their targets."""

import argparse
import datetime
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.prepared import PreparedData
from pipelines.prepare import targets
from pipelines.prepare.splits import split_option
from tests.pipelines.prepare.test_prepare import content, make_log, prepare, write_csv
from tests.support import prepare_oracle as oracle
from tests.support.presplit import write_presplit

KEEP_ALL = ["--min-item-count", 1, "--min-user-count", 1]
DROPS = {
    "keep": ({}, []),
    "cold": ({"drop_cold": True}, ["--drop-cold-targets"]),
    "repeated": ({"drop_repeated": True}, ["--drop-repeated-targets"]),
    "both": (
        {"drop_cold": True, "drop_repeated": True},
        ["--drop-cold-targets", "--drop-repeated-targets"],
    ),
}
SPLITS = {
    "leave-one-out": ("leave-one-out", None, []),
    "times": ("time", (300, 420), ["--split-at", 300, 420]),
}


def log_with_new_users_and_items():
    """Users of one to many rows, and some users and items that appear late only."""
    late = [(f"u{900 + row}", f"i{row % 7}é", 300 + 50 * row) for row in range(4)]
    late += [(f"u{row}", f"i{700 + row % 3}é", 430 + row) for row in range(6)]
    short = [("u800", "i1é", 5), ("u801", "i1é", 5), ("u801", "i2é", 6)]
    return [*make_log(num_rows=900), *late, *short]


def statistics(folder):
    return json.loads((folder / "manifest.json").read_text())["statistics"]


@pytest.mark.parametrize("drops", DROPS)
@pytest.mark.parametrize("kind", SPLITS)
def test_every_array_is_that_of_the_oracle(tmp_path, monkeypatch, kind, drops):
    # Several blocks of users, among them users with more rows than a block has.
    monkeypatch.setattr(targets, "BLOCK_ITEMS", 40)
    log = log_with_new_users_and_items()
    split, bounds, arguments = SPLITS[kind]
    keywords, options = DROPS[drops]
    path, out = write_csv(tmp_path / "events.csv", log), tmp_path / "out"
    command = ["--source", "csv", "--input", path, "--out", out, *KEEP_ALL]
    assert prepare(*command, "--split", split, *arguments, *options, "--seed", 3) == 0
    expected, counted = oracle.cut(log, split, bounds, seed=3, **keywords)
    assert content(out) == expected
    PreparedData.load(out).verify()
    found = statistics(out)
    for name, counts in counted.items():
        entry = found["splits"][name]
        assert counts == {key: entry[key] for key in counts}
        assert counts["repeated_targets"] > 0
        assert entry["users"] == len(expected[name])
        assert entry["interactions"] == sum(len(items) for _, items, _ in expected[name])
        assert entry["history_interactions"] == sum(length for *_, length in expected[name])
    assert counted["test"]["cold_targets"] > 0
    trained = {user for user, *_ in expected["train"]}
    assert found["users_not_in_train"] == len({user for user, *_ in log} - trained)
    assert found["items_not_in_train"] == expected["item_counts"].count(0)


@pytest.mark.parametrize("kind", [*SPLITS, "users", "pairs"])
def test_the_interactions_of_valid_can_be_trained_on(tmp_path, kind):
    if kind == "pairs":
        command = ["--source", "presplit", "--input", write_presplit(tmp_path)]
    else:
        split, _, arguments = SPLITS.get(kind, ("8:1:1", None, []))
        path = write_csv(tmp_path / "events.csv", log_with_new_users_and_items())
        command = ["--source", "csv", "--input", path, *KEEP_ALL, "--split", split, *arguments]
    for name, options in (("apart", []), ("together", ["--train-on-valid"])):
        assert prepare(*command, "--out", tmp_path / name, *options) == 0
    apart, together = content(tmp_path / "apart"), content(tmp_path / "together")
    assert {name: together[name] for name in ("item_ids", "valid", "test")} == {
        name: apart[name] for name in ("item_ids", "valid", "test")
    }
    trained = {user: items for user, items, _ in together["train"]}
    assert len(trained) == len(together["train"])
    # A user of valid has all items of both parts, and nothing else; the others are as they were.
    expected = {user: items for user, items, _ in apart["train"]}
    expected.update({user: items for user, items, _ in apart["valid"]})
    if kind == "times":
        # Users whose first interaction is in the period of valid have no history there.
        assert set(trained) > set(expected)
        trained = {user: trained[user] for user in expected}
    assert trained == expected
    counts = [0] * len(apart["item_ids"])
    for _, items, _ in together["train"]:
        for item in items:
            counts[item] += 1
    assert together["item_counts"] == counts
    assert not PreparedData.load(tmp_path / "apart").trains_on_valid
    assert PreparedData.load(tmp_path / "together").trains_on_valid


def test_leave_one_out_by_hand(tmp_path, capsys):
    lines = ["a x y z w", "b y x", "c z y x"]
    path = tmp_path / "users.txt"
    path.write_text("\n".join(lines) + "\n")
    out = tmp_path / "out"
    command = ["--source", "sequences", "--user-column", 1, "--input", path, "--out", out]
    assert prepare(*command, *KEEP_ALL, "--split", "leave-one-out") == 0
    found = content(out)
    names = found["item_ids"]

    def shown(split):
        return {
            user: ("".join(names[item] for item in items), length)
            for user, items, length in found[split]
        }

    assert shown("train") == {"a": ("xy", None), "b": ("yx", None), "c": ("z", None)}
    assert shown("valid") == {"a": ("xyz", 2), "c": ("zy", 1)}
    assert shown("test") == {"a": ("xyzw", 3), "c": ("zyx", 2)}
    splits = statistics(out)["splits"]
    assert [splits[name]["dropped_users"] for name in splits] == [0, 1, 1]
    assert splits["test"]["cold_targets"] == 1
    assert "cold" in capsys.readouterr().out


def test_percentages_are_the_time_of_the_first_interaction_left_out(tmp_path):
    log = log_with_new_users_and_items()
    path = write_csv(tmp_path / "events.csv", log)
    times = sorted(time for *_, time in log)
    for number, shares in enumerate((None, ("33.3%", "66%"))):
        first, second = (800, 900) if shares is None else (333, 660)
        bounds = [times[len(times) * share // 1000] for share in (first, second)]
        out = tmp_path / str(number)
        arguments = [] if shares is None else ["--split-at", *shares]
        command = ["--source", "csv", "--input", path, "--out", out, *KEEP_ALL]
        assert prepare(*command, "--split", "time", *arguments) == 0
        assert statistics(out)["split_times"] == bounds
        assert content(out) == oracle.cut(log, "time", bounds)[0]


def _dates(log):
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
    return [(user, item, start + datetime.timedelta(days=time)) for user, item, time in log]


@pytest.mark.parametrize("form", ["text", "s", "ms", "us", "ns", "date32", "date64"])
def test_points_are_written_as_the_dates_of_the_log(tmp_path, form):
    log = log_with_new_users_and_items()
    dated = _dates(log)
    out = tmp_path / "out"
    if form == "text":
        rows = [(user, item, time.isoformat()) for user, item, time in dated]
        source, path = "csv", write_csv(tmp_path / "events.csv", rows)
    else:
        source, path = "parquet", tmp_path / "events.parquet"
        kind = getattr(pa, form)() if form.startswith("date") else pa.timestamp(form, "UTC")
        columns = [pa.array(column) for column in list(zip(*dated))[:2]]
        columns.append(pa.array([time for *_, time in dated], pa.timestamp("us", "UTC")).cast(kind))
        pq.write_table(pa.table(columns, names=["user", "item", "time"]), path)
    # 300 and 420 days after the first of January; the second point is within a day.
    points = ["2020-10-27", "2021-02-23T12:00"]
    command = ["--source", source, "--input", path, "--out", out, *KEEP_ALL]
    assert prepare(*command, "--split", "time", "--split-at", *points) == 0
    assert content(out) == oracle.cut(log, "time", (300, 419.5))[0]


def test_fractions_of_a_second(tmp_path):
    log = [(user, item, time + 0.25) for user, item, time in log_with_new_users_and_items()]
    path, out = write_csv(tmp_path / "events.csv", log), tmp_path / "out"
    command = ["--source", "csv", "--input", path, "--out", out, *KEEP_ALL]
    assert prepare(*command, "--split", "time", "--split-at", "300.25", "420.1") == 0
    assert content(out) == oracle.cut(log, "time", (300.25, 420.1))[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "time", "--split-at", "420", "300"], "the first should be less"),
        (["--split", "time", "--split-at", "300", "90%"], "two times, or two percentages"),
        (["--split", "time", "--split-at", "2020-01-01", "2021-01-01"], "which are numbers"),
        (["--split", "time", "--split-at", "0%", "90%"], "between 0% and 100%"),
        (["--split", "time", "--split-at", "x%", "90%"], "between 0% and 100%"),
        (["--split", "time", "--split-at", "1", "2"], "the train split has no user"),
        (["--split", "time", "--split-at", "300", "9000"], "the test split has no user"),
        (["--split", "time", "--time-column", "none"], "a log with times"),
        (["--split", "leave-one-out", "--split-at", "1", "2"], "requires --split time"),
        (["--split-at", "1", "2"], "Received: --split 8:1:1"),
    ],
)
def test_what_cannot_be_split_is_one_line(tmp_path, capsys, arguments, message):
    log = [(user, item, time + 2) for user, item, time in log_with_new_users_and_items()]
    path = write_csv(tmp_path / "events.csv", log)
    command = ["--source", "csv", "--input", path, "--out", tmp_path / "out", *KEEP_ALL]
    assert prepare(*command, *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_short_users_cannot_be_left_out(tmp_path, capsys):
    path = write_csv(tmp_path / "events.csv", [("a", "x", 1), ("a", "y", 2), ("b", "x", 1)])
    command = ["--source", "csv", "--input", path, "--out", tmp_path / "out", *KEEP_ALL]
    assert prepare(*command, "--split", "leave-one-out") == 2
    assert "at least 3 interactions" in capsys.readouterr().err


def test_a_split_without_targets_is_an_error(tmp_path, capsys):
    log = [(f"u{user}", f"i{item % 2}", item) for user in range(3) for item in range(5)]
    path = write_csv(tmp_path / "events.csv", log)
    command = ["--source", "csv", "--input", path, "--out", tmp_path / "out", *KEEP_ALL]
    command += ["--split", "leave-one-out", "--drop-repeated-targets"]
    assert prepare(*command) == 2
    assert "repeated (3)" in capsys.readouterr().err


def test_files_that_are_split_already_are_not_split_again(tmp_path, capsys):
    for name in ("train", "test"):
        (tmp_path / f"{name}.txt").write_text("1 2\n1 3\n2 2\n")
    command = ["--source", "presplit", "--input", tmp_path, "--out", tmp_path / "out"]
    assert prepare(*command, "--split", "leave-one-out") == 2
    assert "whose files are the splits" in capsys.readouterr().err


def test_targets_are_counted_in_a_split_of_users_too(tmp_path, capsys):
    # Each user has the same nine items twice over and one item of their own at the end: of 19
    # items 15 are the history, then follow three repeated targets and a cold one.
    log = [(f"u{user}", f"i{item % 9}", item) for user in range(30) for item in range(18)]
    log += [(f"u{user}", f"only{user}", 99) for user in range(30)]
    path = write_csv(tmp_path / "events.csv", log)
    command = ["--source", "csv", "--input", path, *KEEP_ALL]
    for flags, targets_left in (
        ([], 12),
        (["--drop-cold-targets"], 9),
        (["--drop-repeated-targets"], 3),
    ):
        out = tmp_path / f"out{len(flags)}{targets_left}"
        assert prepare(*command, *flags, "--out", out) == 0
        found = statistics(out)["splits"]["test"]
        assert (found["cold_targets"], found["repeated_targets"]) == (3, 9)
        assert found["target_interactions"] == targets_left
        assert found["history_interactions"] == 3 * 15
    flags = ["--drop-cold-targets", "--drop-repeated-targets"]
    assert prepare(*command, *flags, "--out", tmp_path / "none") == 2
    assert "All of them are cold (3) or repeated (9)" in capsys.readouterr().err


def test_a_manifest_from_before_is_still_that_of_its_command(tmp_path, capsys):
    path, out = write_csv(tmp_path / "events.csv", make_log()), tmp_path / "out"
    command = ["--source", "csv", "--input", path, "--out", out]
    assert prepare(*command) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    for name in ("split_at", "drop_cold_targets", "drop_repeated_targets"):
        del manifest["config"][name]
    for split in manifest["statistics"]["splits"].values():
        split.pop("cold_targets", None)
        split.pop("repeated_targets", None)
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert prepare(*command) == 0
    assert "already exists" in capsys.readouterr().out
    assert prepare(*command, "--drop-cold-targets") == 2


def test_the_option_names_what_it_takes():
    assert split_option("5:3:2") == (5, 3, 2)
    with pytest.raises(argparse.ArgumentTypeError, match="leave-one-out, time, or three"):
        split_option("leave-two-out")
