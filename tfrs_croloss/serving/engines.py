"""Vectors for other search engines, with the query model that belongs to them.

::

    VERSION/items/            the ids and vectors, in one of the formats of `vector_files`
    VERSION/query_model/1/    SavedModel that turns queries into vectors, for any TensorFlow server
    VERSION/vectors.json      what the files are, and how they were checked

An engine finds the items whose vectors have the largest inner products with that of the query.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.serving import versions
from tfrs_croloss.serving.candidates import read_candidates
from tfrs_croloss.serving.errors import ExportError
from tfrs_croloss.serving.examples import Examples
from tfrs_croloss.serving.features import Feature
from tfrs_croloss.serving.item_ids import IdTable
from tfrs_croloss.serving.manifest import write_manifest
from tfrs_croloss.serving.publish import SIMILARITIES
from tfrs_croloss.serving.queries import QueryEncoder, QueryInputs
from tfrs_croloss.serving.recommender import (
    VOCABULARY,
    check_catalogue,
    concrete_function,
    save_signatures,
)
from tfrs_croloss.serving.round_trip import agree, fresh_answers
from tfrs_croloss.serving.vector_files import FORMATS, BestRows, Format, Ids, Rows

RECORD = "vectors.json"
ITEMS = "items"
QUERY_MODEL = "query_model"
# Number of queries whose top N are compared, and of items in place of them if there are none.
_QUERIES = 100
# Scores that differ by less than this, relative to the largest, are ties.
_TIE = 1e-5


@dataclasses.dataclass(frozen=True)
class ExportedVectors:
    """What `export_vectors` has written.

    Attributes:
      path: folder of the new version.
      version: its number.
      items: file with the vectors.
      query_model: folder of the query model's versions; None if no model was passed.
      num_items: number of vectors.
      dim: their size.
      num_queries: number of queries whose top N, found in the file, were compared with exact ones.
      removed: numbers of older versions that were removed.
    """

    path: Path
    version: int
    items: Path
    query_model: Path | None
    num_items: int
    dim: int
    num_queries: int
    removed: tuple[int, ...] = ()


def export_vectors(
    path: str | os.PathLike[str],
    *,
    format: str,
    candidates: Any,
    candidate_model: Callable[[Any], tf.Tensor] | None = None,
    query_model: Callable[[Any], tf.Tensor] | None = None,
    query_examples: Any = None,
    similarity: str = "dot",
    duplicates: str = "error",
    query_name: str = "query",
    features: Mapping[str, Feature] | None = None,
    top_n: int = 100,
    tracked: Any = None,
    keep_versions: int | None = None,
    record: Mapping[str, Any] | None = None,
) -> ExportedVectors:
    """Writes the vectors of items for another search engine, and the query model beside them.

    The next version of the folder, ``path/1``, ``path/2`` and so on, appears when the files have
    been read back: all ids and vectors are the same, and so are the top N of the examples. The
    query model has been loaded and called in a process without this package.

    Args:
      path: folder of the versions; missing folders are created.
      format: ``"parquet"`` for vector databases, ``"jsonl"`` for Vertex AI Vector Search, or
        ``"faiss"`` for an index file of FAISS.
      candidates: the items, as `export` takes them: ids, (ids, features) or (ids, vectors).
      candidate_model: Keras model or function that embeds ids or features, if they are not vectors.
      query_model: Keras model, module or function that maps a batch of queries to ``[batch, dim]``.
        Without it, the vectors are written alone.
      query_examples: a few hundred queries, which are needed with a ``query_model``; see `export`.
      similarity: what the model scores by: ``"dot"``, or ``"cosine"``, for which the vectors of
        items and queries are scaled to length 1.
      duplicates: how to treat repeated ids: ``"error"``, or ``"first"`` to keep the first.
      query_name: name of the input if the queries are a tensor.
      features: those inputs whose values are ids of a list, by name: `History` and `KnownIds`.
      top_n: number of items to find in the comparison, at most all.
      tracked: module that owns the variables and tables of ``query_model``, if that is a function.
      keep_versions: number of newest versions to keep; by default all.
      record: JSON values that ``vectors.json`` should have too, by name.

    Returns:
      What was written.

    Raises:
      EngineUnavailable: the package that writes the format is not installed.
      ExportError: the query model could not answer, or what was written differs when it is read.
      ValueError: an argument is not what it should be.
    """
    folder = Path(path)
    versions.check_folder(folder)
    written_as = FORMATS[_checks.one_of("format", format, tuple(FORMATS))]
    written_as.module()
    _checks.one_of("similarity", similarity, SIMILARITIES)
    _checks.whole_number("top_n", top_n, remedy="Pass the number of items that you retrieve.")
    if (query_model is None) != (query_examples is None):
        raise ValueError(
            "`query_model` and `query_examples` should be passed together, or neither. Received: "
            f"only `{'query_examples' if query_model is None else 'query_model'}`."
        )
    unit = similarity == "cosine"
    inputs = (
        None
        if query_model is None
        else QueryInputs.of_examples(query_examples, query_name, features)
    )
    item_ids, rows = read_candidates(candidates, candidate_model, duplicates=duplicates, unit=unit)
    check_catalogue(item_ids, rows)
    _check_text(item_ids)
    with versions.workspace(folder) as workspace:
        scratch, built = workspace / "scratch", workspace / "version"
        items = built / ITEMS
        scratch.mkdir()
        items.mkdir(parents=True)
        queries = rows[:_QUERIES]
        if query_model is not None and inputs is not None:
            table = IdTable(item_ids, scratch, VOCABULARY)
            encoder = QueryEncoder(query_model, inputs, table, scratch, tracked=tracked, unit=unit)
            examples = Examples(encoder, query_examples, _QUERIES)
            if examples.vectors.shape[-1] != rows.shape[1]:
                raise ExportError(
                    "`query_model` and the candidates should have vectors of one size. Received: "
                    f"{examples.vectors.shape[-1]} and {rows.shape[1]}."
                )
            # Each vector of a query with several heads is a query of the engine.
            queries = examples.vectors.reshape(-1, rows.shape[1])
            _save_query_model(encoder, examples, built / QUERY_MODEL / "1", scratch)
        written_as.write(items, item_ids, rows)
        _check_files(written_as, items, item_ids, rows, queries, min(top_n, len(item_ids)))
        with versions.next_version(folder) as number:
            about = {
                "format": format,
                "file": f"{ITEMS}/{written_as.file}",
                "num_items": len(item_ids),
                "dim": rows.shape[1],
                "similarity": similarity,
                "score": "inner product",
                "query_model": None if query_model is None else QUERY_MODEL,
                "num_queries_compared": len(queries),
                **(record or {}),
            }
            text = json.dumps(about, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
            (built / RECORD).write_text(text, encoding="utf-8")
            write_manifest(built)
            version = folder / str(number)
            versions.publish(built, version)
            removed = versions.remove_old_versions(folder, keep_versions) if keep_versions else []
    return ExportedVectors(
        version,
        number,
        version / ITEMS / written_as.file,
        None if query_model is None else version / QUERY_MODEL,
        len(item_ids),
        rows.shape[1],
        len(queries),
        tuple(removed),
    )


class _QueryModel(tf.Module):
    """A query model alone, with the signature ``serving_default`` and perhaps ``defaults``."""

    def __init__(self, encoder: QueryEncoder) -> None:
        super().__init__(name="query_model")
        self._encoder = encoder
        if defaults := encoder.inputs.defaults:
            self.defaults = tf.function(lambda: dict(defaults), input_signature=[])

    def embed(self, **tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        """The vectors of queries as ``embedding``, and what is known about their ids."""
        vectors, about = self._encoder.encode(tensors)
        return {"embedding": vectors, **about}


def _save_query_model(
    encoder: QueryEncoder, examples: Examples, folder: Path, scratch: Path
) -> None:
    """Saves the query model, and compares its answers in a fresh process.

    Raises:
      ExportError: it cannot be loaded, or answers differently.
    """
    module = _QueryModel(encoder)
    embed = concrete_function(module.embed, encoder.signature())
    defaults = encoder.inputs.defaults
    save_signatures(module, folder, {"serving_default": embed}, defaults)
    inputs = {name: rows[:2] for name, rows in examples.first.items()}
    request = {name: rows.numpy() for name, rows in inputs.items()}
    (answer,) = fresh_answers([("serving_default", request)], folder, scratch)
    for name, expected in embed(**inputs).items():
        if not agree(expected.numpy(), np.asarray(answer[name]), name):
            raise ExportError(
                f"the query model answers differently in a fresh process: {name}. Nothing was "
                "published."
            )


def _check_text(item_ids: Ids) -> None:
    for one in item_ids:
        try:
            str(one).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"`candidates` should have ids that are UTF-8. Received: {one!r}. Other engines "
                "could not read it."
            ) from error


def _check_files(
    written_as: Format, folder: Path, item_ids: Ids, rows: Rows, queries: np.ndarray, num: int
) -> None:
    """Reads what was written, and compares it with what should be there.

    Raises:
      ExportError: it differs.
    """
    expected, exact, done = written_as.ids(item_ids), BestRows(queries, num), 0
    for ids, vectors in written_as.read(folder):
        block = np.asarray(rows[done : done + len(ids)], np.float32)
        if ids != expected[done : done + len(ids)] or not np.array_equal(vectors, block):
            raise ExportError(
                f"{written_as.file} has other ids or vectors than were written, at the rows {done} "
                f"to {done + len(ids)}. Nothing was published."
            )
        exact.add(block)
        done += len(ids)
    if done != len(expected):
        raise ExportError(
            f"{written_as.file} should have {len(expected)} items and has {done}. Nothing was "
            "published."
        )
    found = written_as.search(folder, queries, num)
    scores = np.einsum("qd,qnd->qn", np.asarray(queries, np.float64), rows[found])
    tolerance = _TIE * np.abs(exact.scores).max(axis=1, keepdims=True)
    distinct = all(len(set(row)) == num for row in found.tolist())
    if not distinct or np.any(scores < exact.scores[:, -1:] - tolerance):
        raise ExportError(
            f"{written_as.file} gives another top {num} than the vectors that were written. "
            "Nothing was published."
        )
