"""Step ``export``: writes a run's best weights as a SavedModel, under the next version number."""

from __future__ import annotations

import argparse
from pathlib import Path

import tensorflow as tf

from pipelines import arguments
from pipelines.assembly import build_model
from pipelines.checkpoints import restore_best
from pipelines.errors import UserError
from pipelines.folders import atomic_folder, versions, write_json
from pipelines.rundir import Run
from tfrs_croloss.serving import BruteForceIndex, save


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this step."""
    parser.add_argument("--run", dest="run_folder", required=True, help="folder of the run")
    parser.add_argument("--out", required=True, help="folder of the model; versions go into it")
    parser.add_argument(
        "--top-n", type=arguments.positive, default=100, help="items in an answer (%(default)s)"
    )
    parser.add_argument("--data", help="the run's prepared data, if it has moved")


def run(args: argparse.Namespace) -> None:
    """Exports a run."""
    exported = Run.load(args.run_folder)
    data = exported.open_data(args.data)
    # In float32 whatever it was trained in: servers are CPUs more often than not.
    model = build_model(exported.settings, data.num_items)
    best = restore_best(exported.path, model)
    item_ids = data.item_ids()
    try:
        index = BruteForceIndex(
            lambda history: model.embed_queries({"history": history}),
            model.embed_catalogue(data.num_items),
            item_ids,
            history_length=exported.settings.history_length,
            top_n=args.top_n,
            tracked=model.query_tower,
        )
    except ValueError as error:
        raise UserError(f"the model cannot be exported. {error}") from error
    out = Path(args.out)
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} should be a folder, but a file has that name.")
    version = max([0, *model_versions(out)]) + 1
    with atomic_folder(out / str(version)) as folder:
        save(index, folder)
        write_json(
            folder / "export.json",
            {
                "settings": exported.settings.as_dict(),
                "best": best,
                "top_n": min(args.top_n, data.num_items),
                "num_items": data.num_items,
                "data_checksum": exported.config["data_checksum"],
                "seed": exported.settings.seed,
                "versions": versions(),
            },
        )
    size = sum(file.stat().st_size for file in (out / str(version)).rglob("*") if file.is_file())
    example = ",".join(item_ids[:2])
    print(
        f"{out / str(version)}: {data.num_items:,} items, weights of step {best['step']:,}, "
        f"{size / 2**20:.1f} MiB, TensorFlow {tf.__version__}\n\n"
        f"Next:\n  python -m pipelines query --model {args.out} --history {example} --top-n 10"
    )


def model_versions(folder: Path) -> list[int]:
    """The version numbers in the folder of a model."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
