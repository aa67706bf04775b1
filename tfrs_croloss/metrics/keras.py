"""Exact Recall@N in Keras: a metric for retrieval tasks, and a callback for ``fit``.

Both count ranks (see ``tfrs_croloss.metrics._counting``): no sort, no top-k, and ties count against
the positive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfrs_croloss._keras import require_keras_2
from tfrs_croloss.metrics import _counting
from tfrs_croloss.metrics.catalogues import Catalogue
from tfrs_croloss.metrics.report import (
    DEFAULT_CUTOFFS,
    Averages,
    RankingReport,
    check_cutoffs,
    evaluate,
)

require_keras_2("tfrs_croloss.metrics.FactorizedRecall and RecallCallback")

import tensorflow_recommenders as tfrs  # noqa: E402

_NEVER = tf.int64.max

_QUERY_EMBEDDERS = ("embed_queries", "query_model", "user_model", "query_tower", "user_tower")
_CANDIDATE_EMBEDDERS = (
    "embed_candidates",
    "candidate_model",
    "item_model",
    "candidate_tower",
    "item_tower",
)


class FactorizedRecall(tfrs.metrics.Factorized):
    """Recall@N and MRR over the whole catalogue, for `tfrs.tasks.Retrieval` and our own task.

    For example::

        task = tfrs.tasks.Retrieval(
            metrics=FactorizedRecall(candidates=lambda: candidate_model(all_items), ks=(50, 500)))

    With `tfrs_croloss.models.TwoTowerModel`, whose task is made before the model::

        task.factorized_metrics = FactorizedRecall(lambda: model.embed_catalogue(num_items))

    Metrics are named ``factorized_recall/recall@50`` and so on, and ``factorized_recall/mrr``; in
    validation Keras puts ``val_`` before them.

    With ``true_candidate_ids`` a positive is looked up in the catalogue and its rank is exact. A
    positive that is not there is never retrieved. Without ids, ``true_candidate_embeddings`` says
    what the positive scores. One candidate of that score, to within rounding, is taken for the
    positive itself; any others are ties and count against it. A positive ranks last if its query or
    any vector of the catalogue is not finite.

    Args:
      candidates: the embeddings ``[num_items, dim]`` of the catalogue: a tensor, array or variable;
        a `tf.keras.layers.Embedding`, all rows of which are candidates; a function without
        arguments that returns them, called in each update and so always up to date; or a
        `tf.data.Dataset` of batches of embeddings or of ``(identifiers, embeddings)``, as
        `FactorizedTopK` takes, read through in each update.
      ks: the N of Recall@N.
      identifiers: ``[num_items]`` integers or strings that ``true_candidate_ids`` are matched with.
        By default those of the dataset, if it has them, else the positions 0, 1, ... of the
        candidates.
      candidate_block_size: candidates scored at a time. Memory is about 40 bytes times this and the
        batch size, up to five times that where nearly all scores are ties, and 32 candidate blocks.
      name: prefix of the metrics' names.
    """

    def __init__(
        self,
        candidates: Any,
        ks: Sequence[int] = DEFAULT_CUTOFFS,
        identifiers: Any = None,
        candidate_block_size: int = 512,
        name: str = "factorized_recall",
    ) -> None:
        super().__init__(name=name)
        if isinstance(candidates, tfrs.layers.factorized_top_k.TopK):
            raise TypeError(
                "`candidates` should be embeddings, a function that returns them, or a dataset. "
                f"Received: the index {type(candidates).__name__}. Give the embeddings that the "
                "index was built from."
            )
        if not 1 <= candidate_block_size <= _counting.LARGEST_BLOCK:
            raise ValueError(
                f"`candidate_block_size` should be between 1 and {_counting.LARGEST_BLOCK}. "
                f"Received: {candidate_block_size}."
            )
        self._candidates = candidates
        self._identifiers = None if identifiers is None else tf.convert_to_tensor(identifiers)
        self._block_size = candidate_block_size
        self._ks = check_cutoffs(ks)
        self._recalls = [
            tf.keras.metrics.Mean(name=f"{self.name}/recall@{size}") for size in self._ks
        ]
        self._reciprocal_rank = tf.keras.metrics.Mean(name=f"{self.name}/mrr")

    def update_state(
        self,
        query_embeddings: tf.Tensor,
        true_candidate_embeddings: tf.Tensor,
        true_candidate_ids: tf.Tensor | None = None,
        sample_weight: tf.Tensor | None = None,
    ) -> tf.Operation:
        """Adds a batch.

        Args:
          query_embeddings: ``[num_queries, dim]`` floats.
          true_candidate_embeddings: ``[num_queries, dim]`` floats, used if there are no ids.
          true_candidate_ids: optional ``[num_queries]`` or ``[num_queries, 1]`` identifiers.
          sample_weight: optional ``[num_queries]`` weights of the queries in the means.

        Returns:
          An operation that updates the metrics.
        """
        ranks = self.ranks(query_embeddings, true_candidate_embeddings, true_candidate_ids)
        if sample_weight is not None:
            sample_weight = tf.reshape(sample_weight, [-1])
        updates = [
            metric.update_state(tf.cast(ranks <= size, tf.float32), sample_weight)
            for size, metric in zip(self._ks, self._recalls)
        ]
        updates.append(
            self._reciprocal_rank.update_state(1.0 / tf.cast(ranks, tf.float32), sample_weight)
        )
        return tf.group(updates)

    def ranks(
        self,
        query_embeddings: tf.Tensor,
        true_candidate_embeddings: tf.Tensor,
        true_candidate_ids: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Ranks ``[num_queries]`` int64 of the true candidates; arguments as in `update_state`."""
        embeddings, identifiers = self._catalogue()
        # Tasks update metrics under a gradient tape, which would keep the scores of every block.
        embeddings = tf.stop_gradient(tf.cast(embeddings, tf.float32))
        queries = tf.stop_gradient(tf.cast(query_embeddings, tf.float32))
        positives = tf.stop_gradient(tf.cast(true_candidate_embeddings, tf.float32))
        num_items = tf.shape(embeddings, out_type=tf.int64)[0]
        found = tf.ones(tf.shape(queries)[:1], tf.bool)
        if true_candidate_ids is not None:
            positions = self._positions(true_candidate_ids, identifiers, num_items)
            found = positions >= 0
            positives = tf.gather(embeddings, tf.maximum(positions, 0))
        ahead, level = _counting.count_ahead(
            queries,
            None,
            _counting.pair_scores(queries, positives),
            embeddings,
            tf.constant(self._block_size, tf.int64),
            tf.constant(true_candidate_ids is not None),
        )
        ranks = tf.minimum(ahead + tf.maximum(level, 1), tf.maximum(num_items, 1))
        return tf.where(found, ranks, _NEVER)

    def _catalogue(self) -> tuple[tf.Tensor, tf.Tensor | None]:
        candidates, identifiers = self._candidates, self._identifiers
        if isinstance(candidates, tf.data.Dataset):
            # One batch of everything: embeddings of a catalogue fit into memory, scores need not.
            elements = candidates.rebatch(2**31 - 1).get_single_element()
            if isinstance(elements, tuple):
                own, embeddings = elements
                return embeddings, own if identifiers is None else identifiers
            return elements, identifiers
        if isinstance(candidates, tf.keras.layers.Embedding):
            if not candidates.built:
                candidates(tf.zeros([1], tf.int32))
            return tf.convert_to_tensor(candidates.embeddings), identifiers
        if callable(candidates) and not isinstance(candidates, tf.Variable):
            return tf.convert_to_tensor(candidates()), identifiers
        return tf.convert_to_tensor(candidates), identifiers

    def _positions(
        self, ids: tf.Tensor, identifiers: tf.Tensor | None, num_items: tf.Tensor
    ) -> tf.Tensor:
        """The row of each id in the catalogue, or -1."""
        ids = tf.reshape(ids, [-1])
        if identifiers is None:
            if not ids.dtype.is_integer:
                raise ValueError(
                    "`true_candidate_ids` should be integers, the positions of the candidates, "
                    f"unless `identifiers` are given. Received: {ids.dtype.name}. Give the "
                    f"identifiers to {type(self).__name__}(identifiers=...)."
                )
            positions = tf.cast(ids, tf.int64)
            return tf.where((positions >= 0) & (positions < num_items), positions, -1)
        if identifiers.dtype.is_integer and ids.dtype.is_integer:
            identifiers, ids = tf.cast(identifiers, tf.int64), tf.cast(ids, tf.int64)
        if identifiers.dtype != ids.dtype:
            raise ValueError(
                "`true_candidate_ids` should have the type of the identifiers, "
                f"{identifiers.dtype.name}. Received: {ids.dtype.name}."
            )
        distinct, numbers = tf.unique(tf.concat([identifiers, ids], axis=0), out_idx=tf.int64)
        owned, asked = numbers[: tf.size(identifiers)], numbers[tf.size(identifiers) :]
        first_rows = tf.math.unsorted_segment_min(
            tf.range(tf.size(identifiers, out_type=tf.int64)), owned, tf.size(distinct)
        )
        rows = tf.gather(first_rows, asked)
        return tf.where(rows < num_items, rows, -1)


Source: TypeAlias = Callable[[], Any] | tf.data.Dataset
Embedder: TypeAlias = Callable[[Any], Any]


class RecallCallback(tf.keras.callbacks.Callback):
    """Exact metrics of a validation set after every epoch of ``fit``.

    Adds ``val_recall@50`` and so on, ``val_mrr`` and ``val_expected_recall`` to the epoch's logs,
    where the callbacks listed after this one find them, History and CSVLogger included. Callbacks
    that look for the best epoch need ``mode="max"``::

        callbacks=[
            RecallCallback(queries, candidates, positives, cutoffs=(50, 500)),
            tf.keras.callbacks.EarlyStopping("val_recall@50", mode="max", patience=2),
        ]

    Batches of datasets are turned into embeddings by ``query_embedder`` and ``candidate_embedder``.
    Without them the callback takes the first of these attributes that the model has:
    ``embed_queries`` (as in `tfrs_croloss.models.TwoTowerModel`), ``query_model``, ``user_model``,
    ``query_tower`` or ``user_tower``; and ``embed_candidates``, ``candidate_model``,
    ``item_model``, ``candidate_tower`` or ``item_tower``.

    Attributes:
      reports: list of ``(step, report)``, one for each evaluation; ``step`` counts the batches
        trained by this callback's ``fit`` calls.

    Args:
      queries: a function without arguments that returns the query embeddings, ``[num_queries,
        dim]``; or a dataset of batches of the query embedder's inputs.
      candidates: a function without arguments that returns the embeddings of the catalogue,
        ``[num_items, dim]``, or a catalogue such as `tfrs_croloss.metrics.ShardedCatalogue`; or a
        dataset of batches of the candidate embedder's inputs, in the order of the ids.
      positives: as for `evaluate`: one id for each query, ragged ids, or flat ids with
        ``query_rows``.
      query_rows, excluded, excluded_positives, cutoffs, alpha: as for `evaluate`.
      query_embedder: maps a batch of the dataset ``queries`` to the ``[batch, dim]`` vectors that
        are scored.
      candidate_embedder: maps a batch of the dataset ``candidates`` to the ``[batch, dim]`` vectors
        that are scored.
      average: whether "pairs" or "users" go into the logs. Reports have both.
      every_n_steps: if given, the callback also evaluates whenever this many more batches are
        done, into ``reports`` only.
      on_report: optional function of ``(step, report)``, called after each evaluation.
      prefix: prefix of the names in the logs.
      verbose: whether to print a line for each evaluation.
    """

    def __init__(
        self,
        queries: Source,
        candidates: Source,
        positives: Any,
        *,
        query_rows: Any = None,
        excluded: Any = None,
        excluded_positives: str = "error",
        cutoffs: Sequence[int] = DEFAULT_CUTOFFS,
        alpha: float = 1.0,
        query_embedder: Embedder | None = None,
        candidate_embedder: Embedder | None = None,
        average: str = "pairs",
        every_n_steps: int | None = None,
        on_report: Callable[[int, RankingReport], None] | None = None,
        prefix: str = "val_",
        verbose: bool = False,
    ) -> None:
        super().__init__()
        if average not in ("pairs", "users"):
            raise ValueError(f"`average` should be 'pairs' or 'users'. Received: {average!r}.")
        if every_n_steps is not None and every_n_steps < 1:
            raise ValueError(f"`every_n_steps` should be at least 1. Received: {every_n_steps}.")
        self._queries = queries
        self._catalogue = candidates
        self._positives = positives
        self._options: dict[str, Any] = {
            "query_rows": query_rows,
            "excluded": excluded,
            "excluded_positives": excluded_positives,
            "cutoffs": check_cutoffs(cutoffs),
            "alpha": alpha,
        }
        self._query_embedder = query_embedder
        self._candidate_embedder = candidate_embedder
        self._average = average
        self._every_n_steps = every_n_steps
        self._on_report = on_report
        self._prefix = prefix
        self._verbose = verbose
        self._step = 0
        self.reports: list[tuple[int, RankingReport]] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the batch, and evaluates every ``every_n_steps`` batches."""
        self._step += 1
        if self._every_n_steps is not None and self._step % self._every_n_steps == 0:
            self.evaluate()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Evaluates, unless the last batch just did, and adds the figures to ``logs``."""
        if not self.reports or self.reports[-1][0] != self._step or not self._every_n_steps:
            self.evaluate()
        averages: Averages = getattr(self.reports[-1][1], self._average)
        if logs is not None:
            for name, value in averages.figures().items():
                if not name.startswith(("ndcg", "mean_rank")):
                    logs[self._prefix + name] = value

    def evaluate(self) -> RankingReport:
        """Evaluates the model in its current state, and appends the report to ``reports``."""
        report = evaluate(
            self._embed("queries", self._queries, self._query_embedder, _QUERY_EMBEDDERS),
            self._embed(
                "candidates", self._catalogue, self._candidate_embedder, _CANDIDATE_EMBEDDERS
            ),
            self._positives,
            **self._options,
        )
        self.reports.append((self._step, report))
        if self._verbose:
            averages: Averages = getattr(report, self._average)
            figures = (f"{self._prefix}recall@{n} {r:.4f}" for n, r in averages.recall.items())
            print(f"\nstep {self._step}: " + ", ".join(figures), flush=True)
        if self._on_report is not None:
            self._on_report(self._step, report)
        return report

    def _embed(
        self, argument: str, source: Source, embedder: Embedder | None, names: Sequence[str]
    ) -> tf.Tensor | Catalogue:
        if not isinstance(source, tf.data.Dataset):
            embeddings = source()
            if isinstance(embeddings, Catalogue):
                return embeddings
            return tf.convert_to_tensor(embeddings)
        if embedder is None:
            embedder = next(
                (getattr(self.model, name) for name in names if hasattr(self.model, name)), None
            )
        if embedder is None:
            option = {"queries": "query_embedder", "candidates": "candidate_embedder"}[argument]
            raise ValueError(
                f"`{option}` should be given where `{argument}` is a dataset and the model has "
                f"none of {', '.join(names)}. Received: None, and a {type(self.model).__name__}. "
                "Pass the function or Keras model that turns a batch into embeddings."
            )
        return tf.concat([embedder(batch) for batch in source], axis=0)
