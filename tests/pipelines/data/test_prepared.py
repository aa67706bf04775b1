"""Prepared data is verified before anything is computed from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipelines.common.files import file_entries, sha256
from pipelines.data import verification
from pipelines.data.features import map_array
from pipelines.data.prepared import PreparedData
from pipelines.errors import UserError


@pytest.fixture
def folder(tiny_data: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_data, tmp_path / "data"))


def flip(path: Path, place: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def list_again(folder: Path) -> None:
    """Makes the manifest fit the files, as someone does who writes files of their own."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] = {
        name: entry for name, entry in file_entries(folder).items() if name in manifest["files"]
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


def change(name: str, edit: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        np.save(folder / name, edit(np.load(folder / name)))
        list_again(folder)

    return apply


def put(value: int, place: int = 5) -> Callable[[np.ndarray], np.ndarray]:
    def edit(array: np.ndarray) -> np.ndarray:
        array[place] = value
        return array

    return edit


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", ["train/items.npy", "test/offsets.npy", "item_ids.txt"])
def test_a_flipped_bit_names_the_file(folder: Path, name: str, known: bool) -> None:
    if known:
        PreparedData.load(folder)
    flip(folder / name)
    with pytest.raises(UserError, match=f"{name} differs from its checksum.*prepare"):
        PreparedData.load(folder)


@pytest.mark.parametrize(
    "damage, message",
    [
        (change("train/items.npy", put(-1)), "train/items.npy should hold item ids .*: -1"),
        (change("test/items.npy", put(10**6)), "test/items.npy should hold .*: 1000000"),
        (change("valid/offsets.npy", put(10**9)), "valid/offsets.npy should grow from 0 to"),
        (change("train/offsets.npy", lambda array: array[:-1]), "train/offsets.npy should grow"),
        (change("test/history_lengths.npy", put(-1)), "test/history_lengths.npy should hold"),
        (change("test/history_lengths.npy", lambda array: array[:-1]), "one number for each"),
        (change("item_counts.npy", lambda array: array[:-1]), "item_ids.txt should have"),
        (change("train/items.npy", lambda array: array[None]), "items.npy should .* the shape"),
        (change("train/items.npy", lambda array: array.astype(float)), "items.npy .* float64"),
    ],
)
def test_numbers_out_of_range_name_the_file(
    folder: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(folder)
    with pytest.raises(UserError, match=message):
        PreparedData.load(folder)


@pytest.mark.parametrize(
    "content", ["{}", "[]", "", "{", "null", '{"format_version": 1}', "[" * 9999]
)
def test_any_manifest(folder: Path, content: str) -> None:
    (folder / "manifest.json").write_text(content)
    with pytest.raises(UserError, match=r"manifest.json|format version"):
        PreparedData.load(folder)


def test_a_folder_that_does_not_exist(folder: Path) -> None:
    with pytest.raises(UserError, match="missing does not exist. Run .* prepare' to create it"):
        PreparedData.load(folder / "missing")


def test_an_array_that_is_no_array(folder: Path) -> None:
    (folder / "train/items.npy").write_bytes(b"x" * 3)
    list_again(folder)
    with pytest.raises(UserError, match="items.npy should be a NumPy array"):
        PreparedData.load(folder)


@pytest.mark.filterwarnings("ignore:Reading .npy")
def test_any_bit_of_an_array_s_header(tmp_path: Path) -> None:
    path = tmp_path / "items.npy"
    np.save(path, np.arange(3))
    whole, refused = path.read_bytes(), 0
    for place in range(len(whole) - 24):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                map_array(path, np.int64)
            except UserError as error:
                assert str(path) in str(error)
                refused += 1
    assert refused > 500


def test_reading_costs_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def count(path: Path) -> str:
        read.append(path)
        return sha256(path)

    monkeypatch.setattr(verification, "sha256", count)
    (folder / verification.VERIFIED).unlink(missing_ok=True)
    PreparedData.load(folder)
    once = len(read)
    assert once == len(PreparedData.load(folder).manifest["files"]) == len(read)
    (folder / "item_ids.txt").touch()
    PreparedData.load(folder)
    assert len(read) == 2 * once


@pytest.mark.parametrize("name", ["train/items.npy", "valid/user_ids.txt", "item_ids.txt"])
def test_a_file_that_is_exchanged_after_the_check_is_not_used(folder: Path, name: str) -> None:
    data = PreparedData.load(folder)
    damaged = folder.parent / "damaged"
    damaged.write_bytes((folder / name).read_bytes())
    flip(damaged, place=-2)
    damaged.rename(folder / name)
    with pytest.raises(UserError, match=f"{name} differs from its checksum"):
        data.item_ids()
    with pytest.raises(UserError, match=f"{name} differs from its checksum"):
        data.split("train")


def test_data_that_is_prepared_again_is_not_mixed_with_what_was_there(folder: Path) -> None:
    data = PreparedData.load(folder)
    other = Path(shutil.copytree(folder, folder.parent / "other"))
    change("valid/items.npy", put(7))(other)
    folder.rename(folder.with_name("old"))
    other.rename(folder)
    with pytest.raises(UserError, match="differs from its checksum"):
        data.split("valid")


def test_a_file_whose_times_change_is_verified_again(folder: Path) -> None:
    data = PreparedData.load(folder)
    (folder / "item_ids.txt").touch()
    assert len(data.item_ids()) == data.num_items
    assert data.split("test").num_users


def test_what_changes_while_it_is_verified_is_not_remembered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = verification.verify

    def slowly(data: PreparedData) -> None:
        whole(data)
        flip(folder / "item_ids.txt")

    monkeypatch.setattr(verification, "verify", slowly)
    with pytest.raises(UserError, match="changed while it was verified"):
        PreparedData.load(folder)
    monkeypatch.undo()
    with pytest.raises(UserError, match="item_ids.txt differs from its checksum"):
        PreparedData.load(folder)
