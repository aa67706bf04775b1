"""Checks that a SavedModel in a fresh process answers as the model that was saved."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.serving.errors import ExportError
from tfrs_croloss.serving.model_errors import summary_of
from tfrs_croloss.serving.recommender import Recommender

_PROGRAM = Path(__file__).with_name("fresh_process.py")
_TOLERANCE = 1e-4
_FEW = 3

Request = tuple[str, Mapping[str, Any]]


def example_requests(recommender: Recommender, examples: Mapping[str, tf.Tensor]) -> list[Request]:
    """At least one request for each signature of a model.

    Args:
      recommender: the model.
      examples: tensors of a request by name, with at least one query.
    """
    specs = recommender.encoder.signature()
    two = {name: tf.concat([rows, rows], axis=0)[:2].numpy() for name, rows in examples.items()}
    one = {name: rows[:1] for name, rows in two.items()}
    top_n = recommender.top_n
    numbers = tf.range(min(_FEW, recommender.index.num_items))
    item_ids = recommender.encoder.item_ids
    some = item_ids.ids(numbers).numpy()
    vector = recommender.signatures()["user_embedding"](
        **{name: tf.constant(rows, specs[name].dtype) for name, rows in one.items()}
    )["embedding"].numpy()
    features = recommender.encoder.inputs.features
    defaults = recommender.encoder.inputs.defaults
    # Padding in place of ids, an empty history or a user whom nobody knows, and nothing else.
    blank = {
        name: defaults[name].numpy()
        if name in defaults
        else np.full_like(rows, b"" if rows.dtype == object else -1)
        if name in features
        else rows
        for name, rows in one.items()
    }
    return [
        ("serving_default", one),
        *([("serving_default", blank)] if features else []),
        ("recommend", {**two, "top_n": [1, top_n]}),
        ("recommend_excluding", {**one, "excluded_ids": some[None], "top_n": [top_n]}),
        ("recommend_among", {**one, "allowed_ids": some[None], "top_n": [1]}),
        ("search", {"query_embedding": vector, "top_n": [top_n]}),
        ("user_embedding", two),
        ("item_embedding", {"item_ids": [*some, item_ids.padding]}),
    ]


def check_answers(recommender: Recommender, requests: Sequence[Request]) -> None:
    """Runs requests, so that a model that could not answer is refused before it is saved.

    Raises:
      ExportError: a signature fails.
    """
    for name, inputs in requests:
        try:
            _answer(recommender, name, inputs)
        except Exception as error:
            raise ExportError(
                f"the model cannot answer its own examples by the signature {name}: "
                f"{summary_of(error)} Pass `query_examples` in the form that `query_model` takes."
            ) from error


def check_round_trip(
    recommender: Recommender, requests: Sequence[Request], folder: Path, scratch: Path
) -> None:
    """Compares the answers of a SavedModel in a fresh process with those of the original model.

    Args:
      recommender: the model that was saved.
      requests: signatures and inputs to compare. The default signature's inputs are also passed
        to the model itself, which can be called.
      folder: folder of the SavedModel.
      scratch: temporary folder.

    Raises:
      ExportError: the SavedModel cannot be loaded in a fresh process, or answers differently.
    """
    inputs_of = recommender.encoder.inputs
    call = [inputs_of.form, list(inputs_of.specs), recommender.top_n]
    calls = [(call, inputs) for name, inputs in requests if name == "serving_default"]
    asked: list[tuple[Any, Mapping[str, Any]]] = [*requests, *calls]
    library = scann_library() if recommender.index.kind == "scann" else ""
    answers = fresh_answers(asked, folder, scratch, library)
    for (name, inputs), elsewhere in zip(asked, answers):
        called = name is call
        here = _answer(recommender, "serving_default" if called else name, inputs)
        for key, value in elsewhere.items():
            if not agree(here[key].numpy(), np.asarray(value), key):
                raise ExportError(
                    f"the exported model answers differently in a fresh process: {key} of "
                    + ("a call" if called else f"signature {name}")
                    + ". Nothing was published."
                )


def fresh_answers(
    requests: Sequence[tuple[Any, Mapping[str, Any]]],
    folder: Path,
    scratch: Path,
    op_library: str = "",
) -> list[dict[str, Any]]:
    """The answers of a SavedModel in a fresh process, which does not import this package.

    Args:
      requests: signatures, or calls as `fresh_process` describes them, and inputs.
      folder: folder of the SavedModel.
      scratch: temporary folder.
      op_library: file with TensorFlow operations that the model needs.

    Raises:
      ExportError: the SavedModel cannot be loaded, or does not answer.
    """
    file = scratch / "requests.json"
    file.write_text(json.dumps(as_json(requests)), encoding="utf-8")
    finished = subprocess.run(
        [sys.executable, "-I", str(_PROGRAM), str(folder), str(file), op_library],
        capture_output=True,
        text=True,
        check=False,
        # The memory of a GPU may all belong to this process.
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TMPDIR": str(scratch)},
    )
    if finished.returncode:
        reason = (finished.stderr.strip().splitlines() or [f"exit code {finished.returncode}"])[-1]
        raise ExportError(f"the exported model cannot be used in a fresh process: {reason}")
    answers: list[dict[str, Any]] = json.loads(finished.stdout.splitlines()[-1])
    return answers


def scann_library() -> str:
    """The file with ScaNN's TensorFlow operations."""
    spec = importlib.util.find_spec("scann")
    if spec is None or not spec.submodule_search_locations:
        raise ExportError("ScaNN is not installed. Run 'pip install scann', which needs Linux.")
    return str(Path(spec.submodule_search_locations[0]) / "scann_ops" / "cc" / "_scann_ops.so")


def as_json(value: Any) -> Any:
    """A value as JSON, with bytes as one character each, as the program takes them."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: as_json(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(one) for one in value]
    if isinstance(value, (bytes, str)):
        return tf.compat.as_bytes(value).decode("latin-1")
    return value


def _answer(recommender: Recommender, name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    signature = recommender.signatures()[name]
    specs = signature.structured_input_signature[1]
    tensors = {key: tf.constant(value, specs[key].dtype) for key, value in inputs.items()}
    answer: dict[str, Any] = signature(**tensors)
    return answer


def agree(here: np.ndarray, elsewhere: np.ndarray, key: str) -> bool:
    """Whether two answers of the output ``key`` are the same, up to rounding."""
    if here.shape != elsewhere.shape:
        return False
    if np.issubdtype(here.dtype, np.floating):
        return bool(np.allclose(here, elsewhere, rtol=_TOLERANCE, atol=_TOLERANCE))
    if here.dtype == object:
        here = np.array([text.decode("latin-1") for text in here.reshape(-1)]).reshape(here.shape)
    # Items with equal scores may change places; their scores are compared as well.
    same = np.sort(here.astype(str), axis=-1) == np.sort(elsewhere.astype(str), axis=-1)
    return bool(np.mean(same) > 0.95 if key == "item_ids" else np.all(same))
