"""Step ``export``: writes a run's best weights as a SavedModel for servers.

``publish`` builds the index and writes the next version of a model, with its card; ``engines``
writes vectors for other search engines. ``source`` loads the run for both. ``embed``, which
writes the item vectors of a large catalogue, is a step as well.
"""

from __future__ import annotations

import argparse

from .. import cli

INDEXES = ("brute_force", "partitioned", "scann")
FORMATS = ("parquet", "jsonl", "faiss")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this step."""
    cli.add_run(parser)
    parser.add_argument(
        "--out", required=True, help="folder of the model; the new version becomes a subfolder"
    )
    parser.add_argument(
        "--index",
        choices=INDEXES,
        help="kind of index. brute_force: exact, fast enough below 100,000 items; partitioned: "
        "approximate, runs on any TensorFlow server; scann: approximate and fastest, needs ScaNN's "
        "operations on the server (brute_force)",
    )
    parser.add_argument(
        "--recall-target",
        type=cli.share,
        metavar="X",
        default=0.95,
        help="share of the exact top N that an approximate index has to find (%(default)s)",
    )
    parser.add_argument(
        "--top-n",
        type=cli.positive,
        default=100,
        metavar="N",
        help="largest number of items that a request may ask for (%(default)s)",
    )
    parser.add_argument(
        "--tune-users",
        type=cli.positive,
        default=1000,
        metavar="N",
        help="number of held-out users per split on which the index is measured (%(default)s)",
    )
    parser.add_argument(
        "--keep-versions",
        type=cli.positive,
        metavar="N",
        help="number of versions to keep, the newest ones; older ones are removed (all)",
    )
    parser.add_argument(
        "--embedded",
        metavar="FOLDER",
        help="folder with item vectors that 'embed' has written, from which the index is built "
        "without a second copy in memory (computed from the run)",
    )
    parser.add_argument(
        "--new-items",
        metavar="FILE",
        help="CSV, TSV or Parquet table of items without interactions, with the columns of the "
        "item features; they join the catalogue, embedded from their features (none)",
    )
    parser.add_argument(
        "--new-items-id",
        metavar="COLUMN",
        help="column of --new-items with the ids (as in the data, or else item)",
    )
    parser.add_argument(
        "--vectors",
        choices=FORMATS,
        help="write the item vectors for another search engine, with the query model, instead of a "
        "model with an index. parquet: for vector databases; jsonl: for Vertex AI Vector Search; "
        "faiss: an index file of FAISS (none)",
    )


def run(args: argparse.Namespace) -> None:
    """Exports a run."""
    # Imported here, since '--help' and the server, which uses this package, need none of it.
    if args.vectors:
        from .engines import export_vectors

        export_vectors(args)
    else:
        from .publish import publish

        publish(args)
