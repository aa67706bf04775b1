"""Held-out queries: examples as vectors, without repetitions, in two halves."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.serving.errors import ExportError
from tfrs_croloss.serving.model_errors import summary_of
from tfrs_croloss.serving.queries import Named, QueryEncoder

# A dataset may repeat a few queries for ever.
_MOST_ROWS_PER_QUERY = 50
_FEW = 100


class Examples:
    """Query vectors of examples.

    Args:
      encoder: encoder of the queries.
      examples: examples, as `QueryInputs.batches` takes them.
      num: maximum number of distinct query vectors.
      argument: name of the argument, for errors.

    Attributes:
      first: first batch, in the form of requests.
      vectors: ``[num_queries, dim]`` or ``[num_queries, heads, dim]`` float32, all distinct.
    """

    def __init__(
        self, encoder: QueryEncoder, examples: Any, num: int, argument: str = "query_examples"
    ) -> None:
        self.first: Named = {}
        self._encoder = encoder
        self._argument = argument
        distinct: dict[bytes, np.ndarray] = {}
        encode = tf.function(
            lambda named: encoder.encode(named)[0], input_signature=[encoder.signature()]
        )
        rows = 0
        for named in self._batches(examples):
            self.first = self.first or named
            for vector in self._encode(encode, named):
                rows += 1
                distinct.setdefault(vector.tobytes(), vector)
            if len(distinct) >= num or rows >= _MOST_ROWS_PER_QUERY * num:
                break
        if not distinct:
            raise ExportError(f"`{argument}` should have at least one query. Received: none.")
        self.vectors = np.stack(list(itertools.islice(distinct.values(), num)))

    def halves(self) -> tuple[np.ndarray, np.ndarray]:
        """Every second vector, and the others.

        Raises:
          ExportError: there are not enough of them.
        """
        if len(self.vectors) < 2:
            raise ExportError(
                f"`{self._argument}` should have at least 2 queries with different vectors: one "
                "half tunes the index, the other checks it. Received: 1."
            )
        if len(self.vectors) < _FEW:
            warnings.warn(
                f"`{self._argument}` has {len(self.vectors)} queries with different vectors, so "
                "that the measured recall is uncertain. Pass some hundreds.",
                stacklevel=2,
            )
        return self.vectors[::2], self.vectors[1::2]

    def _batches(self, examples: Any) -> Iterator[Named]:
        for named in self._encoder.inputs.batches(examples, self._encoder.item_ids):
            if tf.shape(next(iter(named.values())))[0] > 0:
                yield named

    def _encode(self, encode: Any, named: Named) -> np.ndarray:
        takes = f"`{self._argument}` is {self._encoder.inputs.describe()}."
        try:
            vectors: np.ndarray = encode(named).numpy()
        except Exception as error:
            raise ExportError(
                f"`query_model` cannot embed `{self._argument}`: {summary_of(error)} {takes} Pass "
                "examples in the form, and of the types, that the model takes."
            ) from error
        if vectors.ndim not in (2, 3) or len(vectors) != len(next(iter(named.values()))):
            raise ExportError(
                "`query_model` should return embeddings of shape [batch, dim], or [batch, heads, "
                f"dim]. Received: shape {list(vectors.shape)}. {takes}"
            )
        if not np.isfinite(vectors).all():
            raise ExportError(
                "`query_model` should return finite embeddings. Received: NaN or infinity for some "
                f"of `{self._argument}`. Check whether training diverged."
            )
        return vectors
