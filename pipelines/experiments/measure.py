"""The figures of an experiment: ranks and gradient shares of a cell, means and tests over seeds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from scipy import stats

from tfrs_croloss.metrics import exact_ranks

from ..common.files import atomic_file
from ..data.prepared import PreparedData
from ..data.sequences import training_input
from ..runs.build import build_loss, build_model
from ..runs.checkpoints import restore_best
from ..runs.features import run_features
from ..runs.folder import Run
from ..runs.ranks import evaluation_users, trained_report

BANDS = (10, 50, 100, 200, 500, 1000, 5000)
_PROBE_BATCHES = 4
_CURVE_POINTS = 32
_LARGEST_SIZE = 2000


def measure_ranks(
    run: Run, data: PreparedData, split: str, ranks_file: Path | None = None
) -> dict[str, Any]:
    """Recall@N and the other metrics of the best weights, as ``evaluate`` computes them.

    Args:
      run: finished run.
      data: data of the run.
      split: split to measure.
      ranks_file: file to write the ranks to, for ``figures_by_user``; None for none.

    Returns:
      ``users`` and ``pairs``: metrics at the cutoffs of the settings, with standard errors;
      ``curve``: Recall@N for many N.
    """
    users = evaluation_users(data, split, run.settings)
    largest = min(_LARGEST_SIZE, data.num_items)
    sizes = [int(size) for size in np.unique(np.geomspace(1, largest, _CURVE_POINTS).astype(int))]
    cutoffs = sorted({*run.settings.cutoffs, run.settings.monitor_cutoff})
    report = trained_report(run, data, users, run.settings.exclude_history, cutoffs=cutoffs)
    if ranks_file is not None:
        with atomic_file(ranks_file) as file, open(file, "wb") as stream:
            np.savez_compressed(stream, ranks=report.ranks, users=report.user_rows)
    curve = report.at(sizes)
    return {
        "num_targets": report.pairs.num,
        "num_users": report.users.num,
        "users": report.users.as_dict(),
        "pairs": report.pairs.as_dict(),
        "curve": {
            "sizes": sizes,
            "users": [curve.users.recall[size] for size in sizes],
            "pairs": [curve.pairs.recall[size] for size in sizes],
        },
    }


def figures_by_user(ranks: np.ndarray, users: np.ndarray, size: int) -> dict[str, np.ndarray]:
    """Recall@N and NDCG@N of each user, in the order of their numbers.

    >>> found = figures_by_user(np.array([1, 9, 2]), np.array([0, 0, 3]), size=5)
    >>> print(found["recall@5"])
    [0.5 1. ]

    Args:
      ranks: ``[num_pairs]`` ranks of the targets.
      users: ``[num_pairs]`` numbers of their users.
      size: N.
    """
    owner = np.unique(users, return_inverse=True)[1].reshape(-1)
    num_targets = np.bincount(owner)
    gains = 1.0 / np.log2(1.0 + np.arange(1, 1 + max(size, int(num_targets.max()))))
    ideal = np.cumsum(gains)[np.minimum(num_targets, size) - 1]
    found = ranks <= size
    return {
        f"recall@{size}": np.bincount(owner, weights=found) / num_targets,
        f"ndcg@{size}": np.bincount(owner, weights=found / np.log2(1.0 + ranks)) / ideal,
    }


def measure_gradient(run: Run, data: PreparedData) -> list[dict[str, float]]:
    """How the gradient of the trained model is shared among positives of different ranks.

    For some training batches, this takes the rank of each positive over the whole catalogue, and
    the sum of the absolute derivatives of its loss with respect to the scores of the candidates.

    Returns:
      For each band of ranks: ``up_to`` (0 for the last, open one), ``examples`` and ``gradient``,
      the shares of the examples and of the gradient.
    """
    settings = run.settings
    num_users = data.split("train").num_users
    side = run_features(settings, data)
    model = build_model(settings, data.num_items, num_users=num_users, features=side)
    restore_best(run.path, model)
    split = data.split("train")
    columns = side.example_columns(split)
    batches = training_input(split, data.num_items, settings.window_options, columns)
    catalogue = model.embed_catalogue(data.num_items)
    loss = build_loss(settings, data.num_items)
    ranks, masses = [], []
    for step in range(_PROBE_BATCHES):
        features = batches.inspected_batch(tf.constant(step, tf.int64))
        queries, candidates, ids, mask = model.scored_batch(features)
        scores = tf.matmul(queries, candidates, transpose_b=True) / settings.temperature
        labels = tf.eye(tf.shape(scores)[0], tf.shape(scores)[1])
        with tf.GradientTape() as tape:
            tape.watch(scores)
            losses = loss.per_query(scores, labels, mask=mask)
        gradient = tape.gradient(losses, scores)
        masses.append(tf.reduce_sum(tf.abs(gradient), axis=1).numpy())
        positives = ids[: len(queries)].numpy()
        ranks.append(exact_ranks(queries, catalogue, positives))
    return shares_by_band(np.concatenate(ranks), np.concatenate(masses))


def shares_by_band(ranks: np.ndarray, masses: np.ndarray) -> list[dict[str, float]]:
    """Shares of the examples and of their gradient in each band of ranks.

    >>> for band in shares_by_band(np.array([3, 11, 9000]), np.array([1.0, 2.0, 1.0])):
    ...     if band["examples"]:
    ...         print(band["up_to"], round(band["examples"], 2), band["gradient"])
    10 0.33 0.25
    50 0.33 0.5
    0 0.33 0.25

    Args:
      ranks: ``[num_examples]`` ranks of the positives.
      masses: ``[num_examples]`` sums of absolute derivatives.
    """
    bands = np.searchsorted(BANDS, ranks, side="left")
    total = float(masses.sum()) or 1.0
    return [
        {
            "up_to": up_to,
            "examples": float((bands == number).mean()),
            "gradient": float(masses[bands == number].sum()) / total,
        }
        for number, up_to in enumerate((*BANDS, 0))
    ]


@dataclasses.dataclass(frozen=True)
class Summary:
    """The mean of several values.

    Attributes:
      mean: mean of the values.
      standard_error: standard error of the mean; None for a single value.
      num: number of values.
    """

    mean: float
    standard_error: float | None
    num: int


def summarize(values: Sequence[float]) -> Summary:
    """Mean and standard error: the sample's standard deviation over the root of its size.

    >>> summarize([1.0, 2.0, 3.0, 6.0]).mean
    3.0
    """
    if not values:
        raise ValueError("`values` should be at least one number. Received: none.")
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Summary(mean, None, 1)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return Summary(mean, math.sqrt(squares / (len(values) - 1) / len(values)), len(values))


@dataclasses.dataclass(frozen=True)
class PairedTest:
    """The difference between two ways to train, over the seeds that both have.

    Attributes:
      difference: mean of the differences.
      standard_error: standard error of that mean.
      p_value: p-value of the two-sided paired t-test.
      num: number of seeds in common.
    """

    difference: float
    standard_error: float
    p_value: float
    num: int


def paired_test(values: Mapping[int, float], reference: Mapping[int, float]) -> PairedTest | None:
    """Tests ``values`` against ``reference``, both by seed; None for fewer than two in common."""
    seeds = sorted(set(values) & set(reference))
    if len(seeds) < 2:
        return None
    summary = summarize([values[seed] - reference[seed] for seed in seeds])
    error = summary.standard_error or 0.0
    if error == 0.0:
        p_value = 1.0 if summary.mean == 0.0 else 0.0
    else:
        p_value = 2.0 * float(stats.t.sf(abs(summary.mean / error), len(seeds) - 1))
    return PairedTest(summary.mean, error, p_value, len(seeds))


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean, and the interval that holds the true one with a confidence of 95 %.

    Attributes:
      mean: mean.
      low: lower end.
      high: upper end.
    """

    mean: float
    low: float
    high: float


def interval_over_users(
    values: Mapping[int, np.ndarray], reference: Mapping[int, np.ndarray]
) -> Interval | None:
    """The mean difference of a metric over users, paired by user; None without common seeds.

    Args:
      values: ``[num_users]`` by seed. Each user's value is the mean over the seeds.
      reference: the same for what it is compared with.
    """
    seeds = sorted(set(values) & set(reference))
    if not seeds:
        return None
    differences = np.mean([values[seed] - reference[seed] for seed in seeds], axis=0)
    return _interval(differences.tolist())


def interval_over_seeds(
    values: Mapping[int, float], reference: Mapping[int, float]
) -> Interval | None:
    """The mean difference over seeds, paired by seed; None for fewer than two in common."""
    seeds = sorted(set(values) & set(reference))
    if len(seeds) < 2:
        return None
    return _interval([values[seed] - reference[seed] for seed in seeds])


def _interval(differences: Sequence[float]) -> Interval:
    summary = summarize(differences)
    error = summary.standard_error or 0.0
    width = float(stats.t.ppf(0.975, max(summary.num - 1, 1))) * error
    return Interval(summary.mean, summary.mean - width, summary.mean + width)
