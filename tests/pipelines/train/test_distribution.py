"""Training on several devices and processes: the learning curve of one, and lost processes."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipelines.__main__ import LOST_WORKER, main
from pipelines.data.batches import TrainingInput, WindowOptions
from pipelines.data.prepared import PreparedData
from pipelines.errors import UserError
from pipelines.runs import distribution
from pipelines.runs.settings import TrainSettings
from tests.support.processes import ROOT, run_step

# Batches of 65 are not divided by any number of replicas here.
OPTIONS = (
    "--rank-kernel sigmoid --dim 16 --batch-size 65 --negatives-per-example 3 "
    "--optimizer lazy-adam --in-batch-negatives --mask-known-positives --max-steps 24 "
    "--steps-per-epoch 8 --monitor recall@20 --cutoffs 20 --checkpoint-steps 3"
).split()

SECONDS = 400
STARTS = 3


class Processes:
    """Processes that train into one folder, or evaluate it; at the end all are killed."""

    def __init__(self, data: Path, out: Path) -> None:
        self.out = out
        self._steps = {
            "train": ["--data", str(data), "--out", str(out), *OPTIONS],
            "evaluate": ["--run", str(out), "--cutoffs", "10", "--exclude-history"],
        }
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, *options: object, tf_config: object = None, step: str = "train"
    ) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if tf_config is not None:
            environment["TF_CONFIG"] = json.dumps(tf_config)
        log = open(f"{self.out}-{len(self._started)}.log", "w")
        process = subprocess.Popen(
            [sys.executable, "-m", "pipelines", step, *self._steps[step], *map(str, options)],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        log.close()
        self._started.append(process)
        return process

    def start_cluster(
        self, strategy: str, *options: object, step: str = "train", **sizes: int
    ) -> dict[str, subprocess.Popen[str]]:
        """Starts the given number of processes of each kind."""
        addresses = free_addresses(sum(sizes.values()))
        cluster = {kind: [addresses.pop() for _ in range(size)] for kind, size in sizes.items()}
        return {
            f"{kind} {index}": self.start(
                "--strategy",
                strategy,
                *options,
                tf_config={"cluster": cluster, "task": {"type": kind, "index": index}},
                step=step,
            )
            for kind, size in sizes.items()
            for index in range(size)
        }

    def run_cluster(
        self, strategy: str, *options: object, step: str = "train", **sizes: int
    ) -> dict[str, str]:
        """What each process of a cluster has printed when all have ended well.

        TensorFlow gives up a process that is silent for ten seconds, as on a machine that is too
        busy. The cluster is then started again, as the error asks.
        """
        for _ in range(STARTS):
            cluster = self.start_cluster(strategy, *options, step=step, **sizes)
            codes = [process.wait(timeout=SECONDS) for process in cluster.values()]
            if LOST_WORKER not in codes:
                break
        return {name: self.wait(process) for name, process in cluster.items()}

    def wait(self, process: subprocess.Popen[str], expected: int = 0) -> str:
        """What a process that ends with the expected code has printed."""
        code = process.wait(timeout=SECONDS)
        log = Path(f"{self.out}-{self._started.index(process)}.log").read_text()
        assert code == expected, log[-4000:]
        return log

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@pytest.fixture
def processes(tiny_data: Path, tmp_path: Path) -> Iterator[Processes]:
    running = Processes(tiny_data, tmp_path / "run")
    yield running
    running.end()


@pytest.fixture(scope="module")
def alone(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on one device."""
    out = tmp_path_factory.mktemp("alone") / "run"
    run_step("train", "--data", tiny_data, "--out", out, *OPTIONS)
    return out


@pytest.fixture(scope="module")
def curve(alone: Path) -> list[dict[str, float]]:
    """The history of a run on one device."""
    return history(alone)


def history(run: Path) -> list[dict[str, float]]:
    with open(run / "history.csv", newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def assert_same_curve(run: Path, expected: list[dict[str, float]]) -> None:
    rows = history(run)
    assert [row["step"] for row in rows] == [8, 16, 24]
    for row, other in zip(rows, expected):
        assert row == pytest.approx(other, rel=1e-3), (row, other)


def measured(run: Path) -> dict[str, object]:
    """What an evaluation found, which is then gone."""
    path = run / "recall.json"
    systems: dict[str, object] = json.loads(path.read_text())["systems"]
    path.unlink()
    return systems


def free_addresses(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


@pytest.mark.parametrize("num_workers, per_worker", [(1, 2), (2, 2), (3, 1), (1, 40)])
def test_the_parts_of_all_replicas_are_the_batches_of_one(
    tiny_data: Path, num_workers: int, per_worker: int
) -> None:
    data = PreparedData.load(tiny_data)
    options = WindowOptions(
        batch_size=31, negatives_per_example=2, known_positives=True, users=True, seed=3
    )
    training_input = TrainingInput(data.split("train"), data.num_items, options)
    # The last batch of the first epoch is shorter, and shorter than the 40 replicas.
    first = training_input.steps_per_epoch - 2
    num_replicas = num_workers * per_worker
    workers = [
        iter(
            training_input.part_dataset(
                first, first + 4, range(start, start + per_worker), num_replicas
            )
        )
        for start in range(0, num_replicas, per_worker)
    ]
    for whole in training_input.dataset(first, first + 4):
        parts = [next(worker) for worker in workers for _ in range(per_worker)]
        assert max(len(part["item_id"]) for part in parts) <= -(-31 // num_replicas)
        for name, column in whole.items():
            joined = tf.concat([part[name] for part in parts], axis=0)
            if isinstance(column, tf.RaggedTensor):
                assert joined.to_list() == column.to_list()
            else:
                np.testing.assert_array_equal(joined, column)
    assert all(next(worker, None) is None for worker in workers)


@pytest.mark.slow
def test_replicas_follow_the_curve_of_one(
    processes: Processes, curve: list[dict[str, float]]
) -> None:
    replicas = 3
    processes.wait(processes.start("--strategy", "mirrored", "--replicas", replicas))
    assert_same_curve(processes.out, curve)
    recorded = json.loads((processes.out / "config.json").read_text())["strategy"]
    assert recorded == {"name": "mirrored", "replicas": replicas, "workers": 1, "shards": 1}


@pytest.mark.slow
def test_replicas_that_share_the_catalogue_find_the_recall_of_one(
    tiny_run: Path, tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    together = Processes(tiny_data, alone)
    data = "--data", tiny_data
    process = together.start(*data, "--strategy", "mirrored", "--replicas", 3, step="evaluate")
    assert "items, shared by 3 replicas" in together.wait(process)
    found = measured(alone)
    run_step("evaluate", "--run", alone, *data, "--cutoffs", 10, "--exclude-history")
    assert "shared by" not in capsys.readouterr().out
    assert found == measured(alone)


@pytest.mark.slow
def test_two_processes_follow_the_curve_of_one_and_only_the_chief_writes(
    processes: Processes, curve: list[dict[str, float]]
) -> None:
    printed = processes.run_cluster("multi-worker", worker=2)
    assert "evaluate --run" in printed["worker 0"]
    assert "evaluate --run" not in printed["worker 1"]
    assert_same_curve(processes.out, curve)
    names = {path.name for path in processes.out.iterdir()}
    assert not [name for name in names if name.startswith(".tmp")]
    assert json.loads((processes.out / "result.json").read_text())["strategy"]["workers"] == 2

    printed = processes.run_cluster("multi-worker", step="evaluate", worker=2)
    for words in ("items, shared by 2 replicas", "over pairs"):
        assert words in printed["worker 0"] and words not in printed["worker 1"]
    found = measured(processes.out)
    run_step("evaluate", "--run", processes.out, "--cutoffs", 10, "--exclude-history")
    assert found == measured(processes.out)


@pytest.mark.slow
@pytest.mark.parametrize("victim, survivor", [("worker 0", "chief 0"), ("chief 0", "worker 0")])
def test_a_killed_process_ends_the_others_and_all_continue_from_the_checkpoint(
    processes: Processes, curve: list[dict[str, float]], victim: str, survivor: str
) -> None:
    cluster = processes.start_cluster("multi-worker", chief=1, worker=1)
    deadline = time.monotonic() + SECONDS
    while not list(processes.out.glob("checkpoints/step-*")):
        assert cluster[victim].poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    cluster[victim].send_signal(signal.SIGKILL)
    printed = processes.wait(cluster[survivor], LOST_WORKER)
    assert "another process of the cluster is gone" in printed and "Traceback" not in printed
    assert not (processes.out / "result.json").exists()

    again = processes.run_cluster("multi-worker", chief=1, worker=1)
    assert all("continuing after step" in printed for printed in again.values())
    assert_same_curve(processes.out, curve)


@pytest.mark.slow
def test_a_run_continues_with_another_number_of_replicas(
    processes: Processes, curve: list[dict[str, float]]
) -> None:
    first = processes.start("--strategy", "mirrored", "--replicas", 2)
    while not list(processes.out.glob("checkpoints/step-*")):
        assert first.poll() is None
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not (processes.out / "result.json").exists()
    assert "continuing after step" in processes.wait(processes.start())
    assert_same_curve(processes.out, curve)


@pytest.mark.slow
def test_parameter_servers_train_what_one_process_evaluates_and_exports(
    processes: Processes, tmp_path: Path
) -> None:
    more = "--max-steps", 240, "--steps-per-epoch", 80, "--checkpoint-steps", 50
    cluster = processes.start_cluster("parameter-server", *more, ps=2, worker=2, chief=1)
    processes.wait(cluster["chief 0"])
    # They serve until somebody ends them.
    assert all(cluster[name].poll() is None for name in cluster if name != "chief 0")
    rows = history(processes.out)
    assert [row["step"] for row in rows] == [80, 160, 240]
    assert rows[-1]["loss"] < 0.95 * rows[0]["loss"]
    config = json.loads((processes.out / "config.json").read_text())
    assert config["strategy"]["shards"] == 2
    best = json.loads((processes.out / "best" / "best.json").read_text())

    run_step("evaluate", "--run", processes.out, "--split", "valid", "--cutoffs", 20)
    report = json.loads((processes.out / "recall.json").read_text())["systems"]["model"]
    assert report["users"]["recall@20"] == pytest.approx(best["recall@20"], rel=1e-6)
    run_step("export", "--run", processes.out, "--out", tmp_path / "saved", "--top-n", 20)
    assert (tmp_path / "saved" / "1" / "saved_model.pb").is_file()


@pytest.mark.parametrize(
    "shape, parts", [((601, 16), [2, 1]), ((16, 16), [1, 1]), ((1,), [1]), ((), [])]
)
def test_tables_alone_are_cut_into_shards(shape: tuple[int, ...], parts: list[int]) -> None:
    partitioner = distribution.table_partitioner(2)
    assert partitioner(shape=tf.TensorShape(shape), dtype=tf.float32) == parts


@pytest.mark.parametrize(
    "options, message",
    [
        ("--strategy parameter-server --optimizer adam", "lazy-adam or auto"),
        (
            "--strategy parameter-server --mixed-precision",
            "cannot be combined with --mixed-precision",
        ),
        ("--strategy multi-worker --memory-size 9", "--memory-size should be 0"),
        ("--strategy mirrored --replicas 2 --memory-size 9", "--memory-size should be 0"),
        ("--strategy parameter-server --weight-average 0.9", "--weight-average should be 0"),
        ("--strategy multi-worker --replicas 2", "--strategy mirrored"),
        ("--strategy multi-worker", "TF_CONFIG"),
    ],
)
def test_what_a_strategy_cannot_train_is_refused_with_the_remedy(
    tiny_data: Path,
    tmp_path: Path,
    options: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    arguments = ["train", "--data", str(tiny_data), "--out", str(tmp_path / "run")]
    assert main([*arguments, *options.split()]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_auto_is_lazy_adam_on_parameter_servers() -> None:
    asynchronous = distribution.Cluster("parameter-server")
    assert asynchronous.adapted(TrainSettings()).optimizer == "lazy-adam"
    assert distribution.Cluster().adapted(TrainSettings()).optimizer == "auto"


WORKERS = {"worker": ["a:1", "b:1"]}
SERVERS = {"chief": ["c:1"], "ps": ["d:1"], **WORKERS}


@pytest.mark.parametrize(
    "strategy, config, message",
    [
        ("multi-worker", None, "none"),
        ("multi-worker", "{", "JSONDecodeError"),
        ("multi-worker", {"cluster": WORKERS}, "'task'"),
        ("multi-worker", {"cluster": {}, "task": {"type": "worker", "index": 0}}, "no worker"),
        ("multi-worker", {"cluster": WORKERS, "task": {"type": "worker", "index": 2}}, "has 2"),
        ("multi-worker", {"cluster": WORKERS, "task": {"type": "ps", "index": 0}}, "type 'ps'"),
        ("parameter-server", {"cluster": WORKERS, "task": {"type": "worker", "index": 0}}, "chief"),
        ("parameter-server", {"cluster": SERVERS, "task": {"type": "chief", "index": 1}}, "has 1"),
    ],
)
def test_tf_config_errors_say_what_is_required(strategy: str, config: object, message: str) -> None:
    text = config if config is None or isinstance(config, str) else json.dumps(config)
    with pytest.raises(UserError, match="TF_CONFIG on every machine") as raised:
        distribution.read_task(strategy, text)
    assert message in str(raised.value)


def test_tf_config_says_who_is_who() -> None:
    text = json.dumps({"cluster": SERVERS, "task": {"type": "worker", "index": 1}})
    assert distribution.read_task("parameter-server", text) == distribution.Task(
        SERVERS, "worker", 1
    )
