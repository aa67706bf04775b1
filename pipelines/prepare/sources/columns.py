"""Logs in columns: delimited text and Parquet, with columns given by name or number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import UserError
from ..rows import text_files
from ..rows.parquet import ParquetReader, can_be_extra
from ..rows.readers import DelimitedReader
from ..rows.values import DATE, DECIMAL, INTEGER, BadValue, time_form
from .base import Source, SourceOptions, input_files

HEAD_LINES = 200

_ID_TYPES = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)
_TIME_TYPES = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_timestamp,
    pa.types.is_date,
    pa.types.is_string,
    pa.types.is_large_string,
)


def open_csv(options: SourceOptions) -> Source:
    """Opens comma-separated files."""
    return _open_delimited(options, ",")


def open_tsv(options: SourceOptions) -> Source:
    """Opens tab-separated files."""
    return _open_delimited(options, "\t")


def _open_delimited(options: SourceOptions, default_separator: str) -> Source:
    separator = default_separator if options.separator is None else options.separator
    has_header = options.header is not False
    readers = []
    for path in input_files(options):
        names = first_record(path, separator)
        if not has_header:
            names = [str(index + 1) for index in range(_usual_width(path, separator))]
        user, item, time = _choose_columns(path, options, names, has_header)
        extras = tuple(
            find_column(path, name, names, has_header, "--context-features")
            for name in options.context_columns
        )
        readers.append(
            delimited(path, separator, has_header, len(names), user, item, time, extras=extras)
        )
    if len({reader.has_time for reader in readers}) > 1:
        raise UserError(
            "all --input files should have a time column, or none of them. Add the column, or pass "
            "--time-column none."
        )
    return Source(readers)


def _usual_width(path: Path, separator: str) -> int:
    """The number of columns of most of the first rows, since the very first may be bad."""
    widths = [len(split_or_empty(line, separator)) for line in text_files.head(path, HEAD_LINES)]
    return max(sorted(set(widths)), key=widths.count)


def delimited(
    path: Path,
    separator: str,
    has_header: bool,
    num_columns: int,
    user: int,
    item: int,
    time: int | None = None,
    part: int = 0,
    wanted: tuple[int, str] | None = None,
    extras: tuple[int, ...] = (),
) -> DelimitedReader:
    """A reader of delimited text; looks at the first lines to find the form of the times."""
    forms = set()
    if time is not None:
        for line in text_files.head(path, HEAD_LINES)[1 if has_header else 0 :]:
            record = split_or_empty(line, separator)
            if len(record) == num_columns:
                forms.add(time_form(record[time].decode("utf-8", "replace")))
    return DelimitedReader(
        path,
        separator,
        has_header,
        num_columns,
        user,
        item,
        time,
        _form(forms),
        part,
        wanted,
        extras,
    )


def _form(forms: set[str | None]) -> str:
    return next((form for form in (DATE, DECIMAL) if form in forms), INTEGER)


def split_or_empty(line: bytes, separator: str) -> list[bytes]:
    """The fields of a line, or an empty list if its quotes are broken."""
    try:
        return text_files.split_record(line, separator)
    except BadValue:
        return []


def first_record(path: Path, separator: str) -> list[str]:
    """The fields of the first line.

    Raises:
      UserError: there are fewer than two fields, so the separator is wrong.
    """
    line = text_files.head(path, 1)[0]
    record = split_or_empty(line, separator)
    if len(record) < 2:
        raise UserError(
            f"{path}: the first line should have at least two columns separated by "
            f"{separator!r}. Received: {line[:80].decode('utf-8', 'replace')!r}. "
            "Set the separator with --separator."
        )
    return [field.decode("utf-8", "replace") for field in record]


def _choose_columns(
    path: Path, options: SourceOptions, names: Sequence[str], has_header: bool
) -> tuple[int, int, int | None]:
    """The columns of user, item and time, from 0."""
    defaults = ("user", "item", "time") if has_header else ("1", "2", None)
    user_name = options.user_column or str(defaults[0])
    item_name = options.item_column or str(defaults[1])
    time_name = options.time_column or defaults[2]
    if time_name == "none" or (options.time_column is None and time_name not in names):
        time_name = None
    chosen = {"--user-column": user_name, "--item-column": item_name}
    if time_name is not None:
        chosen["--time-column"] = time_name
    absent = [option for option, name in chosen.items() if name not in names]
    if has_header and len(absent) > 1:
        raise UserError(
            f"{path}: the columns {' and '.join(repr(chosen[option]) for option in absent)} are "
            f"not in the file. Its columns are {', '.join(names)}. Set {' and '.join(absent)}, and "
            "--no-header if the first line is data."
        )
    indices = [
        find_column(path, name, names, has_header, option) for option, name in chosen.items()
    ]
    return indices[0], indices[1], indices[2] if len(indices) == 3 else None


def find_column(path: Path, name: str, names: Sequence[str], has_header: bool, option: str) -> int:
    """The place of a column, from 0.

    Args:
      path: the file, for the error.
      name: name of the column, or its number from 1 without a header.
      names: names of all columns.
      has_header: whether the file names its columns.
      option: the option that names the column, for the error.

    Raises:
      UserError: there is no such column, or there are several.
    """
    if names.count(name) != 1:
        what = "appears more than once" if name in names else "is not in the file"
        kind = "column" if has_header else "column number"
        hint = "" if has_header else " (numbers start at 1; names work with a header)"
        raise UserError(
            f"{path}: {kind} {name!r} {what}. Its columns are {', '.join(names)}{hint}. "
            f"Set {option}, and --no-header if the first line is data."
        )
    return names.index(name)


def open_parquet(options: SourceOptions) -> Source:
    """Opens Parquet files."""
    readers = []
    for path in input_files(options):
        try:
            schema = pq.read_schema(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{path} is not a Parquet file. Check --source.") from error
        user, item, time = _choose_columns(path, options, schema.names, has_header=True)
        for index in (user, item):
            check_id_type(path, schema.field(index))
        extras = parquet_extras(path, options.context_columns, schema, "--context-features")
        time_name, form = None, INTEGER
        if time is not None:
            _check_type(path, schema.field(time), "a number, a date or text", _TIME_TYPES)
            time_name, form = schema.names[time], _parquet_time_form(path, schema.field(time))
        readers.append(
            ParquetReader(path, schema.names[user], schema.names[item], time_name, form, extras)
        )
    if len({reader.extra_types for reader in readers}) > 1:
        raise UserError(
            "the columns of --context-features should have the same types in all --input files. "
            "Convert them."
        )
    if len({reader.time and reader.type_of(reader.time) for reader in readers}) > 1:
        raise UserError(
            "the time columns of the --input files should all have the same type. Convert them."
        )
    return Source(readers)


def check_id_type(path: Path, field: pa.Field) -> None:
    """Checks that a Parquet column may hold ids.

    Raises:
      UserError: it may not.
    """
    _check_type(path, field, "text or an integer", _ID_TYPES)


def parquet_extras(
    path: Path, names: Sequence[str], schema: pa.Schema, option: str
) -> tuple[str, ...]:
    """The further columns of a Parquet file, which have to exist and to have a usable type.

    Raises:
      UserError: a column is not in the file, or its values cannot be features.
    """
    for name in names:
        field = schema.field(find_column(path, name, schema.names, True, option))
        _check_type(path, field, "text, a number, a time, or a list of texts", (can_be_extra,))
    return tuple(names)


def _check_type(
    path: Path, field: pa.Field, required: str, allowed: Sequence[Callable[[pa.DataType], bool]]
) -> None:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if not any(is_allowed(kind) for is_allowed in allowed):
        raise UserError(
            f"{path}: column {field.name!r} should be {required}. Its type is {field.type}. "
            "Convert it, or choose another column."
        )


def _parquet_time_form(path: Path, field: pa.Field) -> str:
    if pa.types.is_floating(field.type) or pa.types.is_decimal(field.type):
        return DECIMAL
    if pa.types.is_temporal(field.type):
        return INTEGER  # It is read as a number and never as text.
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=HEAD_LINES, columns=[field.name]):
            return _form({time_form(str(value)) for value in batch.column(0).to_pylist()})
    return INTEGER
