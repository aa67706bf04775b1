"""The time that training takes to a good model: ``python -m benchmarks.time_to_recall``.

Every contender trains on the same prepared data, one after the other, and its clock stops while the
benchmark measures exact validation Recall@50 over the whole catalogue. The table has the seconds
until that recall reaches 95 % of the best that any contender reached.

- ours: the pipelines' model, loss and validation;
- TFRS: the same towers and the same batches of positives in ``tfrs.Model``, with TFRS' task, a
  ``FactorizedTopK`` over the validation pairs, and Keras' Adam;
- implicit: its ALS and its BPR, of the same dimension, without validation. They know users by
  their number, so they run on Health only. ``pip install implicit`` adds them.
- RecTools: its SASRec with sampled softmax and 256 negatives for each position, the loss and the
  learning rate that its authors recommend, without validation. It runs where our model is
  self-attention of the same size, in an environment of its own: ``--rectools PYTHON`` names its
  interpreter.

The clocks of ours and TFRS include tracing and the validations that they do themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness

import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip
import tensorflow_recommenders as tfrs  # isort: skip

from pipelines.__main__ import main as run_step  # isort: skip
from pipelines.data.prepared import PreparedData  # isort: skip
from pipelines.data.sequences import training_input  # isort: skip
from pipelines.runs.build import build_model  # isort: skip
from pipelines.runs.folder import open_run  # isort: skip
from pipelines.runs.ranks import evaluation_users, pairs_of  # isort: skip
from pipelines.runs.settings import TrainSettings  # isort: skip
from pipelines.train.loop import train  # isort: skip
from pipelines.train.validation import Validator  # isort: skip
from tfrs_croloss.metrics import evaluate  # isort: skip

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SIZE = 50
SHARE = 0.95
GOAL = 5
"""How many times as long TFRS should take."""

Curve = list[tuple[float, float]]
"""Seconds of training, and validation recall, after each validation."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A data set and the model that is trained on it.

    Attributes:
      prepare: options of ``prepare``, but for the folders.
      input: file or folder within ``--data``.
      ours: settings of our run.
      tfrs: settings that differ for TFRS, whose negatives are the batch.
    """

    prepare: tuple[str, ...]
    input: str
    ours: TrainSettings
    tfrs: dict[str, Any]


_SHARED: dict[str, Any] = {
    "monitor": f"recall@{SIZE}",
    "cutoffs": (SIZE,),
    "early_stopping_patience": 8,
    "max_validation_users": None,
}
TASKS = {
    "health": Task(
        prepare=("--source", "presplit"),
        input="health",
        ours=TrainSettings(
            loss="lambda",
            kernel="exponential",
            rank_kernel="sigmoid",
            alpha=1.4,
            easing=0.03,
            temperature=0.25,
            tower="matrix-factorization",
            dim=64,
            stddev=1.0,
            min_history=0,
            batch_size=1_024,
            whole_catalogue=True,
            mask_known_positives=True,
            exclude_history=True,
            learning_rate=0.1,
            schedule="constant",
            max_steps=6_800,
            steps_per_epoch=68,
            **_SHARED,
        ),
        tfrs={"temperature": 0.2},
    ),
    "cds": Task(
        prepare=("--source", "sequences"),
        input="cds/sequences.txt.gz",
        ours=TrainSettings(
            loss="lambda", retrieval_size=SIZE, max_steps=20_000, steps_per_epoch=250, **_SHARED
        ),
        tfrs={"temperature": 0.1},
    ),
    "cds-attention": Task(
        prepare=("--source", "sequences"),
        input="cds/sequences.txt.gz",
        ours=TrainSettings(
            loss="lambda",
            retrieval_size=SIZE,
            encoder="transformer",
            blocks=1,
            dim=64,
            dropout=0.2,
            history_length=50,
            min_history=1,
            batch_size=128,
            negatives_per_example=16,
            learning_rate=0.005,
            max_steps=40_000,
            steps_per_epoch=100,
            **_SHARED,
        ),
        tfrs={"temperature": 0.1},
    ),
}


class Clock:
    """Seconds of training, without those that the benchmark itself takes."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def seconds(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self._start

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """A scope whose time does not count."""
        before = time.perf_counter()
        yield
        self._start += time.perf_counter() - before


class Done(Exception):
    """Ends a training whose time is up."""


def ours(data: PreparedData, settings: TrainSettings, most: float, folder: Path) -> Curve:
    """The pipelines' training, as ``croloss train`` runs it."""
    clock, curve = Clock(), Curve()

    def after_validation(row: dict[str, Any]) -> None:
        curve.append((clock.seconds(), row[settings.monitor]))
        if clock.seconds() > most:
            raise Done

    with open_run(folder / "run", data, settings) as run, contextlib.suppress(Done):
        train(run, data, after_validation=after_validation, pictures=False)
    return curve


class PlainModel(tfrs.Model):
    """Our towers in TFRS' model, with TFRS' task and metric."""

    def __init__(self, towers: Any, num_items: int, temperature: float) -> None:
        super().__init__()
        self.towers = towers
        items = tf.data.Dataset.range(num_items).batch(128)
        self.task = tfrs.tasks.Retrieval(
            metrics=tfrs.metrics.FactorizedTopK(
                items.map(lambda ids: towers.embed_candidates({"item_id": ids})), ks=(SIZE,)
            ),
            temperature=temperature,
        )

    def compute_loss(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        """TFRS' loss; its metric is computed in validation alone, as in its tutorials."""
        return self.task(
            self.towers.embed_queries(inputs, training=training),
            self.towers.embed_candidates({"item_id": inputs["item_id"]}),
            compute_metrics=not training,
        )


def plain_tfrs(data: PreparedData, settings: TrainSettings, most: float) -> Curve:
    """The same towers in plain TFRS."""
    split = data.split("train")
    batches = training_input(split, data.num_items, settings.window_options)
    users = evaluation_users(data, "valid", settings)
    tf.keras.utils.set_random_seed(settings.seed)
    towers = build_model(settings, data.num_items, data.item_counts, split.num_users)
    validator = Validator(settings, batches, users)
    model = PlainModel(towers, data.num_items, settings.temperature)
    model.compile(tf.keras.optimizers.Adam(settings.learning_rate))
    towers.compile(model.optimizer)
    pairs = pairs_of(users, settings.exclude_history)
    rows = pairs.get("query_rows", np.arange(len(users.targets)))
    column = {"history": users.histories} if users.numbers is None else {"user": users.numbers}
    examples = {name: values[rows] for name, values in column.items()}
    examples["item_id"] = users.targets
    validation = tf.data.Dataset.from_tensor_slices(examples).batch(1_024).cache()
    clock, curve = Clock(), Curve()

    class Measure(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            with clock.stopped():
                row = validator.row(towers, epoch, 0.0)
                curve.append((clock.seconds(), row[settings.monitor]))
            self.model.stop_training = clock.seconds() > most

    assert settings.steps_per_epoch
    epochs = 10_000  # Its time ends it, and neither patience nor a number of steps.
    model.fit(
        batches.dataset(0, epochs * settings.steps_per_epoch),
        steps_per_epoch=settings.steps_per_epoch,
        epochs=epochs,
        validation_data=validation,
        callbacks=[Measure()],
        verbose=0,
    )
    return curve


def implicit_model(kind: str, data: PreparedData, settings: TrainSettings, most: float) -> Curve:
    """A model of the library implicit, with its defaults but for the dimension."""
    import implicit
    import scipy.sparse

    split, users = data.split("train"), evaluation_users(data, "valid", settings)
    owners = np.repeat(np.arange(split.num_users), np.diff(split.offsets))
    ones = np.ones(len(owners), np.float32)
    shape = (split.num_users, data.num_items)
    matrix = scipy.sparse.csr_matrix((ones, (owners, np.asarray(split.items))), shape)
    classes = {
        "ALS": implicit.als.AlternatingLeastSquares,
        "BPR": implicit.bpr.BayesianPersonalizedRanking,
    }
    model = classes[kind](factors=settings.dim, iterations=200, random_state=settings.seed)
    pairs = pairs_of(users, settings.exclude_history)
    clock, curve = Clock(), Curve()

    def callback(*_: Any) -> None:
        with clock.stopped():
            report = evaluate(
                model.user_factors[users.numbers],
                model.item_factors,
                users.targets,
                **pairs,
                cutoffs=[SIZE],
            )
            curve.append((clock.seconds(), report.users.recall[SIZE]))
        if clock.seconds() > most:
            raise Done

    with contextlib.suppress(Done):
        model.fit(matrix, show_progress=False, callback=callback)
    return curve


def rectools(
    python: str, data: PreparedData, settings: TrainSettings, most: float, folder: Path
) -> Curve:
    """SASRec of RecTools, in a process of another interpreter."""
    split = data.split("train")
    users = evaluation_users(data, "valid", settings)
    targets = dict(pairs_of(users, settings.exclude_history))
    rows = targets.get("query_rows", np.arange(len(users.targets)))
    np.savez(
        folder / "input.npz",
        items=np.asarray(split.items),
        lengths=np.diff(split.offsets),
        histories=users.histories,
        targets=users.targets,
        target_users=rows,
    )
    values = {
        **{name: getattr(settings, name) for name in ("dim", "blocks", "heads", "dropout", "seed")},
        **{name: getattr(settings, name) for name in ("batch_size", "steps_per_epoch")},
        "length": settings.history_length,
        "num_items": data.num_items,
        "learning_rate": 0.001,
        "negatives": 256,
        "seconds": most,
        "size": SIZE,
        "threads": len(os.sched_getaffinity(0)),
    }
    (folder / "settings.json").write_text(json.dumps(values))
    script = Path(__file__).with_name("rectools_sasrec.py")
    done = subprocess.run([python, str(script), str(folder)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{python} could not train SASRec of RecTools:\n{done.stderr}")
    return [tuple(json.loads(line)) for line in done.stdout.splitlines() if line[:1] == "["]


def seconds_to(curve: Curve, recall: float) -> float:
    """The seconds until a curve reaches a recall; infinite if it does not.

    >>> seconds_to([(1.0, 0.1), (2.0, 0.3), (3.0, 0.2)], 0.25)
    2.0
    """
    return next((seconds for seconds, found in curve if found >= recall), math.inf)


def contenders(
    task: Task, data: PreparedData, folder: Path, rectools_python: str | None
) -> dict[str, Callable[[float], Curve]]:
    """The trainings by name, ours first, each with the most seconds that it may take."""
    plain = task.ours.with_loss(
        "softmax",
        **task.tfrs,
        whole_catalogue=False,
        in_batch_negatives=True,
        negatives_per_example=0,
    )
    found: dict[str, Callable[[float], Curve]] = {
        "ours": lambda most: ours(data, task.ours, most, folder),
        "TFRS": lambda most: plain_tfrs(data, plain, most),
    }
    if task.ours.tower == "matrix-factorization":
        for kind in ("ALS", "BPR"):
            found[f"implicit, {kind}"] = functools.partial(implicit_model, kind, data, task.ours)
    if task.ours.encoder == "transformer" and rectools_python:
        found["RecTools, SASRec"] = lambda most: rectools(
            rectools_python, data, task.ours, most, folder
        )
    return found


def measure(name: str, raw: Path, most: float, rectools_python: str | None) -> bool:
    """Prints the table of a data set; returns whether ours is first, and surely 5 times TFRS."""
    task = TASKS[name]
    curves: dict[str, Curve] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        quiet = contextlib.redirect_stdout(io.StringIO())
        with quiet, contextlib.redirect_stderr(io.StringIO()):
            command = ["prepare", *task.prepare, "--input", str(raw / task.input)]
            if run_step([*command, "--out", str(folder / "data")]):
                raise RuntimeError(f"prepare failed on {raw / task.input}")
        data = PreparedData.load(folder / "data")
        for contender, call in contenders(task, data, folder, rectools_python).items():
            if contender == "TFRS":
                # Enough to tell whether it takes so many times as long.
                mine = curves["ours"]
                enough = GOAL * seconds_to(mine, SHARE * max(recall for _, recall in mine))
                given = max(most, enough)
            else:
                given = most
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    curves[contender] = call(given)
            except ModuleNotFoundError as error:
                print(f"{contender}: skipped, since {error.name} is not installed")
    best = max(recall for curve in curves.values() for _, recall in curve)
    reached = {contender: seconds_to(curve, SHARE * best) for contender, curve in curves.items()}
    print(f"\n{name}: {data.num_items:,} items; best validation Recall@{SIZE} {best:.4f}")
    print(f"{'':20}{'best recall':>14}{'seconds to 95 %':>18}{'times ours':>12}")
    for contender, curve in curves.items():
        seconds = reached[contender]
        shown = f"{seconds:.1f}" if math.isfinite(seconds) else "never"
        ratio = seconds / reached["ours"]
        times = f"{ratio:.2f}" if math.isfinite(ratio) else "–"
        print(f"{contender:20}{max(r for _, r in curve):>14.4f}{shown:>18}{times:>12}")
    others = [seconds for contender, seconds in reached.items() if contender != "ours"]
    # What did not get there took longer than it was given, and nobody knows how much longer.
    least = min(reached["TFRS"], curves["TFRS"][-1][0])
    print(f"TFRS took at least {least / reached['ours']:.2f} times as long as ours")
    return reached["ours"] <= min(others) and least >= GOAL * reached["ours"]


def main() -> int:
    """Runs the benchmark; the exit code is 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the data sets")
    parser.add_argument("--sets", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument(
        "--seconds",
        type=float,
        default=600.0,
        help="most seconds of a training; that of TFRS may take 5 times as many as ours needs "
        "(%(default)g)",
    )
    parser.add_argument(
        "--rectools",
        metavar="PYTHON",
        help="interpreter of an environment with RecTools and PyTorch (RecTools is left out)",
    )
    args = parser.parse_args()
    missing = [name for name in args.sets if not (args.data / TASKS[name].input).exists()]
    if missing:
        print(f"skipped: {args.data} has no {', '.join(missing)}")
        return 0
    print(harness.environment())
    results = [measure(name, args.data, args.seconds, args.rectools) for name in args.sets]
    met = all(results)
    print(f"\nahead of all, and at least 5 times as fast as TFRS: {'met' if met else 'missed'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
