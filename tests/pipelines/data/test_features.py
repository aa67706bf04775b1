"""Side features are read as they were written, and verified like the other files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.common.files import file_entries
from pipelines.data.prepared import PreparedData
from pipelines.errors import UserError
from tests.support.features import EXAMPLES, add_examples, write_feature


@pytest.fixture(scope="module")
def original(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(tiny_data, tmp_path_factory.mktemp("features") / "data"))
    add_examples(folder)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "data"))


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    edit(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def list_again(folder: Path) -> None:
    def edit(manifest: dict[str, Any]) -> None:
        found = file_entries(folder)
        manifest["files"] = {name: found[name] for name in manifest["files"] if name in found}

    edit_manifest(folder, edit)


def test_columns_have_the_rows_of_what_they_belong_to(original: Path) -> None:
    data = PreparedData.load(original)
    assert {
        name: column.num_rows for name, column in data.item_features().items()
    } == dict.fromkeys(["brand", "genres", "title", "price", "released"], data.num_items)
    for name in ("train", "valid", "test"):
        split = data.split(name)
        users, contexts = split.user_features(), split.context_features()
        assert {key: column.num_rows for key, column in users.items()} == dict.fromkeys(
            ["country", "years"], split.num_users
        )
        assert {key: column.num_rows for key, column in contexts.items()} == dict.fromkeys(
            ["device", "hour", "day"], len(split.items)
        )


def test_values_are_those_that_were_written(tiny_data: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_data, tmp_path / "data"))
    num_items = PreparedData.load(folder).num_items
    entry = EXAMPLES["genres"][1]
    rows = [[1, 4], [], [2], *[[]] * (num_items - 3)]
    write_feature(folder, "item", "genres", entry, {"item": rows}, EXAMPLES["genres"][2])
    column = PreparedData.load(folder).item_features()["genres"]
    assert column.values.tolist() == [1, 4, 2]
    assert column.offsets is not None
    assert column.offsets[:5].tolist() == [0, 2, 2, 3, 3]
    assert column.spec.vocabulary == ("drama", "comedy", "war", "musical")
    assert isinstance(column.values, np.memmap)


def test_specs_say_what_they_are(original: Path) -> None:
    data = PreparedData.load(original)
    specs = {**data.features("item"), **data.features("user"), **data.features("context")}
    assert {name: spec.num_codes for name, spec in specs.items()} == {
        "brand": 1 + 3,
        "genres": 1 + 4,
        "title": 1 + 50,
        "price": 1 + 4,
        "released": None,
        "country": 1 + 2,
        "years": None,
        "device": 1 + 2,
        "hour": 1 + 24,
        "day": 1 + 7,
    }
    assert [name for name, spec in specs.items() if spec.is_ragged] == ["genres", "title"]
    assert [name for name, spec in specs.items() if spec.is_float] == ["released", "years"]
    assert specs["years"].column == "age"
    assert specs["price"].options == {"missing": 0, "boundaries": [1.0, 2.5, 10.0]}
    assert specs["price"].vocabulary is None
    with pytest.raises(UserError, match="of should be one of item, user, context.*'items'"):
        data.features("items")


def test_data_without_features(tiny_data: Path) -> None:
    data = PreparedData.load(tiny_data)
    assert data.features("item") == data.item_features() == {}
    assert data.split("test").user_features() == data.split("train").context_features() == {}


@pytest.mark.parametrize(
    "name, edit, message",
    [
        ("features/item/brand", lambda rows: rows[:-1], "brand/values.npy should have .* rows"),
        ("features/item/brand", lambda rows: rows + 4, "from 0 to 3. Received: [4-7]"),
        (
            "features/item/genres",
            lambda rows: rows - 2,
            "genres/values.npy .* from 0 to 4.*: -[12]",
        ),
        ("features/item/title", lambda rows: rows - 1, "title/values.npy .* from 1 to 50.*: 0"),
        ("features/item/genres", lambda rows: rows[:-1], "genres/offsets.npy should grow"),
        ("features/item/brand", lambda rows: rows.astype(np.int64), "a row of int32.*int64"),
        ("features/item/released", lambda rows: rows + np.inf, "finite numbers, or NaN"),
        ("valid/user_features/country", lambda rows: rows[1:], "country/values.npy should have"),
        ("test/context_features/hour", lambda rows: rows + 24, "from 0 to 24"),
        ("train/context_features/day", lambda rows: rows[1:], "day/values.npy should have"),
    ],
)
def test_wrong_numbers_name_the_file(
    folder: Path, name: str, edit: Callable[[np.ndarray], np.ndarray], message: str
) -> None:
    path = folder / name / "values.npy"
    np.save(path, edit(np.load(path)))
    list_again(folder)
    with pytest.raises(UserError, match=message):
        PreparedData.load(folder)


def test_a_vocabulary_of_another_length(folder: Path) -> None:
    with open(folder / "features/context/device/vocabulary.txt", "a") as file:
        file.write("watch\n")
    list_again(folder)
    with pytest.raises(UserError, match="device/vocabulary.txt should have 2 lines. Received: 3"):
        PreparedData.load(folder)


@pytest.mark.parametrize(
    "name",
    [
        "features/item/brand/vocabulary.txt",
        "features/item/title/offsets.npy",
        "valid/user_features/years/values.npy",
        "test/context_features/device/values.npy",
    ],
)
def test_a_file_that_is_missing(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"{name} should have .* is missing"):
        PreparedData.load(folder)
    edit_manifest(folder, lambda manifest: manifest["files"].pop(name))
    with pytest.raises(UserError, match=f"should list {name} among its `files`"):
        PreparedData.load(folder)
    (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    "name, change",
    [
        ("brand", {"kind": "colour"}),
        ("brand", {"vocabulary": -1}),
        ("brand", {"integers": None}),
        ("brand", {"column": 3}),
        ("brand", {"missing": None}),
        ("genres", {"separator": ""}),
        ("title", {"buckets": 0}),
        ("price", {"boundaries": [2.0, 1.0]}),
        ("price", {"boundaries": ["1"]}),
        ("released", {"deviation": 0.0}),
        ("released", {"until": None}),
    ],
)
def test_a_manifest_that_does_not_say_how(folder: Path, name: str, change: dict[str, Any]) -> None:
    edit_manifest(folder, lambda manifest: manifest["features"]["item"][name].update(change))
    with pytest.raises(UserError, match=f"how the item feature '{name}' is encoded"):
        PreparedData.load(folder)


@pytest.mark.parametrize("features", [[], {"items": {}}, {"item": []}, "x", {"item": {"../x": {}}}])
def test_features_that_are_no_features(folder: Path, features: object) -> None:
    edit_manifest(folder, lambda manifest: manifest.update(features=features))
    if features == []:
        assert PreparedData.load(folder).features("item") == {}
        return
    with pytest.raises(UserError, match="manifest.json should"):
        PreparedData.load(folder)


def test_a_changed_manifest_is_verified_again(folder: Path) -> None:
    PreparedData.load(folder)
    edit_manifest(folder, lambda manifest: manifest["features"]["item"]["title"].update(buckets=9))
    with pytest.raises(UserError, match="title/values.npy should hold whole numbers from 1 to 9"):
        PreparedData.load(folder)
