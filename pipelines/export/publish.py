"""Writes a run's best weights as the next version of a model.

For an approximate index, the fastest settings are chosen that reach the recall target on held-out
users. A version is published only if a fresh process can load it and gives the same answers.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.indexes import Index
from tfrs_croloss.indexes.tuning import Measurement, build_index, measure, tune
from tfrs_croloss.indexes.vectors import VectorFiles
from tfrs_croloss.models import TwoTowerModel
from tfrs_croloss.serving import Recommender, check_catalogue, save

from ..common.files import atomic_folder, installed_versions, read_json, replace_file, write_json
from ..common.program import command
from ..data.batches import EvaluationInput
from ..data.prepared import PreparedData
from ..errors import UserError
from ..runs.build import build_model, embed_histories
from ..runs.checkpoints import restore_best
from ..runs.folder import Run
from . import card
from .embed import open_vectors
from .loading import check_scann_version, import_scann_ops
from .round_trip import check_round_trip, example_requests
from .versions import next_version, remove_old_versions
from .warmup import write_warmup_requests


def publish(args: argparse.Namespace) -> None:
    """Exports a run, with the options of the step."""
    out = Path(args.out)
    # Called here for its check alone, before anything takes long.
    next_version(out)
    exported = Run.load(args.run_folder)
    if args.index == "scann":
        import_scann_ops("--index scann")
        check_scann_version()
    data = exported.open_data(args.data)
    # In float32 even after training in mixed precision, since most servers have CPUs only.
    model = build_model(exported.settings, data.num_items)
    best = restore_best(exported.path, model)
    item_ids = data.item_ids()
    embeddings = (
        open_vectors(args.vectors, exported, best)
        if args.vectors
        else model.embed_catalogue(data.num_items).numpy()
    )
    try:
        check_catalogue(item_ids, embeddings)
    except ValueError as error:
        raise UserError(f"the model cannot be exported. {error}") from error
    top_n = min(args.top_n, data.num_items)
    index, tried, chosen, num_queries = _build_index(args, exported, data, model, embeddings, top_n)
    # The recall on users that played no part in choosing the settings is the one to report.
    recall = chosen.recall if chosen.check_recall is None else chosen.check_recall
    recommender = Recommender(
        model.embed_queries,
        index,
        item_ids,
        history_length=exported.settings.history_length,
        top_n=top_n,
        tracked=model.query_tower,
    )
    version = next_version(out)
    record = {
        "name": out.resolve().name,
        "version": int(version.name),
        "settings": exported.settings.as_dict(),
        "loss": exported.settings.loss_title,
        "best": best,
        "top_n": top_n,
        "num_items": data.num_items,
        "index": {
            "settings": index.settings(),
            "recall": recall,
            "recall_when_tuned": chosen.recall,
            "recall_target": args.recall_target if args.index != "brute_force" else None,
            "single_ms": chosen.single_ms,
            "batch_ms": chosen.batch_ms,
            "num_queries": num_queries,
        },
        "signatures": _describe(recommender),
        "evaluation": _evaluation(exported),
        "data": {
            "source": data.manifest["source"],
            "statistics": {
                name: data.manifest["statistics"][name]
                for name in ("interactions", "users", "items")
            },
        },
        "data_checksum": exported.config["data_checksum"],
        "vectors_from_files": isinstance(embeddings, VectorFiles),
        "seed": exported.settings.seed,
        "versions": installed_versions(),
    }
    _write(record, recommender, item_ids, version, tried, chosen)
    removed = remove_old_versions(out, args.keep_versions) if args.keep_versions else []
    size = sum(file.stat().st_size for file in version.rglob("*") if file.is_file())
    example = ",".join(item_ids[:2])
    print(
        f"{version}: {data.num_items:,} items, checkpoint of step {best['step']:,}, "
        f"{size / 2**20:.1f} MiB, TensorFlow {tf.__version__}\n"
        f"index: {args.index}, finds {recall:.2%} of the exact top {top_n} on "
        f"{num_queries:,} held-out users, in {chosen.single_ms:.2f} ms for 1 query and "
        f"{chosen.batch_ms:.2f} ms for 256\n"
        f"model card: {version / card.CARD}"
        + (f"\nremoved: version {', '.join(map(str, removed))}" if removed else "")
        + "\n\nNext:\n  "
        + command("query", "--model", args.out, "--history", example, "--top-n", 10)
        + "\n  "
        + command("serve", "--model", args.out)
    )


def _build_index(
    args: argparse.Namespace,
    exported: Run,
    data: PreparedData,
    model: TwoTowerModel,
    embeddings: np.ndarray | VectorFiles,
    top_n: int,
) -> tuple[Index, list[Measurement], Measurement, int]:
    """The index, all measurements, the chosen one, and the number of queries it is based on."""
    queries = [
        embed_histories(
            model,
            EvaluationInput.of(
                data.split(split),
                data.num_items,
                exported.settings.history_length,
                args.tune_users,
            ).histories,
        )
        for split in ("valid", "test")
    ]
    print(f"building the {args.index} index of {data.num_items:,} items", flush=True)
    index = build_index(args.index, embeddings, seed=exported.settings.seed)
    if args.index == "brute_force":
        measured = measure(index, np.concatenate(queries), top_n)
        return index, [measured], measured, sum(map(len, queries))
    print(
        f"searching for settings that find {args.recall_target:.0%} of the exact top {top_n}",
        flush=True,
    )
    tuned = tune(
        index,
        queries[0],
        queries[1],
        top_n=top_n,
        recall_target=args.recall_target,
        item_embeddings=embeddings,
        on_progress=_print_measurement,
    )
    return tuned.index, tuned.tried, tuned.chosen, len(queries[1])


def _print_measurement(measured: Measurement) -> None:
    settings = ", ".join(
        f"{name} {value}" for name, value in measured.settings.items() if name != "kind"
    )
    print(
        f"  recall {measured.recall:.4f}, {measured.single_ms:.2f} ms for 1 query, "
        f"{measured.batch_ms:.1f} ms for 256: {settings}",
        flush=True,
    )


def _write(
    record: dict[str, Any],
    recommender: Recommender,
    item_ids: list[str],
    version: Path,
    tried: list[Measurement],
    chosen: Measurement,
) -> None:
    requests = example_requests(recommender, item_ids)
    with atomic_folder(version) as folder, tempfile.TemporaryDirectory() as scratch:
        save(recommender, folder)
        write_warmup_requests(folder, record["name"], recommender, requests)
        card.write_measurements(
            folder,
            [
                {
                    "settings": measured.settings,
                    "recall": measured.recall,
                    "single_ms": measured.single_ms,
                    "batch_ms": measured.batch_ms,
                    "chosen": measured is chosen,
                }
                for measured in tried
            ],
            f"Index of {record['name']}, version {record['version']}: recall of the exact top "
            f"{record['top_n']}",
        )
        replace_file(folder / card.CARD, card.model_card(record).encode())
        write_json(folder / "export.json", record)
        print("checking the SavedModel in a fresh process", flush=True)
        check_round_trip(recommender, requests, folder, Path(scratch))


def _describe(recommender: Recommender) -> dict[str, Any]:
    def shapes(specs: dict[str, Any]) -> dict[str, str]:
        return {
            name: f"{spec.dtype.name} "
            + "["
            + ", ".join("any" if size is None else str(size) for size in spec.shape)
            + "]"
            for name, spec in sorted(specs.items())
        }

    return {
        name: {
            "inputs": shapes(function.structured_input_signature[1]),
            "outputs": shapes(function.structured_outputs),
        }
        for name, function in recommender.signatures().items()
    }


def _evaluation(exported: Run) -> dict[str, Any] | None:
    file = exported.path / "recall.json"
    if not file.is_file():
        return None
    found = read_json(file)
    return {name: found[name] for name in ("split", "exclude_history", "cutoffs", "systems")}
