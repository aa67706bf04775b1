"""The command line: quick to start, plain about errors."""

import re
import subprocess
import sys
import types

import pytest

import pipelines.__main__ as cli
from pipelines.errors import UserError
from tests.support.processes import ROOT, python_output


def run(*arguments, **keywords):
    return subprocess.run(
        [sys.executable, "-m", "pipelines", *arguments],
        cwd=ROOT,
        text=True,
        capture_output=True,
        **keywords,
    )


@pytest.fixture
def step(monkeypatch):
    """Puts a step of the test's own on the command line."""

    def install(run):
        module = types.ModuleType("own_step")
        module.add_arguments = lambda parser: parser.add_argument("--x", type=int)
        module.run = run
        monkeypatch.setitem(sys.modules, "own_step", module)
        monkeypatch.setitem(cli.STEPS, "own", ("own_step", "a step of the test"))

    return install


def test_help_lists_the_steps():
    result = run("--help")
    assert result.returncode == 0
    for name in ("synthesize", "prepare", "train", "evaluate", "export", "query"):
        assert re.search(rf"^ +{name}( |$)", result.stdout, re.MULTILINE)


@pytest.mark.parametrize("arguments", [["--help"], ["prepare", "--help"], ["synthesize", "--help"]])
def test_no_tensorflow_before_it_is_needed(arguments):
    script = (
        "import sys; from pipelines.__main__ import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'tensorflow']"
    )
    python_output("-c", script)


def test_keras_2_is_chosen_before_tensorflow_but_the_user_comes_first():
    script = "import os, pipelines; print(os.environ['TF_USE_LEGACY_KERAS'])"
    for value, expected in ((None, "1"), ("0", "0")):
        printed = python_output("-c", script, environment={"TF_USE_LEGACY_KERAS": value})
        assert printed.strip() == expected


def test_a_step_runs_with_its_arguments(step):
    seen = []
    step(lambda args: seen.append(args.x))
    assert cli.main(["own", "--x", "3"]) == 0
    assert seen == [3]


@pytest.mark.parametrize(
    "error", [UserError("x is bad"), ValueError("x is bad"), OSError("x is bad")]
)
def test_user_errors_are_one_line(step, capsys, error):
    def fail(args):
        raise error

    step(fail)
    assert cli.main(["own"]) == 2
    assert capsys.readouterr().err == "error: x is bad\n"


def test_other_errors_keep_their_traceback(step):
    def fail(args):
        raise KeyError("a slip in the code")

    step(fail)
    with pytest.raises(KeyError):
        cli.main(["own"])


def test_interruption(step, capsys):
    def interrupt(args):
        raise KeyboardInterrupt

    step(interrupt)
    assert cli.main(["own"]) == 130
    assert "nothing was lost" in capsys.readouterr().err


def test_a_step_that_is_not_there_does_not_break_the_others(step, monkeypatch, capsys):
    monkeypatch.setitem(cli.STEPS, "train", ("pipelines.no_such_module", "train"))
    step(lambda args: None)
    assert cli.main(["own"]) == 0
    assert cli.main(["train"]) == 2
    assert "pipelines.no_such_module" in capsys.readouterr().err


def test_unknown_step():
    result = run("no-such-step")
    assert result.returncode == 2
    assert "invalid choice" in result.stderr


def test_error_exit_code_of_the_process(tmp_path):
    result = run("prepare", "--source", "csv", "--input", "none.csv", "--out", str(tmp_path / "o"))
    assert result.returncode == 2
    assert "error: --input none.csv does not exist" in result.stderr
    assert "Traceback" not in result.stderr
