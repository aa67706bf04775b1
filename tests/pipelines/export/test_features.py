"""Side features of every kind, from a log with faults to requests against the served model."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf

from pipelines.common.files import read_json
from pipelines.errors import UserError
from pipelines.query import _features, _values
from tests.support.processes import run_step
from tests.support.server_process import Server

NUM_USERS, NUM_ITEMS = 240, 60
DEVICES, COUNTRIES = ("phone", "desk", ""), ("49", "1", "33", "")
GENRES = ("drama", "comedy", "war")


def write(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def write_log(folder: Path) -> None:
    """Users choose films of one genre, which their country tells."""
    generator = np.random.default_rng(1)
    events = []
    for user in range(NUM_USERS):
        taste = user % len(GENRES)
        for place in range(12):
            same = int(generator.integers(NUM_ITEMS // 3)) * 3 + taste
            item = same if generator.random() < 0.9 else int(generator.integers(NUM_ITEMS))
            time = 1_700_000_000 + int(generator.integers(10**6)) + place * 10**6
            events.append([f"u{user}", f"i{item}", time, DEVICES[(user + place) % 3]])
    write(folder / "events.csv", ["user", "item", "time", "device"], events)
    items = [
        [
            f"i{item}",
            f"brand{item % 4}",
            f"{GENRES[item % 3]}|{GENRES[item % 2]}" if item % 7 else "",
            "no number" if item == 5 else item * 0.5,
            f"Film No. {item}",
            f"20{10 + item % 12}-03-01",
        ]
        for item in range(NUM_ITEMS)
    ]
    header = ["item", "brand", "genres", "price", "title", "released"]
    write(folder / "items.csv", header, [*items, items[0], ["unknown", *items[1][1:]]])
    new = [
        [f"new{genre}", "brand9", GENRES[genre], "", f"Film {GENRES[genre]}", "2022-01-01"]
        for genre in range(3)
    ]
    write(folder / "new.csv", header, [*new, new[0], items[2]])
    users = [[f"u{user}", COUNTRIES[user % 3], 20 + user % 50] for user in range(NUM_USERS - 5)]
    write(folder / "users.csv", ["user", "country", "age"], users)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    write_log(folder)
    run_step(
        "prepare", "--source", "csv", "--input", folder / "events.csv", "--out", folder / "data",
        "--items", folder / "items.csv", "--users", folder / "users.csv",
        "--item-features", "brand,genres:tags,price:quantiles,title:text,released:age",
        "--user-features", "country,years=age:number",
        "--context-features", "device:category,hour=time:hour,day=time:weekday",
    )  # fmt: skip
    run_step(
        "train", "--data", folder / "data", "--out", folder / "run", "--dim", 16,
        "--hidden", 16, "--batch-size", 64, "--negatives-per-example", 2, "--max-steps", 150,
        "--steps-per-epoch", 75, "--learning-rate", 0.01, "--monitor", "recall@10",
        "--min-history", 1, "--item-id-dropout", 0.3,
    )  # fmt: skip
    run_step(
        "export", "--run", folder / "run", "--out", folder / "model", "--top-n", 20,
        "--new-items", folder / "new.csv",
    )  # fmt: skip
    return folder / "model"


@pytest.mark.slow
def test_the_export_lists_features_and_new_items(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = (model / "1" / "model_card.md").read_text(encoding="utf-8")
    for line in (
        "| `country` | user | category | `country` |",
        "| `hour` | context | hour | `time` |",
        "| `genres` | item | tags | `genres` |",
        "- new items, without interactions: 3",
        "A request may leave out `country`, `years`, `device`, `hour`, `day`.",
    ):
        assert line in card
    record = read_json(model / "1" / "export.json")
    assert record["num_items"] == NUM_ITEMS + 3
    types = record["signatures"]["serving_default"]["inputs"]
    assert types["country"] == types["hour"] == "int64 [any]"
    assert types["years"] == "float64 [any]" and types["device"] == "string [any]"
    options = ("--feature", "country=49", "--feature", "hour=2026-11-18T07:00:00Z")
    answers = []
    for more in ((), ("--rest",)):
        run_step("query", "--model", model, "--history", "", "--top-n", 5, *options, *more)
        answers.append(capsys.readouterr().out.split("score")[1].split("\n\n")[0])
    assert answers[0].strip() == answers[1].strip()


@pytest.mark.slow
def test_new_items_are_near_those_with_their_features(model: Path) -> None:
    embed = tf.saved_model.load(str(model / "1")).signatures["item_embedding"]
    names = [f"i{item}" for item in range(NUM_ITEMS)]
    vectors = embed(item_ids=tf.constant([*names, "new0", "new1", "new2"]))["embedding"].numpy()
    scores = vectors[-3:] @ vectors[:-3].T
    # Of the films whose only genre is that of the new one, against the others.
    for genre in range(3):
        alone = [i for i in range(NUM_ITEMS) if i % 7 and i % 3 == genre and i % 2 != i % 3]
        alone = alone or [i for i in range(NUM_ITEMS) if i % 3 == genre]
        others = [i for i in range(NUM_ITEMS) if i % 3 != genre]
        assert scores[genre, alone].mean() > scores[genre, others].mean() + 0.2


@pytest.mark.slow
def test_requests_with_without_and_with_wrong_features(model: Path) -> None:
    server = Server(model)
    try:
        check_rest(server)
        check_grpc(server)
    finally:
        server.stop()


def check_rest(server: Server) -> None:
    def ask(*rows: dict[str, Any]) -> Any:
        status, answer = server.post({"signature_name": "user_embedding", "instances": rows})
        assert status == 200, answer
        return np.array([row["embedding"] for row in answer["predictions"]])

    history = {"history": ["i1", "i4"]}
    full = {"country": 49, "years": 30, "device": "phone", "hour": 1_700_000_000, "day": 0}
    missing = {"country": None, "years": None, "device": "", "hour": None, "day": None}
    without, given, unknown = ask(history, {**history, **full}, {**history, "device": "watch"})
    np.testing.assert_allclose(ask({**history, **missing})[0], without, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ask({**history, **full})[0], given, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(unknown, without, rtol=1e-4, atol=1e-5)
    for name in full:
        one = ask({**history, name: full[name]})[0]
        assert np.abs(one - without).max() > 1e-4, name
    for name, wrong in (
        ("country", "DE"),
        ("years", "old"),
        ("device", 3),
        ("hour", 1.5),
        ("day", ["x"]),
        ("colour", "red"),
    ):
        status, answer = server.post({"instances": [{**history, name: wrong}]})
        assert status == 400 and name in answer["error"], (name, answer)


def check_grpc(server: Server) -> None:
    def ask(**features: Any) -> np.ndarray:
        inputs = {"history": [["i1", "i4"]], **features}
        answer = server.predict(inputs, "user_embedding")
        vector: np.ndarray = tf.make_ndarray(answer.outputs["embedding"])[0]
        return vector

    without = ask()
    given = ask(country=np.array([49]), device=["phone"])
    assert np.abs(given - without).max() > 1e-4
    status, answer = server.post(
        {
            "signature_name": "user_embedding",
            "instances": [{"history": ["i1", "i4"], "country": 49, "device": "phone"}],
        }
    )
    assert status == 200
    np.testing.assert_allclose(answer["predictions"][0]["embedding"], given, rtol=1e-4, atol=1e-5)
    for name, wrong in (("country", ["DE"]), ("years", np.array([3], np.float32)), ("x", [1])):
        with pytest.raises(grpc.RpcError, match=f"INVALID_ARGUMENT[^$]*{name}"):
            ask(**{name: wrong})


RECORD = {
    "optional_inputs": ["hour", "country"],
    "features": {"hour": {"kind": "hour"}, "country": {"kind": "category"}},
}


def test_features_on_the_command_line() -> None:
    given = ["country=a=b", "hour=1970-01-01T01:00:00Z"]
    assert _features(given, RECORD, Path("m")) == {"country": ["a=b"], "hour": ["3600"]}
    assert _features(["hour=-1"], RECORD, Path("m")) == {"hour": ["-1"]}
    assert _features(["hour=", "country= "], RECORD, Path("m")) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("country", "NAME=VALUE.*hour, country. Received: 'country'"),
        ("age=3", "of a feature that m takes: hour, country"),
        ("hour=soon", "--feature hour should be a time.*'soon'"),
    ],
)
def test_wrong_features_on_the_command_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        _features([text], RECORD, Path("m"))
    for first in ("country=a", "country="):
        with pytest.raises(UserError, match="each name once"):
            _features([first, "country=b"], RECORD, Path("m"))


@pytest.mark.parametrize(
    ("text", "dtype"), [("9" * 20, "int64"), (str(2**63), "int64"), ("-1e400", "float64")]
)
def test_numbers_that_no_model_takes(text: str, dtype: str) -> None:
    with pytest.raises(UserError, match=f"the model takes age as {dtype}: {text} is too large"):
        _values("age", [text], dtype)
    least = str(-(2**63))
    assert _values("age", [least], "int64") == [-(2**63)]
    assert _values("history", [["7", least]], "int64") == [[7, -(2**63)]]
