"""A disk that fills up at any write of a step is one line, and no half result is left."""

from __future__ import annotations

import shutil

import pytest

from pipelines.__main__ import main
from tests.support.small_disk import check_one_line, small_disk  # noqa: F401

# KiB that are free: the folder alone, some of the files, and all but the last of them.
FREE = {
    "synthesize": (4, 60),
    "prepare": (4, 40, 110),
    "train": (4, 60),
    "evaluate": (8,),
    "embed": (4, 40),
    "export": (60, 300),
}


def words(step, place, log, data, run):
    options = "--dim 8 --max-steps 20 --steps-per-epoch 10 --monitor recall@20 --cutoffs 20"
    return {
        "synthesize": ("--users", 300, "--items", 200, "--out", place / "events.csv"),
        "prepare": ("--source", "csv", "--input", log, "--out", place / "p"),
        "train": ("--data", data, "--out", place / "run", *options.split()),
        "evaluate": ("--run", place / "run", "--data", data, "--cutoffs", 20),
        "embed": ("--run", run, "--out", place / "vectors", "--shards", 4),
        "export": ("--run", run, "--out", place / "model", "--top-n", 20, "--tune-users", 50),
    }[step]


SLOW = ("train", "export")


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=[pytest.mark.slow] * (step in SLOW)) for step in FREE]
)
def test_steps(step, small_disk, tiny_log, tiny_data, tiny_run, capsys):  # noqa: F811
    for free in FREE[step]:
        taken = 0
        if step == "evaluate":
            files = [path for path in tiny_run.rglob("*") if path.is_file()]
            taken = sum(-(-path.stat().st_size // 4096) * 4 for path in files)
        place = small_disk(free + taken)
        if step == "evaluate":
            shutil.copytree(tiny_run, place / "run")
        arguments = (step, *words(step, place, tiny_log, tiny_data, tiny_run))
        assert main([str(word) for word in arguments]) == 2, free
        check_one_line(capsys.readouterr().err, place)
