"""Parses rows with Spark: those that are certainly good, and the others as raw bytes.

Columns: file (its number), user, item, part, whole (the time if it is an integer), fraction (the
time if it is not), plain (whether the row is certainly good; NULL for a blank line), raw (bytes of
the line, or of the values of user, item, time and further columns; only if they are needed), open
(whether the record may continue on the next line), block (start of the part of the file that a
task has read), serial (a number that grows by 1 from row to row in the block) and the further
columns x0, x1, ...
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from operator import and_

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from ...rows.parquet import LIST_SEPARATOR, ParquetReader, is_binary, is_list
from ...rows.readers import (
    DAYS,
    MICROSECONDS,
    REAL,
    TEXT,
    UNWANTED,
    DelimitedReader,
    JsonReader,
    extra_names,
)
from ...rows.values import PLAIN_DATE, PLAIN_DECIMAL, PLAIN_INTEGER

# Java's regular expressions use stack space for every quote, so Python parses longer lines.
MAX_QUOTES = 1000

_CONTROL = r"[\x00-\x1f\x7f]"
_INTEGER, _DECIMAL, _DATE = (
    rf"^(?:{pattern})\z" for pattern in (PLAIN_INTEGER, PLAIN_DECIMAL, PLAIN_DATE)
)

_JSON_OPTIONS = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}


def text(
    session: SparkSession,
    paths: Sequence[str],
    reader: DelimitedReader | JsonReader,
    dates: bool,
    keep_all: bool,
) -> DataFrame:
    """Parses the lines of text files.

    Args:
      session: session that reads the files.
      paths: files of the layout of ``reader``, whose names end in their numbers.
      reader: reader that knows the layout.
      dates: whether times are dates.
      keep_all: whether ``raw`` is needed for all lines.
    """
    value = sf.col("value")
    lines = session.read.option("lineSep", "\n").text(list(paths))
    lines = lines.select(
        _file_number().alias("file"),
        sf.col("_metadata.file_block_start").alias("block"),
        sf.monotonically_increasing_id().alias("serial"),
        value,
        sf.when(sf.is_valid_utf8(value), sf.rtrim(value, sf.lit("\r"))).alias("text"),
    )
    if isinstance(reader, DelimitedReader):
        rows = _delimited(lines, reader, dates)
    else:
        rows = _json(lines, reader)
    plain = sf.when(sf.col("text") == "", None).otherwise(_is_true(sf.col("plain")))
    is_open = value.contains('"') & ~_is_true(sf.col("complete"))
    raw = sf.array(value.cast("binary"))
    return rows.select(
        "file",
        "block",
        "serial",
        "user",
        "item",
        "part",
        "whole",
        "fraction",
        plain.alias("plain"),
        (is_open if isinstance(reader, DelimitedReader) else sf.lit(False)).alias("open"),
        (raw if keep_all else sf.when(~plain, raw)).alias("raw"),
        *extra_names(len(reader.extra_types)),
    )


def _delimited(lines: DataFrame, reader: DelimitedReader, dates: bool) -> DataFrame:
    mark = rf"\x{ord(reader.separator):02x}"
    content = r'"[^"]*+(?:""[^"]*+)*+"' + rf'|[^"{mark}\r\n][^{mark}\r\n]*+|'
    line = sf.col("text")
    has_quote = line.contains('"')
    num_quotes = sf.length(line) - sf.length(sf.replace(line, sf.lit('"'), sf.lit("")))
    record = rf"^(?:{content})(?:{mark}(?:{content})){{{reader.num_columns - 1}}}\z"

    def column(index: int) -> Column:
        found = sf.regexp_extract(line, rf"^(?:(?:{content}){mark}){{{index}}}({content})", 1)
        inner = found.substr(sf.lit(2), sf.length(found) - 2)
        unquoted = sf.when(
            found.startswith('"'), sf.replace(inner, sf.lit('""'), sf.lit('"'))
        ).otherwise(found)
        return sf.when(has_quote, unquoted).otherwise(sf.get("fields", index))

    lines = lines.withColumn("fields", sf.split(line, mark, -1)).withColumn(
        "complete",
        sf.when(has_quote, (num_quotes <= MAX_QUOTES) & line.rlike(record)).otherwise(
            sf.size("fields") == reader.num_columns
        ),
    )
    whole, fraction, timed = _no_time()
    if reader.time is not None:
        whole, fraction, timed = _time(column(reader.time), dates)
    part, user, item = sf.lit(reader.part), column(reader.user), column(reader.item)
    good = _is_id(user) & _is_id(item) & timed
    if reader.wanted is not None:
        index, value = reader.wanted
        wanted = column(index) == value
        part = sf.when(wanted, part).otherwise(UNWANTED)
        good = good | ~wanted
    return lines.select(
        "*",
        user.alias("user"),
        item.alias("item"),
        part.alias("part"),
        whole.alias("whole"),
        fraction.alias("fraction"),
        (sf.col("complete") & good).alias("plain"),
        *(
            column(index).alias(name)
            for index, name in zip(reader.extras, extra_names(len(reader.extras)))
        ),
    )


def _json(lines: DataFrame, reader: JsonReader) -> DataFrame:
    line = sf.col("text")
    kind = ArrayType(StructType([StructField(key, StringType()) for key in reader.keys]))
    # In brackets, so that anything after the object is an error.
    objects = sf.from_json(sf.concat(sf.lit("["), line, sf.lit("]")), kind, _JSON_OPTIONS)
    lines = lines.withColumn("objects", objects)
    user, item, time = (sf.get("objects", 0).getField(key) for key in reader.keys)
    whole, fraction, timed = _time(time, dates=False)
    plain = (
        (sf.size("objects") == 1)
        & line.rlike(r"^\s*\{.*\}\s*\z")
        & ~line.rlike(r"\}\s*\]")
        & _is_id(user)
        & _is_id(item)
        & timed
        & time.rlike(_INTEGER)
    )
    for key in reader.keys:
        # Of equal keys, Python takes the last.
        plain = plain & (sf.size(sf.split(line, f'"{re.escape(key)}"')) == 2)
    for key in (reader.user, reader.item):
        # Python converts numbers in place of text, and surrogates.
        plain = plain & line.rlike(rf'"{re.escape(key)}"\s*:\s*"')
        plain = plain & ~line.rlike(rf'"{re.escape(key)}"\s*:\s*"[^"]*\\u[dD]')
    return lines.select(
        "*",
        user.alias("user"),
        item.alias("item"),
        sf.lit(0).alias("part"),
        whole.alias("whole"),
        fraction.alias("fraction"),
        plain.alias("plain"),
        sf.lit(True).alias("complete"),
    )


def parquet(
    session: SparkSession, paths: Sequence[str], reader: ParquetReader, dates: bool
) -> DataFrame:
    """Parses the rows of Parquet files; see ``text`` for the arguments."""
    raw = []
    ids = []
    for name in (reader.user, reader.item):
        column = _column(name)
        ids.append(column.cast("string"))
        raw.append(_as_bytes(column, reader.type_of(name)))
    whole, fraction, timed = _no_time()
    time = sf.lit(None)
    if reader.time is not None:
        time, kind = _column(reader.time), reader.type_of(reader.time)
        if pa.types.is_timestamp(kind) and kind.unit != "ns":
            time = time.cast("timestamp")
            time = sf.unix_micros(time) if kind.unit == "us" else sf.unix_millis(time)
        elif pa.types.is_date(kind):
            time = sf.unix_date(time)
        if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
            whole = time.try_cast("bigint")
            timed = whole.isNotNull()
        elif pa.types.is_floating(kind):
            fraction = time.cast("double")
            timed = _is_finite(fraction)
        else:
            whole, fraction, timed = _time(time.cast("string"), dates)
            timed = timed & sf.is_valid_utf8(time.cast("string"))
    raw.append(time.cast("string").cast("binary"))
    extras = []
    are_valid = timed
    for name, held in zip(reader.extras, reader.extra_types):
        extra = _extra(_column(name), held, reader.type_of(name))
        if held == TEXT:
            are_valid = are_valid & sf.coalesce(sf.is_valid_utf8(extra), sf.lit(True))
        raw.append(extra.cast("string").cast("binary"))
        extras.append(extra)
    plain = _is_true(
        reduce(and_, [_is_id(column) & sf.is_valid_utf8(column) for column in ids], are_valid)
    )
    return session.read.parquet(*paths).select(
        _file_number().alias("file"),
        sf.lit(0).cast("bigint").alias("block"),
        sf.col("_metadata.row_index").alias("serial"),
        ids[0].alias("user"),
        ids[1].alias("item"),
        sf.lit(0).alias("part"),
        whole.alias("whole"),
        fraction.alias("fraction"),
        plain.alias("plain"),
        sf.lit(False).alias("open"),
        sf.when(~plain, sf.array(*raw)).alias("raw"),
        *(extra.alias(name) for extra, name in zip(extras, extra_names(len(extras)))),
    )


def _extra(column: Column, held: str, kind: pa.DataType) -> Column:
    if is_list(kind):
        return sf.array_join(column.cast("array<string>"), LIST_SEPARATOR)
    if held == MICROSECONDS:
        return sf.unix_micros(column.cast("timestamp"))
    if held == DAYS:
        column = sf.unix_date(column)
    if pa.types.is_decimal(kind):
        column = column.cast("string")
    return column.cast({TEXT: "string", REAL: "double"}.get(held, "bigint"))


def _as_bytes(column: Column, kind: pa.DataType) -> Column:
    return column if is_binary(kind) else column.cast("string").cast("binary")


def _column(name: str) -> Column:
    return sf.col("`" + name.replace("`", "``") + "`")


def _file_number() -> Column:
    return sf.regexp_extract("_metadata.file_name", r"([0-9]+)\.", 1).cast("int")


def _is_true(condition: Column) -> Column:
    return sf.coalesce(condition, sf.lit(False))


def _is_id(name: Column) -> Column:
    return (sf.trim(name) != "") & ~name.rlike(_CONTROL)


def _is_finite(number: Column) -> Column:
    return ~sf.isnan(number) & (sf.abs(number) < float("inf"))


def _no_time() -> tuple[Column, Column, Column]:
    return sf.lit(None).cast("bigint"), sf.lit(None).cast("double"), sf.lit(True)


def _time(written: Column, dates: bool) -> tuple[Column, Column, Column]:
    """The time as an integer, or else as a fraction, and whether it is certainly valid."""
    nothing = sf.lit(None).cast("double")
    if dates:
        whole = sf.unix_micros(sf.when(written.rlike(_DATE), written).try_cast("timestamp"))
        return whole, nothing, whole.isNotNull()
    whole = sf.when(written.rlike(_INTEGER), written).try_cast("bigint")
    is_decimal = written.rlike(_DECIMAL) & written.rlike("[.eE]")
    fraction = sf.when(is_decimal, written).try_cast("double")
    return whole, fraction, whole.isNotNull() | _is_finite(fraction)
