"""Training as ``model.fit`` runs it: validation, checkpoints, early stopping, resuming."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfrs_croloss.models import TwoTowerModel
from tfrs_croloss.optimizers import WeightAverage

from ..common.files import installed_versions, write_json
from ..common.progress import progress_bar
from ..data.batches import TrainingInput
from ..data.prepared import PreparedData
from ..data.sequences import training_input as open_training_input
from ..errors import DivergedError, UserError
from ..runs.build import build_model, build_optimizer
from ..runs.checkpoints import Checkpoints, TrainingState
from ..runs.distribution import Cluster
from ..runs.features import describe, run_features
from ..runs.folder import RESULT, Run, discard_replaced
from ..runs.ranks import evaluation_users
from ..runs.settings import TrainSettings
from .asynchronous import AsynchronousSteps
from .history import Records
from .validation import Validator

_SECONDS_BETWEEN_PICTURES = 30.0
# An update of the average passes over all tables, which lazy optimizers never do.
_STEPS_BETWEEN_AVERAGES = 10


@dataclasses.dataclass(frozen=True)
class Segment:
    """Steps that one call of ``fit`` runs, in intervals of equal length between validations."""

    first_step: int
    last_step: int
    interval: int


def plan(done: int, total: int, interval: int) -> Iterator[Segment]:
    """The rest of a run: what is left of an interval, whole intervals, and a shorter last one.

    >>> list(plan(done=7, total=23, interval=5))  # doctest: +NORMALIZE_WHITESPACE
    [Segment(first_step=7, last_step=10, interval=3),
     Segment(first_step=10, last_step=20, interval=5),
     Segment(first_step=20, last_step=23, interval=3)]
    """
    if done % interval and done < total:
        end = min(done + interval - done % interval, total)
        yield Segment(done, end, end - done)
        done = end
    whole = total - total % interval
    if done < whole:
        yield Segment(done, whole, interval)
        done = whole
    if done < total:
        yield Segment(done, total, total - done)


class Bookkeeper(tf.keras.callbacks.Callback):
    """After each interval: validates, records, keeps the best, saves, and stops when it is time.

    Args:
      settings: settings of the run.
      state: progress of the run; kept up to date.
      validator, checkpoints, records: objects that validate, save and write the history.
      total_steps: number of steps of the whole run.
      checkpoint_steps: number of steps between further checkpoints; None saves after validations
        only.
      bar: progress bar of the steps.
      last_counts: whether to keep the last weights instead of the best ones, and never to stop
        early.
      after_validation: called with each new row of the history, when all is saved; may raise to
        stop.
      average: the average of the weights to validate and keep instead of the weights.
    """

    def __init__(
        self,
        settings: TrainSettings,
        state: TrainingState,
        validator: Validator,
        checkpoints: Checkpoints,
        records: Records,
        total_steps: int,
        checkpoint_steps: int | None,
        bar: Any,
        last_counts: bool = False,
        after_validation: Callable[[dict[str, Any]], None] | None = None,
        average: WeightAverage | None = None,
    ) -> None:
        super().__init__()
        self._average = average
        self._last_counts = last_counts
        self._after_validation = after_validation
        self._settings = settings
        self._state = state
        self._validator = validator
        self._checkpoints = checkpoints
        self._records = records
        self._total_steps = total_steps
        self._checkpoint_steps = checkpoint_steps
        self._bar = bar
        self._clock = time.monotonic()
        self._last_picture = -math.inf
        self._resumed_loss: list[Any] | None = None

    def keep_loss(self, weights: list[Any]) -> None:
        """Lets the next interval's mean loss begin from where an interrupted one was."""
        self._resumed_loss = weights

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Restores the mean loss of an interrupted interval, which Keras has just reset."""
        if self._resumed_loss is not None:
            for variable, value in zip(self.model.loss_tracker.variables, self._resumed_loss):
                variable.assign(value)
            self._resumed_loss = None

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts steps, and saves a checkpoint when it is due."""
        self._state.step += 1
        if self._average is not None:
            self._average.update(self._state.step)
        if logs:
            self._bar.set_postfix_str(f"loss {float(logs['loss']):.4f}", refresh=False)
        self._bar.update()
        if self._checkpoint_steps and self._state.step % self._checkpoint_steps == 0:
            self._check_loss(float(self.model.loss_tracker.result()))
            self._save()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Validates, records, saves, and decides whether to stop."""
        state, settings = self._state, self._settings
        loss = float(self.model.loss_tracker.result())
        self._check_loss(loss)
        with contextlib.nullcontext() if self._average is None else self._average.applied():
            row = self._validator.row(self.model, state.step, loss)
            if state.add(row, settings.monitor, self._last_counts):
                self._checkpoints.save_best(row)
        patience = settings.early_stopping_patience
        if patience and state.patience_used >= patience:
            state.stopped = f"no new best in {patience} validations"
            self.model.stop_training = True
        elif state.step >= self._total_steps:
            state.stopped = "all steps done"
        # The checkpoint below belongs to the next interval.
        self.model.loss_tracker.reset_state()
        self._save()
        self._records.write(state.rows)
        # The last one is drawn when training is over.
        due = time.monotonic() - self._last_picture > _SECONDS_BETWEEN_PICTURES
        if due and state.stopped is None:
            self._records.draw(state.rows, state.best, settings.monitor)
            self._last_picture = time.monotonic()
        self._print(row)
        if self._after_validation is not None:
            self._after_validation(row)

    def _save(self) -> None:
        now = time.monotonic()
        self._state.seconds += now - self._clock
        self._clock = now
        self._state.mean_loss = [
            float(value.numpy()) for value in self.model.loss_tracker.variables
        ]
        self._checkpoints.save(self._state)

    def _check_loss(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise DivergedError(
                f"the loss is {loss} after step {self._state.step}: training diverged. Lower "
                "--learning-rate or raise --temperature; --overwrite starts over."
            )

    def _print(self, row: dict[str, Any]) -> None:
        monitor = self._settings.monitor
        is_best = row is self._state.best and not self._last_counts
        mark = "  best so far" if is_best else ""
        with self._bar.external_write_mode():
            print(
                f"step {row['step']:>7,}  epoch {row['epoch']:>6.2f}  loss {row['loss']:.4f}  "
                f"{monitor} {row[monitor]:.4f}  {self._state.seconds:5.0f} s{mark}",
                flush=True,
            )


def train(
    run: Run,
    data: PreparedData,
    checkpoint_steps: int | None = None,
    after_validation: Callable[[dict[str, Any]], None] | None = None,
    pictures: bool = True,
    cluster: Cluster | None = None,
) -> dict[str, Any]:
    """Trains, or continues training, until the run is finished.

    Args:
      run: folder and settings of the run.
      data: data to train on.
      checkpoint_steps: number of steps between further checkpoints; None saves after validations
        only.
      after_validation: called with each new row of the history, when all is saved; may raise to
        stop.
      pictures: whether to draw the learning curves.
      cluster: devices to train on; one by default. Every process of a synchronous cluster
        calls this, and computes the same bit by bit; the chief alone writes.

    Returns:
      The contents of ``result.json``.
    """
    settings = run.settings
    policy = "mixed_float16" if settings.mixed_precision else "float32"
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        return _train(run, data, checkpoint_steps, after_validation, pictures, cluster or Cluster())
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")


def _train(
    run: Run,
    data: PreparedData,
    checkpoint_steps: int | None,
    after_validation: Callable[[dict[str, Any]], None] | None,
    pictures: bool,
    cluster: Cluster,
) -> dict[str, Any]:
    settings = run.settings
    tf.keras.utils.set_random_seed(settings.seed % 2**32)
    window_options = settings.window_options
    features = run_features(settings, data)
    split = data.split("train")
    training_input = open_training_input(
        split, data.num_items, window_options, features.example_columns(split)
    )
    validation_users = evaluation_users(data, "valid", settings, settings.max_validation_users)
    total_steps = settings.max_steps or settings.epochs * training_input.steps_per_epoch
    interval = settings.steps_per_epoch or training_input.steps_per_epoch
    num_users = split.num_users
    with cluster.strategy.scope():
        model = build_model(settings, data.num_items, data.item_counts, num_users, features)
        model.compile(build_optimizer(cluster.adapted(settings), data.num_items, total_steps))
        model.optimizer.build(model.trainable_variables)
        average = _average_of(model, settings)
        checkpoints = Checkpoints(run.path, model, cluster.is_chief, average)
        restored = checkpoints.restore()
    state = restored or TrainingState()
    steps = cluster.numbers_of_all(state.step)
    if len(set(steps)) > 1:
        raise UserError(
            f"--out {run.path} should be one folder that all workers see. Received: checkpoints of "
            f"the steps {steps}. Use a shared file system."
        )
    print(
        f"{settings.loss_title}\n"
        f"{training_input.num_examples:,} examples of {num_users:,} users, "
        f"{data.num_items:,} items; {total_steps:,} steps at most, a validation every {interval:,}"
        + describe(features)
    )
    if data.trains_on_valid:
        print("the interactions of valid are part of train: the last weights count, not the best")
    if restored:
        print(f"continuing after step {state.step:,}")
    records = Records(run.path, pictures, writes=cluster.is_chief)
    bar = progress_bar(total_steps, done=state.step)
    bookkeeper = Bookkeeper(
        settings,
        state,
        Validator(
            settings,
            training_input,
            validation_users,
            None if cluster.is_asynchronous else cluster.strategy,
        ),
        checkpoints,
        records,
        total_steps,
        checkpoint_steps,
        bar,
        data.trains_on_valid,
        after_validation,
        average,
    )
    if state.step % interval and state.mean_loss is not None:
        bookkeeper.keep_loss(state.mean_loss)
    # The files of an interrupted run may not match the checkpoint that it continues from.
    if state.rows:
        records.write(state.rows)
    asynchronous = None
    if cluster.is_asynchronous:
        asynchronous = AsynchronousSteps(cluster.strategy, model, training_input)
    with bar:
        for segment in plan(state.step, total_steps, interval):
            if state.stopped is not None:
                break
            if asynchronous is not None:
                _run_asynchronously(asynchronous, model, segment, bookkeeper, checkpoint_steps)
            else:
                batches = _batches(training_input, segment, cluster)
                _fit(model, batches, segment, bookkeeper, interval)
    records.draw(state.rows, state.best, settings.monitor)
    result = {
        "stopped": state.stopped,
        "steps": state.step,
        "best": state.best,
        "monitor": f"{settings.monitor} of the validation split over {settings.monitor_average}"
        + (", which is part of train: the last is kept" if data.trains_on_valid else ""),
        "loss": settings.loss_title,
        "strategy": cluster.as_dict(),
        "seconds": round(state.seconds, 1),
        "versions": installed_versions(),
        "seed": settings.seed,
    }
    if cluster.is_chief:
        write_json(run.path / RESULT, result)
        discard_replaced(run.path)
    return result


def _average_of(model: TwoTowerModel, settings: TrainSettings) -> WeightAverage | None:
    """The average of the weights, if the settings ask for one."""
    if not settings.weight_average:
        return None
    average = WeightAverage(settings.weight_average, _STEPS_BETWEEN_AVERAGES)
    average.watch(model)
    return average


def _batches(training_input: TrainingInput, segment: Segment, cluster: Cluster) -> Any:
    """Whole batches for one replica; for several, a part of each batch for each of them."""
    first, last = segment.first_step, segment.last_step
    num_replicas = cluster.num_replicas
    if num_replicas == 1:
        return training_input.dataset(first, last)

    def of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        count = num_replicas // context.num_input_pipelines
        begin = context.input_pipeline_id * count
        parts = range(begin, begin + count)
        return training_input.part_dataset(first, last, parts, num_replicas)

    return cluster.strategy.distribute_datasets_from_function(of_worker)


def _run_asynchronously(
    asynchronous: AsynchronousSteps,
    model: tf.keras.Model,
    segment: Segment,
    bookkeeper: Bookkeeper,
    checkpoint_steps: int | None,
) -> None:
    """What ``fit`` does, with pauses in which all workers are idle to save and to validate."""
    bookkeeper.set_model(model)
    model.stop_training = False
    step = segment.first_step
    for epoch in range((segment.last_step - segment.first_step) // segment.interval):
        end = step + segment.interval
        model.loss_tracker.reset_state()
        bookkeeper.on_epoch_begin(epoch)
        while step < end:
            pause = end
            if checkpoint_steps:
                pause = min(end, step - step % checkpoint_steps + checkpoint_steps)
            asynchronous.run(step, pause)
            for number in range(step, pause):
                bookkeeper.on_train_batch_end(number)
            step = pause
        bookkeeper.on_epoch_end(epoch)
        if model.stop_training:
            return


def _fit(
    model: tf.keras.Model,
    batches: Any,
    segment: Segment,
    bookkeeper: Bookkeeper,
    interval: int,
) -> None:
    first_epoch = segment.first_step // interval
    model.fit(
        batches,
        steps_per_epoch=segment.interval,
        initial_epoch=first_epoch,
        epochs=first_epoch + (segment.last_step - segment.first_step) // segment.interval,
        callbacks=[bookkeeper],
        verbose=0,
    )
