"""An index of all items in plain TensorFlow operations, and its SavedModel.

Signatures, item ids being strings:

- ``serving_default``: ``history`` ``[batch, length]``, padded with ``""`` → ``item_ids`` and
  ``scores`` ``[batch, top_n]``, best first;
- ``embed_history``: the same ``history`` → ``embeddings`` ``[batch, dim]``;
- ``embed_items``: ``item_ids`` ``[num]`` → ``embeddings`` ``[num, dim]``, zero for unknown ids.

Scores are inner products of the embeddings: cosines, where the model scores by cosines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import tensorflow as tf

_HISTORY = tf.TensorSpec([None, None], tf.string, name="history")
_ITEM_IDS = tf.TensorSpec([None], tf.string, name="item_ids")


class BruteForceIndex(tf.Module):
    """Scores every item for every query.

    Args:
      query_tower: maps ``[batch, history_length]`` item numbers, oldest first, padded at the end
        with ``len(item_ids)``, to ``[batch, dim]`` vectors as they are scored. What it tracks is
        saved with the index, so pass ``tracked`` for a plain function.
      item_embeddings: ``[num_items, dim]``, row i for item number i.
      item_ids: the string ids of the items, in order.
      history_length: latest known items of a history that are used.
      top_n: items to return; at most all.
      tracked: the Keras model or module that owns the variables of ``query_tower``.
    """

    def __init__(
        self,
        query_tower: Callable[[tf.Tensor], tf.Tensor],
        item_embeddings: tf.Tensor,
        item_ids: Sequence[str],
        *,
        history_length: int,
        top_n: int = 100,
        tracked: tf.Module | None = None,
    ) -> None:
        super().__init__(name="brute_force_index")
        num_items = len(item_ids)
        if item_embeddings.shape[0] != num_items or not num_items:
            raise ValueError(
                "`item_ids` should have one id for each row of `item_embeddings`, at least one. "
                f"Received: {num_items} ids and {item_embeddings.shape[0]} rows."
            )
        if len(set(item_ids)) != num_items or "" in item_ids:
            raise ValueError(
                '`item_ids` should be distinct and not "", which is the padding of histories. '
                f"Received: {num_items} ids, {len(set(item_ids))} of them distinct."
            )
        if history_length < 1 or top_n < 1:
            raise ValueError(
                "`history_length` and `top_n` should be at least 1. Received: "
                f"{history_length} and {top_n}."
            )
        self._query_tower = query_tower
        self._tracked = tracked
        self._embeddings = tf.Variable(
            tf.cast(item_embeddings, tf.float32), trainable=False, name="item_embeddings"
        )
        self._item_ids = tf.Variable(list(item_ids), trainable=False, name="item_ids")
        self._numbers = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(list(item_ids)), tf.range(num_items, dtype=tf.int64)
            ),
            default_value=num_items,
        )
        self._num_items = num_items
        self._history_length = history_length
        self._top_n = min(top_n, num_items)

    @tf.function(input_signature=[_HISTORY])
    def recommend(self, history: tf.Tensor) -> dict[str, tf.Tensor]:
        """The items of highest score for each history."""
        queries = self._embed(history)
        all_scores = tf.matmul(queries, self._embeddings, transpose_b=True)
        scores, numbers = tf.math.top_k(all_scores, k=self._top_n)
        return {"item_ids": tf.gather(self._item_ids, numbers), "scores": scores}

    @tf.function(input_signature=[_HISTORY])
    def embed_history(self, history: tf.Tensor) -> dict[str, tf.Tensor]:
        """The query vector of each history."""
        return {"embeddings": self._embed(history)}

    @tf.function(input_signature=[_ITEM_IDS])
    def embed_items(self, item_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """The vector of each item; zero for ids that are unknown."""
        numbers = self._numbers.lookup(item_ids)
        known = numbers < self._num_items
        vectors = tf.gather(self._embeddings, tf.where(known, numbers, 0))
        return {"embeddings": tf.where(known[:, tf.newaxis], vectors, tf.zeros_like(vectors))}

    def _embed(self, history: tf.Tensor) -> tf.Tensor:
        numbers = self._numbers.lookup(history)
        # Padding and unknown items go first, so that they take no place among the latest.
        known = tf.ragged.boolean_mask(numbers, numbers < self._num_items)
        latest = known[:, -self._history_length :].to_tensor(
            self._num_items, shape=[None, self._history_length]
        )
        return tf.cast(self._query_tower(latest), tf.float32)


def save(index: BruteForceIndex, path: str | os.PathLike[str]) -> None:
    """Writes the SavedModel of an index into the folder ``path``.

    It needs TensorFlow alone to be loaded.
    """
    tf.saved_model.save(
        index,
        os.fspath(path),
        signatures={
            "serving_default": index.recommend,
            "embed_history": index.embed_history,
            "embed_items": index.embed_items,
        },
    )
