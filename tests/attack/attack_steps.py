"""Attacks on the steps: kills, full disks, damaged files and odd rows.

Whatever happens, a step ends with one line and leaves what was finished before.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest

from pipelines.common.files import atomic_folder, write_json
from pipelines.data.prepared import PreparedData
from pipelines.errors import UserError
from pipelines.runs.folder import Run, discard_replaced, open_run
from pipelines.runs.settings import TrainSettings
from tests.pipelines.prepare.test_one_definition import FORMATS
from tests.support.odd_rows import Judge
from tests.support.processes import start_step
from tests.support.small_disk import check_one_line, small_disk  # noqa: F401

OPERATIONS = ("rename", "replace", "mkdir", "rmdir", "unlink", "open", "chmod")


def exit_code_of(action):
    """Runs an action in a process of its own, which shares nothing but the files."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(moment, action):
    """The exit code of an action that is killed before a certain operation on files; 0 if none."""

    def run():
        count = 0

        def counting(operation):
            def call(*arguments, **keywords):
                nonlocal count
                count += 1
                if count == moment:
                    os._exit(9)
                return operation(*arguments, **keywords)

            return call

        for name in OPERATIONS:
            setattr(os, name, counting(getattr(os, name)))
        action()

    return exit_code_of(run)


def test_kills_at_every_operation_of_overwriting_a_run(tiny_data, tmp_path):
    data = PreparedData.load(tiny_data)
    out = tmp_path / "run"

    def train(seed):
        with open_run(out, data, TrainSettings(seed=seed), overwrite=True):
            write_json(out / "result.json", {"seed": seed})
            discard_replaced(out)

    train(1)
    moment = 0
    while True:
        moment += 1
        finished = killed_at(moment, lambda: train(2)) == 0
        runs = [path for path in (out, tmp_path / ".replaced-run") if path.is_dir()]
        whole = [path for path in runs if (path / "result.json").exists()]
        assert whole, f"no finished run is left after a kill at operation {moment}"
        assert {Run.load(path).settings.seed for path in whole} <= {1, 2}
        if finished:
            break
        # Whoever comes next can overwrite it, whatever was left.
        train(1)
        assert Run.load(out).settings.seed == 1
        assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert moment > 10


def test_kills_at_every_operation_of_replacing_a_folder(tmp_path):
    out = tmp_path / "out"

    def write(text):
        with atomic_folder(out, overwrite=True) as folder:
            for name in "ab":
                (folder / name).write_text(text)

    write("old")
    moment = 0
    while True:
        moment += 1
        finished = killed_at(moment, lambda: write("new")) == 0
        found = {path.name: path.read_text() for path in out.iterdir()}
        assert found in ({"a": "old", "b": "old"}, {"a": "new", "b": "new"})
        if finished:
            break
        write("old")
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert moment > 5


def test_kills_of_prepare_at_random_moments(dice, seconds, tmp_path):
    log = tmp_path / "events.csv"
    assert start_step("synthesize", "--out", log, "--users", 500, "--items", 200).wait() == 0
    out = tmp_path / "prepared"
    command = ("prepare", "--source", "csv", "--input", log, "--out", out, "--overwrite")
    started = time.monotonic()
    assert start_step(*command).wait() == 0
    usual = time.monotonic() - started
    while time.monotonic() < started + seconds:
        process = start_step(*command)
        try:
            process.communicate(timeout=dice.uniform(0.3, 1.1) * usual)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        PreparedData.load(out).verify()
    assert start_step(*command).wait() == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.csv", "prepared"]


def test_damage_to_prepared_data(dice, seconds, tiny_data, tmp_path):
    folder = shutil.copytree(tiny_data, tmp_path / "data")
    names = [*PreparedData.load(folder).manifest["files"], "manifest.json"]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        path = folder / dice.choice(names)
        whole, times = path.read_bytes(), path.stat()
        damaged = bytearray(whole)
        place = dice.randrange(len(damaged))
        if dice.random() < 0.3:
            del damaged[place:]
        else:
            damaged[place] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        if dice.random() < 0.5:  # Swapped after it was verified, by someone who hides it.
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        try:
            data = PreparedData.load(folder)
        except UserError as error:
            assert path.name in str(error) or path.name == "manifest.json", error
        else:
            # What is not about the files, such as a date, may change without notice.
            assert path.name == "manifest.json"
            data.verify()
        path.write_bytes(whole)
        PreparedData.load(folder)


@pytest.mark.parametrize("name", FORMATS)
def test_odd_rows(dice, seconds, tmp_path, name):
    end = time.monotonic() + seconds
    with Judge(tmp_path) as judge:
        while time.monotonic() < end:
            seed = dice.randrange(10**9)
            print(f"rows of seed {seed}")
            FORMATS[name](judge, seed, 300)


def test_disks_that_fill_up(dice, seconds, small_disk, tmp_path, tiny_data, tiny_run):  # noqa: F811
    log = tmp_path / "events.csv"
    assert start_step("synthesize", "--out", log, "--users", 500, "--items", 200).wait() == 0
    options = ("--dim", 8, "--max-steps", 20, "--steps-per-epoch", 10, "--monitor", "recall@20")
    study = ("--losses", "softmax", "--trials", 1, "--retrieval-size", 20, "--quick", "--dim", 8)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        place = small_disk(dice.randrange(8, 600))
        step = dice.choice(["synthesize", "prepare", "prepare", "train", "embed", "export", "tune"])
        words = {
            "synthesize": ("--users", 500, "--out", place / "events.parquet"),
            "prepare": ("--source", "csv", "--input", log, "--out", place / "prepared"),
            "train": ("--data", tiny_data, "--cutoffs", 20, "--out", place / "run", *options),
            "embed": ("--run", tiny_run, "--shards", 4, "--out", place / "vectors"),
            "export": ("--run", tiny_run, "--tune-users", 50, "--out", place / "model"),
            "tune": ("--data", tiny_data, "--out", place / "study", *study),
        }[step]
        process = start_step(step, *words)
        _, errors = process.communicate()
        if process.returncode:
            assert process.returncode == 2, errors
            check_one_line(errors, place)
