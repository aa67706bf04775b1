"""Exact Recall@N as a Keras metric of retrieval tasks.

It counts ranks (see ``tfrs_croloss.metrics._counting``): no sort, no top-k, and ties count against
the positive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss import _checks, _keras
from tfrs_croloss.metrics import _counting, _towers
from tfrs_croloss.metrics._identifiers import DUPLICATES, Identifiers
from tfrs_croloss.metrics.report import DEFAULT_CUTOFFS, check_cutoffs

_NEVER = tf.int64.max


class FactorizedRecall(_keras.FactorizedMetric):
    """Recall@N and MRR over the whole catalogue, for `tfrs.tasks.Retrieval` and our own task.

    For example, where `FactorizedTopK(candidates=movies.batch(128).map(movie_model))` was::

        metric = FactorizedRecall(movies.batch(128), candidate_embedder=movie_model, ks=(50, 500))
        task = tfrs.tasks.Retrieval(metrics=metric)

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
      candidate_embedder: function or layer that turns the dataset ``candidates`` into embeddings.
        The dataset is then one of ids, which are the tower's inputs, of ``(ids, inputs)``, or of
        other inputs.
      duplicates: what to do with candidates that have the identifier of an earlier one: ``"first"``
        leaves them out and warns, ``"error"`` raises a ValueError.
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
        *,
        candidate_embedder: _towers.Embedder | None = None,
        duplicates: str = "first",
    ) -> None:
        super().__init__(name=name)
        _checks.one_of("duplicates", duplicates, DUPLICATES)
        if isinstance(candidates, tf.data.Dataset):
            candidates = _embedded(candidates, candidate_embedder)
        else:
            _check_source(candidates, candidate_embedder)
        if not 1 <= candidate_block_size <= _counting.LARGEST_BLOCK:
            raise ValueError(
                f"`candidate_block_size` should be between 1 and {_counting.LARGEST_BLOCK}. "
                f"Received: {candidate_block_size}."
            )
        self._candidates = candidates
        self._identifiers = None if identifiers is None else tf.convert_to_tensor(identifiers)
        self._duplicates = duplicates
        self._has_duplicates: bool | None = None
        if identifiers is not None:
            self._has_duplicates = Identifiers(identifiers, duplicates).num_duplicates > 0
        self._block_size = candidate_block_size
        self._ks = check_cutoffs(ks)
        self._recalls = [
            tf.keras.metrics.Mean(name=f"{self.name}/recall@{size}") for size in self._ks
        ]
        self._reciprocal_rank = tf.keras.metrics.Mean(name=f"{self.name}/mrr")

    def update_state(
        self,
        query_embeddings: tf.Tensor,
        true_candidate_embeddings: tf.Tensor | None = None,
        true_candidate_ids: tf.Tensor | None = None,
        sample_weight: tf.Tensor | None = None,
    ) -> tf.Operation:
        """Adds a batch.

        Args:
          query_embeddings: ``[num_queries, dim]`` floats.
          true_candidate_embeddings: ``[num_queries, dim]`` floats, needed if there are no ids.
          true_candidate_ids: optional ``[num_queries]`` or ``[num_queries, 1]`` identifiers; any
            further ones, of candidates that are only negatives, are ignored.
          sample_weight: optional ``[num_queries]`` weights of the queries in the means.

        Returns:
          An operation that updates the metrics.
        """
        if not isinstance(self, FactorizedRecall):
            # A task that was given the class calls its function without an object.
            raise TypeError(
                "`metrics` should be an object. Received: the class FactorizedRecall. Write "
                "metrics=FactorizedRecall(candidates=...)."
            )
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
        return _keras.update_group(updates)

    def ranks(
        self,
        query_embeddings: tf.Tensor,
        true_candidate_embeddings: tf.Tensor | None = None,
        true_candidate_ids: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Ranks ``[num_queries]`` int64 of the true candidates; arguments as in `update_state`."""
        embeddings, identifiers = self._catalogue()
        # Tasks update metrics under a gradient tape, which would keep the scores of every block.
        embeddings = tf.stop_gradient(tf.cast(embeddings, tf.float32))
        queries = tf.stop_gradient(tf.cast(query_embeddings, tf.float32))
        num_items = tf.shape(embeddings, out_type=tf.int64)[0]
        found = tf.ones(tf.shape(queries)[:1], tf.bool)
        if true_candidate_ids is not None:
            ids = tf.reshape(true_candidate_ids, [-1])[: tf.shape(queries)[0]]
            positions = self._positions(ids, identifiers, num_items)
            found = positions >= 0
            positives = tf.gather(embeddings, tf.maximum(positions, 0))
        elif true_candidate_embeddings is not None:
            positives = tf.stop_gradient(tf.cast(true_candidate_embeddings, tf.float32))
        else:
            raise ValueError(
                "`true_candidate_embeddings` should be given where `true_candidate_ids` is not. "
                "Received: None for both."
            )
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
        """Embeddings and identifiers of the catalogue, without duplicates."""
        embeddings, identifiers = self._all_candidates()
        if identifiers is None or not self._has_duplicates:
            return embeddings, identifiers
        distinct, _, first_rows = _first_rows(identifiers)
        return tf.gather(embeddings, first_rows), distinct

    def _all_candidates(self) -> tuple[tf.Tensor, tf.Tensor | None]:
        candidates, identifiers = self._candidates, self._identifiers
        if isinstance(candidates, tf.data.Dataset):
            has_ids = isinstance(candidates.element_spec, tuple)
            if has_ids and identifiers is None and self._has_duplicates is None:
                self._look_for_duplicates()
            # One batch of everything: embeddings of a catalogue fit into memory, scores need not.
            elements = candidates.rebatch(2**31 - 1).get_single_element()
            own, embeddings = elements if has_ids else (None, elements)
            return embeddings, own if identifiers is None else identifiers
        if isinstance(candidates, tf.keras.layers.Embedding):
            if not candidates.built:
                candidates(tf.zeros([1], tf.int32))
            return tf.convert_to_tensor(candidates.embeddings), identifiers
        if callable(candidates) and not _keras.is_variable(candidates):
            return tf.convert_to_tensor(candidates()), identifiers
        return tf.convert_to_tensor(candidates), identifiers

    def _look_for_duplicates(self) -> None:
        """Reads the identifiers of the dataset once, outside of any graph that is being built."""
        with tf.init_scope():
            ids = [ids.numpy() for ids, _ in self._candidates]
            found = Identifiers(np.concatenate(ids), self._duplicates).num_duplicates
        self._has_duplicates = found > 0

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
        _, numbers, first_rows = _first_rows(tf.concat([identifiers, ids], axis=0))
        rows = tf.gather(first_rows, numbers[tf.size(identifiers) :])
        return tf.where(rows < num_items, rows, -1)


def _first_rows(ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The distinct ids, the number of each id among them, and the row where each occurs first."""
    distinct, numbers = tf.unique(ids, out_idx=tf.int64)
    rows = tf.range(tf.size(ids, out_type=tf.int64))
    return distinct, numbers, tf.math.unsorted_segment_min(rows, numbers, tf.size(distinct))


def _embedded(dataset: tf.data.Dataset, embedder: _towers.Embedder | None) -> tf.data.Dataset:
    """A dataset of batches of embeddings, or of ids and embeddings."""
    if isinstance(embedder, str):
        raise TypeError(
            "`candidate_embedder` should be a function or a layer, since a metric knows no model "
            f"that it could be an attribute of. Received: {embedder!r}. Write self.{embedder}."
        )
    if embedder is not None:
        tower = _towers.checked(embedder, "candidate_embedder")

        def embedded(*element: Any) -> Any:
            ids, features = _towers.split(element if len(element) > 1 else element[0])
            embeddings = _towers.embed(features, tower, "candidate_embedder", "candidates")
            return embeddings if ids is None else (ids, embeddings)

        dataset = _towers.batched(dataset).map(embedded)
    vectors = tf.nest.flatten(dataset.element_spec)[-1]
    if not vectors.dtype.is_floating or vectors.shape.rank not in (None, 2):
        raise ValueError(
            "`candidates` should be a dataset of batches of embeddings, [batch, dim] floats, "
            f"unless `candidate_embedder` is given. Received: {vectors.dtype.name} of shape "
            f"{vectors.shape}. Write FactorizedRecall(movies.batch(128), "
            "candidate_embedder=movie_model), with your own tower."
        )
    return dataset


def _check_source(candidates: Any, embedder: _towers.Embedder | None) -> None:
    """Refuses what has no embeddings, and says what to write in its place."""
    if embedder is not None:
        raise ValueError(
            "`candidate_embedder` should be given only where `candidates` is a dataset. Received: "
            f"{type(candidates).__name__}. Write candidates=lambda: movie_model(all_movies)."
        )
    if isinstance(candidates, _keras.INDEXES):
        raise TypeError(
            "`candidates` should be embeddings, a function that returns them, or a dataset. "
            f"Received: the index {type(candidates).__name__}. Give the embeddings that the "
            "index was built from."
        )
    what = None
    if isinstance(candidates, type):
        what = f"the class {candidates.__name__}"
    elif isinstance(candidates, tf.keras.layers.Layer):
        if not isinstance(candidates, tf.keras.layers.Embedding):
            what = f"the layer {candidates.name}"
    if what is not None:
        raise TypeError(
            "`candidates` should be embeddings, a function without arguments that returns them, a "
            f"tf.keras.layers.Embedding or a dataset. Received: {what}, which does not say which "
            "items to embed. Write FactorizedRecall(movies.batch(128), "
            "candidate_embedder=movie_model), with your own tower."
        )
