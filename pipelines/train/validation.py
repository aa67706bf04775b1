"""One row of a run's history: Recall@N of the validation split, and ranks in training batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.losses.diagnostics import rank_diagnostics
from tfrs_croloss.metrics import RecallCallback, ShardedCatalogue
from tfrs_croloss.models import TwoTowerModel

from ..data.batches import EvaluationInput, TrainingInput
from ..runs.build import build_loss, embed_histories
from ..runs.ranks import catalogue_of, expected_recall_alpha, pairs_of, shared_catalogue
from ..runs.settings import TrainSettings

_PROBE_BATCHES = 4


class Validator:
    """Measures a model during training.

    Args:
      settings: settings of the run.
      training_input: training batches, for the ranks among sampled candidates.
      validation_users: users whose targets give Recall@N.
      strategy: strategy of the training, if its replicas share the catalogue.
    """

    def __init__(
        self,
        settings: TrainSettings,
        training_input: TrainingInput,
        validation_users: EvaluationInput,
        strategy: tf.distribute.Strategy | None = None,
    ) -> None:
        self._strategy = strategy
        self._shared: ShardedCatalogue | None = None
        self._recall: RecallCallback | None = None
        self._settings = settings
        self._input = training_input
        self._users = validation_users
        self._loss = build_loss(settings, training_input.num_items)
        self._probe_function: Any = None

    def row(self, model: TwoTowerModel, step: int, loss: float) -> dict[str, Any]:
        """The row of the history for ``step``."""
        settings = self._settings
        if self._recall is None:
            self._recall = self._recall_of(model)
        report = self._recall.evaluate()
        averages = report.users if settings.monitor_average == "users" else report.pairs
        return {
            "step": step,
            "epoch": round(step / self._input.steps_per_epoch, 4),
            "loss": loss,
            "learning_rate": _learning_rate(model.optimizer),
            **{f"recall@{cutoff}": value for cutoff, value in averages.recall.items()},
            "expected_recall": averages.expected_recall,
            "mrr": averages.mrr,
            **self._probe(model, step),
        }

    def _recall_of(self, model: TwoTowerModel) -> RecallCallback:
        """The library's callback, which is asked for a report when the bookkeeping is due."""
        settings, users, num_items = self._settings, self._users, self._input.num_items

        def catalogue() -> Any:
            if self._shared is not None:
                self._shared.refresh()
            else:
                self._shared = shared_catalogue(model, num_items, self._strategy)
            return catalogue_of(model, num_items, self._shared)

        return RecallCallback(
            lambda: embed_histories(model, users.histories, users.numbers, users.columns),
            catalogue,
            users.targets,
            **pairs_of(users, settings.exclude_history),
            cutoffs=sorted({*settings.cutoffs, settings.monitor_cutoff}),
            alpha=expected_recall_alpha(settings),
            average=settings.monitor_average,
        )

    def _probe(self, model: TwoTowerModel, step: int) -> dict[str, float]:
        """Ranks among sampled candidates, in the training batches that come next."""
        if self._probe_function is None:
            # AutoGraph takes longer than the rest of the probe, and nothing branches on a tensor.
            @tf.function(autograph=False)
            def probe(number: tf.Tensor) -> dict[str, tf.Tensor]:
                features = self._input.inspected_batch(number)
                queries, candidates, _, mask = model.scored_batch(features)
                scores = tf.matmul(queries, candidates, transpose_b=True)
                scores /= self._settings.temperature
                labels = tf.eye(tf.shape(scores)[0], tf.shape(scores)[1])
                return rank_diagnostics(scores, labels, self._loss, mask)

            self._probe_function = probe
        batches = [
            self._probe_function(tf.constant(step + offset, tf.int64))
            for offset in range(_PROBE_BATCHES)
        ]
        return {name: float(np.mean([batch[name] for batch in batches])) for name in batches[0]}


def _learning_rate(optimizer: Any) -> float:
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return float(tf.convert_to_tensor(optimizer.learning_rate))
