"""Exact Recall@N of a validation set after every epoch of ``fit``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tfrs_croloss import _checks, _keras
from tfrs_croloss.metrics import _towers
from tfrs_croloss.metrics._identifiers import DUPLICATES, Identifiers, are_text
from tfrs_croloss.metrics.catalogues import Catalogue
from tfrs_croloss.metrics.report import (
    DEFAULT_CUTOFFS,
    Averages,
    RankingReport,
    check_cutoffs,
    evaluate,
)

Source: TypeAlias = Callable[[], Any] | tf.data.Dataset

_EMBEDDERS = {"queries": "query_embedder", "candidates": "candidate_embedder"}


class RecallCallback(tf.keras.callbacks.Callback):
    """Exact metrics of a validation set after every epoch of ``fit``.

    Adds ``val_recall@50`` and so on, ``val_mrr`` and ``val_expected_recall`` to the epoch's logs,
    where the callbacks listed after this one find them, History and CSVLogger included. Callbacks
    that look for the best epoch need ``mode="max"``::

        callbacks=[
            RecallCallback(queries, candidates, positives, cutoffs=(50, 500)),
            tf.keras.callbacks.EarlyStopping("val_recall@50", mode="max", patience=2),
        ]

    For a model of TFRS' tutorials, whose towers take ids, the ids are enough::

        RecallCallback(
            queries=test.map(lambda x: x["user_id"]).batch(4096),
            candidates=movies.batch(4096),
            positives=test.map(lambda x: x["movie_title"]).batch(4096),
        )

    Batches of datasets are turned into embeddings by ``query_embedder`` and ``candidate_embedder``.
    Without them the callback takes the first of these attributes that the model has:
    ``embed_queries`` (as in `tfrs_croloss.models.TwoTowerModel`), ``query_model``, ``user_model``,
    ``query_tower``, ``user_tower``; ``embed_candidates``, ``candidate_model``, ``item_model``,
    ``movie_model``, ``candidate_tower`` and so on; then the same with ``embedding_model``,
    ``embeddings`` or ``embedding`` in place of ``model``, and all of them after an underscore.

    Attributes:
      reports: list of ``(step, report)``, one for each evaluation; ``step`` counts the batches
        trained by this callback's ``fit`` calls.

    Args:
      queries: a function without arguments that returns the query embeddings, ``[num_queries,
        dim]``; or a dataset of batches of the query embedder's inputs.
      candidates: a function without arguments that returns the embeddings of the catalogue,
        ``[num_items, dim]``, or a catalogue such as `tfrs_croloss.metrics.ShardedCatalogue`; or a
        dataset of batches of the candidate embedder's inputs, or of ``(ids, inputs)``. Inputs that
        are single integers or strings are ids themselves.
      positives: ids of candidates, as integers, strings or bytes: one for each query, ragged ids,
        flat ids with ``query_rows``, or a dataset of one for each query. Where candidates have no
        ids, or strings as ids, integers are rows of the candidates.
      query_rows, excluded_positives, cutoffs, alpha: as for `evaluate`.
      excluded: as for `evaluate`; ids like ``positives``, of which those of no candidate are
        ignored.
      query_embedder: turns a batch of the dataset ``queries`` into the ``[batch, dim]`` vectors
        that are scored: a function, a layer, or the name of an attribute of the model.
      candidate_embedder: the same for the dataset ``candidates``.
      identifiers: ``[num_items]`` ids of the candidates, unless the dataset has them.
      duplicates: what to do with candidates that have the id of an earlier one: ``"first"`` leaves
        them out and warns, ``"error"`` raises a ValueError.
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
        query_embedder: _towers.Embedder | str | None = None,
        candidate_embedder: _towers.Embedder | str | None = None,
        identifiers: Any = None,
        duplicates: str = "first",
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
        _checks.one_of("duplicates", duplicates, DUPLICATES)
        for argument, source in (("queries", queries), ("candidates", candidates)):
            _check_source(argument, source)
        self._queries = queries
        self._candidates = candidates
        self._positives = _flat(positives) if _is_dataset(positives) else positives
        self._excluded = excluded
        self._duplicates = duplicates
        self._identifiers = None if identifiers is None else Identifiers(identifiers, duplicates)
        self._options: dict[str, Any] = {
            "query_rows": query_rows,
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
        is_new = self.reports and self.reports[-1][0] == self._step and self._every_n_steps
        # The last batch saw the weights themselves, where WeightAverage shows their average now.
        if not is_new or _keras.is_averaged(self.model):
            self.evaluate()
        averages: Averages = getattr(self.reports[-1][1], self._average)
        if logs is not None:
            for name, value in averages.figures().items():
                if not name.startswith(("ndcg", "mean_rank")):
                    logs[self._prefix + name] = value

    def evaluate(self) -> RankingReport:
        """Evaluates the model in its current state, and appends the report to ``reports``."""
        queries = self._embedded_queries()
        candidates, identifiers = self._embedded_candidates()
        positives, excluded = self._positives, self._excluded
        if identifiers is not None:
            positives = identifiers.rows_by_query(positives, "positives")
            if excluded is not None:
                excluded = identifiers.rows_by_query(excluded, "excluded", ignore_unknown=True)
        elif are_text(positives):
            raise ValueError(
                "`identifiers` should be given where `positives` are strings and `candidates` has "
                "no ids. Received: None. Pass the id of every candidate, in their order, or a "
                "dataset of (ids, inputs) as `candidates`."
            )
        report = evaluate(queries, candidates, positives, excluded=excluded, **self._options)
        self.reports.append((self._step, report))
        if self._verbose:
            averages: Averages = getattr(report, self._average)
            figures = (f"{self._prefix}recall@{n} {r:.4f}" for n, r in averages.recall.items())
            print(f"\nstep {self._step}: " + ", ".join(figures), flush=True)
        if self._on_report is not None:
            self._on_report(self._step, report)
        return report

    def _embedded_queries(self) -> tf.Tensor:
        if not _is_dataset(self._queries):
            return tf.convert_to_tensor(self._queries())
        tower = _towers.find(self.model, self._query_embedder, "query_embedder", "queries")
        return tf.concat(
            [
                _towers.embed(batch, tower, "query_embedder", "queries")
                for batch in _towers.batched(self._queries)
            ],
            axis=0,
        )

    def _embedded_candidates(self) -> tuple[tf.Tensor | Catalogue, Identifiers | None]:
        """The embeddings of the candidates that are ranked, and their ids if there are any."""
        if _is_dataset(self._candidates):
            embeddings: Any = self._read_candidates()
        else:
            embeddings = self._candidates()
            if not isinstance(embeddings, Catalogue):
                embeddings = tf.convert_to_tensor(embeddings)
        identifiers = self._identifiers
        if identifiers is None:
            return embeddings, None
        is_catalogue = isinstance(embeddings, Catalogue)
        num_items = embeddings.num_items if is_catalogue else int(embeddings.shape[0])
        if num_items != len(identifiers):
            raise ValueError(
                f"`identifiers` should have one id for each of the {num_items} candidates. "
                f"Received: {len(identifiers)}."
            )
        if identifiers.num_duplicates and is_catalogue:
            raise ValueError(
                "`identifiers` should be different where `candidates` is a catalogue, whose rows "
                f"cannot be left out. Received: {identifiers.num_duplicates} duplicates."
            )
        if identifiers.num_duplicates:
            embeddings = tf.gather(embeddings, identifiers.kept)
        return embeddings, identifiers

    def _read_candidates(self) -> tf.Tensor:
        """The embeddings of the dataset, which also tells the ids when it is first read."""
        tower = _towers.find(
            self.model, self._candidate_embedder, "candidate_embedder", "candidates"
        )
        ids, embeddings = [], []
        for batch in _towers.batched(self._candidates):
            own, features = _towers.split(batch)
            embeddings.append(_towers.embed(features, tower, "candidate_embedder", "candidates"))
            if own is not None:
                ids.append(np.asarray(own))
        if self._identifiers is None and ids:
            self._identifiers = Identifiers(np.concatenate(ids), self._duplicates)
        return tf.concat(embeddings, axis=0)


def _is_dataset(source: Any) -> bool:
    return isinstance(source, tf.data.Dataset)


def _flat(dataset: tf.data.Dataset) -> np.ndarray:
    """The ids of a dataset of batches, or of single ids."""
    return np.concatenate([np.asarray(ids) for ids in _towers.batched(dataset)])


def _check_source(argument: str, source: Any) -> None:
    """Refuses what is neither a dataset nor a function, and says what to write in its place."""
    if _is_dataset(source) or callable(source) and not _is_layer(source):
        return
    what = f"the layer {source.name}" if hasattr(source, "name") else repr(source)
    raise TypeError(
        f"`{argument}` should be a dataset of batches, or a function without arguments that "
        f"returns embeddings. Received: {what}. Write {argument}=lambda: embeddings, or pass a "
        f"dataset as `{argument}` and the tower as `{_EMBEDDERS[argument]}`."
    )


def _is_layer(source: Any) -> bool:
    return isinstance(source, (tf.keras.layers.Layer, type))
