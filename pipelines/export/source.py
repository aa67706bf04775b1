"""The run that is exported: its item vectors, its queries, and where they come from."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from tfrs_croloss.indexes.vectors import VectorFiles

from ..common.files import installed_versions, read_json
from ..common.json_shapes import check_shape
from ..data.features import BELONGINGS
from ..data.prepared import PreparedData
from ..errors import UserError
from ..runs.build import build_model
from ..runs.checkpoints import restore_best
from ..runs.features import RunFeatures, run_features
from ..runs.folder import Run
from .embed import open_vectors
from .new_items import embed_new_items
from .queries import Queries, run_queries

# What a model card shows of an evaluation.
_EVALUATION_SHAPE = {
    "split": str,
    "exclude_history": bool,
    "cutoffs": [int],
    "systems": {"*": {"pairs": {"standard_errors": dict, "*": (float, None)}}},
}


@dataclasses.dataclass(frozen=True)
class Source:
    """A run's best weights, as an export takes them.

    Attributes:
      item_ids: ids of the items.
      embeddings: ``[num_items, dim]`` their vectors.
      queries: the query model, with examples.
      record: where the model comes from, as JSON values.
    """

    item_ids: list[str]
    embeddings: np.ndarray | VectorFiles
    queries: Queries
    record: dict[str, Any]


def load_source(args: argparse.Namespace) -> Source:
    """Loads the run that the options of the step name.

    Raises:
      UserError: the run, its data or its vectors cannot be used, or ``--out`` is a file.
    """
    check_out(Path(args.out))
    exported = Run.load(args.run_folder)
    settings = exported.settings
    data = exported.open_data(args.data)
    # In float32 even after training in mixed precision, since most servers have CPUs only.
    features = run_features(settings, data)
    num_users = data.split("train").num_users
    model = build_model(settings, data.num_items, num_users=num_users, features=features)
    best = restore_best(exported.path, model)
    embeddings = (
        open_vectors(args.embedded, exported, best)
        if args.embedded
        else model.embed_catalogue(data.num_items).numpy()
    )
    item_ids = data.item_ids()
    num_new = 0
    if args.new_items:
        new_ids, vectors = embed_new_items(args, model, data, features)
        num_new = len(new_ids)
        item_ids = [*item_ids, *new_ids]
        embeddings = np.concatenate([embeddings, vectors])
    record = {
        "settings": settings.as_dict(),
        "loss": settings.loss_title,
        "best": best,
        "evaluation": _evaluation(exported),
        "data": {
            "source": data.manifest["source"],
            "train_on_valid": data.trains_on_valid,
            "statistics": {
                name: data.manifest["statistics"][name]
                for name in ("interactions", "users", "items")
            },
        },
        "data_checksum": exported.config["data_checksum"],
        "seed": settings.seed,
        "versions": installed_versions(),
        "features": _features(features, data),
        "new_items": num_new,
    }
    queries = run_queries(model, settings, data, features, args.tune_users, item_ids)
    return Source(item_ids, embeddings, queries, record)


def _features(features: RunFeatures, data: PreparedData) -> dict[str, dict[str, str]]:
    """What each feature belongs to, and its kind, by name."""
    return {
        name: {"of": of, "kind": feature.kind, "column": data.features(of)[name].column}
        for of in BELONGINGS
        for name, feature in getattr(features, of).items()
    }


def check_out(out: Path) -> None:
    """Checks that ``--out`` can be written into.

    Raises:
      UserError: it is a file.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} should be a folder, but a file has that name.")


def _evaluation(exported: Run) -> dict[str, Any] | None:
    file = exported.path / "recall.json"
    if not file.is_file():
        return None
    found = read_json(file, dict)
    check_shape(file, found, _EVALUATION_SHAPE, "Evaluate the run again.")
    return {name: found[name] for name in ("split", "exclude_history", "cutoffs", "systems")}
