"""Exported models in processes without this package, and the files that are exported with them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pipelines.__main__ import main
from pipelines.data.prepared import PreparedData
from pipelines.export import loading
from tests.support.processes import ROOT, python_output, run_step, start_step
from tfrs_croloss.serving import publish, round_trip
from tfrs_croloss.serving.errors import ExportError
from tfrs_croloss.serving.versions import model_versions, remove_old_versions
from tfrs_croloss.serving.warmup import WARMUP_FILE

# Answers for several models in one process, since importing TensorFlow is most of the work.
FRESH_PROCESS = f"""
import json, sys
sys.path.insert(0, {str(Path(round_trip.__file__).parent)!r})
import fresh_process
for model, requests, op_library in json.loads(sys.argv[1]):
    fresh_process.main(model, requests, op_library)
"""
PROGRAM = ROOT / "tests" / "support" / "recommend.c"
KINDS = ("brute_force", "partitioned", "scann")


@pytest.fixture(scope="module")
def exported(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with each kind of index; ``answers`` asks all of them in one fresh process."""
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        # The export's own check runs in tests/serving/test_export.py, for each kind if slow.
        patch.setattr(publish, "check_round_trip", lambda *_: None)
        for kind in KINDS:
            run_step(
                "export", "--run", tiny_run, "--out", folder / kind, "--top-n", 30, "--index", kind
            )
    return folder


@pytest.fixture(scope="module")
def names(tiny_data: Path) -> list[str]:
    return PreparedData.load(tiny_data).item_ids()


def op_library(kind: str) -> str:
    return round_trip.scann_library() if kind == "scann" else ""


def ask_a_fresh_process(
    models: dict[str, Path], scratch: Path, requests: list[Any]
) -> dict[str, list[Any]]:
    """The answers of models of each kind in a process without this package and TFRS."""
    file = scratch / "requests.json"
    file.write_text(json.dumps(requests))
    jobs = [(str(folder), str(file), op_library(kind)) for kind, folder in models.items()]
    printed = python_output(
        "-I",
        "-c",
        FRESH_PROCESS,
        json.dumps(jobs),
        environment={"PYTHONPATH": None, "TF_USE_LEGACY_KERAS": None},
        folder=scratch,
    )
    return dict(zip(models, map(json.loads, printed.splitlines()[-len(jobs) :])))


@pytest.fixture(scope="module")
def answers(
    exported: Path, names: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Any]]:
    """The answers of a fresh process for each kind of index."""
    histories = [[names[3], names[10], "unheard-of"], [names[0], "", ""]]
    requests = [
        ["recommend", {"history": histories, "top_n": [30, 30]}],
        ["user_embedding", {"history": histories}],
        ["item_embedding", {"item_ids": names}],
        ["recommend", {"history": [[names[3], names[10]]], "top_n": [12]}],
    ]
    # ScaNN comes last, so that the others are loaded without its operations.
    models = {kind: exported / kind / "1" for kind in KINDS}
    return ask_a_fresh_process(models, tmp_path_factory.mktemp("fresh"), requests)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_process_gets_the_items_of_highest_score(
    kind: str, exported: Path, names: list[str], answers: dict[str, list[Any]]
) -> None:
    found, queries, table, _ = answers[kind]
    vectors = np.array(table["embedding"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    promised = json.loads((exported / kind / "1" / "export.json").read_text())["index"]
    assert promised["recall"] >= (1.0 if kind == "brute_force" else 0.95)
    for row in range(2):
        exact = vectors @ np.array(queries["embedding"][row])
        own = [exact[names.index(item)] for item in found["item_ids"][row]]
        np.testing.assert_allclose(own, found["scores"][row], rtol=1e-4, atol=1e-5)
        assert own == sorted(own, reverse=True)
        assert len(set(found["item_ids"][row])) == 30
        in_top = np.mean(own >= np.sort(exact)[-30] - 1e-5)
        assert in_top >= (1.0 if kind == "brute_force" else 0.8)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler on the PATH")
    tensorflow = Path(tf.__file__).parent
    libraries = [tensorflow / f"libtensorflow_{part}.so.2" for part in ("cc", "framework")]
    if not all(library.is_file() for library in libraries):
        pytest.skip("TensorFlow's shared libraries are not in its package here")
    program = tmp_path_factory.mktemp("c") / "recommend"
    subprocess.run(
        [
            compiler,
            PROGRAM,
            f"-I{tensorflow / 'include'}",
            *libraries,
            f"-Wl,-rpath,{tensorflow}",
            "-o",
            program,
        ],
        check=True,
    )
    return program


# The others need no library of operations, and load like any SavedModel.
@pytest.mark.parametrize(
    "kind", ["scann", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[:2])]
)
def test_a_program_without_python_gets_the_same_items(
    kind: str,
    exported: Path,
    names: list[str],
    answers: dict[str, list[Any]],
    program: Path,
) -> None:
    folder = exported / kind / "1"
    signature = signature_def(folder, "recommend")
    command = [
        program,
        folder,
        op_library(kind),
        *(signature.inputs[name].name for name in ("history", "top_n")),
        *(signature.outputs[name].name for name in ("item_ids", "scores")),
        "12,31",
        names[3],
        "unheard-of",
        names[10],
    ]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    # The model answers the first request, and refuses the second.
    assert finished.returncode == 1
    assert "top_n should be between 1 and 30" in finished.stderr
    same = answers[kind][3]
    lines = [line.rsplit(" ", 1) for line in finished.stdout.splitlines()]
    assert [item for item, _ in lines] == same["item_ids"][0]
    scores = [float(score) for _, score in lines]
    np.testing.assert_allclose(scores, same["scores"][0], atol=1e-5)


def signature_def(folder: Path, name: str) -> Any:
    """A signature as servers read it."""
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel()
    model.ParseFromString((folder / "saved_model.pb").read_bytes())
    return model.meta_graphs[0].signature_def[name]


@pytest.mark.slow
def test_saved_model_cli_runs_it(exported: Path, names: list[str]) -> None:
    inputs = f"history=[['{names[3]}']];top_n=[2]"
    commands = []
    for kind in ("brute_force", "partitioned"):
        model = ["--dir", str(exported / kind / "1"), "--tag_set", "serve", "--signature_def"]
        commands.append(["show", *model, "recommend_excluding"])
        commands.append(["run", *model, "recommend", "--input_exprs", inputs])
    # All in one process: importing TensorFlow is most of the work.
    program = (
        "import json, sys\n"
        "from tensorflow.python.tools import saved_model_cli\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    sys.argv = ['saved_model_cli', *command]\n"
        "    print('=====', flush=True)\n"
        "    try:\n"
        "        saved_model_cli.main()\n"
        "    except SystemExit as ended:\n"
        "        if ended.code:\n"
        "            raise\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    outputs = finished.stdout.split("=====\n")[1:]
    assert len(outputs) == 4
    for shown, ran in zip(outputs[::2], outputs[1::2]):
        for part in (
            "inputs['history']",
            "inputs['excluded_ids']",
            "inputs['top_n']",
            "outputs['item_ids']",
            "shape: (-1, -1)",
        ):
            assert part in shown
        assert ran.count("b'item-") == 2


def test_a_model_server_answers_alike(exported: Path, names: list[str], tmp_path: Path) -> None:
    server = shutil.which("tensorflow_model_server")
    if server is None:
        pytest.skip("tensorflow_model_server is not on the PATH")
    import socket
    import urllib.request

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = exported / "brute_force"
    process = subprocess.Popen(
        [
            server,
            "--port=0",
            f"--rest_api_port={port}",
            "--model_name=m",
            f"--model_base_path={folder}",
        ]
    )
    try:
        body = {"signature_name": "recommend", "instances": [{"history": [names[3]], "top_n": 4}]}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/models/m:predict", json.dumps(body).encode()
        )
        for _ in range(120):
            try:
                with urllib.request.urlopen(request) as answer:
                    served = json.load(answer)["predictions"][0]["item_ids"]
                break
            except OSError:
                time.sleep(0.5)
    finally:
        process.terminate()
    requests = [["recommend", {"history": [[names[3]]], "top_n": [4]}]]
    (here,) = ask_a_fresh_process({"brute_force": folder / "1"}, tmp_path, requests)["brute_force"]
    assert served == here["item_ids"][0]


def test_the_card_the_measurements_and_the_warm_up(exported: Path, names: list[str]) -> None:
    from tensorflow_serving.apis import prediction_log_pb2

    folder = exported / "scann" / "1"
    card = (folder / "model_card.md").read_text()
    for part in (
        "LambdaCROLoss",
        "alpha: 1",
        "rank kernel: sigmoid",
        "Recall@N",
        "`scann`",
        "users",
        "tensorflow 2",
        "`recommend_among`",
    ):
        assert part in card, part
    table = (folder / "index_recall.md").read_text()
    assert table.count("| chosen |") == 1
    assert (folder / "index_recall.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "assets" / "item_ids.txt").read_text().splitlines() == names

    signatures = loading.load_model(folder).signatures
    asked = set()
    for record in tf.data.TFRecordDataset(str(folder / WARMUP_FILE)):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        request = log.predict_log.request
        asked.add(request.model_spec.signature_name)
        inputs = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
        signature = signatures[request.model_spec.signature_name]
        signature(**{key: tf.constant(value) for key, value in inputs.items()})
    assert {"serving_default", "recommend_excluding", "search"} <= asked


def test_an_index_below_the_recall_target_is_not_published(
    tiny_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tfrs_croloss.indexes.tuning import Measurement, RecallNotReached
    from tfrs_croloss.serving import measured_index

    def cannot(*_: Any, top_n: int, recall_target: float, **__: Any) -> None:
        best = Measurement({"leaves_to_search": 9}, recall=0.9125, single_ms=1.0, batch_ms=2.0)
        raise RecallNotReached(recall_target, top_n, [best])

    monkeypatch.setattr(measured_index, "tune", cannot)
    arguments = [
        "export",
        "--run",
        str(tiny_run),
        "--out",
        str(tmp_path / "m"),
        "--index",
        "partitioned",
    ]
    assert main(arguments) == 2
    assert "The best reached 0.9125" in capsys.readouterr().err
    assert model_versions(tmp_path / "m") == []


@pytest.fixture
def no_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the check in a fresh process, which the exports of ``exported`` have passed."""
    monkeypatch.setattr(publish, "check_round_trip", lambda *_: None)


@pytest.mark.slow
@pytest.mark.usefixtures("no_round_trip")
def test_a_kill_leaves_the_old_version_and_nothing_numbered(
    exported: Path, tiny_run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(exported / "brute_force", folder)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = start_step("export", "--run", tiny_run, "--out", folder, TMPDIR=temporary)
    # Everything has been written by then, but not published.
    assert process.stdout is not None
    while not process.stdout.readline().startswith("checking"):
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(temporary.iterdir()) == []
    assert any(path.name.startswith(".tmp-") for path in folder.iterdir())
    assert model_versions(folder) == [1]
    run_step("query", "--model", folder, "--history", "x", "--top-n", 1)
    run_step("export", "--run", tiny_run, "--out", folder)
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2"]


@pytest.mark.usefixtures("no_round_trip")
def test_versions_are_counted_and_old_ones_go_on_request(
    exported: Path, tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(exported / "brute_force", folder)
    (folder / "notes").mkdir()
    (folder / "7").mkdir()
    run_step("export", "--run", tiny_run, "--out", folder, "--keep-versions", 2)
    assert sorted(path.name for path in folder.iterdir()) == ["7", "8", "notes"]
    record = json.loads((folder / "8" / "export.json").read_text())
    assert record["best"] == json.loads((tiny_run / "best" / "best.json").read_text())
    printed = capsys.readouterr().out
    assert "removed: version 1" in printed
    assert "python -m pipelines query --model" in printed
    assert remove_old_versions(folder, 5) == []


def test_query_prints_a_table(
    exported: Path, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = exported / "partitioned"
    history = f"{names[3]},what,{names[10]}"
    run_step("query", "--model", folder, "--history", history, "--top-n", 4)
    printed = capsys.readouterr().out
    assert "skipped, since they are not in the catalogue: what" in printed
    recommend = loading.load_model(folder / "1").signatures["recommend"]
    answer = recommend(history=tf.constant([[names[3], names[10]]]), top_n=tf.constant([4]))
    lines = [line.split() for line in printed.splitlines()[-4:]]
    assert [line[1] for line in lines] == [
        item.decode() for item in answer["item_ids"].numpy()[0][:4]
    ]
    for line, score in zip(lines, answer["scores"].numpy()[0]):
        assert float(line[2]) == pytest.approx(score, abs=1e-4)

    best = lines[0][1]
    run_step("query", "--model", folder, "--history", history, "--exclude", best, "--top-n", 3)
    again = [line.split()[1] for line in capsys.readouterr().out.splitlines()[-3:]]
    assert again == [line[1] for line in lines[1:]]
    run_step("query", "--model", folder, "--history", "", "--among", f"{names[8]},{names[8]}")
    printed = capsys.readouterr().out
    assert "this is the answer to an empty history" in printed
    assert printed.count(names[8]) == 1
    run_step("query", "--model", folder, "--history", best, "--among", "what")
    assert "no items to recommend" in capsys.readouterr().out


def test_what_cannot_be_asked_is_one_line(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(exported / "brute_force")
    assert main(["query", "--model", folder, "--history", "a", "--top-n", "1000"]) == 2
    assert "--top-n should be at most 30" in capsys.readouterr().err


def test_a_folder_without_a_model_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", "--model", str(tmp_path), "--history", "a"]) == 2
    assert "has no version of a model" in capsys.readouterr().err
    (tmp_path / "1").mkdir()
    assert main(["query", "--model", str(tmp_path), "--history", "a"]) == 2
    assert "is not a SavedModel" in capsys.readouterr().err
    (tmp_path / "1" / "export.json").write_text('{"top_n": 10}')
    assert main(["query", "--model", str(tmp_path), "--history", "a"]) == 2
    assert "is not a SavedModel" in capsys.readouterr().err


def test_versions_that_do_not_belong_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loading.check_scann_version()
    monkeypatch.setattr(tf, "__version__", "2.19.1")
    with pytest.raises(ValueError, match="was built for TensorFlow ~=2.20.0, and 2.19.1"):
        loading.check_scann_version()


@pytest.mark.parametrize(
    "code, output, errors, expected",
    [
        (0, '[{"embedding": [[0.5, 0.5]], "is_known": [true]}]', "", "answers differently"),
        (1, "", "Traceback\nValueError: no operation X\n", "cannot be used.*no operation X"),
        (-9, "", "", "cannot be used.*exit code -9"),
    ],
)
def test_a_model_that_differs_in_a_fresh_process_is_not_published(
    code: int,
    output: str,
    errors: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.serving.test_serving import build

    def finished(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code, output, errors)

    monkeypatch.setattr(round_trip.subprocess, "run", finished)
    requests = [("item_embedding", {"item_ids": ["item 1"]})]
    with pytest.raises(ExportError, match=expected):
        round_trip.check_round_trip(build(), requests, tmp_path, tmp_path)


@pytest.mark.slow
def test_a_fresh_process_that_answers_with_another_model_is_refused(
    exported: Path, tmp_path: Path
) -> None:
    """The real process, asked about a SavedModel that is not the one it is compared with."""
    from tests.serving.test_serving import build

    requests = [("item_embedding", {"item_ids": ["item 1"]})]
    with pytest.raises(ExportError, match="cannot be used|answers differently"):
        round_trip.check_round_trip(build(), requests, exported / "brute_force" / "1", tmp_path)


@pytest.mark.slow
def test_query_over_rest_prints_the_same_table(
    exported: Path, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    query = ["query", "--model", exported / "scann", "--history", f"{names[3]},what", "--top-n", 4]
    run_step(*query)
    expected = capsys.readouterr().out.splitlines()
    run_step(*query, "--rest")
    first, *printed, blank, last = capsys.readouterr().out.splitlines()
    assert first.startswith("POST http://127.0.0.1:") and last == "the server has stopped"
    assert printed == expected and blank == ""


def test_vectors_for_another_engine(
    tiny_run: Path, names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "vectors"
    run_step("export", "--run", tiny_run, "--out", out, "--vectors", "jsonl", "--top-n", 10)
    assert "and the top 10 of" in capsys.readouterr().out
    lines = (out / "1" / "items" / "items.json").read_text(encoding="utf-8").splitlines()
    items = {record["id"]: record["embedding"] for record in map(json.loads, lines)}
    assert list(items) == names
    model = tf.saved_model.load(str(out / "1" / "query_model" / "1"))
    embed = model.signatures["serving_default"]
    answer = embed(history=tf.constant([[names[3], "what", names[10]]]))
    assert answer["known_items"].numpy() == [2]
    scores = np.array(list(items.values())) @ answer["embedding"].numpy()[0]
    capsys.readouterr()
    assert scores.shape == (len(names),) and np.abs(scores).max() <= 1.0 + 1e-5  # cosines
    options = ["--run", str(tiny_run), "--out", str(out), "--vectors", "jsonl"]
    assert main(["export", *options, "--index", "scann"]) == 2
    assert "--index cannot be combined with --vectors" in capsys.readouterr().err


def test_the_option_names_every_format_of_vectors() -> None:
    from pipelines.export import FORMATS
    from tfrs_croloss.serving import vector_files

    assert tuple(vector_files.FORMATS) == FORMATS


def test_the_option_names_every_kind_of_index() -> None:
    """The step lists them itself, since ``--help`` loads no TensorFlow."""
    from pipelines.export import INDEXES
    from tfrs_croloss.indexes.tuning import KINDS

    assert tuple(KINDS) == INDEXES
