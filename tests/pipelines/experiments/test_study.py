"""The database of a search: damage to it is one line that names the file and the remedy."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.__main__ import main

optuna = pytest.importorskip("optuna")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a search with one trial, whose settings it has written down."""
    path = tmp_path_factory.mktemp("study") / "study.db"
    study = optuna.create_study(
        study_name="tune", storage=f"sqlite:///{path}", direction="maximize"
    )
    trial = study.ask()
    trial.set_user_attr("settings", {"a long value": "x" * 400})
    study.tell(trial, 0.5)
    return path


def write(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content)


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def overwrite_pages(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))


def change(statement: str) -> Callable[[Path], None]:
    def run(path: Path) -> None:
        with sqlite3.connect(path) as database:
            database.execute(statement)

    return run


@pytest.mark.parametrize(
    "damage, expected",
    [
        (write(b"this is no database, but text" * 99), "is damaged (file is not a database)"),
        (cut, "is damaged ("),
        (overwrite_pages, "is damaged ("),
        (change("UPDATE trial_user_attributes SET value_json = '{'"), "is damaged (a value is not"),
        (change("UPDATE alembic_version SET version_num = 'v99'"), "Install the version of Optuna"),
        (lambda path: (path.unlink(), path.mkdir()), "cannot be used (unable to open"),
    ],
    ids=["text", "cut", "pages", "json", "version", "folder"],
)
def test_damage_is_one_line(
    damage: Callable[[Path], None],
    expected: str,
    sound: Path,
    tiny_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    (out / "results").mkdir(parents=True)
    path = Path(shutil.copy(sound, out / "study.db"))
    damage(path)
    # One trial is wanted, and there is one: nothing is trained.
    command = ["tune", "--data", tiny_data, "--out", out, "--retrieval-size", 20, "--trials", 1]
    assert main([str(word) for word in command]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path} ") and expected in error
    assert error.count("\n") == 1 and "traceback" not in error
    assert json.loads((out / "config.json").read_text())["losses"] == ["cro", "lambda"]
