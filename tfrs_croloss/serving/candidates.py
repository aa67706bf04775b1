"""Candidates: from a dataset or arrays to distinct ids and their vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.indexes.vectors import VectorFiles
from tfrs_croloss.serving.item_ids import as_list
from tfrs_croloss.serving.model_errors import summary_of

DUPLICATES = ("error", "first")
_ARRAY_BATCH = 1024
_FORMS = (
    "`candidates` should be ids, or pairs of ids and features (with `candidate_model`) or of ids "
    "and vectors (without it): a tf.data.Dataset of batches, or arrays with a tuple as a pair."
)

Ids = list[str] | list[int]


def read_candidates(
    candidates: Any,
    candidate_model: Callable[[Any], tf.Tensor] | None,
    *,
    duplicates: str = "error",
    unit: bool = False,
) -> tuple[Ids, np.ndarray | VectorFiles]:
    """The ids and vectors of candidates.

    Args:
      candidates: ids, (ids, features) or (ids, vectors), as a dataset of batches or as arrays.
      candidate_model: function of ids or features that returns ``[batch, dim]`` vectors; None if
        the candidates have vectors.
      duplicates: how to treat repeated ids: ``"error"``, or ``"first"`` to keep the first.
      unit: whether the vectors are scaled to length 1.

    Returns:
      The ids, all strings or all integers, and ``[num_candidates, dim]`` float32 vectors.
    """
    _checks.one_of("duplicates", duplicates, DUPLICATES)
    if isinstance(candidates, tuple) and len(candidates) == 2:
        if isinstance(candidates[1], VectorFiles):
            if unit:
                raise ValueError(
                    "`candidates` from files should be scaled to length 1 when they are written. "
                    "Received: similarity='cosine'. Scale them and the queries in the models, and "
                    "pass 'dot'."
                )
            return as_list(candidates[0], "candidates"), candidates[1]
    ids: list[Any] = []
    blocks: list[np.ndarray] = []
    for some_ids, given in _batches(candidates, candidate_model is not None):
        some = as_list(some_ids, "candidates")
        vectors = _vectors(given, candidate_model, len(some))
        if blocks and vectors.shape[1] != blocks[0].shape[1]:
            raise ValueError(
                "`candidates` should have vectors of one size. Received: "
                f"{blocks[0].shape[1]} and {vectors.shape[1]}."
            )
        ids += some
        blocks.append(vectors)
    if not ids:
        raise ValueError("`candidates` should have at least one candidate. Received: none.")
    if len({type(one) for one in ids}) > 1:
        raise ValueError("`candidates` should have ids of one type. Received: strings and numbers.")
    vectors = np.concatenate(blocks)
    if unit:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.where(lengths > 0.0, lengths, 1.0)
    return _distinct(ids, vectors, duplicates)


def _batches(candidates: Any, has_model: bool) -> Iterator[tuple[Any, Any]]:
    """Yields ids ``[batch]`` and what their vectors are made from."""
    if isinstance(candidates, tf.data.Dataset):
        spec = candidates.element_spec
        first = spec[0] if isinstance(spec, tuple) else spec
        if isinstance(first, tf.TensorSpec) and first.shape.rank == 0:
            raise ValueError(
                "`candidates` should be batches. Received: a dataset of single candidates. Batch "
                "it: candidates.batch(1024)."
            )
        for element in candidates:
            yield _pair(element, has_model)
        return
    ids, given = _pair(candidates, has_model)
    num = len(ids)
    sizes = {len(one) for one in tf.nest.flatten(given) if hasattr(one, "__len__")}
    if ids is not given and sizes - {num}:
        raise ValueError(
            "`candidates` should have one row of features, or one vector, for each id. Received: "
            f"{num} ids and {sorted(sizes)} rows."
        )
    for start in range(0, num, _ARRAY_BATCH):
        rows = slice(start, start + _ARRAY_BATCH)
        yield ids[rows], _rows(given, rows)


def _rows(given: Any, rows: slice) -> Any:
    if isinstance(given, Mapping):
        return {name: one[rows] for name, one in given.items()}
    return given[rows]


def _pair(element: Any, has_model: bool) -> tuple[Any, Any]:
    if isinstance(element, Mapping):
        raise ValueError(
            f"{_FORMS} Received: a mapping of {', '.join(map(str, element))}. Say which is the id: "
            'candidates.map(lambda x: (x["id"], x)).'
        )
    if not isinstance(element, tuple):
        if not has_model:
            raise ValueError(f"{_FORMS} Received: one tensor and no `candidate_model`.")
        ids = element if isinstance(element, tf.Tensor) else np.asarray(element)
        return ids, ids
    if len(element) != 2:
        raise ValueError(f"{_FORMS} Received: a tuple of {len(element)}.")
    ids, given = element
    ids = ids if isinstance(ids, (tf.Tensor, list)) else np.asarray(ids)
    if not has_model and isinstance(given, Mapping):
        raise ValueError(f"{_FORMS} Received: features and no `candidate_model`.")
    if isinstance(given, Mapping):
        return ids, {name: _as_array(one) for name, one in given.items()}
    return ids, _as_array(given)


def _as_array(value: Any) -> Any:
    return value if isinstance(value, (tf.Tensor, tf.RaggedTensor)) else np.asarray(value)


def _vectors(given: Any, model: Callable[[Any], tf.Tensor] | None, num: int) -> np.ndarray:
    if model is None:
        vectors = np.asarray(given)
    else:
        try:
            vectors = np.asarray(model(tf.nest.map_structure(_as_tensor, given)))
        except Exception as error:
            raise ValueError(
                f"`candidate_model` cannot embed `candidates`: {summary_of(error)} Pass "
                "candidates, or pairs of ids and features, in the form that the model takes."
            ) from error
    if vectors.ndim != 2 or len(vectors) != num or vectors.dtype.kind not in "fiu":
        name = "`candidates` without `candidate_model`" if model is None else "`candidate_model`"
        raise ValueError(
            f"{name} should give vectors of shape [{num}, dim] for {num} candidates. Received: "
            f"{vectors.dtype} of shape {list(vectors.shape)}."
        )
    return vectors.astype(np.float32, copy=False)


def _as_tensor(value: Any) -> Any:
    if isinstance(value, (tf.Tensor, tf.RaggedTensor)):
        return value
    return tf.constant(value.tolist() if value.dtype.kind in "US" else value)


def _distinct(ids: list[Any], vectors: np.ndarray, duplicates: str) -> tuple[Ids, np.ndarray]:
    first: dict[Any, int] = {}
    for place, one in enumerate(ids):
        first.setdefault(one, place)
    if len(first) == len(ids):
        return ids, vectors
    if duplicates == "error":
        repeated = next(one for place, one in enumerate(ids) if first[one] != place)
        raise ValueError(
            f"`candidates` should have distinct ids. Received: {len(ids)} candidates, "
            f"{len(first)} of them distinct; {repeated!r} is repeated. Pass duplicates='first' to "
            "keep the first of each."
        )
    return list(first), vectors[list(first.values())]
