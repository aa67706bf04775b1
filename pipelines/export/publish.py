"""Writes a run's best weights as the next version of a model.

`tfrs_croloss.serving.export` tunes the index on validation users, checks it on test users and
publishes the version, of the run that `source` loads.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from tfrs_croloss import serving
from tfrs_croloss.indexes.tuning import RecallNotReached
from tfrs_croloss.serving import versions
from tfrs_croloss.serving.card import CARD

from ..common.program import command
from ..errors import UserError
from .card import card_sections
from .loading import check_scann_version, import_scann_ops
from .source import Source, check_out, load_source


def publish(args: argparse.Namespace) -> None:
    """Exports a run, with the options of the step."""
    index = args.index or "brute_force"
    if index == "scann":
        import_scann_ops("--index scann")
        check_scann_version()
    out = Path(args.out)
    check_out(out)
    with versions.workspace(out) as folder, _temporary_files_in(folder):
        source = load_source(args)
        done = _export(args, index, source)
    record = source.record
    size = sum(file.stat().st_size for file in done.path.rglob("*") if file.is_file())
    num_items = len(source.item_ids)
    measured = done.measurement
    print(
        f"{done.path}: {num_items:,} items, checkpoint of step {record['best']['step']:,}, "
        f"{size / 2**20:.1f} MiB, TensorFlow {tf.__version__}\n"
        f"index: {index}, finds {done.recall:.2%} of the exact top {min(args.top_n, num_items)} on "
        f"{done.num_queries:,} held-out users, in {measured.single_ms:.2f} ms for 1 query and "
        f"{measured.batch_ms:.2f} ms for 256\n"
        f"model card: {done.path / CARD}"
        + (f"\nremoved: version {', '.join(map(str, done.removed))}" if done.removed else "")
        + "\n\nNext:\n  "
        + command("query", "--model", args.out, *source.queries.example, "--top-n", 10)
        + "\n  "
        + command("serve", "--model", args.out)
    )


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Lets temporary files be written into a folder that the next export removes.

    TensorFlow writes code that it generates into such files, and leaves them if it is killed.
    """
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def _export(args: argparse.Namespace, index: str, source: Source) -> serving.Exported:
    """Writes and publishes the next version."""
    queries, record = source.queries, source.record
    try:
        return serving.export(
            args.out,
            query_model=queries.model,
            tracked=queries.tracked,
            features=queries.features,
            query_examples=queries.examples,
            check_examples=queries.check_examples,
            num_examples=args.tune_users,
            candidates=(source.item_ids, source.embeddings),
            index=index,
            index_options={"seed": record["seed"]},
            recall_target=args.recall_target,
            top_n=args.top_n,
            keep_versions=args.keep_versions,
            record=record,
            sections=card_sections(record),
            on_progress=functools.partial(print, flush=True),
        )
    except RecallNotReached:
        raise
    except ValueError as error:
        raise UserError(f"the model cannot be exported. {error}") from error
