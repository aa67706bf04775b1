"""``--keras``: runs of either version, evaluated with the other."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from pipelines.__main__ import main
from pipelines.runs.folder import Run
from tests.support import attention_weights
from tests.support.processes import python_output, run_step
from tests.support.server_process import Server
from tests.support.tiny_run import OPTIONS


def steps_on_keras_3(*steps):
    """Runs steps in a process that TensorFlow Recommenders is not imported in."""
    listed = [[*map(str, arguments), "--keras", "3"] for arguments in steps]
    program = (
        "import sys; from pipelines.__main__ import main\n"
        f"for arguments in {listed!r}: assert main(arguments) == 0\n"
        "import tensorflow as tf; assert tf.keras.__version__.startswith('3.')\n"
        "assert 'tensorflow_recommenders' not in sys.modules"
    )
    # What the environment says counts only without the option.
    python_output("-c", program, environment={"TF_USE_LEGACY_KERAS": "1"})


@pytest.fixture(scope="module")
def trained_by_3(tiny_data, tmp_path_factory):
    """The command of a run on Keras 3, and its folder."""
    out = tmp_path_factory.mktemp("keras") / "by_3"
    short = [*OPTIONS, "--max-steps", 120, "--encoder", "gru"]
    command = ["train", "--data", tiny_data, "--out", out, *short]
    steps_on_keras_3(command)
    return command, out


def systems(run_folder):
    """All numbers of an evaluation: those of the model, and of the baselines."""
    return json.loads((run_folder / "recall.json").read_text())["systems"]


def test_the_other_keras_cannot_be_chosen_once_tensorflow_runs(tmp_path, capsys):
    assert tf.executing_eagerly()
    assert main(["evaluate", "--run", str(tmp_path), "--keras", "3"]) == 2
    assert "--keras should be 2 here" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_of_either_keras_is_evaluated_alike_by_the_other(
    tiny_run, trained_by_3, tiny_data, tmp_path
):
    _, by_3 = trained_by_3
    assert Run.load(by_3).config["keras"] == "3" and "keras" in Run.load(tiny_run).config
    options = ("--data", tiny_data, "--cutoffs", 20, 50)
    pairs = []
    for number, trained in enumerate((tiny_run, by_3)):
        pairs.append([tmp_path / f"{number}-{keras}" for keras in (2, 3)])
        for copy in pairs[-1]:
            shutil.copytree(trained, copy)
        run_step("evaluate", "--run", pairs[-1][0], *options)
    # In one process: importing TensorFlow is most of the work.
    steps_on_keras_3(*(["evaluate", "--run", copy, *options] for _, copy in pairs))
    for ours, theirs in (map(systems, pair) for pair in pairs):
        assert ours["model"] != ours["popularity"] and ours == theirs


@pytest.mark.slow
def test_a_run_continues_with_its_own_keras_only(trained_by_3, capsys):
    command, _ = trained_by_3
    assert main([str(argument) for argument in command]) == 2
    assert "--keras: 3 there, 2 now" in capsys.readouterr().err


@pytest.mark.slow
def test_weights_of_self_attention_are_read_by_either_keras(tmp_path):
    by_2, by_3 = str(tmp_path / "by_2"), str(tmp_path / "by_3")
    module = ("-m", "tests.support.attention_weights")
    ours = attention_weights.queries(by_2, reads=False)
    printed = python_output(*module, by_2, by_3, environment={"TF_USE_LEGACY_KERAS": "0"})
    ours_read, theirs = json.loads(printed)
    np.testing.assert_allclose(ours_read, ours, atol=1e-5)
    theirs_read = attention_weights.queries(by_3, reads=True)
    np.testing.assert_allclose(theirs_read, theirs, atol=1e-5)


@pytest.mark.slow
def test_a_transformer_of_keras_3_is_evaluated_exported_and_served_alike(tiny_data, tmp_path):
    """One run, exported by either Keras, and each export served by a server with the other."""
    short = ["--encoder", "transformer", "--blocks", 1, "--max-steps", 2, "--steps-per-epoch", 2]
    run, copy = tmp_path / "run", tmp_path / "copy"
    cutoffs = ("--data", tiny_data, "--cutoffs", 20)
    export = ("--data", tiny_data, "--top-n", 10)
    steps_on_keras_3(
        ["train", "--data", tiny_data, "--out", run, *OPTIONS, *short],
        ["evaluate", "--run", run, *cutoffs],
        ["export", "--run", run, "--out", tmp_path / "by_3", *export],
    )
    shutil.copytree(run, copy)
    run_step("evaluate", "--run", copy, *cutoffs)
    ours, theirs = systems(copy)["model"], systems(run)["model"]
    assert ours == theirs and ours["users"]["recall@20"] > 0.0

    run_step("export", "--run", copy, "--out", tmp_path / "by_2", *export)
    names = Run.load(run).open_data(None).item_ids()
    request = {"instances": [{"history": [names[3], names[70]]}, {"history": [names[9], ""]}]}
    servers = [
        Server(tmp_path / "by_3", TF_USE_LEGACY_KERAS="1"),
        Server(tmp_path / "by_2", TF_USE_LEGACY_KERAS="0"),
    ]
    try:
        answers = [server.post(request) for server in servers]
    finally:
        for server in servers:
            server.stop()
    assert [status for status, _ in answers] == [200, 200], answers
    by_3, by_2 = (answer["predictions"] for _, answer in answers)
    for one, other in zip(by_3, by_2, strict=True):
        assert one["item_ids"] == other["item_ids"] and len(one["item_ids"]) == 10
        np.testing.assert_allclose(one["scores"], other["scores"], rtol=1e-5)
