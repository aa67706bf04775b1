"""The step ``prepare`` against a plain-Python oracle, and its behaviour as a command."""

import argparse
import contextlib
import io
import json
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from pipelines.__main__ import main
from pipelines.common.progress import Phases
from pipelines.data.prepared import PreparedData
from pipelines.errors import UserError
from pipelines.prepare import _CONFIGURATION, add_arguments
from pipelines.prepare.writer import history_lengths
from tests.support import prepare_oracle as oracle
from tests.support.processes import ROOT, start_step


def make_log(num_rows=3000, num_users=120, num_items=150, num_times=500, seed=3):
    """Rows with a long tail of users and items, and many equal times."""
    rng = random.Random(seed)
    return [
        (
            f"u{int(num_users * rng.random() ** 2)}",
            f"i{int(num_items * rng.random() ** 3)}é",
            rng.randrange(num_times),
        )
        for _ in range(num_rows)
    ]


def write_csv(path, log):
    lines = ["user,item,time", *(",".join(map(str, row)) for row in log)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def prepare(*arguments):
    return main(["prepare", *map(str, arguments)])


def content(folder):
    """A prepared folder in the form of the oracle's result."""
    data = PreparedData.load(folder)
    result = {"item_ids": data.item_ids(), "item_counts": data.item_counts.tolist()}
    assert data.num_items == len(data.item_ids())
    assert data.item_counts.dtype == np.int64
    for name in ("train", "valid", "test"):
        split = data.split(name)
        assert (split.items.dtype, split.offsets.dtype) == (np.int32, np.int64)
        assert split.offsets[0] == 0 and split.offsets[-1] == len(split.items)
        users = split.user_ids()
        assert split.num_users == len(users)
        lengths = split.history_lengths
        assert (lengths is None) == (name == "train")
        assert lengths is None or lengths.dtype == np.int32
        result[name] = [
            (
                user,
                split.items[split.offsets[place] : split.offsets[place + 1]].tolist(),
                None if lengths is None else int(lengths[place]),
            )
            for place, user in enumerate(users)
        ]
    return result


OPTIONS = {
    "defaults": ({}, []),
    "seed": ({"seed": 9}, ["--seed", 9]),
    "counts": (
        {"min_item_count": 12, "min_user_count": 20},
        ["--min-item-count", 12, "--min-user-count", 20],
    ),
    "core": (
        {"min_item_count": 15, "min_user_count": 18, "core": True},
        ["--min-item-count", 15, "--min-user-count", 18, "--core"],
    ),
    "dedup": ({"dedup": True}, ["--dedup"]),
    "split": ({"shares": (5, 3, 2)}, ["--split", "5:3:2"]),
    "history": ({"history_share": 0.29}, ["--history-share", 0.29]),
    "no filter": (
        {"min_item_count": 1, "min_user_count": 1},
        ["--min-item-count", 1, "--min-user-count", 1],
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_every_array_is_that_of_the_oracle(tmp_path, case):
    keywords, arguments = OPTIONS[case]
    log = make_log()
    path = write_csv(tmp_path / "events.csv", log)
    out = tmp_path / "work" / "prepared"
    assert prepare("--source", "csv", "--input", path, "--out", out, *arguments) == 0
    assert content(out) == oracle.prepare(log, **keywords)
    PreparedData.load(out).verify()
    assert sorted(entry.name for entry in out.parent.iterdir()) == ["prepared"]


def test_one_round_of_filters_is_not_the_core():
    log = make_log()
    once = oracle.filter_log(log, 15, 18)
    assert len(oracle.filter_log(log, 15, 18, core=True)) < len(once) < len(log)


def test_without_times_the_order_of_the_file_counts(tmp_path, capsys):
    log = [(user, item, place) for place, (user, item, _) in enumerate(make_log())]
    path = tmp_path / "events.csv"
    path.write_text("item,user\n" + "".join(f"{item},{user}\n" for user, item, _ in log))
    assert prepare("--source", "csv", "--input", path, "--out", tmp_path / "out") == 0
    assert content(tmp_path / "out") == oracle.prepare(log)
    assert PreparedData.load(tmp_path / "out").manifest["order"] == "order of the file"
    assert "no time column was found" in capsys.readouterr().out
    options = ["--time-column", "none", "--out", tmp_path / "on purpose"]
    assert prepare("--source", "csv", "--input", path, *options) == 0
    assert "no time column" not in capsys.readouterr().out


def test_file_order_breaks_ties_in_a_file_of_many_row_groups(tmp_path):
    # Several of the engine's row groups and buffers, all with the same time: parallel readers must
    # not change the order.
    log = [(f"u{row % 40}", f"i{row * 7919 % 1000}", 5) for row in range(300_000)]
    path = tmp_path / "events.csv"
    filler = "x" * 200
    with open(path, "w") as file:
        file.write("user,item,time,note\n")
        file.writelines(f"{user},{item},{time},{filler}\n" for user, item, time in log)
    expected = oracle.prepare(log)
    for threads, limit in ((4, "2GB"), (2, "150MB")):
        out = tmp_path / f"out-{threads}"
        arguments = ["--threads", threads, "--memory-limit", limit]
        assert prepare("--source", "csv", "--input", path, "--out", out, *arguments) == 0
        assert content(out) == expected


def test_runs_write_the_same_bytes(tmp_path):
    path = write_csv(tmp_path / "events.csv", make_log())
    checksums = []
    for threads in (1, 4):
        out = tmp_path / str(threads)
        prepare("--source", "csv", "--input", path, "--out", out, "--threads", threads)
        files = PreparedData.load(out).manifest["files"]
        checksums.append({name: entry["sha256"] for name, entry in files.items()})
    assert len(checksums[0]) == 13
    assert checksums[0] == checksums[1]


def test_users_with_one_item_are_dropped_from_valid_and_test_only(tmp_path):
    log = [(f"u{user}", f"i{item}", 0) for user in range(40) for item in range(1 + user % 2)]
    path = write_csv(tmp_path / "events.csv", log)
    out = tmp_path / "out"
    prepare("--source", "csv", "--input", path, "--out", out, "--min-user-count", 1)
    order = oracle.shuffled({user for user, *_ in log}, 0)
    dropped = [sum(int(user[1:]) % 2 == 0 for user in part) for part in (order[32:36], order[36:])]
    splits = PreparedData.load(out).manifest["statistics"]["splits"]
    assert [splits[name]["dropped_users"] for name in ("train", "valid", "test")] == [0, *dropped]
    assert content(out) == oracle.prepare(log, min_user_count=1)


def test_manifest_adds_up(tmp_path):
    log = make_log()
    path = write_csv(tmp_path / "events.csv", log)
    out = tmp_path / "out"
    prepare("--source", "csv", "--input", path, "--out", out, "--dedup", "--seed", 4)
    manifest = PreparedData.load(out).manifest
    statistics = manifest["statistics"]
    distinct = len({row[:2] for row in log})
    assert statistics["rows"] == len(log)
    assert statistics["duplicates"] == len(log) - distinct
    assert statistics["interactions"] + statistics["filtered_interactions"] == distinct
    splits = statistics["splits"].values()
    assert sum(split["interactions"] for split in splits) == statistics["interactions"]
    assert statistics["users"] + statistics["filtered_users"] == len({user for user, *_ in log})
    assert statistics["items"] + statistics["filtered_items"] == len({item for _, item, _ in log})
    assert (manifest["seed"], manifest["format_version"]) == (4, 1)
    assert manifest["versions"]["duckdb"]
    assert manifest["config"]["min_item_count"] == 5


def test_the_same_command_again_does_nothing_and_others_need_overwrite(tmp_path, capsys):
    path = write_csv(tmp_path / "events.csv", make_log())
    out = tmp_path / "out"
    command = ["--source", "csv", "--input", path, "--out", out]
    assert prepare(*command) == 0
    created = (out / "manifest.json").stat().st_mtime_ns
    assert prepare(*command, "--threads", 1) == 0
    assert "already exists" in capsys.readouterr().out
    assert (out / "manifest.json").stat().st_mtime_ns == created

    assert prepare(*command, "--seed", 1) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert prepare(*command, "--seed", 1, "--overwrite") == 0
    assert PreparedData.load(out).manifest["seed"] == 1

    write_csv(path, make_log(seed=8))
    assert prepare(*command, "--seed", 1) == 2
    assert "changed" in capsys.readouterr().err


def test_every_option_counts_in_the_comparison_unless_it_leaves_the_result_as_it_is():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = {action.dest for action in parser._actions} - {"help"}
    # The input is compared by its files.
    others = {"input", "out", "overwrite", "engine", "memory_limit", "threads"}
    others |= {"spark_master", "spark_conf"}
    assert options - others == set(_CONFIGURATION)


def test_a_folder_of_something_else_is_never_replaced(tmp_path, capsys):
    path = write_csv(tmp_path / "events.csv", make_log())
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    assert prepare("--source", "csv", "--input", path, "--out", out, "--overwrite") == 2
    assert "prepare did not write" in capsys.readouterr().err
    assert (out / "thesis.txt").read_text() == "years of work"


# Runs a step that kills itself when it first calls a function, given by module and name.
KILL_AT = """
import importlib, os, signal, sys
from pipelines.__main__ import main

module, name, *arguments = sys.argv[1:]
setattr(
    importlib.import_module(module), name, lambda *_: os.kill(os.getpid(), signal.SIGKILL)
)
main(arguments)
"""


@pytest.mark.parametrize(
    "module, function, unfinished",
    [
        ("pipelines.prepare.tables", "filter_log", "work/log.duckdb"),
        ("pipelines.prepare.writer", "write_item_counts", "train/items.npy"),
    ],
    ids=["in the tables", "in the arrays"],
)
def test_kill_in_the_middle_leaves_the_old_result_and_a_rerun_works(
    tmp_path, module, function, unfinished
):
    old, new = make_log(), make_log(seed=8)
    out = tmp_path / "out"
    prepare("--source", "csv", "--input", write_csv(tmp_path / "old.csv", old), "--out", out)
    path = write_csv(tmp_path / "new.csv", new)
    command = ["--source", "csv", "--input", path, "--out", out, "--overwrite"]
    killed = subprocess.run(
        [sys.executable, "-c", KILL_AT, module, function, "prepare", *map(str, command)],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert content(out) == oracle.prepare(old)
    assert list(tmp_path.glob(f".tmp-out-*/{unfinished}"))

    assert prepare(*command) == 0
    assert content(out) == oracle.prepare(new)
    assert not list(tmp_path.glob(".tmp-out-*"))


def test_interruption_while_the_engine_works_is_no_traceback(tmp_path):
    path = tmp_path / "events.csv"
    rows = "".join(f"u{row % 90_001},i{row % 7_001}\n" for row in range(100_000))
    with open(path, "w") as file:
        file.write("user,item\n")
        file.writelines([rows] * 15)
    process = start_step("prepare", "--source", "csv", "--input", path, "--out", tmp_path / "out")
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".tmp-out-*/work/log.duckdb.wal")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    shown = process.communicate()[1]
    assert process.returncode == 130
    assert "nothing was lost" in shown and "Traceback" not in shown
    assert [entry.name for entry in tmp_path.iterdir()] == ["events.csv"]


def test_nothing_left_and_too_few_users_are_clear_errors(tmp_path, capsys):
    path = write_csv(tmp_path / "events.csv", make_log())
    command = ["--source", "csv", "--input", path, "--out", tmp_path / "out"]
    assert prepare(*command, "--min-item-count", 10_000) == 2
    assert "--min-item-count 10000" in capsys.readouterr().err
    write_csv(path, [("a", "x", 1), ("b", "x", 1)])
    assert prepare(*command, "--min-item-count", 1, "--min-user-count", 1) == 2
    assert "too few for three splits" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["events.csv"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--split", "8:1"],
        ["--split", "8:0:2"],
        ["--history-share", "1.5"],
        ["--min-user-count", "0"],
        ["--max-bad-rows", "-1"],
        ["--separator", "ab"],
    ],
)
def test_arguments_out_of_range_are_refused(tmp_path, capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        prepare("--source", "csv", "--input", "x.csv", "--out", tmp_path / "out", *arguments)
    assert stop.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_history_is_a_share_rounded_down_but_neither_none_nor_all():
    totals = np.array([2, 3, 5, 9, 10, 100])
    assert history_lengths(totals, 0.8).tolist() == [1, 2, 4, 7, 8, 80]
    assert history_lengths(totals, 0.29).tolist() == [1, 1, 1, 2, 2, 29]
    assert history_lengths(totals, 0.999).tolist() == [1, 2, 4, 8, 9, 99]


@pytest.mark.parametrize(
    "option, value, expected",
    [
        ("--memory-limit", "plenty", "--memory-limit should be a size"),
        # Bytes that are not UTF-8, as Python has them.
        ("--memory-limit", "\udcff", "should be UTF-8"),
        ("--out", "bad\udcff", "should be UTF-8"),
        ("--threads", 100_000, "--threads should be at most 1024. Received: 100000."),
        ("--threads", 10**30, "--threads should be at most 1024"),
    ],
)
def test_what_duckdb_cannot_take(tmp_path, capsys, option, value, expected):
    path = write_csv(tmp_path / "events.csv", make_log())
    value = tmp_path / value if option == "--out" else value
    command = ["--source", "csv", "--input", path, "--out", tmp_path / "out"]
    assert prepare(*command, option, value) == 2
    errors = capsys.readouterr().err
    assert expected in errors and "unexpected" not in errors


def test_loading_says_what_is_wrong(tmp_path):
    path = write_csv(tmp_path / "events.csv", make_log())
    out = tmp_path / "out"
    with pytest.raises(UserError, match="does not exist. Run"):
        PreparedData.load(out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no manifest.json"):
        PreparedData.load(tmp_path / "empty")
    prepare("--source", "csv", "--input", path, "--out", out)
    with pytest.raises(UserError, match="split should be one of"):
        PreparedData.load(out).split("dev")

    items = out / "train" / "items.npy"
    whole = items.read_bytes()
    items.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UserError, match="differs from its checksum"):
        PreparedData.load(out).verify()
    items.write_bytes(whole[:-4])
    with pytest.raises(UserError, match="incomplete"):
        PreparedData.load(out)
    items.unlink()
    with pytest.raises(UserError, match="is missing"):
        PreparedData.load(out)

    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps({**manifest, "format_version": 2}))
    with pytest.raises(UserError, match="format version 1"):
        PreparedData.load(out)


def test_progress_and_next_command_are_shown(tmp_path, capsys):
    path = write_csv(tmp_path / "events.csv", make_log())
    prepare("--source", "csv", "--input", path, "--out", tmp_path / "out")
    shown = capsys.readouterr()
    assert "[1/5] reading" in shown.err and "3,000 rows" in shown.err
    assert "[5/5] writing" in shown.err
    assert "python -m pipelines train --data" in shown.out


def test_an_interruption_that_an_engine_loses_counts_at_the_end_of_the_phase(monkeypatch):
    phases = Phases(total=1, stream=io.StringIO())
    monkeypatch.setattr(threading, "main_thread", threading.current_thread)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        with phases.phase("working"):
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)
    with phases.phase("working"):
        pass


def test_an_interruption_that_an_engine_reports_as_its_own_error_is_still_one(monkeypatch):
    phases = Phases(total=1, stream=io.StringIO())
    monkeypatch.setattr(threading, "main_thread", threading.current_thread)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        with phases.phase("working"):
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise RuntimeError("the query was stopped") from None
    signal.signal(signal.SIGINT, before)
    with pytest.raises(RuntimeError, match="interrupted is only a word"):
        with phases.phase("working"):
            raise RuntimeError("interrupted is only a word")
