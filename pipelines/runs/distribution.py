"""Training on several devices or machines: the strategy, and the roles in the cluster.

``mirrored`` and ``multi-worker`` are synchronous: every replica has a copy of the weights and a
part of each batch, and together they take the steps that one replica would with the whole batch.
``parameter-server`` is asynchronous: tables are split into shards on the parameter servers, and
each worker takes steps with whole batches of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from .. import cli
from ..errors import LostWorkerError, UserError
from .settings import TrainSettings

STRATEGIES = ("none", "mirrored", "multi-worker", "parameter-server")

_EXAMPLES = {
    "multi-worker": '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}',
    "parameter-server": '{"cluster": {"chief": ["host0:2222"], "ps": ["host1:2222"], '
    '"worker": ["host2:2222"]}, "task": {"type": "chief", "index": 0}}',
}
# The errors of remote operations when a process that they need is gone.
_LOST_PROCESS_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    # A process that is started again meets those that have not yet noticed that it was gone.
    tf.errors.AlreadyExistsError,
    tf.errors.FailedPreconditionError,
)
# Rows for each column from which on a matrix is a table of embeddings, not a layer's kernel.
_TABLE_RATIO = 8


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The devices that train together, as one of their processes sees them.

    Attributes:
      name: one of ``STRATEGIES``.
      strategy: strategy of TensorFlow.
      is_chief: whether this process writes the run.
      num_workers: number of processes that compute.
      num_shards: number of shards of each table.
    """

    name: str = "none"
    strategy: Any = dataclasses.field(default_factory=tf.distribute.get_strategy)
    is_chief: bool = True
    num_workers: int = 1
    num_shards: int = 1

    @property
    def is_asynchronous(self) -> bool:
        """Whether workers take steps of their own."""
        return self.name == "parameter-server"

    @property
    def num_replicas(self) -> int:
        """Number of replicas that share a batch."""
        return int(self.strategy.num_replicas_in_sync)

    @property
    def title(self) -> str:
        """The cluster in words, for the console."""
        if self.is_asynchronous:
            return f"{self.num_workers} workers and {self.num_shards} parameter servers"
        return f"{self.num_replicas} replicas in {self.num_workers} processes"

    def adapted(self, settings: TrainSettings) -> TrainSettings:
        """The settings with the optimizer that ``auto`` stands for here."""
        if self.is_asynchronous and settings.optimizer == "auto":
            return dataclasses.replace(settings, optimizer="lazy-adam")
        return settings

    def as_dict(self) -> dict[str, Any]:
        """The cluster as the configuration of a run records it."""
        return {
            "name": self.name,
            "replicas": self.num_replicas,
            "workers": self.num_workers,
            "shards": self.num_shards,
        }

    def numbers_of_all(self, number: int) -> list[int]:
        """The numbers that all replicas of a synchronous cluster pass; waits for all of them.

        Args:
          number: number of this replica, from 0 to 2**63 - 1.
        """
        if self.num_workers == 1 or self.is_asynchronous:
            return [number]

        def gather() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            return context.all_gather(tf.constant([number], tf.int64), axis=0)

        gathered = tf.function(lambda: self.strategy.run(gather))()
        numbers: list[int] = self.strategy.experimental_local_results(gathered)[0].numpy().tolist()
        return numbers


@contextlib.contextmanager
def watched(name: str) -> Iterator[None]:
    """Turns the errors of a lost process of the cluster into one that says so in one line.

    Args:
      name: name of the strategy.

    Raises:
      LostWorkerError: a process is gone.
    """
    if name in ("none", "mirrored"):
        yield
        return
    try:
        yield
    except _LOST_PROCESS_ERRORS as error:
        raise LostWorkerError(
            "another process of the cluster is gone, so this one cannot go on. Start all of them "
            "again with the same command: training continues from the last checkpoint. "
            f"(TensorFlow says: {_reason(error)})"
        ) from error


def _reason(error: tf.errors.OpError) -> str:
    """The first line of TensorFlow's message that is not a place in the code, for people."""
    lines = re.sub(r"\{\{.*?\}\}", "", error.message or "").splitlines()
    places = ("Graph execution error", "Detected at", "<stack", "File ", "[[")
    said = [line.strip() for line in lines if line.strip()]
    telling = [line for line in said if not line.startswith(places)]
    return next(iter(telling), type(error).__name__)[:200]


_HELP = {
    "train": "distribution strategy. mirrored uses all GPUs of this machine, multi-worker the "
    "machines in TF_CONFIG, which should all see --data and --out; with both, replicas share each "
    "batch and its negatives, and the learning curve is that of one device. parameter-server "
    "splits tables over the servers in TF_CONFIG; its workers are asynchronous, each with batches "
    "and negatives of its own, and it needs lazy-adam (%(default)s)",
    "evaluate": "distribution strategy; each replica ranks a part of the catalogue, and the ranks "
    "are those of one device. mirrored uses all GPUs of this machine, multi-worker the machines "
    "in TF_CONFIG, which should all see --run (%(default)s)",
}


def add_arguments(parser: argparse.ArgumentParser, step: str) -> None:
    """Adds the options that choose a strategy for ``train`` or ``evaluate``."""
    group = parser.add_argument_group("several devices or machines")
    group.add_argument(
        "--strategy",
        choices=STRATEGIES if step == "train" else STRATEGIES[:-1],
        default="none",
        help=_HELP[step],
    )
    group.add_argument(
        "--replicas",
        type=cli.positive,
        metavar="N",
        help="number of replicas for mirrored: the first N GPUs, or N parts of the CPU (all GPUs, "
        "or 1 without a GPU)",
    )


def check_replicas(name: str, replicas: int | None) -> None:
    """Refuses a number of replicas where the strategy does not take one.

    Raises:
      UserError: the strategy does not take one.
    """
    if replicas is not None and name != "mirrored":
        raise UserError(
            f"--replicas requires --strategy mirrored. Received: --strategy {name}. The "
            "other strategies use all devices of the machines in TF_CONFIG; leave it out."
        )


def check(settings: TrainSettings, name: str, replicas: int | None) -> None:
    """Refuses settings that a strategy cannot train, before anything starts.

    Raises:
      UserError: the strategy cannot train with these settings.
    """
    check_replicas(name, replicas)
    if name == "parameter-server":
        if settings.optimizer == "adam":
            raise UserError(
                "--strategy parameter-server requires --optimizer lazy-adam or auto. "
                "Received: adam, which diverges when asynchronous workers update whole tables."
            )
        if settings.mixed_precision:
            raise UserError(
                "--strategy parameter-server cannot be combined with --mixed-precision, whose loss "
                "scale asynchronous workers cannot share. Leave it out."
            )
        if settings.weight_average:
            raise UserError(
                "--weight-average should be 0 with --strategy parameter-server, whose workers "
                f"update the weights at any time. Received: {settings.weight_average:g}. Leave it "
                "out."
            )
    several = name in ("multi-worker", "parameter-server") or (replicas or 1) > 1
    if settings.memory_size and several:
        raise UserError(
            f"--memory-size should be 0 with --strategy {name}, whose replicas share no memory. "
            f"Received: {settings.memory_size}. Use --in-batch-negatives."
        )


def connect(name: str, replicas: int | None = None) -> Cluster:
    """Builds the strategy, which has to happen before TensorFlow computes anything.

    In a worker or a parameter server of an asynchronous cluster, this call serves the cluster and
    does not return.

    Args:
      name: one of ``STRATEGIES``.
      replicas: number of replicas, for ``mirrored``.

    Raises:
      UserError: the devices, or the variable ``TF_CONFIG``, do not fit the strategy.
    """
    if name == "mirrored":
        return Cluster(name, tf.distribute.MirroredStrategy(_devices(replicas)))
    if name == "multi-worker":
        task = read_task(name, os.environ.get("TF_CONFIG"))
        is_chief = task.kind == "chief" or ("chief" not in task.cluster and task.index == 0)
        num_workers = len(task.cluster.get("chief", ())) + len(task.cluster.get("worker", ()))
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        return Cluster(name, strategy, is_chief, num_workers)
    if name == "parameter-server":
        return _connect_to_servers(read_task(name, os.environ.get("TF_CONFIG")))
    return Cluster()


@dataclasses.dataclass(frozen=True)
class Task:
    """The content of ``TF_CONFIG``: all addresses by kind of process, and this process's place."""

    cluster: dict[str, list[str]]
    kind: str
    index: int


def read_task(strategy: str, text: str | None) -> Task:
    """Reads ``TF_CONFIG``.

    >>> read_task("multi-worker", _EXAMPLES["multi-worker"]).cluster
    {'worker': ['host1:2222', 'host2:2222']}

    Raises:
      UserError: it is missing, or does not fit the strategy.
    """

    def require(fulfilled: bool, received: str) -> None:
        if not fulfilled:
            raise UserError(
                f"--strategy {strategy} requires the environment variable TF_CONFIG on every "
                f"machine, such as {_EXAMPLES[strategy]}. Received: {received}."
            )

    require(bool(text), "none")
    try:
        config = json.loads(text or "")
        task = Task(
            {str(kind): [*addresses] for kind, addresses in config["cluster"].items()},
            str(config["task"]["type"]),
            int(config["task"]["index"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        require(False, f"{text} ({type(error).__name__}: {error})")
        raise AssertionError from error
    sizes = {kind: len(addresses) for kind, addresses in task.cluster.items()}
    kinds = {"chief", "worker"} | ({"ps"} if strategy == "parameter-server" else set())
    require(sizes.get("chief", 0) <= 1, f"{sizes.get('chief')} chiefs; there should be one at most")
    if strategy == "parameter-server":
        for kind in sorted(kinds):
            require(sizes.get(kind, 0) > 0, f"a cluster without '{kind}'")
    require(sum(sizes.get(kind, 0) for kind in kinds) > 0, "a cluster with no workers")
    require(task.kind in kinds, f"a task of type {task.kind!r}, not one of {sorted(kinds)}")
    require(
        0 <= task.index < sizes.get(task.kind, 0),
        f"task {task.index} of type {task.kind!r}, of which the cluster has "
        f"{sizes.get(task.kind, 0)}",
    )
    return task


def _devices(replicas: int | None) -> list[str]:
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if replicas is not None and replicas > len(gpus):
            raise UserError(
                f"--replicas should be at most {len(gpus)}, the number of GPUs. Received: "
                f"{replicas}."
            )
        return [f"GPU:{number}" for number in range(replicas or len(gpus))]
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(replicas or 1)]
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(cpu, parts)
    except RuntimeError as error:
        if len(tf.config.list_logical_devices("CPU")) != len(parts):
            raise UserError(
                f"--replicas should be chosen before TensorFlow starts. Received: {replicas} in a "
                "process that has computed before. Train in a process of its own."
            ) from error
    return [f"CPU:{number}" for number in range(len(parts))]


def _connect_to_servers(task: Task) -> Cluster:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if task.kind != "chief":
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=task.kind,
            task_index=task.index,
            protocol=resolver.rpc_layer or "grpc",
            start=True,
        )
        print(f"serving as {task.kind} {task.index} until this process is ended", flush=True)
        server.join()
    num_shards = len(task.cluster["ps"])
    strategy = tf.distribute.ParameterServerStrategy(resolver, table_partitioner(num_shards))
    if strategy.num_replicas_in_sync > 1:
        raise UserError(
            "--strategy parameter-server should have at most one GPU in each worker. Received: "
            f"{strategy.num_replicas_in_sync}. Set CUDA_VISIBLE_DEVICES, and start more workers."
        )
    return Cluster("parameter-server", strategy, True, len(task.cluster["worker"]), num_shards)


def table_partitioner(num_shards: int) -> Callable[..., list[int]]:
    """A partitioner that splits tables by rows, and leaves all other variables whole."""

    def partitions(shape: Any, dtype: tf.DType, axis: int = 0) -> list[int]:
        sizes: Sequence[int] = tf.TensorShape(shape).as_list()
        parts = [1] * len(sizes)
        if len(sizes) == 2 and sizes[0] >= max(num_shards, _TABLE_RATIO * sizes[1]):
            parts[axis] = num_shards
        return parts

    return partitions
