"""Training against the whole catalogue: the rank is exact, and nothing is sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfrs_croloss import _checks, _keras, _saving
from tfrs_croloss.losses import _numeric, _score_range, naming
from tfrs_croloss.losses._blockwise import Competition, weighted_loss
from tfrs_croloss.losses._objective import RowObjective
from tfrs_croloss.losses.base import RetrievalLoss
from tfrs_croloss.losses.ranks import RankEstimator
from tfrs_croloss.tasks import _metrics

# In place of a row that does not exist, in code compiled with XLA, where checks cannot raise.
_NO_ROW = -1


@tf.keras.utils.register_keras_serializable(package="tfrs_croloss")
class CatalogueRetrieval(_keras.TaskLayer):
    """A retrieval task that ranks each positive against every item.

    The items' embeddings are computed by the model in every step, so they are current and get a
    gradient: pass an embedding table as it is, or an item tower's output for the features of the
    whole catalogue. Queries are processed block by block, so the score matrix is never held.

    Args:
      loss: a loss of this library, with any reduction but ``"none"``. It needs no ``num_items``,
        since the task is given the whole catalogue. Losses of ranks whose kernels declare
        ``vanishes_far_below``, as all built-in kernels do, are the fastest; others take several
        times the memory and the time.
      metrics: one or several ``tfrs.metrics.Factorized``.
      loss_metrics: Keras metrics that summarise the loss.
      temperature: scores are divided by it; above 0.
      normalize: whether to score by the cosine instead of the inner product.
      memory_budget: bytes for the scores of one block of queries. The default is 6 MB, or the
        memory for 40 queries where that is more; with a million items and more, up to 545 MB.
      name: name of the task.
    """

    def __init__(
        self,
        loss: RetrievalLoss,
        metrics: Any = None,
        loss_metrics: list[tf.keras.metrics.Metric] | None = None,
        temperature: float | None = None,
        *,
        normalize: bool = False,
        memory_budget: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name, autocast=False)
        loss = naming.get(loss)
        if not isinstance(loss, RetrievalLoss):
            raise ValueError(
                "`loss` should be a loss of tfrs_croloss, such as LambdaCROLoss. Received: "
                f"{loss!r}. For other Keras losses use tfrs_croloss.tasks.Retrieval."
            )
        if loss.reduction == "none":
            raise ValueError(
                "`loss` should be reduced. Received: reduction='none'. Use 'sum' or "
                "'sum_over_batch_size'."
            )
        self._loss = loss
        self._loss_metrics = _metrics.of_scores(loss_metrics, "loss_metrics")
        self._factorized_metrics = _metrics.factorized(metrics)
        if temperature is not None:
            temperature = _checks.positive_number(
                "temperature", temperature, remedy="Use 1 / tau: 0.1 for the paper's tau of 10."
            )
        self._temperature = temperature
        self._normalize = bool(normalize)
        self._memory_budget = _checks.bytes_or_none("memory_budget", memory_budget)

    def call(
        self,
        query_embeddings: tf.Tensor,
        catalogue_embeddings: tf.Tensor,
        positive_items: tf.Tensor,
        sample_weight: tf.Tensor | None = None,
        known_positive_items: tf.RaggedTensor | None = None,
        compute_metrics: bool = True,
    ) -> tf.Tensor:
        """Computes the loss and updates the metrics.

        Args:
          query_embeddings: ``[num_queries, embedding_dim]``.
          catalogue_embeddings: ``[num_items, embedding_dim]``, of every item in order.
          positive_items: ``[num_queries]`` ints: the row of each query's positive in the catalogue.
          sample_weight: ``[num_queries]`` weights of the queries' losses.
          known_positive_items: ``[num_queries, (items)]`` ragged rows of the catalogue that the
            query's user chose too, which are not used as negatives.
          compute_metrics: whether to update the metrics.

        Returns:
          The loss, reduced as the loss says.
        """
        queries, catalogue = _checks.same_type(
            _checks.floating("query_embeddings", query_embeddings),
            _checks.floating("catalogue_embeddings", catalogue_embeddings),
        )
        _check_matrices(queries, catalogue)
        positive_items = _checks.per_row(
            "positive_items",
            _rows_of(catalogue, "positive_items", positive_items),
            queries,
            "num_queries",
        )
        sample_weight = _checks.sample_weight(sample_weight, queries)
        if self._loss.check_scores:
            queries = _finite("query_embeddings", queries)
            catalogue = _finite("catalogue_embeddings", catalogue)
        if self._normalize:
            queries = tf.math.l2_normalize(queries, axis=-1)
            catalogue = tf.math.l2_normalize(catalogue, axis=-1)
        scaled = queries if self._temperature is None else queries / self._temperature
        num_queries = tf.shape(queries)[0]
        dtype = _numeric.compute_dtype(queries.dtype)
        known: Any = known_positive_items
        if known is not None:
            known = _checks.one_row_each("known_positive_items", known, tf.shape(queries)[0])
            known = known.with_values(_rows_of(catalogue, "known_positive_items", known.values))

        def dropped(start: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
            block = known[start : tf.minimum(start + size, num_queries)]
            rows = tf.cast(block.value_rowids(), tf.int32)
            return tf.stack([rows, block.values], axis=-1)

        objective = self._loss.objective
        _score_range.watch_vectors(
            queries,
            catalogue,
            tf.gather(catalogue, positive_items[: _score_range.NUM_ROWS]),
            objective,
            self._temperature,
        )

        def exact(count: tf.Tensor) -> RankEstimator:
            num_items = tf.fill(tf.shape(count), tf.cast(tf.shape(catalogue)[0], count.dtype))
            if isinstance(objective, RowObjective):
                # These losses would take fewer candidates than items for a sample of the catalogue.
                num_items = count + 1.0
            return RankEstimator(num_items, tf.zeros_like(count), tf.ones_like(count))

        row_weights = self._loss.reduction_weights(num_queries, dtype, sample_weight)
        row_weights = tf.where(
            tf.equal(positive_items, _NO_ROW), tf.constant(float("nan"), dtype), row_weights
        )
        loss = weighted_loss(
            scaled,
            catalogue,
            positive_items,
            row_weights,
            objective,
            Competition(exact, dropped=None if known is None else dropped),
            self._memory_budget,
        )
        updates = [metric.update_state(loss) for metric in self._loss_metrics]
        if compute_metrics:
            updates += [
                metric.update_state(
                    queries,
                    tf.gather(catalogue, positive_items),
                    true_candidate_ids=positive_items,
                    sample_weight=sample_weight,
                )
                for metric in self._factorized_metrics
            ]
        with tf.control_dependencies([update for update in updates if update is not None]):
            return tf.identity(loss)

    def get_config(self) -> dict[str, Any]:
        _metrics.refuse_to_save(self._factorized_metrics)
        return {
            "loss": _saving.to_config("loss", self._loss),
            "loss_metrics": _saving.to_config("loss_metrics", list(self._loss_metrics)),
            "temperature": self._temperature,
            "normalize": self._normalize,
            "memory_budget": self._memory_budget,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CatalogueRetrieval:
        """A task of the same configuration."""
        return cls(**{name: _saving.from_config(value) for name, value in config.items()})


def _check_matrices(queries: tf.Tensor, catalogue: tf.Tensor) -> None:
    _checks.matrix("query_embeddings", queries, "[num_queries, embedding_dim]")
    _checks.matrix("catalogue_embeddings", catalogue, "[num_items, embedding_dim]")
    if not queries.shape[-1:].is_compatible_with(catalogue.shape[-1:]):
        raise ValueError(
            "`catalogue_embeddings` should have the embedding_dim of `query_embeddings`. Received "
            f"shapes: {queries.shape} and {catalogue.shape}."
        )


def _finite(name: str, rows: tf.Tensor) -> tf.Tensor:
    """Returns ``rows``; raises an error that lists those that are not finite."""
    wrong = tf.logical_not(tf.reduce_all(tf.math.is_finite(rows), axis=-1))
    return _checks.rows(
        rows, wrong, f"`{name}` should be finite. Look for a diverging learning rate."
    )


def _rows_of(catalogue: tf.Tensor, name: str, items: tf.Tensor) -> tf.Tensor:
    """``items`` as checked rows of the catalogue."""
    items = tf.convert_to_tensor(items)
    if not items.dtype.is_integer:
        raise ValueError(
            f"`{name}` should be rows of `catalogue_embeddings`, as integers. Received dtype: "
            f"{items.dtype.name}. Look string ids up in the order of the catalogue first."
        )
    # Compared before they are narrowed: 2 ** 32 + 1 would become 1.
    items = tf.cast(items, tf.int64)
    wrong = tf.logical_or(items < 0, items >= tf.shape(catalogue, tf.int64)[0])
    message = f"`{name}` should be from 0 to the number of items minus 1."
    return tf.cast(
        _checks.rows(tf.where(wrong, tf.constant(_NO_ROW, tf.int64), items), wrong, message),
        tf.int32,
    )
