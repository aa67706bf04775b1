"""The command line: quick to start, plain about errors."""

import errno
import os
import re
import subprocess
import sys
import tempfile
import types

import pytest

import pipelines.__main__ as cli
from pipelines.errors import UserError
from tests.support.processes import ROOT, python_output
from tfrs_croloss.indexes.vectors import write_shard


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


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_lists_the_steps(arguments):
    result = run(*arguments)
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


@pytest.mark.parametrize("error", [UserError("x is bad"), OSError("x is bad")])
def test_user_errors_are_one_line(step, capsys, error):
    def fail(args):
        raise error

    step(fail)
    assert cli.main(["own"]) == 2
    assert capsys.readouterr().err == "error: x is bad\n"


@pytest.mark.parametrize("kind", [KeyError, ValueError, TypeError, RuntimeError])
def test_unknown_errors_say_where_their_traceback_is(step, capsys, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def slip(args):
        raise kind("a slip in the code")

    step(slip)
    assert cli.main(["own"]) == 2
    printed = capsys.readouterr().err
    (file,) = tmp_path.iterdir()
    assert printed.startswith(f"error: unexpected {kind.__name__}: ") and str(file) in printed
    assert printed.count("\n") == 1
    assert "in slip" in file.read_text() and "a slip in the code" in file.read_text()


def test_the_words_of_the_library_are_shown_as_they_are(step, capsys):
    step(lambda args: write_shard(".", 0, None, num_shards=0, num_items=1, dim=1, origin={}))
    assert cli.main(["own"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: `num_shards` should be") and "traceback" not in printed


@pytest.mark.parametrize(
    "error, expected",
    [
        (OSError(errno.ENOSPC, "No space left on device", "work/x"), "work/x: No space left on"),
        (OSError(errno.ENOSPC, "Error writing bytes. No space left on device"), "Free some space"),
        (RuntimeError("SaveV2: work/x; No space left on device"), "Free some space"),
        (PermissionError(errno.EACCES, "Permission denied", "work/x"), "Check the permissions"),
        (MemoryError(), "there is not enough memory"),
        (UnicodeEncodeError("utf-8", "x\udcff", 1, 2, "surrogates not allowed"), "be UTF-8"),
    ],
)
def test_errors_of_the_disk_have_a_remedy(step, capsys, error, expected):
    def fail(args):
        raise error

    step(fail)
    assert cli.main(["own"]) == 2
    printed = capsys.readouterr().err
    assert expected in printed and "traceback" not in printed and printed.count("\n") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_output_that_cannot_be_written_is_one_line(tmp_path):
    command = [sys.executable, "-m", "pipelines", "synthesize", "--users", "9", "--out"]
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [*command, tmp_path / "x.csv"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


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


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["no-such-step"], "invalid choice: 'no-such-step'"),
        (["synthesize", "--out", "x.csv", "--users", "many"], "Received: 'many'"),
        (["synthesize"], "the following arguments are required: --out"),
    ],
)
def test_mistakes_in_the_command_are_one_line(arguments, expected, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    printed = capsys.readouterr().err
    assert stop.value.code == 2 and printed.count("\n") == 1
    assert printed.startswith("error: ") and expected in printed and "--help' lists" in printed


def test_error_exit_code_of_the_process(tmp_path):
    result = run("prepare", "--source", "csv", "--input", "none.csv", "--out", str(tmp_path / "o"))
    assert result.returncode == 2
    assert "error: --input none.csv does not exist" in result.stderr
    assert "Traceback" not in result.stderr
