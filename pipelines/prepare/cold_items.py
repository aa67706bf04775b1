"""Holds items out of training, so that a test shows how well items without interactions are found.

The interactions of a share of the items are removed from the training sequences. The items stay in
the catalogue, and in the histories and targets of valid and test, where they are cold. This is done
on the arrays, so that it is the same for every engine and for every kind of split.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from ..errors import UserError
from .targets import keep


def hold_out_items(
    folder: Path, share: float, seed: int
) -> tuple[dict[str, int], dict[str, int], np.ndarray]:
    """Removes a share of the items, at least one, from the training split.

    Args:
      folder: the prepared data, with the ids of the items and the training split in it.
      share: number between 0 and 1.
      seed: seed of the choice.

    Returns:
      Statistics: of the data, the numbers of ``held_out_items`` and ``held_out_interactions``; of
      the training split, its new numbers of users and interactions, and of users without items, who
      are left out. And which interactions are kept.

    Raises:
      UserError: nothing is left to train on.
    """
    is_held_out = _choose(folder / "item_ids.txt", share, seed)
    train = folder / "train"
    items, offsets = (
        np.load(train / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        for name in ("items", "offsets")
    )
    kept_rows = ~is_held_out[items]
    before = np.concatenate([[0], np.cumsum(kept_rows)])
    kept_users = np.diff(before[offsets]) > 0
    num_held_out = len(kept_rows) - int(kept_rows.sum())
    if not kept_rows.any():
        raise UserError(
            f"--hold-out-items should leave interactions to train on. Received: {share}, which "
            f"holds out {is_held_out.sum():,} of {len(is_held_out):,} items. Choose a lower share."
        )
    keep(train, kept_rows, kept_users)
    whole = {
        "held_out_items": int(is_held_out.sum()),
        "held_out_interactions": num_held_out,
    }
    split = {
        "users": int(kept_users.sum()),
        "interactions": int(kept_rows.sum()),
        "users_without_items": int((~kept_users).sum()),
    }
    return whole, split, kept_rows


def _choose(item_ids: Path, share: float, seed: int) -> np.ndarray:
    """The items that a hash of the seed and the id puts first."""
    with open(item_ids, "rb") as lines:
        draws = [hashlib.md5(b"%d:%b" % (seed, line)).digest() for line in lines]
    # The small constant undoes products such as 0.29 * 100 = 28.999999999999996.
    count = max(1, int(len(draws) * share + 1e-9))
    chosen = np.zeros(len(draws), bool)
    chosen[sorted(range(len(draws)), key=lambda place: (draws[place], place))[:count]] = True
    return chosen
