"""How the values of side features are described and encoded, kind by kind."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from pipelines.errors import UserError
from pipelines.prepare.features.encoding import Encoded, Raw, encode
from pipelines.prepare.features.fitting import fit, infer
from pipelines.prepare.features.options import Request, parse
from pipelines.prepare.rows.readers import DAYS, MICROSECONDS, NANOSECONDS

DAY = 86_400


def text(*values: str | None) -> Raw:
    return Raw(pa.array(values, pa.string()))


def fitted(
    kind: str, training: Raw, values: Raw | None = None, **options: Any
) -> tuple[Any, Encoded]:
    spec = fit(Request("item", "x", "x", kind), [training], options.get("until"))
    return spec, encode(spec, training if values is None else values)


def test_categories_are_numbered_by_count_and_then_by_bytes() -> None:
    training = text("b", "a", "ö", "b", None, "", "  ", "Z")
    spec, found = fitted("category", training, text("ö", "new", "b", "", None, " ", "a\nb"))
    assert spec.vocabulary == ("b", "Z", "a", "ö")
    assert found.values.tolist() == [4, 0, 1, 0, 0, 0, 0]
    assert found.values.dtype == np.int32
    assert (found.missing, found.unreadable, found.unknown) == (3, 1, 1)
    assert spec.options == {"vocabulary": 4, "integers": False}


@pytest.mark.parametrize(
    "values, integers",
    [
        (["7", "-1", "0"], True),
        (["7", "07"], False),
        (["7", "1.0"], False),
        (["7", "x"], False),
        (["7", "9" * 19], False),
        ([], False),
    ],
)
def test_whole_numbers_in_their_usual_form_are_integers(values: list[str], integers: bool) -> None:
    assert fitted("category", text(*values))[0].options["integers"] is integers


def test_numbers_that_missing_values_have_made_real_are_whole_again() -> None:
    spec, found = fitted("category", Raw(pa.array([3.0, 3.0, None, 2.5, float("nan")])))
    assert spec.vocabulary == ("3", "2.5")
    assert found.values.tolist() == [1, 1, 0, 2, 0]
    assert fitted("category", Raw(pa.array([3, 3, 4])))[0].vocabulary == ("3", "4")


def test_tags() -> None:
    training = text("a|b", "b", "|b||c|", "", None, "|", "a|b")
    spec, found = fitted("tags", training, text("c|new|b", "b|b", "|", None, "a|\x01"))
    assert spec.vocabulary == ("b", "a", "c")
    assert found.values.tolist() == [3, 0, 1, 1, 1, 2, 0]
    assert found.lengths is not None
    assert found.lengths.tolist() == [3, 2, 0, 0, 2]
    assert (found.missing, found.unreadable, found.unknown) == (2, 1, 1)
    assert spec.options == {"vocabulary": 3, "separator": "|"}


def test_numbers_are_standardised_by_the_training_part() -> None:
    spec, found = fitted(
        "number", text("1", "3", "", "abc"), text(" 5 ", "+1", "x", "", "nan", "1e3")
    )
    assert spec.options == {"mean": 2.0, "deviation": 1.0}
    np.testing.assert_array_equal(found.values, np.float32([3, -1, np.nan, np.nan, np.nan, 998]))
    assert (found.missing, found.unreadable) == (1, 2)
    assert found.values.dtype == np.float32


@pytest.mark.parametrize("values", [["4.1", "4.1", "4.1"], [], [""]])
def test_equal_numbers_have_the_deviation_1(values: list[str]) -> None:
    assert fitted("number", text(*values))[0].options["deviation"] == 1.0


def test_numbers_beyond_those_of_a_request_are_unreadable() -> None:
    _, found = fitted("number", text("1", "1e39", "1e999", "inf", "3"))
    assert found.unreadable == 3
    assert np.isfinite(found.values).tolist() == [True, False, False, False, True]


def test_quantiles_lie_between_the_values() -> None:
    spec, found = fitted(
        "quantiles", text("1", "2", "2", "4"), text("0", "1", "1.5", "3", "9", "", "x")
    )
    assert spec.options == {"boundaries": [1.5, 3.0]}
    assert found.values.tolist() == [1, 1, 2, 3, 3, 0, 0]
    assert (found.missing, found.unreadable) == (1, 1)


def test_quantiles_of_many_values_have_equal_shares() -> None:
    values = np.random.default_rng(0).permutation(np.arange(6400) ** 3 / 7)
    spec, found = fitted("quantiles", Raw(pa.array(values)))
    assert len(spec.options["boundaries"]) == 31
    assert np.bincount(found.values).tolist() == [0] + [200] * 32
    # A request has float32, and finds the same bucket.
    rounded = values.astype(np.float32).astype(np.float64)
    np.testing.assert_array_equal(encode(spec, Raw(pa.array(rounded))).values, found.values)


TIMES = {
    "seconds": Raw(pa.array(["0", "90000", "-1", "", "soon"])),
    "dates": text("1970-01-01", "1970-01-02T01:00:00", "1969-12-31 23:59:59", None, "1970-13-01"),
    "zones": text("1970-01-01Z"[:10], "1970-01-02T03:00+02:00", "1969-12-31T23:59:59.5Z", "", "?"),
    "integers": Raw(pa.array([0, 90000, -1, None, None])),
    "reals": Raw(pa.array([0.5, 90000.0, -0.5, float("nan"), float("inf")])),
    "microseconds": Raw(pa.array([1, 90000 * 10**6, -1, None, None]), MICROSECONDS),
    "nanoseconds": Raw(pa.array([1, 90000 * 10**9, -1, None, None]), NANOSECONDS),
}


@pytest.mark.parametrize("form", TIMES)
def test_hours_and_weekdays_of_every_form_of_time(form: str) -> None:
    # Midnight of a Thursday, one o'clock of a Friday, and the last second of a Wednesday.
    _, hours = fitted("hour", TIMES[form])
    assert hours.values.tolist() == [1, 2, 24, 0, 0]
    _, days = fitted("weekday", TIMES[form])
    assert days.values.tolist() == [4, 5, 3, 0, 0]
    bad = 0 if form in ("integers", "microseconds", "nanoseconds") else 1
    assert (hours.missing, hours.unreadable) == (2 - bad, bad)


def test_days_are_times_at_midnight() -> None:
    _, found = fitted("weekday", Raw(pa.array([0, 1, -1, None]), DAYS))
    assert found.values.tolist() == [4, 5, 3, 0]


def test_ages_are_logarithms_of_days() -> None:
    training = text("1970-01-03", "1970-01-01")
    until = 2 * DAY
    spec, found = fitted("age", training, text("1970-01-02", "1971-01-01", ""), until=until)
    mean, deviation = math.log(3) / 2, math.log(3) / 2
    assert spec.options["until"] == until
    assert spec.options["mean"] == pytest.approx(mean)
    assert spec.options["deviation"] == pytest.approx(deviation)
    expected = [(math.log(2) - mean) / deviation, (0.0 - mean) / deviation, math.nan]
    np.testing.assert_allclose(found.values, expected, rtol=1e-6)
    with pytest.raises(UserError, match="--item-features x:age requires a log with times"):
        fit(Request("item", "x", "x", "age"), [training], None)


@pytest.mark.parametrize("kind", ["hour", "weekday", "age"])
@pytest.mark.parametrize("as_text", [True, False])
def test_milliseconds_are_refused(kind: str, as_text: bool) -> None:
    # 2020 in seconds, and in milliseconds.
    second, milli = 1_577_836_800, 1_577_836_800_000

    def column(*values: int) -> Raw:
        return text(*map(str, values)) if as_text else Raw(pa.array(values))

    with pytest.raises(UserError, match=f"x:{kind} should have times in seconds.*1577836800000"):
        fitted(kind, column(milli, second, milli), until=second)
    # Some of them are faults of the data, and not of its unit.
    fitted(kind, column(milli, second, second), until=second)


@pytest.mark.parametrize("kind", ["hour", "weekday", "age", "number", "quantiles"])
def test_a_kind_that_can_read_nothing_is_refused(kind: str) -> None:
    with pytest.raises(UserError, match=f"x:{kind} should have .*'red'.*Choose another kind"):
        fitted(kind, text("", "red", None, "blue"), until=1_577_836_800.0)
    fitted(kind, text("", None), until=1_577_836_800.0)
    fitted(kind, text("red", "2020", "blue"), until=1_577_836_800.0)


def test_ages_need_a_log_in_seconds() -> None:
    with pytest.raises(UserError, match="x:age requires a log whose times are seconds.*1,000"):
        fitted("age", text("2020-01-01"), until=1_577_836_800_000.0)
    fitted("age", text("9999-12-31", "9999-12-31"), until=1_577_836_800.0)


def test_text_is_hashed_words() -> None:
    spec, found = fitted("text", text("Große ÄRGER, no.7!", "", None, "...", "a " * 50))
    words = [["große", "ärger", "no", "7"], [], [], [], ["a"] * 32]
    flat = [word for row in words for word in row]
    expected = 1 + tf.strings.to_hash_bucket_fast(flat, 4096).numpy()
    np.testing.assert_array_equal(found.values, expected)
    assert found.lengths is not None
    assert found.lengths.tolist() == [len(row) for row in words]
    assert (found.missing, spec.options) == (2, {"buckets": 4096})


INFERRED = {
    "category": text("a", "b", "a", "", None),
    "number": text("1.5", "2.25", "3"),
    "tags": text("a|b", "c", ""),
    "text": text("the quick brown fox", "a lazy dog sleeps", "one more short text"),
    "hour": text("2020-01-01 10:00", "2020-01-02"),
    "weekday": text("2020-01-01", "2020-01-02"),
}


@pytest.mark.parametrize("kind", INFERRED)
def test_kinds_are_inferred(kind: str) -> None:
    assert infer("context", [INFERRED[kind]]) == kind


@pytest.mark.parametrize(
    "of, values, kind",
    [
        ("item", text("2020-01-01", ""), "age"),
        ("item", Raw(pa.array([1, 2]), DAYS), "age"),
        ("user", Raw(pa.array([1, 2]), DAYS), "weekday"),
        ("user", Raw(pa.array([1, 10**10, None]), MICROSECONDS), "hour"),
        ("user", Raw(pa.array([20, 30, 20, 30])), "category"),
        ("user", Raw(pa.array([20.0, 30.0, 20.0, 30.0, None])), "category"),
        ("user", Raw(pa.array([1001, 30, 22, 399])), "number"),
        ("user", text("", None), "category"),
        ("item", text(*["1.5", "2.5"] * 20, "n/a"), "number"),
        ("item", text("new york city", "new york city"), "category"),
        ("item", text("1.5", "2.5", "nan", " NULL", "None", "N/A", "\\N"), "number"),
        ("user", text("2020-01-01", "NaN", "null", "NA"), "weekday"),
        ("item", text("nan", "NaN"), "category"),
        ("item", text("nancy", "none of it", "1.5"), "category"),
    ],
)
def test_kinds_are_inferred_from_types_and_repetitions(of: str, values: Raw, kind: str) -> None:
    assert infer(of, [values]) == kind


def test_a_description_does_not_depend_on_the_blocks() -> None:
    values = ["b", "a", "c", "b", "", "a|b", "7"] * 3
    for kind in ("category", "tags"):
        request = Request("user", "x", "x", kind)
        one = fit(request, [text(*values)], None)
        several = fit(request, [text(*values[:5]), text(), text(*values[5:])], None)
        assert one == several


def test_lists_of_features() -> None:
    found = parse("item", "brand, price:quantiles,year=release date:age,a=b")
    assert found == [
        Request("item", "brand", "brand", None),
        Request("item", "price", "price", "quantiles"),
        Request("item", "year", "release date", "age"),
        Request("item", "a", "b", None),
    ]
    assert parse("item", "") == []


@pytest.mark.parametrize(
    "of, entry, message",
    [
        ("item", "price:money", "kinds out of category, tags, .*'price:money'"),
        ("item", "release date", "names of letters.*'release date'. Write NAME=release date"),
        ("item", "größe", "names of letters"),
        ("item", "a=", "names of letters"),
        ("item", "=b", "names of letters"),
        ("user", "born:age", "not have the kind age.*hour or weekday"),
        ("user", "history", "the name 'history'.*my_history=history"),
    ],
)
def test_wrong_lists_say_what_to_write(of: str, entry: str, message: str) -> None:
    with pytest.raises(UserError, match=f"--{of}-features should.*{message}"):
        parse(of, entry)
