"""Tables beside the log, with a row for each item or for each user.

They are read on this machine, whatever the engine is: DuckDB reads a clean table, and Python one
with rows that need a closer look, as the log is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...data.features import ITEM
from ...errors import UserError
from ..engines.duckdb import STOPPED
from ..rows.bad_rows import MISSING_ITEM, MISSING_USER, BadRows
from ..rows.parquet import ParquetReader
from ..rows.readers import REAL, TEXT, DelimitedReader, Reader
from ..rows.values import BadValue, check_ids
from ..sources.columns import check_id_type, delimited, find_column, first_record, parquet_extras
from .encoding import UNITS, Raw
from .spool import BLOCK_ROWS

_SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
_ODD_ID = r"[\x00-\x1f\x7f]|^ *$"


@dataclass(frozen=True)
class SideTable:
    """A table that has been read.

    Attributes:
      of: what it describes, ``item`` or ``user``.
      name: name of its file.
      ids: the distinct ids.
      first_rows: for each of ``ids``, the first row that has it.
      columns: the columns by name.
      held: what each of the columns holds, see ``rows.readers``.
      num_rows: number of good rows.
    """

    of: str
    name: str
    ids: pa.Array
    first_rows: np.ndarray
    columns: dict[str, pa.ChunkedArray]
    held: dict[str, str]
    num_rows: int

    def rows_of(self, ids: pa.Array) -> np.ndarray:
        """The place of each id among ``self.ids``, or -1."""
        places = pc.index_in(ids.cast(self.ids.type), value_set=self.ids).fill_null(-1)
        found: np.ndarray = places.to_numpy(zero_copy_only=False)
        return found

    def blocks(self, column: str, places: np.ndarray) -> Iterator[Raw]:
        """The values of a column, in blocks of rows.

        Args:
          column: name of the column.
          places: for each row, a place among ``ids``, or -1 for a row without values.
        """
        kind = self.held[column]
        unit = kind if kind in UNITS else None
        first_rows = np.append(self.first_rows, 0)
        for start in range(0, len(places), BLOCK_ROWS):
            block = places[start : start + BLOCK_ROWS]
            rows = pa.array(first_rows[block], mask=block < 0)
            values = self.columns[column].take(rows).combine_chunks()
            yield Raw(values.cast(_arrow_type(kind)), unit)


def open_table(of: str, path: Path, id_column: str, columns: Sequence[str]) -> Reader:
    """Looks at the head of a table, and chooses its reader.

    Args:
      of: ``item`` or ``user``.
      path: the file.
      id_column: name of the column with the ids of the log.
      columns: names of the other columns to read.

    Raises:
      UserError: the file is missing, of another format, or lacks a column.
    """
    option, features = f"--{of}s", f"--{of}-features"
    if not path.is_file():
        raise UserError(f"{option} {path} does not exist. Check the path.")
    ending = path.with_suffix("").suffix if path.suffix.lower() == ".gz" else path.suffix
    if ending.lower() in (".parquet", ".pq"):
        try:
            schema = pq.read_schema(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{option} {path} is not a Parquet file. Check its name.") from error
        place = find_column(path, id_column, schema.names, True, f"{option}-id")
        check_id_type(path, schema.field(place))
        extras = parquet_extras(path, columns, schema, features)
        return ParquetReader(path, id_column, id_column, extras=extras)
    if ending.lower() not in _SEPARATORS:
        raise UserError(
            f"{option} should end in .csv, .tsv or .parquet (text also in .gz). Received: {path}."
        )
    separator = _SEPARATORS[ending.lower()]
    names = first_record(path, separator)
    place = find_column(path, id_column, names, True, f"{option}-id")
    places = tuple(find_column(path, name, names, True, features) for name in columns)
    return delimited(path, separator, True, len(names), place, place, extras=places)


def read_table(of: str, reader: Reader, columns: Sequence[str], bad_rows: BadRows) -> SideTable:
    """Reads a table into memory, as Arrow arrays.

    Args:
      of: ``item`` or ``user``.
      reader: its reader.
      columns: names of the columns that the reader reads.
      bad_rows: counts the rows that cannot be used.

    Raises:
      UserError: the file is damaged.
    """
    assert isinstance(reader, (DelimitedReader, ParquetReader))
    table = _read_fast(reader) if reader.check() else None
    if table is None:
        table = _read_carefully(of, reader, bad_rows)
    ids = table.column(0).cast(pa.large_string()).combine_chunks().dictionary_encode()
    # The distinct ids are in the order in which they first occur.
    order = ids.indices.to_numpy(zero_copy_only=False)
    first_rows = np.unique(order, return_index=True)[1]
    held = dict(zip(columns, reader.extra_types))
    found = {name: table.column(place) for place, name in enumerate(columns, start=1)}
    return SideTable(of, reader.path.name, ids.dictionary, first_rows, found, held, len(table))


def _read_fast(reader: DelimitedReader | ParquetReader) -> pa.Table | None:
    """Ids and columns; None if rows need a closer look."""
    select = reader.select()
    if select is None:
        return None
    names = ", ".join(['"user"', *(f"x{place}" for place in range(len(reader.extras)))])
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        try:
            found = connection.sql(f"SELECT {names} FROM ({select})").to_arrow_reader(BLOCK_ROWS)
            table = found.read_all()
        except (duckdb.OutOfMemoryException, duckdb.FatalException, duckdb.InternalException):
            raise
        except (*STOPPED, pa.ArrowException):
            return None
    ids = table.column(0)
    if ids.null_count or pc.any(pc.match_substring_regex(ids, _ODD_ID)).as_py():
        return None
    return table


def _read_carefully(
    of: str, reader: DelimitedReader | ParquetReader, bad_rows: BadRows
) -> pa.Table:
    kinds = [TEXT, *reader.extra_types]
    schema = pa.schema([(f"x{place}", _arrow_type(kind)) for place, kind in enumerate(kinds)])
    waiting: list[tuple[str, ...]] = []
    blocks: list[pa.RecordBatch] = []

    def flush() -> None:
        columns = zip(*waiting) if waiting else [()] * len(kinds)
        texts = [pa.array(values, pa.string()) for values in columns]
        arrays = [
            pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text).cast(field.type)
            for text, field in zip(texts, schema)
        ]
        blocks.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        waiting.clear()

    for row in reader.rows(bad_rows):
        try:
            check_ids(row.user, row.user)
        except BadValue as error:
            is_missing = error.kind == MISSING_USER
            kind = MISSING_ITEM if is_missing and of == ITEM else error.kind
            bad_rows.add(kind, reader.path.name, row.line)
            continue
        waiting.append((row.user, *row.extras))
        if len(waiting) == BLOCK_ROWS:
            flush()
    flush()
    return pa.Table.from_batches(blocks, schema)


def _arrow_type(kind: str) -> pa.DataType:
    return {TEXT: pa.string(), REAL: pa.float64()}.get(kind, pa.int64())


def read_ids(path: Path) -> pa.Array:
    """The lines of a file of ids, which have no control characters, as an Arrow array."""
    content = np.fromfile(path, np.uint8)
    ends = np.flatnonzero(content == ord("\n"))
    # Without the ends of lines, each line begins as many bytes earlier as lines precede it.
    offsets = np.concatenate([[0], ends - np.arange(len(ends))]).astype(np.int64)
    text = content[content != ord("\n")]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.large_string(), len(ends), buffers)
