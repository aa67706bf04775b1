"""Counts the targets of a split that are cold or repeated, and leaves them out on request.

A target is cold if its item has no interaction in the training split, and repeated if the user has
chosen the same item before. This is done on the arrays, so that it is the same for every engine and
for every kind of split.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..errors import UserError
from .writer import open_flat_array

BLOCK_ITEMS = 1 << 22


def count_targets(
    folder: Path, item_counts: np.ndarray, drop_cold: bool, drop_repeated: bool
) -> tuple[dict[str, int], np.ndarray | None]:
    """Counts cold and repeated targets; a user whose targets are all left out is left out, too.

    Args:
      folder: folder of the split.
      item_counts: ``[num_items]`` interactions of each item in the training split.
      drop_cold, drop_repeated: whether to leave these targets out.

    Returns:
      Statistics of the split: ``cold_targets`` and ``repeated_targets`` before any is left out; and
      if some are, the numbers of users, interactions and targets that remain, and the number of
      ``users_without_targets`` that were left out. And which interactions are kept, or None for
      all of them.

    Raises:
      UserError: no target is left.
    """
    items, offsets, lengths = (
        np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        for name in ("items", "offsets", "history_lengths")
    )
    kept_rows = np.ones(len(items), bool)
    kept_users = np.ones(len(lengths), bool)
    cold_targets = repeated_targets = 0
    for first, last in _blocks(offsets):
        begin, end = offsets[first], offsets[last]
        block = items[begin:end]
        users = np.repeat(np.arange(last - first), np.diff(offsets[first : last + 1]))
        places = np.arange(begin, end)
        is_target = places >= (offsets[first:last] + lengths[first:last])[users]
        is_cold = is_target & (item_counts[block] == 0)
        earliest = np.unique(users * len(item_counts) + block, return_index=True)[1]
        is_repeated = is_target.copy()
        is_repeated[earliest] = False
        cold_targets += int(is_cold.sum())
        repeated_targets += int(is_repeated.sum())
        left_out = (is_cold & drop_cold) | (is_repeated & drop_repeated)
        remaining = np.bincount(users, is_target & ~left_out, minlength=last - first) > 0
        kept_users[first:last] = remaining
        kept_rows[begin:end] = ~left_out & remaining[users]
    statistics = {"cold_targets": cold_targets, "repeated_targets": repeated_targets}
    if (drop_cold and cold_targets) or (drop_repeated and repeated_targets):
        if not kept_users.any():
            raise UserError(
                f"the {folder.name} split should have targets. All of them are cold "
                f"({cold_targets:,}) or repeated ({repeated_targets:,}). Leave out "
                "--drop-cold-targets or --drop-repeated-targets, or change --split."
            )
        history = keep(folder, kept_rows, kept_users)
        statistics.update(
            users=int(kept_users.sum()),
            interactions=int(kept_rows.sum()),
            history_interactions=history,
            target_interactions=int(kept_rows.sum()) - history,
            users_without_targets=int((~kept_users).sum()),
        )
        return statistics, kept_rows
    return statistics, None


def keep(folder: Path, kept_rows: np.ndarray, kept_users: np.ndarray) -> int:
    """Rewrites the files of a split with some of its interactions and users.

    Args:
      folder: folder of the split.
      kept_rows: for each interaction, whether it is kept; those of other users are not.
      kept_users: for each user.

    Returns:
      The number of interactions in the histories of the users, 0 if they have none.
    """
    has_histories = (folder / "history_lengths.npy").exists()
    kinds: dict[str, type[np.number]] = {"items": np.int32, "offsets": np.int64}
    if has_histories:
        kinds["history_lengths"] = np.int32
    old = {
        name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in kinds
    }
    items, offsets = old["items"], old["offsets"]
    num_rows, num_users = int(kept_rows.sum()), int(kept_users.sum())
    sizes = {"items": num_rows, "offsets": num_users + 1, "history_lengths": num_users}
    ends = history = 0
    with contextlib.ExitStack() as files:
        new = {
            name: files.enter_context(
                open_flat_array(folder / f"kept_{name}.npy", sizes[name], kind)
            )
            for name, kind in kinds.items()
        }
        new_items, new_offsets = new["items"], new["offsets"]
        new_offsets(np.zeros(1, np.int64))
        for first, last in _blocks(offsets):
            begin, end = offsets[first], offsets[last]
            rows, users = kept_rows[begin:end], kept_users[first:last]
            new_items(items[begin:end][rows])
            before = np.concatenate([[0], np.cumsum(rows)])
            totals = np.diff(before[offsets[first : last + 1] - begin])[users]
            new_offsets(ends + np.cumsum(totals))
            ends += int(totals.sum())
            if has_histories:
                lengths = old["history_lengths"][first:last][users]
                new["history_lengths"](lengths)
                history += int(lengths.sum())
    for name in kinds:
        (folder / f"kept_{name}.npy").replace(folder / f"{name}.npy")
    with (
        open(folder / "user_ids.txt", encoding="utf-8", newline="\n") as lines,
        open(folder / "kept_user_ids.txt", "w", encoding="utf-8", newline="\n") as kept,
    ):
        kept.writelines(line for line, is_kept in zip(lines, kept_users) if is_kept)
    (folder / "kept_user_ids.txt").replace(folder / "user_ids.txt")
    return history


def _blocks(offsets: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges of users with a bounded number of interactions, or with one user each."""
    first, num_users = 0, len(offsets) - 1
    while first < num_users:
        last = int(np.searchsorted(offsets, offsets[first] + BLOCK_ITEMS, side="right")) - 1
        last = min(max(last, first + 1), num_users)
        yield first, last
        first = last
