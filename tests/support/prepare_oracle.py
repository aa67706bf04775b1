"""The expected result of ``prepare``, in plain Python that imports nothing from the project."""

from __future__ import annotations

import hashlib
import math
from collections import Counter


def shuffled(users, seed):
    """Users in the order of a hash of the seed and the user."""

    def key(user):
        return hashlib.md5(f"{seed}:{user}".encode()).hexdigest(), user

    return sorted(users, key=key)


def without_order(user, items):
    """A user's items in the order of a hash, for a log without time order."""
    return sorted(items, key=lambda item: hashlib.md5(f"order:{user}:{item}".encode()).hexdigest())


def filter_log(log, min_item_count, min_user_count, core=False):
    """Removes rare items, then rare users; with ``core`` until nothing changes."""
    while True:
        size = len(log)
        counts = Counter(item for _, item, *_ in log)
        log = [row for row in log if counts[row[1]] >= min_item_count]
        counts = Counter(user for user, *_ in log)
        log = [row for row in log if counts[row[0]] >= min_user_count]
        if not core or len(log) == size:
            return log


def number_items(log):
    """Item names by decreasing popularity, with ties broken by name."""
    counts = Counter(item for _, item, *_ in log)
    return sorted(counts, key=lambda item: (-counts[item], item))


def sequences(log):
    """Each user's items by time, then by position in the log."""
    order = sorted(range(len(log)), key=lambda row: (log[row][2], row))
    found = {}
    for row in order:
        found.setdefault(log[row][0], []).append(log[row][1])
    return found


def first_only(log):
    """The log without a user's later interactions with the same item."""
    kept, seen = [], set()
    for row in sorted(range(len(log)), key=lambda row: (log[row][2], row)):
        if log[row][:2] not in seen:
            seen.add(log[row][:2])
            kept.append(row)
    return [log[row] for row in sorted(kept)]


def prepare(
    log,
    seed=0,
    min_item_count=5,
    min_user_count=5,
    core=False,
    dedup=False,
    shares=(8, 1, 1),
    history_share=0.8,
):
    """Prepares a log of rows (user, item, time).

    Returns:
      A dict: ``item_ids``, ``item_counts``, and for each split a list of
      (user, item numbers, history length or None).
    """
    if dedup:
        log = first_only(log)
    log = filter_log(log, min_item_count, min_user_count, core)
    names = number_items(log)
    number = {name: index for index, name in enumerate(names)}
    users = sequences(log)
    order = shuffled(users, seed)
    num_valid, num_test = (max(1, len(order) * share // sum(shares)) for share in shares[1:])
    num_train = len(order) - num_valid - num_test
    parts = {
        "train": order[:num_train],
        "valid": order[num_train : num_train + num_valid],
        "test": order[num_train + num_valid :],
    }
    result = {"item_ids": names}
    for split, members in parts.items():
        result[split] = []
        for user in members:
            items = [number[item] for item in users[user]]
            history = None
            if split != "train":
                if len(items) < 2:
                    continue
                history = min(max(1, math.floor(len(items) * history_share + 1e-9)), len(items) - 1)
            result[split].append((user, items, history))
    counts = Counter(item for _, items, _ in result["train"] for item in items)
    result["item_counts"] = [counts[index] for index in range(len(names))]
    return result


def parts_of(rows, split, bounds=None):
    """The part (0, 1 or 2) of each of a user's rows, which are in time order."""
    if split == "time":
        return [sum(time >= bound for bound in bounds) for _, _, time in rows]
    return [0] * (len(rows) - 2) + [1, 2] if len(rows) >= 3 else [0] * len(rows)


def cut(log, split, bounds=None, seed=0, drop_cold=False, drop_repeated=False):
    """Cuts each user's sequence by leave-one-out, or at two times; nothing is filtered.

    Returns:
      The dict of ``prepare``, and the numbers of cold and repeated targets of valid and test.
    """
    names = number_items(log)
    number = {name: index for index, name in enumerate(names)}
    users = {}
    for row in sorted(range(len(log)), key=lambda row: (log[row][2], row)):
        users.setdefault(log[row][0], []).append(log[row])
    result = {"item_ids": names, "train": [], "valid": [], "test": []}
    counts = Counter()
    for user in shuffled(users, seed):
        parts = parts_of(users[user], split, bounds)
        items = [number[row[1]] for row, part in zip(users[user], parts) if part == 0]
        counts.update(items)
        if items:
            result["train"].append((user, items, None))
    found = {}
    for part, name in ((1, "valid"), (2, "test")):
        cold = repeated = 0
        for user in shuffled(users, seed):
            parts = parts_of(users[user], split, bounds)
            items = [number[row[1]] for row in users[user]]
            history = [item for item, own in zip(items, parts) if own < part]
            targets = [item for item, own in zip(items, parts) if own == part]
            if not history or not targets:
                continue
            kept, seen = [], set(history)
            for item in targets:
                is_cold, is_repeated = counts[item] == 0, item in seen
                seen.add(item)
                cold += is_cold
                repeated += is_repeated
                if not (is_cold and drop_cold) and not (is_repeated and drop_repeated):
                    kept.append(item)
            if kept:
                result[name].append((user, history + kept, len(history)))
        found[name] = {"cold_targets": cold, "repeated_targets": repeated}
    result["item_counts"] = [counts[index] for index in range(len(names))]
    return result, found
