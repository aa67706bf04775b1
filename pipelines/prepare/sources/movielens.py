"""Logs from tensorflow-datasets, such as MovieLens.

This is the only source that imports TensorFlow, and it does so only when it is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import UserError
from ..rows.parquet import ParquetReader
from .base import Source, SourceOptions

BATCH_ROWS = 1 << 16


def open_movielens(options: SourceOptions) -> Source:
    """Opens ratings from tensorflow-datasets: ``user_id``, ``movie_id`` and ``timestamp``.

    tensorflow-datasets downloads the data set if it is not in its data folder yet.
    """
    columns = (
        options.user_column or "user_id",
        options.item_column or "movie_id",
        options.time_column or "timestamp",
    )
    path = options.scratch / "tfds.parquet"
    schema = pa.schema([("user", pa.binary()), ("item", pa.binary()), ("time", pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for batch in _batches(options, columns):
            ids = [_as_bytes(batch[name]) for name in columns[:2]]
            times = np.asarray(batch[columns[2]]).astype(np.int64)
            arrays = [*(pa.array(values, pa.binary()) for values in ids), pa.array(times)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return Source([ParquetReader(path, "user", "item", "time")])


def _batches(options: SourceOptions, columns: tuple[str, str, str]) -> Iterator[dict[str, Any]]:
    import tensorflow_datasets as tfds

    name = options.tfds_name
    try:
        builder = tfds.builder(name, data_dir=options.tfds_data_dir)
    except tfds.core.DatasetNotFoundError as error:
        raise UserError(
            f"--tfds-name {name} is neither a data set of tensorflow-datasets nor in "
            "--tfds-data-dir. Try movielens/100k-ratings."
        ) from error
    missing = [column for column in columns if column not in (builder.info.features or {})]
    if missing:
        known = ", ".join(builder.info.features or {})
        raise UserError(
            f"--tfds-name {name} has no {', '.join(missing)}. It has {known}. Choose a "
            "-ratings data set, or set --user-column, --item-column and --time-column."
        )
    try:
        builder.download_and_prepare()
    except (OSError, tfds.download.DownloadError, AssertionError) as error:
        raise UserError(
            f"--tfds-name {name} could not be downloaded ({type(error).__name__}). Download it "
            "elsewhere and point --tfds-data-dir to the data folder."
        ) from error
    # The files are read one after the other, so that the row order is the same in every run.
    read_config = tfds.ReadConfig(interleave_cycle_length=1)
    for split in builder.info.splits:
        dataset = builder.as_dataset(split=split, read_config=read_config)
        dataset = dataset.map(lambda row: {column: row[column] for column in columns})
        yield from tfds.as_numpy(dataset.batch(BATCH_ROWS))


def _as_bytes(values: Any) -> list[bytes]:
    array = np.asarray(values)
    return [value if isinstance(value, bytes) else str(value).encode() for value in array.tolist()]
