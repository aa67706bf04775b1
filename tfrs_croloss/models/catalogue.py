"""A model of two towers that is trained against the whole catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.models import _columns
from tfrs_croloss.models._columns import Features
from tfrs_croloss.models.two_tower import TwoTowerModel
from tfrs_croloss.tasks._candidates import CandidateFilter, ragged_ids
from tfrs_croloss.tasks.catalogue import CatalogueRetrieval

_INSPECTED_QUERIES = 64


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

    def compute_loss(self, features: Features, training: bool = False) -> tf.Tensor:
        """The task's loss on a batch of features."""
        return self.task(
            self.embed_queries(features, training=training),
            self._catalogue(training),
            _columns.select(features, self._id_column),
            known_positive_items=self._known(features),
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
        catalogue = self._catalogue(training)
        ids = tf.concat([positives, tf.range(self.num_items, dtype=positives.dtype)], axis=0)
        num_queries, num_candidates = tf.shape(positives)[0], tf.size(ids)
        allowed = CandidateFilter.build(
            num_queries,
            num_candidates,
            shared_negatives=tf.range(num_candidates) >= num_queries,
            candidate_ids=ids,
            drop_accidental_hits=True,
            known_positive_ids=ragged_ids(self._known(features), ids),
        )
        candidates = tf.concat([tf.gather(catalogue, positives), catalogue], axis=0)
        queries = self.embed_queries(features, training=training)
        return queries, candidates, ids, allowed.considered(0, num_queries)

    def get_config(self) -> dict[str, Any]:
        return {"num_items": self.num_items, **self._shared_config()}

    def _known(self, features: Features) -> tf.RaggedTensor | None:
        """The known positives that are items: others pad a dense matrix."""
        known = features.get(self._known_column)
        if known is None or isinstance(known, tf.RaggedTensor):
            return known
        return tf.ragged.boolean_mask(known, tf.logical_and(known >= 0, known < self.num_items))

    def _catalogue(self, training: bool) -> tf.Tensor:
        ids = tf.range(self.num_items)
        return self.embed_candidates({self._id_column: ids}, training=training)
