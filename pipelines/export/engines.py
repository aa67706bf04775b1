"""Writes the vectors of a run's items for another search engine, with the query model."""

from __future__ import annotations

import argparse

from tfrs_croloss import serving

from ..errors import UserError
from .source import load_source


def export_vectors(args: argparse.Namespace) -> None:
    """Writes the next version of ``--out``, with the options of the step."""
    if args.index is not None:
        raise UserError(
            "--index cannot be combined with --vectors, which writes no index. Leave out one of "
            "the two."
        )
    source = load_source(args)
    queries = source.queries
    try:
        done = serving.export_vectors(
            args.out,
            format=args.vectors,
            candidates=(source.item_ids, source.embeddings),
            query_model=queries.model,
            tracked=queries.tracked,
            features=queries.features,
            query_examples=queries.check_examples,
            top_n=args.top_n,
            keep_versions=args.keep_versions,
            record=source.record,
        )
    except (ValueError, serving.EngineUnavailable) as error:
        raise UserError(f"the vectors cannot be exported. {error}") from error
    size = done.items.stat().st_size
    print(
        f"{done.items}: {done.num_items:,} vectors with {done.dim} dimensions, checkpoint of step "
        f"{source.record['best']['step']:,}, {size / 2**20:.1f} MiB\n"
        f"read back: all ids and vectors, and the top {min(args.top_n, done.num_items)} of "
        f"{done.num_queries:,} test users, are the same\n"
        f"query model: {done.query_model}"
        + (f"\nremoved: version {', '.join(map(str, done.removed))}" if done.removed else "")
    )
