"""Items without interactions that join the catalogue of an export, embedded from their features."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.models import TwoTowerModel

from ..data.features import FeatureSpec
from ..data.prepared import PreparedData
from ..errors import UserError
from ..prepare.features.encoding import encode
from ..prepare.features.side_tables import SideTable, open_table, read_table
from ..prepare.rows.bad_rows import BadRows
from ..runs.features import RunFeatures

_BLOCK_ITEMS = 65_536
_DEFAULT_ID = "item"


def embed_new_items(
    args: argparse.Namespace, model: TwoTowerModel, data: PreparedData, features: RunFeatures
) -> tuple[list[str], np.ndarray]:
    """The ids and the vectors of the items in ``--new-items``.

    Items that the data has already are left out. Of several rows with one id, the first counts.

    Raises:
      UserError: the table cannot be read, or the run has no item features.
    """
    option = f"--new-items {args.new_items}"
    if not features.item:
        raise UserError(
            f"{option} requires a run with item features, from which new items are "
            "embedded. Received: a run without. Prepare the data with --item-features, and train."
        )
    if args.embedded:
        raise UserError(f"{option} cannot be combined with --embedded. Leave one of the two out.")
    prepared = data.features("item")
    specs = [prepared[name] for name in features.item]
    config = data.manifest["config"]
    id_column = args.new_items_id or config.get("items_id") or config.get("item_column")
    table = _read(Path(args.new_items), id_column or _DEFAULT_ID, specs)
    known = set(data.item_ids())
    ids = table.ids.to_pylist()
    places = np.array([place for place, name in enumerate(ids) if name not in known], np.int64)
    print(
        f"new items: {len(places):,}, embedded from their features; "
        f"{len(ids) - len(places):,} others are in the catalogue already"
    )
    blocks = [np.zeros([0, int(model.embed_item_block(0, 1).shape[1])], np.float32)]
    for start in range(0, len(places), _BLOCK_ITEMS):
        some = places[start : start + _BLOCK_ITEMS]
        columns = {spec.name: _encoded(table, spec, some) for spec in specs}
        blocks.append(model.embed_new_candidates(columns).numpy())
    return [ids[place] for place in places], np.concatenate(blocks)


def _read(path: Path, id_column: str, specs: list[FeatureSpec]) -> SideTable:
    columns = list(dict.fromkeys(spec.column for spec in specs))
    bad_rows = BadRows()
    try:
        reader = open_table("item", path, id_column, columns)
        table = read_table("item", reader, columns, bad_rows)
    except UserError as error:
        # The reader is that of prepare, whose option has another name.
        raise UserError(str(error).replace("--items", "--new-items")) from error
    if bad_rows.total:
        raise UserError(
            f"--new-items {path} should have rows that can all be read. Received:\n"
            f"{bad_rows.report()}\nFix the file."
        )
    return table


def _encoded(table: SideTable, spec: FeatureSpec, places: np.ndarray) -> Any:
    """A column of some items, as the item tower takes it."""
    blocks = [encode(spec, raw) for raw in table.blocks(spec.column, places)]
    values = np.concatenate([block.values for block in blocks])
    if not spec.is_ragged:
        return tf.constant(values)
    lengths = np.concatenate([block.lengths for block in blocks if block.lengths is not None])
    return tf.RaggedTensor.from_row_lengths(values, lengths)
