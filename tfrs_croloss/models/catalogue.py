"""A model of two towers that is trained against the whole catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.models import _columns
from tfrs_croloss.models._columns import Features
from tfrs_croloss.models.two_tower import TwoTowerModel
from tfrs_croloss.tasks._candidates import CandidateFilter, ragged_ids
from tfrs_croloss.tasks.catalogue import CatalogueRetrieval

_INSPECTED_QUERIES = 64
_NO_ROW = -(2**31)  # No id that is wrong by mistake.


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class CatalogueModel(TwoTowerModel):
    """Two towers whose loss ranks each positive against every item, not against a sample.

    A batch of features has the inputs of the query tower, the number of each query's positive item,
    ``[batch]`` (``id_column``), and optionally known positives (``known_column``). The candidate
    tower takes ids alone and embeds the whole catalogue in every step.

    Args:
      num_items: size of the catalogue; ids are 0 to ``num_items - 1``.
      query_tower: maps the query inputs to ``[batch, dim]``.
      candidate_tower: maps ``[batch]`` ids to ``[batch, dim]``.
      task: turns query vectors and the catalogue into a loss.
      similarity: similarity function used for scoring: ``"cosine"`` or ``"dot"``.
      item_bias: as in ``TwoTowerModel``.
      weight_decay: as in ``TwoTowerModel``.
      query_inputs: as in ``TwoTowerModel``.
      id_column: name of the positives' ids.
      known_column: name of the ids of known positives.
      name: name of the model.
      trained_items: ``[num_items]`` booleans, as in ``ItemTower``: in training, positives are
        ranked against these items alone. The others are never positives, so that as negatives
        they would be pushed away from every query, and their features with them. By default,
        positives are ranked against all items.
    """

    def __init__(
        self,
        num_items: int,
        query_tower: tf.keras.Model,
        candidate_tower: tf.keras.Model,
        task: CatalogueRetrieval,
        *,
        similarity: str = "cosine",
        item_bias: tf.keras.layers.Layer | None = None,
        weight_decay: float = 0.0,
        query_inputs: str | Sequence[str] = "history",
        id_column: str = "item_id",
        known_column: str = "known_item_ids",
        name: str | None = "catalogue_model",
        trained_items: Any = None,
    ) -> None:
        super().__init__(
            query_tower,
            candidate_tower,
            task,
            similarity=similarity,
            item_bias=item_bias,
            weight_decay=weight_decay,
            query_inputs=query_inputs,
            candidate_inputs=id_column,
            id_column=id_column,
            known_column=known_column,
            name=name,
        )
        self.num_items = _checks.whole_number(
            "num_items", num_items, remedy="Pass the size of the catalogue."
        )
        self._trained: np.ndarray | None = None
        if trained_items is not None:
            is_trained = np.asarray(trained_items, bool)
            if is_trained.shape != (self.num_items,) or not is_trained.any():
                raise ValueError(
                    f"`trained_items` should have one boolean for each of the {self.num_items} "
                    "items, one of them true at least. Received: "
                    f"shape {is_trained.shape}, {int(is_trained.sum())} true."
                )
            self._trained = np.flatnonzero(is_trained).astype(np.int32)
            self._trained_rows = np.where(is_trained, np.cumsum(is_trained) - 1, _NO_ROW).astype(
                np.int32
            )

    def compute_loss(self, features: Features, training: bool = False) -> tf.Tensor:
        """The task's loss on a batch of features."""
        queries = self.embed_queries(features, training=training)
        positives, known = _columns.select(features, self._id_column), self._known(features)
        if training and self._trained is not None:
            positives = self._rows(positives, training)
            positives = _checks.rows(
                positives,
                tf.equal(positives, _NO_ROW),
                f"`{self._id_column}` should be items of `trained_items`, since only these are "
                "ranked in training. Count the items of the training examples.",
            )
            if known is not None:
                known = known.with_values(self._rows(known.values, training))
                known = tf.ragged.boolean_mask(known, tf.not_equal(known, _NO_ROW))
        return self.task(
            queries,
            self._ranked_vectors(training),
            positives,
            known_positive_items=known,
            compute_metrics=not training,
        )

    def scored_batch(
        self, features: Features, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """As in ``TwoTowerModel``, for the first queries of the batch: positives, then all items.

        A part of the batch is enough to inspect, and its scores fit into memory.
        """
        features = {name: column[:_INSPECTED_QUERIES] for name, column in features.items()}
        positives = _columns.select(features, self._id_column)
        vectors = self._ranked_vectors(training)
        ids = tf.concat([positives, tf.cast(self._ranked_ids(training), positives.dtype)], axis=0)
        num_queries, num_candidates = tf.shape(positives)[0], tf.size(ids)
        allowed = CandidateFilter.build(
            num_queries,
            num_candidates,
            shared_negatives=tf.range(num_candidates) >= num_queries,
            candidate_ids=ids,
            drop_accidental_hits=True,
            known_positive_ids=ragged_ids(self._known(features), ids),
        )
        of_positives = tf.gather(vectors, self._rows(positives, training))
        candidates = tf.concat([of_positives, vectors], axis=0)
        queries = self.embed_queries(features, training=training)
        return queries, candidates, ids, allowed.considered(0, num_queries)

    def get_config(self) -> dict[str, Any]:
        trained = None if self._trained is None else (self._trained_rows >= 0).tolist()
        return {"num_items": self.num_items, **self._shared_config(), "trained_items": trained}

    def _known(self, features: Features) -> tf.RaggedTensor | None:
        """The known positives that are items: others pad a dense matrix."""
        known = features.get(self._known_column)
        if known is None or isinstance(known, tf.RaggedTensor):
            return known
        return tf.ragged.boolean_mask(known, tf.logical_and(known >= 0, known < self.num_items))

    def _ranked_ids(self, training: bool) -> tf.Tensor:
        """The ids of the items that positives are ranked against."""
        if training and self._trained is not None:
            return tf.constant(self._trained)
        return tf.range(self.num_items)

    def _ranked_vectors(self, training: bool) -> tf.Tensor:
        ids = self._ranked_ids(training)
        return self.embed_candidates({self._id_column: ids}, training=training)

    def _rows(self, ids: tf.Tensor, training: bool) -> tf.Tensor:
        """The place of each item among those that are ranked, or ``_NO_ROW``.

        Ids that are no items stay as they are, for the task to refuse them.
        """
        ids = tf.convert_to_tensor(ids)
        if not training or self._trained is None or not ids.dtype.is_integer:
            return ids
        are_items = tf.logical_and(ids >= 0, ids < self.num_items)
        rows = tf.gather(self._trained_rows, tf.where(are_items, ids, 0))
        return tf.where(are_items, tf.cast(rows, ids.dtype), ids)
