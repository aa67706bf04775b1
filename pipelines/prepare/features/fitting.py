"""Finds out from the training part of the data how the values of a feature are encoded."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...data.features import (
    AGE,
    CATEGORY,
    HOUR,
    ITEM,
    NUMBER,
    QUANTILES,
    TAGS,
    TEXT,
    WEEKDAY,
    FeatureSpec,
)
from ...errors import UserError
from ..rows.values import DATE, PLAIN_INTEGER, time_form
from .encoding import (
    SECONDS_PER_DAY,
    TAG_SEPARATOR,
    Raw,
    ages,
    as_numbers,
    as_seconds,
    as_text,
    has_control,
    split_tags,
)
from .options import Request

NUM_BUCKETS = 4096
NUM_QUANTILES = 32
# Numbers of training values that a kind is inferred from, and that quantiles are estimated from.
SAMPLED_VALUES = 100_000
QUANTILE_VALUES = 1 << 22

# Text becomes tags if at least one value in this many has a separator in it.
_FEWEST_TAGS = 20
_WORDS_OF_TEXT = 3
# Up to this share of numbers or times may be something else.
_UNREADABLE = 0.05
# What many programs write for a missing value. It tells nothing about the kind of the others.
_MISSING_WORD = r"(?i)^ *(nan|null|none|n/?a|\\n) *$"
# The last second that a date can have, of the year 9999. What is later counts milliseconds.
_LATEST_SECOND = 253_402_300_799


def fit(request: Request, training: Iterable[Raw], until: float | None) -> FeatureSpec:
    """The description of a feature, from its values in the training part.

    Args:
      request: what the user asks for.
      training: values of the training part, in blocks of rows; they are read more than once.
      until: last time of the training part in seconds, or None if the log has no times.

    Raises:
      UserError: the kind does not suit the data.
    """
    kind = request.kind or infer(request.of, training)
    if request.kind in (HOUR, WEEKDAY, AGE, NUMBER, QUANTILES):
        _check_readable(request, training)
    if kind in (HOUR, WEEKDAY, AGE):
        _check_seconds(request, kind, training)
    spec = FeatureSpec(request.of, request.name, kind, request.column)
    if kind in (CATEGORY, TAGS):
        values = _vocabulary(training, kind == TAGS)
        options: dict[str, object] = {"vocabulary": len(values)}
        if kind == CATEGORY:
            is_whole = pc.match_substring_regex(values, f"^{PLAIN_INTEGER}$")
            options["integers"] = len(values) > 0 and bool(pc.all(is_whole).as_py())
        else:
            options["separator"] = TAG_SEPARATOR
        spec = dataclasses.replace(spec, vocabulary=tuple(values.to_pylist()))
    elif kind == TEXT:
        options = {"buckets": NUM_BUCKETS}
    elif kind == NUMBER:
        options = _mean_and_deviation(lambda: (as_numbers(raw)[0] for raw in training))
    elif kind == QUANTILES:
        options = {"boundaries": _boundaries(as_numbers(raw)[0] for raw in training)}
    elif kind == AGE:
        if until is None:
            raise UserError(
                f"{request.option} {request.name}:age requires a log with times, since the age "
                "of an item is counted up to the last time of the training part. Set "
                "--time-column, or choose another kind."
            )
        if until > _LATEST_SECOND:
            raise UserError(
                f"{request.option} {request.name}:age requires a log whose times are seconds "
                "since 1970, or dates, since the age of an item is counted up to the last one of "
                f"the training part. Received: {until:.0f} as the last one. Divide the times of "
                "the log by 1,000 if they are milliseconds."
            )
        last = until
        moments = _mean_and_deviation(lambda: (ages(raw, last)[0] for raw in training))
        options = {"until": until, **moments}
    else:
        options = {}
    return dataclasses.replace(spec, options=options)


def infer(of: str, training: Iterable[Raw]) -> str:
    """The kind that suits the first values of the training part.

    Times are the age of an item, and otherwise an hour, or a weekday if all of them are midnights.
    Numbers are numbers; whole numbers that are repeated are categories. Text with a separator in
    it is tags, long text that is hardly ever repeated is words, and other text a category. A few
    values may be unreadable, and any number of them words for a missing one, such as NULL.
    """
    sample = _sample(training)
    texts = as_text(sample).drop_null()
    texts = texts.filter(pc.invert(pc.match_substring_regex(texts, _MISSING_WORD)))
    if not len(texts):
        return CATEGORY
    is_time = sample.unit is not None
    if not is_time and pa.types.is_string(sample.values.type):
        num_times = sum(time_form(text) == DATE for text in texts.to_pylist())
        is_time = num_times >= (1 - _UNREADABLE) * len(texts)
    if is_time:
        # What is missing or no time has 0 seconds, as midnights have.
        midnights = np.all(as_seconds(sample)[0] % SECONDS_PER_DAY == 0)
        return AGE if of == ITEM else WEEKDAY if midnights else HOUR
    distinct = texts.unique()
    is_repeated = len(distinct) <= len(texts) / 2
    if as_numbers(Raw(texts))[1] <= _UNREADABLE * len(texts):
        num_whole = pc.sum(pc.match_substring_regex(texts, f"^{PLAIN_INTEGER}$")).as_py()
        is_whole = num_whole >= (1 - _UNREADABLE) * len(texts)
        return CATEGORY if is_whole and is_repeated else NUMBER
    with_tags = pc.sum(pc.match_substring(texts, TAG_SEPARATOR)).as_py()
    if with_tags * _FEWEST_TAGS >= len(texts):
        return TAGS
    num_words = pc.mean(pc.list_value_length(pc.utf8_split_whitespace(texts))).as_py()
    return TEXT if num_words >= _WORDS_OF_TEXT and not is_repeated else CATEGORY


def _check_readable(request: Request, training: Iterable[Raw]) -> None:
    """Refuses a kind that none of the values has."""
    sample = _sample(training)
    of_times = request.kind in (HOUR, WEEKDAY, AGE)
    if of_times:
        _, are_times, unreadable = as_seconds(sample)
        num_readable = int(are_times.sum())
    else:
        numbers, unreadable = as_numbers(sample)
        num_readable = int((~np.isnan(numbers)).sum())
    if unreadable and not num_readable:
        found = as_text(sample).drop_null()[0].as_py()
        raise UserError(
            f"{request.option} {request.name}:{request.kind} should have "
            f"{'times' if of_times else 'numbers'}. Received: {found!r}, and nothing else that can "
            "be read. Choose another kind, or leave the kind out to have it inferred."
        )


def _check_seconds(request: Request, kind: str, training: Iterable[Raw]) -> None:
    """Refuses whole numbers that count smaller parts of a second, if most values are such."""
    seconds, are_times, _ = as_seconds(_sample(training))
    are_late = are_times & (seconds > _LATEST_SECOND)
    if 2 * are_late.sum() > are_times.sum():
        raise UserError(
            f"{request.option} {request.name}:{kind} should have times in seconds since 1970, or "
            f"dates. Received: {seconds[are_late][0]}, and more such. Divide them by 1,000 if they "
            "are milliseconds."
        )


def _sample(training: Iterable[Raw]) -> Raw:
    blocks: list[pa.Array] = []
    left, unit = SAMPLED_VALUES, None
    for raw in training:
        blocks.append(raw.values[:left])
        left, unit = left - len(blocks[-1]), raw.unit
        if not left:
            break
    return Raw(pa.concat_arrays(blocks) if blocks else pa.array([], pa.string()), unit)


def _vocabulary(training: Iterable[Raw], are_tags: bool) -> pa.Array:
    """The values by decreasing count, and those of the same count in the order of their bytes."""
    counted: list[pa.Array] = []
    for raw in training:
        texts = as_text(raw).drop_null()
        if are_tags:
            # Each distinct text is split once, and its tags count as often as it occurs.
            found = texts.value_counts()
            tags, lengths = split_tags(found.field("values"))
            counts = np.repeat(found.field("counts").to_numpy(zero_copy_only=False), lengths)
            counted.append(pa.table({"value": tags, "count": counts}))
        else:
            found = texts.value_counts()
            counted.append(
                pa.table({"value": found.field("values"), "count": found.field("counts")})
            )
    if not counted:
        return pa.array([], pa.string())
    table = pa.concat_tables(counted).group_by("value").aggregate([("count", "sum")])
    table = table.sort_by([("count_sum", "descending"), ("value", "ascending")])
    values = table.column("value").combine_chunks()
    return values.filter(pa.array(~has_control(values)))


def _mean_and_deviation(blocks: Callable[[], Iterator[np.ndarray]]) -> dict[str, object]:
    """Mean and deviation of numbers that are read twice; NaN does not count."""
    count, total = 0, 0.0
    for block in blocks():
        known = block[~np.isnan(block)]
        count, total = count + len(known), total + float(known.sum())
    mean = total / count if count else 0.0
    squares = 0.0
    for block in blocks():
        known = block[~np.isnan(block)]
        squares += float(np.square(known - mean).sum())
    deviation = math.sqrt(squares / count) if count else 0.0
    # What is left of equal numbers is the error of their mean.
    if deviation <= 1e-12 * abs(mean):
        deviation = 1.0
    return {"mean": mean, "deviation": deviation}


def _boundaries(blocks: Iterator[np.ndarray]) -> list[float]:
    """Boundaries of buckets with about as many values each.

    They lie halfway between neighbouring values, so that a value is in the same bucket once it is
    rounded to float32.
    """
    known = [block[~np.isnan(block)] for block in blocks]
    numbers = np.concatenate(known) if known else np.zeros(0)
    numbers = np.sort(numbers[:: max(1, -(-len(numbers) // QUANTILE_VALUES))])
    distinct = np.unique(numbers)
    if len(distinct) <= NUM_QUANTILES:
        places = np.arange(1, len(distinct))
    else:
        ranks = np.arange(1, NUM_QUANTILES) * len(numbers) // NUM_QUANTILES
        places = np.unique(np.searchsorted(distinct, numbers[ranks]))
        places = places[places > 0]
    low, high = distinct[places - 1], distinct[places]
    middles = low / 2 + high / 2
    found: list[float] = np.where(middles > low, middles, high).tolist()
    return found
