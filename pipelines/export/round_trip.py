"""Checks that a SavedModel in a fresh process answers as the model that was saved."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.serving import Recommender

from ..errors import UserError

_PROGRAM = Path(__file__).with_name("fresh_process.py")
_TOLERANCE = 1e-4

Request = tuple[str, dict[str, Any]]


def example_requests(recommender: Recommender, item_ids: list[str]) -> list[Request]:
    """At least one request for each signature of a model whose only input is a history."""
    top_n = recommender.top_n
    some = item_ids[: min(3, len(item_ids))]
    histories = [[*some, ""], ["", "", "", ""][: len(some) + 1]]
    vector = recommender.index.vectors(tf.constant([0])).numpy().tolist()
    return [
        ("serving_default", {"history": histories[:1]}),
        ("recommend", {"history": histories, "top_n": [1, top_n]}),
        (
            "recommend_excluding",
            {"history": histories[:1], "excluded_ids": [some], "top_n": [top_n]},
        ),
        ("recommend_among", {"history": histories[:1], "allowed_ids": [some], "top_n": [1]}),
        ("search", {"query_embedding": vector, "top_n": [top_n]}),
        ("user_embedding", {"history": histories}),
        ("item_embedding", {"item_ids": [*some, "no such item"]}),
    ]


def check_round_trip(
    recommender: Recommender, requests: list[Request], folder: Path, scratch: Path
) -> None:
    """Compares the answers of a SavedModel in a fresh process with those of the original model.

    Args:
      recommender: the model that was saved.
      requests: signatures and inputs to compare.
      folder: folder of the SavedModel.
      scratch: temporary folder.

    Raises:
      UserError: the SavedModel cannot be loaded in a fresh process, or answers differently.
    """
    file = scratch / "requests.json"
    file.write_text(json.dumps(requests), encoding="utf-8")
    library = scann_library() if recommender.index.kind == "scann" else ""
    finished = subprocess.run(
        [sys.executable, "-I", str(_PROGRAM), str(folder), str(file), library],
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        reason = (finished.stderr.strip().splitlines() or [f"exit code {finished.returncode}"])[-1]
        raise UserError(f"the exported model cannot be used in a fresh process: {reason}")
    signatures = recommender.signatures()
    for (name, inputs), elsewhere in zip(requests, json.loads(finished.stdout.splitlines()[-1])):
        specs = signatures[name].structured_input_signature[1]
        here = signatures[name](
            **{key: tf.constant(value, specs[key].dtype) for key, value in inputs.items()}
        )
        for key, value in here.items():
            if not _agree(value.numpy(), np.asarray(elsewhere[key]), key):
                raise UserError(
                    f"the exported model answers differently in a fresh process: {key} of "
                    f"signature {name}. Nothing was published."
                )


def scann_library() -> str:
    """The file with ScaNN's TensorFlow operations."""
    spec = importlib.util.find_spec("scann")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("ScaNN is not installed. Run 'pip install scann', which needs Linux.")
    return str(Path(spec.submodule_search_locations[0]) / "scann_ops" / "cc" / "_scann_ops.so")


def _agree(here: np.ndarray, elsewhere: np.ndarray, key: str) -> bool:
    if here.shape != elsewhere.shape:
        return False
    if np.issubdtype(here.dtype, np.floating):
        return bool(np.allclose(here, elsewhere, rtol=_TOLERANCE, atol=_TOLERANCE))
    # Items with equal scores may change places; their scores are compared as well.
    same = np.sort(here.astype(str), axis=-1) == np.sort(elsewhere.astype(str), axis=-1)
    return bool(np.mean(same) > 0.95 if key == "item_ids" else np.all(same))
