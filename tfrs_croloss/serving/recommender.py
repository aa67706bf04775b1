"""A trained model as a SavedModel that returns the best N items for a user.

It has the signatures below. Item ids are strings, ``batch`` is the number of queries, and ``top_n``
``[batch]`` int32 is the number of items that each query asks for, up to the limit of the export.

- ``serving_default``: ``history`` ``[batch, length]``, oldest first, padded with ``""`` anywhere →
  the items found, as many as the limit;
- ``recommend``: ``history`` and ``top_n`` → the items found;
- ``recommend_excluding``: ``history``, ``top_n`` and ``excluded_ids`` ``[batch, width]``, padded
  with ``""`` → the items found, without the excluded ones;
- ``recommend_among``: ``history``, ``top_n`` and ``allowed_ids`` ``[batch, width]``, padded with
  ``""`` → the items found among the allowed ones, by exact search;
- ``search``: ``query_embedding`` ``[batch, dim]`` and ``top_n`` → the items found;
- ``user_embedding``: ``history`` → ``embedding`` ``[batch, dim]``;
- ``item_embedding``: ``item_ids`` ``[num]`` → ``embedding`` ``[num, dim]``, zero for unknown ids,
  and ``is_known`` ``[num]``.

Signatures with a history also take the model's other query features. The items found are:

- ``item_ids`` ``[batch, largest top_n]``, best first and distinct, then ``""``;
- ``scores`` of the same shape: inner products (cosines, if the model scores by cosine), then the
  lowest finite number;
- ``num_results`` ``[batch]`` int32: the number of items found.

Signatures with a history also return ``known_items`` ``[batch]``, the number of its items that are
in the catalogue, and ``is_default`` ``[batch]``, whether there are none, so that the answer is that
for an empty history.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.indexes.base import NO_SCORE, Index
from tfrs_croloss.indexes.vectors import VectorFiles, row_blocks

__all__ = ["Recommender", "check_catalogue", "save"]

SIGNATURES = (
    "serving_default",
    "recommend",
    "recommend_excluding",
    "recommend_among",
    "search",
    "user_embedding",
    "item_embedding",
)
VOCABULARY = "item_ids.txt"

Answer = dict[str, tf.Tensor]


class Recommender(tf.Module):
    """Recommends items for histories, with a query tower, an index of the items and their ids.

    Args:
      query_tower: function of a mapping with the query features that returns ``[batch, dim]``
        query embeddings. The feature ``history``, ``[batch, history_length]`` int64, has item
        numbers, oldest first, padded at the end with ``index.num_items``.
      index: index of all items. It is saved once, however many signatures use it.
      item_ids: string ids of the items, in the order of the index.
      history_length: number of the latest known items of a history that are used.
      top_n: maximum number of items that a query may ask for; at most all items.
      features: specs of the other query features, by name, each with a batch dimension.
      tracked: Keras model or module that owns the variables of ``query_tower``.
    """

    def __init__(
        self,
        query_tower: Callable[[Mapping[str, tf.Tensor]], tf.Tensor],
        index: Index,
        item_ids: Sequence[str],
        *,
        history_length: int,
        top_n: int = 100,
        features: Mapping[str, tf.TensorSpec] | None = None,
        tracked: tf.Module | None = None,
    ) -> None:
        super().__init__(name="recommender")
        _check_ids(item_ids, index.num_items)
        if history_length < 1 or top_n < 1:
            raise ValueError(
                "`history_length` and `top_n` should be at least 1. Received: "
                f"{history_length} and {top_n}."
            )
        self.index = index
        self.top_n = min(int(top_n), index.num_items)
        self.features = dict(features or {})
        _check_features(self.features)
        # Not tracked by the module, which would save these functions a second time.
        object.__setattr__(self, "_traced", {})
        self._query_tower = query_tower
        self._tracked = tracked
        self._num_items = index.num_items
        self._history_length = int(history_length)
        # The tables read this file; saving the model copies it as an asset.
        self._folder = tempfile.TemporaryDirectory(prefix="tfrs_croloss-")
        vocabulary = os.path.join(self._folder.name, VOCABULARY)
        with open(vocabulary, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{item_id}\n" for item_id in item_ids)
        line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        self._numbers = tf.lookup.StaticHashTable(
            tf.lookup.TextFileInitializer(vocabulary, tf.string, line, tf.int64, number),
            default_value=self._num_items,
        )
        self._ids = tf.lookup.StaticHashTable(
            tf.lookup.TextFileInitializer(vocabulary, tf.int64, number, tf.string, line),
            default_value="",
        )

    def signatures(self) -> dict[str, Any]:
        """The concrete functions of the signatures by name, traced once."""
        if self._traced:
            return self._traced
        history = {"history": tf.TensorSpec([None, None], tf.string), **self.features}
        top_n = {"top_n": tf.TensorSpec([None], tf.int32)}
        strings = tf.TensorSpec([None, None], tf.string)
        inputs = {
            "serving_default": history,
            "recommend": {**history, **top_n},
            "recommend_excluding": {**history, "excluded_ids": strings, **top_n},
            "recommend_among": {**history, "allowed_ids": strings, **top_n},
            "search": {
                "query_embedding": tf.TensorSpec([None, self.index.dim], tf.float32),
                **top_n,
            },
            "user_embedding": history,
            "item_embedding": {"item_ids": tf.TensorSpec([None], tf.string)},
        }
        self._traced.update(
            {name: _concrete(getattr(self, name), inputs[name]) for name in SIGNATURES}
        )
        return self._traced

    def serving_default(self, **inputs: tf.Tensor) -> Answer:
        """Recommends as many items as a query may ask for."""
        top_n = tf.fill(tf.shape(inputs["history"])[:1], self.top_n)
        return self.recommend(top_n=top_n, **inputs)

    def recommend(self, top_n: tf.Tensor, **inputs: tf.Tensor) -> Answer:
        """Recommends items."""
        nothing = tf.zeros([tf.shape(inputs["history"])[0], 0], tf.string)
        return self.recommend_excluding(excluded_ids=nothing, top_n=top_n, **inputs)

    def recommend_excluding(
        self, excluded_ids: tf.Tensor, top_n: tf.Tensor, **inputs: tf.Tensor
    ) -> Answer:
        """Recommends items that are not excluded."""
        with _same_batch(inputs["history"], excluded_ids=excluded_ids, top_n=top_n):
            queries, about = self._embed(inputs)
            excluded = tf.cast(self._numbers.lookup(excluded_ids), tf.int32)
            found = self.index.search_excluding(queries, self._most(top_n), excluded)
            return {**self._answer(*found, top_n), **about}

    def recommend_among(
        self, allowed_ids: tf.Tensor, top_n: tf.Tensor, **inputs: tf.Tensor
    ) -> Answer:
        """Recommends some of the allowed items."""
        with _same_batch(inputs["history"], allowed_ids=allowed_ids, top_n=top_n):
            queries, about = self._embed(inputs)
            most = self._most(top_n)
            allowed = tf.sort(tf.cast(self._numbers.lookup(allowed_ids), tf.int32), axis=1)
            repeated = tf.equal(allowed[:, 1:], allowed[:, :-1])
            repeated = tf.pad(repeated, [[0, 0], [1, 0]])[:, : tf.shape(allowed)[1]]
            scored = tf.logical_and(allowed < self._num_items, tf.logical_not(repeated))
            vectors = self.index.vectors(tf.where(scored, allowed, 0))
            scores = tf.linalg.matvec(vectors, queries)
            # Pads to the number of items asked for.
            missing = tf.maximum(most - tf.shape(allowed)[1], 0)
            scores = tf.pad(
                tf.where(scored, scores, NO_SCORE), [[0, 0], [0, missing]], constant_values=NO_SCORE
            )
            numbers = tf.pad(
                tf.where(scored, allowed, self._num_items),
                [[0, 0], [0, missing]],
                constant_values=self._num_items,
            )
            best, places = tf.math.top_k(scores, k=most)
            found = tf.gather(numbers, places, batch_dims=1)
            return {**self._answer(found, best, top_n), **about}

    def search(self, query_embedding: tf.Tensor, top_n: tf.Tensor) -> Answer:
        """Finds items for a query embedding."""
        finite = tf.debugging.assert_all_finite(
            query_embedding, "query_embedding should be finite numbers"
        )
        with _same_batch(query_embedding, top_n=top_n):
            nothing = tf.zeros([tf.shape(finite)[0], 0], tf.int32)
            found = self.index.search_excluding(finite, self._most(top_n), nothing)
            return self._answer(*found, top_n)

    def user_embedding(self, **inputs: tf.Tensor) -> Answer:
        """Embeds a history."""
        queries, about = self._embed(inputs)
        return {"embedding": queries, **about}

    def item_embedding(self, item_ids: tf.Tensor) -> Answer:
        """Looks up the embeddings of items."""
        numbers = self._numbers.lookup(item_ids)
        known = numbers < self._num_items
        vectors = self.index.vectors(tf.where(known, numbers, 0))
        zeros = tf.zeros_like(vectors)
        return {
            "embedding": tf.where(known[:, tf.newaxis], vectors, zeros),
            "is_known": known,
        }

    def _embed(self, inputs: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, Answer]:
        numbers = self._numbers.lookup(inputs["history"])
        # Padding and unknown items are removed first, so that they do not count among the latest.
        known = tf.ragged.boolean_mask(numbers, numbers < self._num_items)
        latest = known[:, -self._history_length :].to_tensor(
            self._num_items, shape=[None, self._history_length]
        )
        queries = self._query_tower({**inputs, "history": latest})
        counts = tf.cast(known.row_lengths(), tf.int32)
        about = {"known_items": counts, "is_default": tf.equal(counts, 0)}
        return tf.ensure_shape(tf.cast(queries, tf.float32), [None, self.index.dim]), about

    def _most(self, top_n: tf.Tensor) -> tf.Tensor:
        """Checks all values of ``top_n`` and returns the largest."""
        allowed = tf.reduce_all(tf.logical_and(top_n >= 1, top_n <= self.top_n))
        message = f"top_n should be between 1 and {self.top_n}, the limit of this export. Received:"
        with tf.control_dependencies([tf.debugging.Assert(allowed, [message, top_n])]):
            # At least 1, even for an empty batch.
            return tf.reduce_max(tf.concat([tf.maximum(top_n, 1), [1]], axis=0))

    def _answer(self, numbers: tf.Tensor, scores: tf.Tensor, top_n: tf.Tensor) -> Answer:
        places = tf.range(tf.shape(numbers)[1])[tf.newaxis, :]
        filled = tf.logical_and(numbers < self._num_items, places < top_n[:, tf.newaxis])
        numbers = tf.where(filled, numbers, self._num_items)
        return {
            "item_ids": tf.ensure_shape(self._ids.lookup(tf.cast(numbers, tf.int64)), [None, None]),
            "scores": tf.ensure_shape(tf.where(filled, scores, NO_SCORE), [None, None]),
            "num_results": tf.reduce_sum(tf.cast(filled, tf.int32), axis=1),
        }


def save(recommender: Recommender, path: str | os.PathLike[str]) -> None:
    """Writes a recommender as a SavedModel into the folder ``path``.

    TensorFlow alone can load it, but a ScaNN index also needs ScaNN's operations.
    """
    tf.saved_model.save(recommender, os.fspath(path), signatures=recommender.signatures())


def check_catalogue(item_ids: Sequence[str], item_embeddings: Any) -> None:
    """Checks that a catalogue can be served.

    Args:
      item_ids: string ids of the items.
      item_embeddings: ``[num_items, dim]``, an array or `VectorFiles`, which are read in blocks.

    Raises:
      ValueError: the ids are not one distinct line for each row, or some embeddings are zero or not
        finite; the error names the first such items.
    """
    rows = item_embeddings
    if not isinstance(rows, VectorFiles):
        rows = np.asarray(rows)
    _check_ids(item_ids, len(rows))
    not_finite, zero = [], []
    for first, block in row_blocks(rows):
        not_finite.append(first + np.flatnonzero(~np.isfinite(block).all(axis=1)))
        zero.append(first + np.flatnonzero(~block.any(axis=1)))
    for fault, remedy, found in (
        ("with NaN or infinity", "Check whether training diverged.", not_finite),
        ("that are zero", "Leave these items out, or train them.", zero),
    ):
        at_fault = np.concatenate(found)
        if len(at_fault):
            first_ids = [item_ids[number] for number in at_fault[:3]]
            raise ValueError(
                "`item_embeddings` should be finite vectors that are not zero. Received: "
                f"{len(at_fault)} of {len(rows)} {fault}, the first of them for {first_ids}. "
                f"{remedy}"
            )


def _check_ids(item_ids: Sequence[str], num_items: int) -> None:
    if len(item_ids) != num_items:
        raise ValueError(
            "`item_ids` should have one id for each row of the embeddings. "
            f"Received: {len(item_ids)} ids and {num_items} rows."
        )
    seen: set[str] = set()
    for item_id in item_ids:
        if not item_id or "\n" in item_id or "\r" in item_id:
            raise ValueError(
                '`item_ids` should be single lines and not "", which pads histories. '
                f"Received: {item_id!r}."
            )
        if item_id in seen:
            distinct = len(set(item_ids))
            raise ValueError(
                f"`item_ids` should be distinct. Received: {num_items} ids, {distinct} of them "
                f"distinct; {item_id!r} is repeated."
            )
        seen.add(item_id)


def _check_features(features: Mapping[str, tf.TensorSpec]) -> None:
    taken = {"history", "top_n", "excluded_ids", "allowed_ids"} & set(features)
    if taken:
        raise ValueError(
            f"`features` should not have the names of other inputs. Received: {sorted(taken)}. "
            "Rename these features."
        )
    for name, spec in features.items():
        if not spec.shape.rank or spec.shape[0] is not None:
            raise ValueError(
                "`features` should be specs whose first dimension, the batch, is None. "
                f"Received: {name!r} of shape {spec.shape}."
            )


def _concrete(method: Callable[..., Answer], inputs: Mapping[str, tf.TensorSpec]) -> Any:
    specs = {
        name: tf.TensorSpec(spec.shape, spec.dtype, name=name) for name, spec in inputs.items()
    }
    # A signature may neither return an input unchanged nor return a tensor under two names.
    return tf.function(
        lambda **given: {name: tf.identity(value) for name, value in method(**given).items()}
    ).get_concrete_function(**specs)


def _same_batch(rows: tf.Tensor, **others: tf.Tensor) -> Any:
    """A scope in which all operations wait for a check of the inputs' first dimensions."""
    size = tf.shape(rows)[0]
    checks = []
    for name, value in others.items():
        message = f"{name} should have one row for each query. Received (rows, queries):"
        rows_of_it = tf.shape(value)[0]
        checks.append(tf.debugging.Assert(tf.equal(rows_of_it, size), [message, rows_of_it, size]))
    return tf.control_dependencies(checks)
