"""Any retrieval model as the next version of a SavedModel that keeps its promise."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss import _checks
from tfrs_croloss.indexes.scann import scann_ops
from tfrs_croloss.indexes.tuning import KINDS, Measurement
from tfrs_croloss.indexes.vectors import VectorFiles
from tfrs_croloss.serving import card, versions
from tfrs_croloss.serving.candidates import read_candidates
from tfrs_croloss.serving.errors import ExportError
from tfrs_croloss.serving.examples import Examples
from tfrs_croloss.serving.features import Feature
from tfrs_croloss.serving.item_ids import IdTable
from tfrs_croloss.serving.manifest import write_manifest
from tfrs_croloss.serving.measured_index import MeasuredIndex, Report, measured_index
from tfrs_croloss.serving.queries import QueryEncoder, QueryInputs
from tfrs_croloss.serving.recommender import VOCABULARY, Recommender, check_catalogue, save
from tfrs_croloss.serving.round_trip import check_answers, check_round_trip, example_requests
from tfrs_croloss.serving.warmup import write_warmup_requests

RECORD = "export.json"
SIMILARITIES = ("dot", "cosine")
_PACKAGES = (
    "numpy",
    "tensorflow",
    "tf-keras",
    "tensorflow-recommenders",
    "scann",
    "tfrs_croloss",
)


@dataclasses.dataclass(frozen=True)
class Exported:
    """What an export has written.

    Attributes:
      path: folder of the new version.
      version: its number.
      recall: share of the exact top N that the index finds on held-out queries.
      num_queries: number of these queries.
      measurement: recall and speed of the index with the chosen settings.
      removed: numbers of older versions that were removed.
    """

    path: Path
    version: int
    recall: float
    num_queries: int
    measurement: Measurement
    removed: tuple[int, ...] = ()


def export(
    path: str | os.PathLike[str],
    *,
    query_model: Callable[[Any], tf.Tensor],
    query_examples: Any,
    candidates: Any,
    candidate_model: Callable[[Any], tf.Tensor] | None = None,
    index: str = "brute_force",
    recall_target: float = 0.95,
    top_n: int = 100,
    similarity: str = "dot",
    duplicates: str = "error",
    query_name: str = "query",
    features: Mapping[str, Feature] | None = None,
    check_examples: Any = None,
    num_examples: int = 2000,
    index_options: Mapping[str, Any] | None = None,
    tracked: Any = None,
    keep_versions: int | None = None,
    record: Mapping[str, Any] | None = None,
    sections: Mapping[str, str] | None = None,
    on_progress: Report | None = None,
) -> Exported:
    """Writes a model as the next version of a SavedModel, ``path/1``, ``path/2`` and so on.

    The settings of an approximate index are tuned on one half of the examples, and checked on the
    other against exact search. The version appears when a process without this package has
    loaded it and given the same answers; until then nothing of it is visible. Beside the
    SavedModel, it has a model card, the measurements, and warm-up requests. `recommender` lists the
    signatures.

    Args:
      path: folder of the model; missing folders are created.
      query_model: Keras model, module or function that maps a batch of queries to ``[batch, dim]``,
        or to ``[batch, heads, dim]``, of which the best head scores an item. Its preprocessing is
        saved with it.
      query_examples: a few hundred queries as the model takes them: a dataset of batches, or
        arrays. A tensor, a mapping or a tuple of tensors, dense or ragged. The names, types and
        shapes of the signatures' inputs are theirs; ragged inputs are padded, see `queries`.
      candidates: the items, as a dataset of batches or as arrays: ids, (ids, features), which
        ``candidate_model`` embeds, or (ids, vectors) without a ``candidate_model``. Ids are
        strings, or integers of at least 0, and come back as strings or int64.
      candidate_model: Keras model or function that maps a batch of ids or features to
        ``[batch, dim]``. It is not saved.
      index: ``"brute_force"``, ``"partitioned"`` or ``"scann"``.
      recall_target: share of the exact top N that an approximate index has to find.
      top_n: maximum number of items that a request may ask for; at most all items.
      similarity: what the model scores by: ``"dot"``, or ``"cosine"``, for which all embeddings are
        scaled to length 1.
      duplicates: how to treat repeated ids: ``"error"``, or ``"first"`` to keep the first.
      query_name: name of the input if the queries are a tensor.
      features: those inputs whose values are ids of a list, by name, `History` and `KnownIds`, and
        those that a request may leave out, `WithDefault`.
      check_examples: other examples to check the index on; by default half of the examples.
      num_examples: maximum number of distinct examples that are used of each.
      index_options: other arguments of the index, such as ``seed``.
      tracked: module that owns the variables and tables of ``query_model``, if that is a function.
      keep_versions: number of newest versions to keep; by default all.
      record: JSON values that ``export.json`` should have too, by name.
      sections: text of further sections of the model card, by title.
      on_progress: called with lines of text on what is being done.

    Returns:
      What was written.

    Raises:
      tfrs_croloss.indexes.RecallNotReached: no settings of the index reach the target.
      ExportError: the model could not answer, or answers differently when it is loaded.
      ValueError: an argument is not what it should be.
    """
    folder = Path(path)
    versions.check_folder(folder)
    _check_arguments(index, recall_target, top_n, similarity, keep_versions)
    report: Report = on_progress or (lambda _: None)
    unit = similarity == "cosine"
    inputs = QueryInputs.of_examples(query_examples, query_name, features)
    item_ids, embeddings = read_candidates(
        candidates, candidate_model, duplicates=duplicates, unit=unit
    )
    check_catalogue(item_ids, embeddings)
    top_n = min(int(top_n), len(item_ids))
    with versions.workspace(folder) as workspace:
        scratch, built = workspace / "scratch", workspace / "version"
        scratch.mkdir()
        encoder = QueryEncoder(
            query_model,
            inputs,
            IdTable(item_ids, scratch, VOCABULARY),
            scratch,
            tracked=tracked,
            unit=unit,
        )
        examples = Examples(encoder, query_examples, num_examples)
        _check_sizes(examples.vectors, embeddings)
        if check_examples is not None:
            check = Examples(encoder, check_examples, num_examples, "check_examples").vectors
            queries = examples.vectors
        elif index == "brute_force":
            queries, check = examples.vectors, examples.vectors[:0]
        else:
            queries, check = examples.halves()
        found = measured_index(
            index,
            embeddings,
            queries,
            check,
            top_n=top_n,
            recall_target=recall_target,
            report=report,
            options=index_options or {},
        )
        recommender = Recommender(encoder, found.index, top_n=top_n)
        requests = example_requests(recommender, examples.first)
        check_answers(recommender, requests)
        with versions.next_version(folder) as number:
            about = {
                "versions": _installed_versions(),
                **(record or {}),
                "name": folder.resolve().name,
                "version": number,
                **_record(recommender, found, recall_target, unit),
                "vectors_from_files": isinstance(embeddings, VectorFiles),
            }
            save(recommender, built)
            about["notes"] = [
                *write_warmup_requests(built, about["name"], recommender, requests),
                *_write_measurements(built, about, found),
            ]
            for note in about["notes"]:
                warnings.warn(note, stacklevel=2)
            text = json.dumps(about, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
            (built / RECORD).write_text(text, encoding="utf-8", errors="surrogateescape")
            (built / card.CARD).write_text(
                card.model_card(about, sections or {}), encoding="utf-8", errors="surrogateescape"
            )
            report("checking the SavedModel in a fresh process")
            check_round_trip(recommender, requests, built, scratch)
            write_manifest(built)
            version = folder / str(number)
            versions.publish(built, version)
            removed = versions.remove_old_versions(folder, keep_versions) if keep_versions else []
    return Exported(version, number, found.recall, found.num_queries, found.chosen, tuple(removed))


def _check_arguments(
    index: str, recall_target: float, top_n: int, similarity: str, keep_versions: int | None
) -> None:
    """Checks what can be checked before anything takes long."""
    _checks.one_of("index", index, tuple(KINDS))
    _checks.one_of("similarity", similarity, SIMILARITIES)
    _checks.whole_number("top_n", top_n, remedy="Pass the number of items that you serve.")
    if keep_versions is not None:
        _checks.whole_number("keep_versions", keep_versions, remedy="Pass None to keep all.")
    remedy = "Pass a share, such as 0.95."
    if _checks.positive_number("recall_target", recall_target, remedy=remedy) > 1.0:
        raise ValueError(
            f"`recall_target` should be in (0, 1]. Received: {recall_target!r}. {remedy}"
        )
    if index == "scann":
        scann_ops()


def _check_sizes(queries: np.ndarray, embeddings: np.ndarray | VectorFiles) -> None:
    if queries.shape[-1] != embeddings.shape[1]:
        raise ExportError(
            "`query_model` and the candidates should have embeddings of one size. Received: "
            f"{queries.shape[-1]} and {embeddings.shape[1]}."
        )


def _record(
    recommender: Recommender, found: MeasuredIndex, recall_target: float, unit: bool
) -> dict[str, Any]:
    inputs = recommender.encoder.inputs
    is_exact = found.index.kind == "brute_force"
    return {
        "top_n": recommender.top_n,
        "num_items": found.index.num_items,
        "similarity": "cosine" if unit else "dot",
        "inputs": list(inputs.specs),
        "ragged_inputs": [
            name
            for name, spec in inputs.specs.items()
            if isinstance(spec, tf.RaggedTensorSpec) and name not in inputs.features
        ],
        "optional_inputs": list(inputs.defaults),
        "index": {
            "settings": found.index.settings(),
            "recall": found.recall,
            "recall_when_tuned": found.chosen.recall,
            "recall_target": None if is_exact else recall_target,
            "single_ms": found.chosen.single_ms,
            "batch_ms": found.chosen.batch_ms,
            "num_queries": found.num_queries,
        },
        "signatures": {
            name: {
                "inputs": _shapes(function.structured_input_signature[1]),
                "outputs": _shapes(function.structured_outputs),
            }
            for name, function in recommender.signatures().items()
        },
    }


def _write_measurements(folder: Path, about: Mapping[str, Any], found: MeasuredIndex) -> list[str]:
    measurements = [
        {
            "settings": measured.settings,
            "recall": measured.recall,
            "single_ms": measured.single_ms,
            "batch_ms": measured.batch_ms,
            "chosen": measured is found.chosen,
        }
        for measured in found.tried
    ]
    title = (
        f"Index of {about['name']}, version {about['version']}: recall of the exact top "
        f"{about['top_n']}"
    )
    return card.write_measurements(folder, measurements, title)


def _shapes(specs: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: f"{spec.dtype.name} "
        + "["
        + ", ".join("any" if size is None else str(size) for size in spec.shape)
        + "]"
        for name, spec in sorted(specs.items())
    }


def _installed_versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
