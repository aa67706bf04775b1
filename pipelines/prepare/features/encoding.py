"""Encodes the raw values of side features by what the manifest says, see ``data.features``.

Raw values are Arrow arrays: text, whole numbers, real numbers, or counts of days, microseconds or
nanoseconds since 1970. Text that is empty or blank is missing. What cannot be read (a number that
is no number, a time that is no time, a control character in a category) is encoded as missing, and
counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...data.features import (
    AGE,
    CATEGORY,
    HOUR,
    MAX_WORDS,
    NUMBER,
    QUANTILES,
    TAGS,
    TEXT,
    WEEKDAY,
    FeatureSpec,
)
from ..rows.readers import DAYS, MICROSECONDS, NANOSECONDS
from ..rows.values import DATE, PLAIN_DATE, BadValue, parse_time, time_form

TAG_SEPARATOR = "|"
SECONDS_PER_DAY = 86_400

# How many of what whole numbers count are a second, if they are times.
UNITS = {DAYS: None, MICROSECONDS: 10**6, NANOSECONDS: 10**9}

_PLAIN_DATE = f"^{PLAIN_DATE}$"
_NOT_A_WORD = r"[^\p{L}\p{N}]+"
_CONTROL = r"[\x00-\x1f\x7f]"
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# Larger numbers are none of float32, which requests to a served model have.
_LARGEST = float(np.finfo(np.float32).max)
_LARGEST_WHOLE = float(2**53)


@dataclass(frozen=True)
class Raw:
    """Raw values.

    Attributes:
      values: array of text, int64 or float64; null if missing.
      unit: what whole numbers count, one of ``UNITS``, if they are times; otherwise None.
    """

    values: pa.Array
    unit: str | None = None

    def filter(self, mask: np.ndarray) -> Raw:
        """The rows for which a mask is true."""
        return Raw(self.values.filter(pa.array(mask)), self.unit)


@dataclass(frozen=True)
class Encoded:
    """Encoded values.

    Attributes:
      values: int32 or float32; of all rows, if a row has several.
      lengths: int64 ``[num_rows]``, numbers of values, if a row has any number of them.
      missing: number of rows without a value.
      unreadable: number of rows with a value that cannot be read.
      unknown: number of values that are not in the vocabulary.
    """

    values: np.ndarray
    lengths: np.ndarray | None = None
    missing: int = 0
    unreadable: int = 0
    unknown: int = 0


def encode(spec: FeatureSpec, raw: Raw) -> Encoded:
    """Encodes raw values.

    Args:
      spec: the feature, with its vocabulary.
      raw: values, one of each row.
    """
    return _ENCODERS[spec.kind](spec, raw)


def as_text(raw: Raw) -> pa.Array:
    """Values as text, with null for those that are missing."""
    values = raw.values
    if raw.unit is not None:
        values = pa.array(as_seconds(raw)[0], mask=_is_null(values))
    if pa.types.is_floating(values.type):
        found = values.dictionary_encode()
        texts = [_number_text(number) for number in found.dictionary.to_pylist()]
        values = pa.DictionaryArray.from_arrays(found.indices, pa.array(texts, pa.string()))
        values = values.dictionary_decode()
    values = values.cast(pa.string())
    return pc.if_else(pc.equal(pc.utf8_trim(values, " "), ""), pa.scalar(None, pa.string()), values)


def _number_text(number: float | None) -> str | None:
    """A number as text; whole ones as integers, though missing values have made them real."""
    if number is None or number != number:
        return None
    if number.is_integer() and abs(number) < _LARGEST_WHOLE:
        return str(int(number))
    return repr(number)


def as_numbers(raw: Raw) -> tuple[np.ndarray, int]:
    """Values as float64, with NaN for those that are missing or unreadable.

    Returns:
      The numbers, and how many of them are unreadable.
    """
    if raw.unit is not None:
        seconds, _, unreadable = as_seconds(raw)
        numbers = np.where(_is_null(raw.values), np.nan, seconds.astype(np.float64))
        return numbers, unreadable
    values = raw.values
    if pa.types.is_string(values.type):
        values = as_text(raw)
        try:
            parsed = values.cast(pa.float64())
        except pa.ArrowInvalid:
            parsed = _each(values, _parse_number, pa.float64())
    else:
        parsed = values.cast(pa.float64(), safe=False)
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(parsed), pa.scalar(None, pa.float64()), parsed)
    numbers = parsed.fill_null(np.nan).to_numpy(zero_copy_only=False)
    numbers = np.where(np.abs(numbers) <= _LARGEST, numbers, np.nan)
    unreadable = int((np.isnan(numbers) & ~_is_null(values)).sum())
    return numbers, unreadable


def _parse_number(text: str) -> float | None:
    text = text.strip(" ")
    return float(text) if _DECIMAL.fullmatch(text) else None


def as_seconds(raw: Raw) -> tuple[np.ndarray, np.ndarray, int]:
    """Values as whole seconds since 1970, rounded down.

    Returns:
      int64 ``[num_rows]``; whether each of them is a time, and not just 0; and how many rows have a
      value that is no time.
    """
    values = raw.values
    if raw.unit is not None or pa.types.is_integer(values.type):
        seconds = values.fill_null(0).to_numpy(zero_copy_only=False)
        if raw.unit is not None:
            per_second = UNITS[raw.unit]
            seconds = seconds * SECONDS_PER_DAY if per_second is None else seconds // per_second
        return seconds, ~_is_null(values), 0
    if pa.types.is_string(values.type):
        values = as_text(raw)
        found = _whole(values)
        if found is None:
            found = _dates(values)
        is_time = ~_is_null(found)
        seconds = found.fill_null(0).to_numpy(zero_copy_only=False)
        return seconds, is_time, int(is_time.size - is_time.sum()) - values.null_count
    numbers = values.fill_null(np.nan).to_numpy(zero_copy_only=False)
    is_time = np.abs(numbers) < _LARGEST_WHOLE
    seconds = np.floor(np.where(is_time, numbers, 0.0)).astype(np.int64)
    return seconds, is_time, int((~is_time & ~np.isnan(numbers)).sum())


def _whole(values: pa.Array) -> pa.Array | None:
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def _dates(values: pa.Array) -> pa.Array:
    """Times as text, some of which are dates, in seconds; null where there is none."""
    if pc.all(pc.match_substring_regex(values, _PLAIN_DATE)).as_py():
        try:
            micros = values.cast(pa.timestamp("us")).cast(pa.int64())
        except pa.ArrowInvalid:  # Some have a time zone, or a day that does not exist.
            return _each(values, _seconds_of_text, pa.int64())
        seconds = micros.fill_null(0).to_numpy(zero_copy_only=False) // 10**6
        return pa.array(seconds, mask=_is_null(micros))
    return _each(values, _seconds_of_text, pa.int64())


def _seconds_of_text(text: str) -> int | None:
    is_date = time_form(text) == DATE
    try:
        time = parse_time(text, is_date)
    except BadValue:
        return None
    if is_date:
        return int(time) // 10**6
    return math.floor(time) if abs(time) < _LARGEST_WHOLE else None


def _each(values: pa.Array, convert: Callable[[str], object], kind: pa.DataType) -> pa.Array:
    """Converts every distinct text once."""
    found = values.dictionary_encode()
    converted = pa.array([convert(text) for text in found.dictionary.to_pylist()], kind)
    return converted.take(found.indices)


def _is_null(values: pa.Array) -> np.ndarray:
    mask: np.ndarray = pc.is_null(values, nan_is_null=True).to_numpy(zero_copy_only=False)
    return mask


def _encode_category(spec: FeatureSpec, raw: Raw) -> Encoded:
    distinct, rows = _distinct(as_text(raw))
    known = _codes(spec, distinct)
    is_bad = has_control(distinct)
    counts = np.bincount(rows, minlength=len(distinct) + 1)
    return Encoded(
        np.append(known, 0).astype(np.int32)[rows],
        missing=int(counts[-1]),
        unreadable=int(counts[:-1][is_bad].sum()),
        unknown=int(counts[:-1][(known == 0) & ~is_bad].sum()),
    )


def _encode_tags(spec: FeatureSpec, raw: Raw) -> Encoded:
    distinct, rows = _distinct(as_text(raw))
    tags, lengths = split_tags(distinct)
    codes = _codes(spec, tags)
    values, own = _take_ragged(codes, lengths, rows)
    is_bad = has_control(tags)
    bad = np.bincount(np.repeat(np.arange(len(lengths)), lengths), is_bad, len(lengths) + 1) > 0
    return Encoded(
        values.astype(np.int32),
        own,
        missing=int((own == 0).sum()),
        unreadable=int(bad[rows].sum()),
        unknown=int((_take_ragged((codes == 0) & ~is_bad, lengths, rows)[0]).sum()),
    )


def split_tags(texts: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """The tags of all texts, without empty ones, and the number of tags of each text."""
    lists = pc.split_pattern(texts, TAG_SEPARATOR)
    parts, parents = pc.list_flatten(lists), pc.list_parent_indices(lists)
    is_kept = pc.not_equal(parts, "")
    parents = parents.filter(is_kept).to_numpy(zero_copy_only=False)
    return parts.filter(is_kept), np.bincount(parents, minlength=len(texts)).astype(np.int64)


def has_control(texts: pa.Array) -> np.ndarray:
    """Whether each text has a control character, such as the end of a line."""
    found: np.ndarray = pc.match_substring_regex(texts, _CONTROL).to_numpy(zero_copy_only=False)
    return found.astype(bool)


def _codes(spec: FeatureSpec, values: pa.Array) -> np.ndarray:
    """The place of each value in the vocabulary, from 1; 0 if it is not there."""
    vocabulary = pa.array(spec.vocabulary or [], pa.string())
    places = pc.index_in(values, value_set=vocabulary).fill_null(-1)
    codes: np.ndarray = places.to_numpy(zero_copy_only=False) + 1
    return codes


def _encode_text(spec: FeatureSpec, raw: Raw) -> Encoded:
    distinct, rows = _distinct(as_text(raw))
    codes, lengths = _hashed_words(distinct, int(spec.options["buckets"]))
    values, own = _take_ragged(codes, lengths, rows)
    return Encoded(values, own, missing=int((rows == len(distinct)).sum()))


def _hashed_words(texts: pa.Array, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    # The model that is served does the same, so that its words have the same numbers.
    import tensorflow as tf

    if not len(texts):
        return np.zeros(0, np.int32), np.zeros(0, np.int64)
    with tf.device("CPU"):
        lower = tf.strings.lower(tf.constant(texts.to_pylist(), tf.string), encoding="utf-8")
        words = tf.strings.split(tf.strings.regex_replace(lower, _NOT_A_WORD, " "))
        words = words[:, :MAX_WORDS]
        codes = 1 + tf.strings.to_hash_bucket_fast(words.flat_values, buckets)
        return codes.numpy().astype(np.int32), words.row_lengths().numpy()


def _encode_number(spec: FeatureSpec, raw: Raw) -> Encoded:
    numbers, unreadable = as_numbers(raw)
    return _real(standardise(spec, numbers), unreadable)


def _encode_age(spec: FeatureSpec, raw: Raw) -> Encoded:
    logarithms, unreadable = ages(raw, spec.options["until"])
    return _real(standardise(spec, logarithms), unreadable)


def ages(raw: Raw, until: float) -> tuple[np.ndarray, int]:
    """Logarithms of 1 plus the days from each time until ``until``; NaN where there is no time.

    Returns:
      float64 ``[num_rows]``, and how many rows have a value that is no time.
    """
    seconds, is_time, unreadable = as_seconds(raw)
    days = np.maximum(until - seconds.astype(np.float64), 0.0) / SECONDS_PER_DAY
    return np.where(is_time, np.log1p(days), np.nan), unreadable


def standardise(spec: FeatureSpec, numbers: np.ndarray) -> np.ndarray:
    """Numbers in deviations from the mean of the training part."""
    scaled = (numbers - spec.options["mean"]) / spec.options["deviation"]
    return np.clip(scaled, -_LARGEST, _LARGEST).astype(np.float32)


def _real(values: np.ndarray, unreadable: int) -> Encoded:
    return Encoded(values, missing=int(np.isnan(values).sum()) - unreadable, unreadable=unreadable)


def _encode_quantiles(spec: FeatureSpec, raw: Raw) -> Encoded:
    numbers, unreadable = as_numbers(raw)
    places = 1 + np.searchsorted(np.asarray(spec.options["boundaries"], float), numbers, "right")
    return _whole_number(np.where(np.isnan(numbers), 0, places), unreadable)


def _encode_hour(spec: FeatureSpec, raw: Raw) -> Encoded:
    seconds, is_time, unreadable = as_seconds(raw)
    hours = seconds // 3600 % 24 + 1
    return _whole_number(np.where(is_time, hours, 0), unreadable)


def _encode_weekday(spec: FeatureSpec, raw: Raw) -> Encoded:
    seconds, is_time, unreadable = as_seconds(raw)
    days = (seconds // SECONDS_PER_DAY + 3) % 7 + 1  # 1970 began on a Thursday.
    return _whole_number(np.where(is_time, days, 0), unreadable)


def _whole_number(codes: np.ndarray, unreadable: int) -> Encoded:
    missing = int((codes == 0).sum()) - unreadable
    return Encoded(codes.astype(np.int32), missing=missing, unreadable=unreadable)


def _distinct(texts: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """The distinct texts, and which of them each row has; one past the last if it has none."""
    found = texts.dictionary_encode()
    rows = found.indices.cast(pa.int64()).fill_null(len(found.dictionary))
    return found.dictionary, rows.to_numpy(zero_copy_only=False)


def _take_ragged(
    values: np.ndarray, lengths: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The values of some rows of a ragged array; the row past its last one is empty."""
    lengths = np.append(lengths, 0)
    starts = np.cumsum(lengths) - lengths
    own = lengths[rows]
    within = np.arange(own.sum()) - np.repeat(np.cumsum(own) - own, own)
    return values[np.repeat(starts[rows], own) + within], own


_ENCODERS: dict[str, Callable[[FeatureSpec, Raw], Encoded]] = {
    CATEGORY: _encode_category,
    TAGS: _encode_tags,
    NUMBER: _encode_number,
    QUANTILES: _encode_quantiles,
    HOUR: _encode_hour,
    WEEKDAY: _encode_weekday,
    AGE: _encode_age,
    TEXT: _encode_text,
}
