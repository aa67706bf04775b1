"""A trained model as a SavedModel that returns the best N items for a query.

It has the signatures below. ``batch`` is the number of queries, and ``top_n`` ``[batch]`` int32 is
the number of items that each query asks for, up to the limit of the export. The query is whatever
the model takes, one input for each of its features; see `queries`.

- ``serving_default``: the query → the items found, as many as the limit;
- ``recommend``: the query and ``top_n`` → the items found;
- ``recommend_excluding``: the query, ``top_n`` and ``excluded_ids`` ``[batch, width]``, padded →
  the items found, without the excluded ones;
- ``recommend_among``: the query, ``top_n`` and ``allowed_ids`` ``[batch, width]``, padded → the
  items found among the allowed ones, by exact search;
- ``search``: ``query_embedding`` ``[batch, dim]`` (or ``[batch, heads, dim]``) and ``top_n`` → the
  items found;
- ``user_embedding``: the query → ``embedding`` ``[batch, dim]`` (or ``[batch, heads, dim]``);
- ``item_embedding``: ``item_ids`` ``[num]`` → ``embedding`` ``[num, dim]``, zero for unknown ids,
  and ``is_known`` ``[num]``.

Item ids are strings, or int64 if the catalogue has integer ids; ``""`` and -1 are padding. The
items found are:

- ``item_ids`` ``[batch, largest top_n]``, best first and distinct, then padding;
- ``scores`` of the same shape: inner products (cosines, if the model scores by cosine), then the
  lowest finite number;
- ``num_results`` ``[batch]`` int32: the number of items found.

If the query has a feature whose values are ids of a list, such as a history of items, answers also
have ``is_default`` ``[batch]``, whether none of its ids is known, so that the answer is that for an
empty history or for any user; with a history also ``known_items`` ``[batch]``, the number of its
items that are in the catalogue.

The loaded model can be called as well, as TensorFlow Recommenders' layers are:
``scores, item_ids = loaded(query)`` or ``loaded(query, k)``.

Inputs that a request may leave out (`features.WithDefault`) have their defaults in the signatures,
where servers find them. In Python, the loaded model can be called with all of them or with none,
and ``loaded.defaults()`` has the values of those that are left out.
"""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.indexes.base import NO_SCORE, Found, Index
from tfrs_croloss.indexes.vectors import VectorFiles, row_blocks
from tfrs_croloss.serving.errors import ExportError
from tfrs_croloss.serving.features import History
from tfrs_croloss.serving.heads import best_distinct, search_heads
from tfrs_croloss.serving.item_ids import IdTable, check_ids
from tfrs_croloss.serving.queries import Answer, QueryEncoder, QueryInputs, padded

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


class Recommender(tf.Module):
    """Recommends items for queries, with a query model, an index of the items and their ids.

    Args:
      query_model: `QueryEncoder`, which has the ids of the items too. Or, for queries that are
        histories, a function of a mapping with the query features that returns ``[batch, dim]``
        query embeddings. The feature ``history``, ``[batch, history_length]`` int64, has item
        numbers, oldest first, padded at the end with ``index.num_items``.
      index: index of all items. It is saved once, however many signatures use it.
      item_ids: string ids of the items, in the order of the index.
      history_length: number of the latest known items of a history that are used.
      top_n: maximum number of items that a query may ask for; at most all items.
      features: specs of the other query features, by name, each with a batch dimension.
      tracked: Keras model or module that owns the variables of ``query_model``.
    """

    def __init__(
        self,
        query_model: QueryEncoder | Callable[[Mapping[str, tf.Tensor]], tf.Tensor],
        index: Index,
        item_ids: Sequence[str] | None = None,
        *,
        history_length: int | None = None,
        top_n: int = 100,
        features: Mapping[str, tf.TensorSpec] | None = None,
        tracked: tf.Module | None = None,
    ) -> None:
        super().__init__(name="recommender")
        if not isinstance(query_model, QueryEncoder):
            if item_ids is None or history_length is None:
                raise ValueError(
                    "`item_ids` and `history_length` should be given with a query model that is a "
                    "function. Received: not both. `serving.export` takes queries of any kind."
                )
            _check_size(item_ids, index.num_items)
            if history_length < 1 or top_n < 1:
                raise ValueError(
                    "`history_length` and `top_n` should be at least 1. Received: "
                    f"{history_length} and {top_n}."
                )
            # The tables read files in this folder; saving the model copies them as assets.
            self._folder = tempfile.TemporaryDirectory(prefix="tfrs_croloss-")
            query_model = _history_encoder(
                query_model, item_ids, history_length, features or {}, tracked, self._folder.name
            )
        self.index = index
        self.encoder = query_model
        self.top_n = min(int(top_n), index.num_items)
        # Not tracked by the module, which would save these functions a second time.
        object.__setattr__(self, "_traced", {})
        self._item_ids = query_model.item_ids
        self._num_items = index.num_items
        if defaults := query_model.inputs.defaults:
            self.defaults = tf.function(lambda: dict(defaults), input_signature=[])

    def signatures(self) -> dict[str, Any]:
        """The concrete functions of the signatures by name, traced once."""
        if self._traced:
            return self._traced
        query = self.encoder.signature()
        top_n = {"top_n": tf.TensorSpec([None], tf.int32)}
        ids = tf.TensorSpec([None, None], self._item_ids.dtype)
        embed = concrete_function(self.user_embedding, query)
        vectors = embed.structured_outputs["embedding"].shape
        inputs = {
            "serving_default": query,
            "recommend": {**query, **top_n},
            "recommend_excluding": {**query, "excluded_ids": ids, **top_n},
            "recommend_among": {**query, "allowed_ids": ids, **top_n},
            "search": {"query_embedding": tf.TensorSpec(vectors, tf.float32), **top_n},
            "item_embedding": {"item_ids": tf.TensorSpec([None], self._item_ids.dtype)},
        }
        traced = {
            name: concrete_function(getattr(self, name), specs) for name, specs in inputs.items()
        }
        traced["user_embedding"] = embed
        for specs in self._call_signatures(query):
            if specs:
                arranged = self.encoder.inputs.arrange(specs)
                self.__call__.get_concrete_function(arranged)
                self.__call__.get_concrete_function(arranged, tf.TensorSpec([], tf.int32))
        self._traced.update({name: traced[name] for name in SIGNATURES})
        return self._traced

    def _call_signatures(self, query: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Specs of the queries that the model can be called with.

        Lists are padded or ragged, and what may be left out is there or not.
        """
        optional = self.encoder.inputs.defaults
        found = [query, self.encoder.ragged_signature()]
        if optional:
            found += [
                {name: spec for name, spec in specs.items() if name not in optional}
                for specs in found
            ]
        return found

    @tf.function
    def __call__(self, queries: Any, k: Any = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds items, as the layers of TensorFlow Recommenders do.

        Args:
          queries: batch of queries as the query model takes them. Lists, such as histories, are
            ragged tensors, or all of them are padded.
          k: scalar int32, the number of items to find, by default as many as a query may ask for.

        Returns:
          Scores ``[batch, k]`` and item ids ``[batch, k]``, best first.
        """
        tensors = self.encoder.inputs.by_name(queries)
        if any(isinstance(value, tf.RaggedTensor) for value in tensors.values()):
            # A call of the function for padded lists, which is not traced again.
            return self(self.encoder.inputs.arrange(padded(tensors)), k)
        num = tf.fill([self._size(tensors)], self.top_n if k is None else k)
        found = self.recommend(top_n=num, **tensors)
        return found["scores"], found["item_ids"]

    def serving_default(self, **query: tf.Tensor) -> Answer:
        """Recommends as many items as a query may ask for."""
        return self.recommend(top_n=tf.fill([self._size(query)], self.top_n), **query)

    def recommend(self, top_n: tf.Tensor, **query: tf.Tensor) -> Answer:
        """Recommends items."""
        nothing = tf.zeros([self._size(query), 0], self._item_ids.dtype)
        return self.recommend_excluding(excluded_ids=nothing, top_n=top_n, **query)

    def recommend_excluding(
        self, excluded_ids: tf.Tensor, top_n: tf.Tensor, **query: tf.Tensor
    ) -> Answer:
        """Recommends items that are not excluded."""
        with self._same_batch(query, excluded_ids=excluded_ids, top_n=top_n):
            queries, about = self._encode(query)
            excluded = tf.cast(self._item_ids.numbers(excluded_ids), tf.int32)
            found = self._find(queries, self._most(top_n), excluded)
            return {**self._answer(*found, top_n), **about}

    def recommend_among(
        self, allowed_ids: tf.Tensor, top_n: tf.Tensor, **query: tf.Tensor
    ) -> Answer:
        """Recommends some of the allowed items."""
        with self._same_batch(query, allowed_ids=allowed_ids, top_n=top_n):
            queries, about = self._encode(query)
            allowed = tf.cast(self._item_ids.numbers(allowed_ids), tf.int32)
            vectors = self.index.vectors(tf.where(allowed < self._num_items, allowed, 0))
            if queries.shape.rank == 2:
                scores = tf.linalg.matvec(vectors, queries)
            else:
                of_heads = tf.matmul(queries, vectors, transpose_b=True)
                scores = tf.reduce_max(of_heads, axis=1)
            found = best_distinct(allowed, scores, self._most(top_n), self._num_items)
            return {**self._answer(*found, top_n), **about}

    def search(self, query_embedding: tf.Tensor, top_n: tf.Tensor) -> Answer:
        """Finds items for a query embedding."""
        finite = tf.debugging.assert_all_finite(
            query_embedding, "query_embedding should be finite numbers"
        )
        size = tf.shape(finite)[0]
        with _same_batch({}, size, top_n=top_n):
            nothing = tf.zeros([size, 0], tf.int32)
            return self._answer(*self._find(finite, self._most(top_n), nothing), top_n)

    def user_embedding(self, **query: tf.Tensor) -> Answer:
        """Embeds a query."""
        queries, about = self._encode(query)
        return {"embedding": queries, **about}

    def item_embedding(self, item_ids: tf.Tensor) -> Answer:
        """Looks up the embeddings of items."""
        numbers = self._item_ids.numbers(item_ids)
        known = numbers < self._num_items
        vectors = self.index.vectors(tf.where(known, numbers, 0))
        zeros = tf.zeros_like(vectors)
        return {
            "embedding": tf.where(known[:, tf.newaxis], vectors, zeros),
            "is_known": known,
        }

    def _size(self, query: Mapping[str, tf.Tensor]) -> tf.Tensor:
        return self.encoder.inputs.batch_size(query)

    def _same_batch(self, query: Mapping[str, tf.Tensor], **others: tf.Tensor) -> Any:
        # The encoder looks at inputs that may be left out itself.
        optional = self.encoder.inputs.defaults
        required = {name: value for name, value in query.items() if name not in optional}
        return _same_batch(required, self._size(query), **others)

    def _encode(self, query: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, Answer]:
        queries, about = self.encoder.encode(query)
        heads = [queries.shape[1]] if queries.shape.rank == 3 else []
        return tf.ensure_shape(queries, [None, *heads, self.index.dim]), about

    def _find(self, queries: tf.Tensor, num: tf.Tensor, excluded: tf.Tensor) -> Found:
        return search_heads(self.index.search_excluding, queries, num, excluded, self._num_items)

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
            "item_ids": tf.ensure_shape(self._item_ids.ids(numbers), [None, None]),
            "scores": tf.ensure_shape(tf.where(filled, scores, NO_SCORE), [None, None]),
            "num_results": tf.reduce_sum(tf.cast(filled, tf.int32), axis=1),
        }


def save(recommender: Recommender, path: str | os.PathLike[str]) -> None:
    """Writes a recommender as a SavedModel into the folder ``path``.

    TensorFlow alone can load it, but a ScaNN index also needs ScaNN's operations.

    Raises:
      ExportError: the query model uses variables or tables that nothing tracks.
    """
    defaults = recommender.encoder.inputs.defaults
    save_signatures(recommender, path, recommender.signatures(), defaults)


def save_signatures(
    module: tf.Module,
    path: str | os.PathLike[str],
    signatures: Mapping[str, Any],
    defaults: Mapping[str, tf.Tensor] | None = None,
) -> None:
    """Writes a module with a query model as a SavedModel.

    Args:
      module: module to write.
      path: folder to write.
      signatures: concrete functions of inputs by name.
      defaults: values of the inputs that a request may leave out, by name.

    Raises:
      ExportError: the query model uses variables or tables that nothing tracks.
    """
    if defaults:
        signatures = {
            name: _optional(one, defaults)
            if set(defaults) & set(one.structured_input_signature[1])
            else one
            for name, one in signatures.items()
        }
    try:
        tf.saved_model.save(module, os.fspath(path), signatures=dict(signatures))
    except AssertionError as error:  # TensorFlow's error for a resource that nothing tracks
        raise ExportError(
            "`tracked` should be the Keras model or module that owns the variables and tables of "
            f"`query_model`. TensorFlow says: {str(error).splitlines()[0][:200]}"
        ) from error


def check_catalogue(item_ids: Sequence[Any], item_embeddings: Any) -> None:
    """Checks that a catalogue can be served.

    Args:
      item_ids: ids of the items, strings or integers.
      item_embeddings: ``[num_items, dim]``, an array or `VectorFiles`, which are read in blocks.

    Raises:
      ValueError: the ids are not one distinct line for each row, or some embeddings are zero or not
        finite; the error names the first such items.
    """
    rows = item_embeddings
    if not isinstance(rows, VectorFiles):
        rows = np.asarray(rows)
    _check_size(item_ids, len(rows))
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


def _check_size(item_ids: Sequence[Any], num_items: int) -> None:
    if len(item_ids) != num_items:
        raise ValueError(
            "`item_ids` should have one id for each row of the embeddings. "
            f"Received: {len(item_ids)} ids and {num_items} rows."
        )
    check_ids(item_ids)


def _history_encoder(
    query_model: Callable[[Mapping[str, tf.Tensor]], tf.Tensor],
    item_ids: Sequence[str],
    history_length: int,
    features: Mapping[str, tf.TensorSpec],
    tracked: tf.Module | None,
    folder: str,
) -> QueryEncoder:
    """The encoder of queries that are histories, with other features if there are any."""
    if "history" in features:
        raise ValueError(
            "`features` should not have the names of other inputs. Received: ['history']. Rename "
            "this feature."
        )
    specs = {"history": tf.TensorSpec([None, None], tf.string), **features}
    inputs = QueryInputs(specs, "mapping", {"history": History(history_length)})
    table = IdTable(item_ids, folder, VOCABULARY)
    return QueryEncoder(query_model, inputs, table, folder, tracked=tracked)


def concrete_function(method: Callable[..., Answer], inputs: Mapping[str, tf.TensorSpec]) -> Any:
    """A method as a signature: traced for inputs by name."""
    specs = {
        name: tf.TensorSpec(spec.shape, spec.dtype, name=name) for name, spec in inputs.items()
    }
    # A signature may neither return an input unchanged nor return a tensor under two names.
    return tf.function(
        lambda **given: {name: tf.identity(value) for name, value in method(**given).items()}
    ).get_concrete_function(**specs)


def _optional(function: Any, defaults: Mapping[str, tf.Tensor]) -> Any:
    """A signature whose inputs have defaults, which TensorFlow takes from those of arguments."""
    specs = function.structured_input_signature[1]
    names = sorted(specs, key=lambda name: name in defaults)

    def call(*values: tf.Tensor) -> Answer:
        answer: Answer = function(**dict(zip(names, values)))
        return answer

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(name, kind, default=defaults.get(name, inspect.Parameter.empty))
        for name in names
    ]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    named = [tf.TensorSpec(specs[name].shape, specs[name].dtype, name) for name in names]
    return tf.function(call, input_signature=named)


def _same_batch(query: Mapping[str, tf.Tensor], size: tf.Tensor, **others: tf.Tensor) -> Any:
    """A scope in which all operations wait for a check of the inputs' first dimensions."""
    checks = []
    for name, value in {**query, **others}.items():
        message = f"{name} should have one row for each query. Received (rows, queries):"
        rows_of_it = tf.shape(value)[0]
        checks.append(tf.debugging.Assert(tf.equal(rows_of_it, size), [message, rows_of_it, size]))
    return tf.control_dependencies(checks)
