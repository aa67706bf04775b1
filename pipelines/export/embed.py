"""Step ``embed``: writes the item vectors of a run's best weights in shards.

One process writes all shards in turn, or several processes write one shard each. Existing shards
are not computed again, so a step that was killed is simply run again. ``export --embedded``
builds the index from the files.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from tfrs_croloss.indexes.vectors import VectorFiles, read_shards, write_shard
from tfrs_croloss.models import TwoTowerModel
from tfrs_croloss.models.two_tower import BLOCK_SIZE

from .. import cli
from ..common.files import installed_versions
from ..common.program import command
from ..common.progress import Phases
from ..errors import UserError
from ..runs.build import build_model
from ..runs.checkpoints import best_checksum, restore_best
from ..runs.features import run_features
from ..runs.folder import Run, training_differences


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this step."""
    cli.add_run(parser)
    parser.add_argument("--out", required=True, help="folder of the vectors")
    parser.add_argument(
        "--shards",
        type=cli.positive,
        default=8,
        metavar="N",
        help="number of files that the catalogue is divided into (%(default)s)",
    )
    parser.add_argument(
        "--shard",
        type=cli.count,
        metavar="N",
        help="write this shard only, counted from 0, if several processes share the work (all)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="remove shards of another run, checkpoint or number of shards from the folder",
    )


def run(args: argparse.Namespace) -> None:
    """Writes one shard, or all of them."""
    out = Path(args.out)
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} should be a folder, but a file has that name.")
    if args.shard is not None and args.shard >= args.shards:
        raise UserError(
            f"--shard should be from 0 to {args.shards - 1}, one less than --shards. Received: "
            f"{args.shard}."
        )
    embedded = Run.load(args.run_folder)
    data = embedded.open_data(args.data)
    num_users = data.split("train").num_users
    features = run_features(embedded.settings, data)
    model = build_model(embedded.settings, data.num_items, num_users=num_users, features=features)
    before = best_checksum(embedded.path)
    best = restore_best(embedded.path, model)
    origin = vectors_origin(embedded, best)
    if origin["weights_checksum"] != before:
        raise UserError(
            f"training saved better weights in {embedded.path} while they were being read. Run "
            "'embed' again, preferably when training is over."
        )
    _remove_others(out, origin, args.shards, args.overwrite)
    numbers = range(args.shards) if args.shard is None else [args.shard]
    dim = int(model.embed_item_block(0, 1).shape[1])
    written = _write(model, out, numbers, args.shards, (data.num_items, dim), origin)
    present = {shard.shard for shard in read_shards(out)}
    missing = [str(number) for number in range(args.shards) if number not in present]
    print(
        f"{out}: {data.num_items:,} vectors with {dim} dimensions, checkpoint of step "
        f"{best['step']:,}; {written} of {len(numbers)} shards written"
        + (", the others existed" if written < len(numbers) else "")
    )
    if missing:
        print(f"still missing: shards {', '.join(missing)}")
    else:
        print(
            "\nNext:\n  "
            + command(
                "export",
                *("--run", args.run_folder),
                *("--embedded", args.out),
                *("--out", f"saved_models/{Path(args.run_folder).resolve().name}"),
            )
        )


def vectors_origin(embedded: Run, best: dict[str, Any]) -> dict[str, Any]:
    """Where vectors come from: the run, its data and the checkpoint."""
    return {
        "settings": embedded.settings.as_dict(),
        "seed": embedded.settings.seed,
        "data_checksum": embedded.config["data_checksum"],
        "step": best["step"],
        "weights_checksum": best_checksum(embedded.path),
    }


def open_vectors(folder: str, exported: Run, best: dict[str, Any]) -> VectorFiles:
    """Opens the vectors in a folder, and verifies their checksums.

    Args:
      folder: folder that ``embed`` has written.
      exported: the run that they should come from.
      best: record of its best checkpoint.

    Raises:
      UserError: they are incomplete, damaged, or not of the run's best weights.
    """
    remedy = f"Run '{command('embed', '--run', exported.path, '--out', folder)}'"
    try:
        files = VectorFiles.open(folder)
        differences = _differences(files.origin, vectors_origin(exported, best))
        if differences:
            raise UserError(
                f"--embedded {folder} should hold vectors of the best weights of {exported.path}. "
                f"Differences: {'; '.join(differences)}. {remedy} with --overwrite."
            )
        files.verify()
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"--embedded cannot be used. {error} {remedy} first.") from error
    return files


def _write(
    model: TwoTowerModel,
    out: Path,
    numbers: range | list[int],
    num_shards: int,
    shape: tuple[int, int],
    origin: dict[str, Any],
) -> int:
    """Writes the missing shards, and returns their number."""
    done = 0.0

    def embed(first: int, last: int) -> np.ndarray:
        # The last digits of a vector depend on its position in a block. With the blocks of
        # `embed_catalogue`, the vectors are the same with shards as without.
        start = first - first % BLOCK_SIZE
        block = model.embed_item_block(start, min(start + BLOCK_SIZE, shape[0]))
        vectors: np.ndarray = block.numpy()[first - start : last - start]
        return vectors

    def progress(rows: int, of_rows: int) -> None:
        nonlocal done
        done = 100.0 * rows / of_rows

    phases = Phases(len(numbers), lambda: done)
    written = 0
    for number in numbers:
        done = 0.0
        with phases.phase(f"shard {number} of {num_shards}") as results:
            is_new = write_shard(
                out,
                number,
                embed,
                num_shards=num_shards,
                num_items=shape[0],
                dim=shape[1],
                origin=origin,
                made_with={"versions": installed_versions()},
                block_size=BLOCK_SIZE,
                on_progress=progress,
            )
            results.append("written" if is_new else "exists already")
        written += is_new
    return written


def _remove_others(out: Path, origin: dict[str, Any], num_shards: int, overwrite: bool) -> None:
    """Removes shards of other vectors from the folder, or raises an error that names one."""
    for shard in read_shards(out):
        differences = _differences(shard.origin, origin)
        if shard.num_shards != num_shards:
            differences.append(f"--shards: {shard.num_shards} there, {num_shards} now")
        if differences and not overwrite:
            raise UserError(
                f"--out {out} holds other vectors in {shard.path.name} ({'; '.join(differences)}). "
                "Pass --overwrite to remove them, or choose another folder."
            )
        if differences:
            shard.remove()


def _differences(there: dict[str, Any], now: dict[str, Any]) -> list[str]:
    found = training_differences(there, now)
    if there.get("step") != now["step"]:
        found.append(f"weights of step {there.get('step')} there, {now['step']} now")
    if not found and there != now:
        found.append("other weights")
    return found
