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


def step_on_keras_3(*arguments):
    """Runs one step in such a process."""
    steps_on_keras_3(arguments)


def systems(run_folder):
    """All numbers of an evaluation: those of the model, and of the baselines."""
    return json.loads((run_folder / "recall.json").read_text())["systems"]


def test_the_other_keras_cannot_be_chosen_once_tensorflow_runs(tmp_path, capsys):
    assert tf.executing_eagerly()
    assert main(["evaluate", "--run", str(tmp_path), "--keras", "3"]) == 2
    assert "--keras should be 2 here" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_of_either_keras_is_evaluated_alike_by_the_other(tiny_run, tiny_data, tmp_path):
    short = [*OPTIONS, "--max-steps", 120, "--encoder", "gru"]
    by_3 = tmp_path / "by_3"
    step_on_keras_3("train", "--data", tiny_data, "--out", by_3, *short)
    assert Run.load(by_3).config["keras"] == "3" and "keras" in Run.load(tiny_run).config
    for number, trained in enumerate((tiny_run, by_3)):
        copies = [tmp_path / f"{number}-{keras}" for keras in (2, 3)]
        for copy in copies:
            shutil.copytree(trained, copy)
        run_step("evaluate", "--run", copies[0], "--data", tiny_data, "--cutoffs", 20, 50)
        step_on_keras_3("evaluate", "--run", copies[1], "--data", tiny_data, "--cutoffs", 20, 50)
        ours, theirs = map(systems, copies)
        assert ours["model"] != ours["popularity"] and ours == theirs


@pytest.mark.slow
def test_a_run_continues_with_its_own_keras_only(tiny_data, tmp_path, capsys):
    out = tmp_path / "run"
    step_on_keras_3("train", "--data", tiny_data, "--out", out, *OPTIONS, "--max-steps", 5)
    again = ["train", "--data", tiny_data, "--out", out, *OPTIONS, "--max-steps", 5]
    assert main([str(argument) for argument in again]) == 2
    assert "--keras: 3 there, 2 now" in capsys.readouterr().err


@pytest.mark.slow
def test_weights_of_self_attention_are_read_by_either_keras(tmp_path):
    module = ("-m", "tests.support.attention_weights")
    keras_3 = {"TF_USE_LEGACY_KERAS": "0"}
    written = attention_weights.queries(str(tmp_path / "by_2"), reads=False)
    read = python_output(*module, tmp_path / "by_2", "read", environment=keras_3)
    np.testing.assert_allclose(json.loads(read), written, atol=1e-5)
    written = python_output(*module, tmp_path / "by_3", "write", environment=keras_3)
    found = attention_weights.queries(str(tmp_path / "by_3"), reads=True)
    np.testing.assert_allclose(found, json.loads(written), atol=1e-5)


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
