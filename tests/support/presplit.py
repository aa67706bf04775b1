"""A tiny data set that comes split, for matrix factorisations."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.processes import run_step


def write_presplit(folder: Path, valid: bool = True) -> Path:
    """Every user's pairs over the files: two groups of users, each with items of its own.

    Args:
      folder: the folder ``raw`` of the files is made in it.
      valid: whether there is a file for validation; otherwise its pairs are training pairs.
    """
    generator = np.random.default_rng(0)
    parts: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for user in range(60):
        items = generator.permutation(20)[:12] + 20 * (user % 2)
        for number, item in enumerate(items):
            part = "train" if number < 8 else "valid" if number < 10 else "test"
            parts[part].append(f"{user} {item}")
    if not valid:
        parts["train"] += parts.pop("valid")
    (folder / "raw").mkdir(parents=True)
    for name, lines in parts.items():
        generator.shuffle(lines)
        (folder / "raw" / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return folder / "raw"


def presplit_data(folder: Path) -> Path:
    """The same, prepared."""
    raw = write_presplit(folder)
    run_step("prepare", "--source", "presplit", "--input", raw, "--out", folder / "data")
    return folder / "data"
