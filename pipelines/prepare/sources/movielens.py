"""Logs from tensorflow-datasets, such as MovieLens.

This is the only source that imports TensorFlow, and it does so only when it is opened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...data.features import ITEM, USER
from ...errors import UserError
from ..rows.parquet import LIST_SEPARATOR, ParquetReader
from ..rows.readers import Reader
from .base import Source, SourceOptions

BATCH_ROWS = 1 << 16

_Text = Callable[[Any], bytes]
_Row = Sequence[bytes]


def open_movielens(options: SourceOptions) -> Source:
    """Opens ratings from tensorflow-datasets: ``user_id``, ``movie_id`` and ``timestamp``.

    tensorflow-datasets downloads the data set if it is not in its data folder yet. The features of
    a user and of an item are those of the first row with it.
    """
    user, item, time = columns = (
        options.user_column or "user_id",
        options.item_column or "movie_id",
        options.time_column or "timestamp",
    )
    described = {ITEM: (item, options.item_columns), USER: (user, options.user_columns)}
    others = (*options.context_columns, *options.item_columns, *options.user_columns)
    builder = _builder(options, columns, others)
    texts = {name: _as_text(builder.info.features[name]) for name in (user, item, *others)}
    path = options.scratch / "tfds.parquet"
    extras = [f"x{place}" for place in range(len(options.context_columns))]
    schema = pa.schema(
        [
            ("user", pa.binary()),
            ("item", pa.binary()),
            ("time", pa.int64()),
            *((name, pa.binary()) for name in extras),
        ]
    )
    with contextlib.ExitStack() as files:
        writer = files.enter_context(pq.ParquetWriter(path, schema))
        tables = {
            of: files.enter_context(_FirstRows(options.scratch / f"{of}.parquet", len(names)))
            for of, (_, names) in described.items()
            if names
        }
        for batch in _batches(options, builder, {*columns, *others}):
            times = np.asarray(batch[time]).astype(np.int64)
            text = {
                name: [convert(value) for value in batch[name]] for name, convert in texts.items()
            }
            arrays = [pa.array(text[name], pa.binary()) for name in (user, item)]
            arrays.append(pa.array(times))
            arrays += [pa.array(text[name], pa.binary()) for name in options.context_columns]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            for of, table in tables.items():
                key, names = described[of]
                table.add(zip(text[key], *(text[name] for name in names)))
    readers: dict[str, Reader] = {of: table.reader() for of, table in tables.items()}
    return Source(
        [ParquetReader(path, "user", "item", "time", extras=tuple(extras))], tables=readers
    )


class _FirstRows:
    """A Parquet file with the first row of each id."""

    def __init__(self, path: Path, num_columns: int):
        self._path = path
        self._columns = [f"x{place}" for place in range(num_columns)]
        self._schema = pa.schema([(name, pa.binary()) for name in ("id", *self._columns)])
        self._writer = pq.ParquetWriter(path, self._schema)
        self._seen: set[bytes] = set()

    def __enter__(self) -> _FirstRows:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def add(self, rows: Iterator[_Row]) -> None:
        """Adds those of the rows that begin with an id that was not there before."""
        new = []
        for row in rows:
            if row[0] not in self._seen:
                self._seen.add(row[0])
                new.append(row)
        if new:
            arrays = [pa.array(values, pa.binary()) for values in zip(*new)]
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def reader(self) -> ParquetReader:
        """A reader of the file."""
        return ParquetReader(self._path, "id", "id", extras=tuple(self._columns))


def _builder(options: SourceOptions, columns: Sequence[str], others: Sequence[str]) -> Any:
    import tensorflow_datasets as tfds

    name = options.tfds_name
    try:
        builder = tfds.builder(name, data_dir=options.tfds_data_dir)
    except tfds.core.DatasetNotFoundError as error:
        raise UserError(
            f"--tfds-name {name} is neither a data set of tensorflow-datasets nor in "
            "--tfds-data-dir. Try movielens/100k-ratings."
        ) from error
    features = builder.info.features or {}
    known = ", ".join(features)
    missing = [column for column in columns if column not in features]
    if missing:
        raise UserError(
            f"--tfds-name {name} has no {', '.join(missing)}. It has {known}. Choose a "
            "-ratings data set, or set --user-column, --item-column and --time-column."
        )
    missing = [column for column in others if column not in features]
    if missing:
        raise UserError(
            f"--tfds-name {name} has no {', '.join(missing)}. It has {known}. Name some of these "
            "with --item-features, --user-features and --context-features."
        )
    for column in others:
        feature = features[column]
        inner = getattr(feature, "feature", feature)
        if getattr(inner, "shape", None) != ():
            raise UserError(
                f"--tfds-name {name} has {column} with values that are neither a number nor text "
                "nor a list of them. Choose other features."
            )
    try:
        builder.download_and_prepare()
    except (OSError, tfds.download.DownloadError, AssertionError) as error:
        raise UserError(
            f"--tfds-name {name} could not be downloaded ({type(error).__name__}). Download it "
            "elsewhere and point --tfds-data-dir to the data folder."
        ) from error
    return builder


def _batches(options: SourceOptions, builder: Any, columns: set[str]) -> Iterator[dict[str, Any]]:
    import tensorflow_datasets as tfds

    # The files are read one after the other, so that the row order is the same in every run.
    read_config = tfds.ReadConfig(interleave_cycle_length=1)
    for split in builder.info.splits:
        dataset = builder.as_dataset(split=split, read_config=read_config)
        dataset = dataset.map(lambda row: {column: row[column] for column in columns})
        for batch in dataset.ragged_batch(BATCH_ROWS):
            yield {name: _plain(values) for name, values in batch.items()}


def _plain(values: Any) -> list[Any]:
    """A column of a batch as Python values; lists of them, if rows have several."""
    found: list[Any] = values.to_list() if hasattr(values, "to_list") else values.numpy().tolist()
    return found


def _as_text(feature: Any) -> _Text:
    """A function that writes a value of a feature as text, with the names of its classes."""
    inner = getattr(feature, "feature", feature)
    names = getattr(inner, "names", None)

    def one(value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        if isinstance(value, bool):
            return b"true" if value else b"false"
        if names and isinstance(value, int):
            return str(names[value]).encode() if 0 <= value < len(names) else b""
        if isinstance(value, float):
            value = "" if value != value else int(value) if value.is_integer() else value
        return str(value).encode()

    def text(value: Any) -> bytes:
        if isinstance(value, list):
            return LIST_SEPARATOR.encode().join(map(one, value))
        return one(value)

    return text
