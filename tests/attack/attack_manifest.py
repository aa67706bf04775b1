"""Copies of a model that are cut short, damaged or incomplete: the manifest notices every one."""

from __future__ import annotations

import time

import pytest

from tfrs_croloss.serving.manifest import MANIFEST, ManifestError, check_manifest, write_manifest

SECONDS = 5.0


def test_no_damage_goes_unnoticed(dice, tmp_path):
    sizes = {"saved_model.pb": 3000, "variables/data": 70_000, "assets/item_ids.txt": 500}
    contents = {name: dice.randbytes(size) for name, size in sizes.items()}
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    write_manifest(tmp_path)
    contents[MANIFEST] = (tmp_path / MANIFEST).read_bytes()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        name = dice.choice(list(contents))
        damaged = bytearray(contents[name])
        place = dice.randrange(len(damaged))
        if dice.random() < 0.5:
            # The last byte of the manifest is a line feed, which may be missing.
            del damaged[place if name != MANIFEST else min(place, len(damaged) - 2) :]
        elif name == MANIFEST:
            continue  # A flipped bit may be white space.
        else:
            damaged[place] ^= 1 << dice.randrange(8)
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(ManifestError, match=name):
            check_manifest(tmp_path)
        (tmp_path / name).write_bytes(contents[name])
        check_manifest(tmp_path)
