"""The manifest of prepared data: the input it came from, and a summary for people."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

from ..common.ownership import Kind, check_outside, check_replaceable
from ..common.program import command
from ..data.prepared import MANIFEST, PreparedData
from ..data.verification import VERIFIED
from ..errors import UserError
from .features.columns import print_features

PREPARED = Kind(
    "prepared data",
    MANIFEST,
    ("format_version", "files", "statistics"),
    lambda manifest: [VERIFIED, *map(glob.escape, manifest["files"])],
)


def input_entries(inputs: list[str]) -> list[dict[str, object]]:
    """Path, size and modification time of every input file, to recognise the same input later."""
    entries: list[dict[str, object]] = []
    for name in inputs:
        path = Path(name)
        if path.is_file():
            files = [path]
        elif path.is_dir():
            files = sorted(file for file in path.iterdir() if file.is_file())
        else:
            files = sorted(path.parent.glob(path.name + "_*"))
        for file in files:
            status = file.stat()
            entries.append(
                {"path": str(file), "bytes": status.st_size, "modified_ns": status.st_mtime_ns}
            )
    return entries


def file_states(inputs: list[dict[str, object]]) -> dict[str, tuple[int, ...]]:
    """What has to stay the same for the input files to stay the same, by their paths.

    Raises:
      OSError: a file is gone.
    """
    found: dict[str, tuple[int, ...]] = {}
    for path in (str(entry["path"]) for entry in inputs):
        status = Path(path).stat()
        # A file that takes the place of another, with its times, has a ctime of its own.
        found[path] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return found


def check_unchanged(inputs: list[dict[str, object]], before: dict[str, tuple[int, ...]]) -> None:
    """Checks that the input files are those that were there at the start.

    Args:
      inputs: the entries of the input files.
      before: the result of ``file_states`` at the start.

    Raises:
      UserError: a file has changed, so that the result is of neither the old one nor the new one.
    """
    now = file_states(inputs)
    if changed := [path for path in before if now[path] != before[path]]:
        raise UserError(
            f"{changed[0]} changed while it was read. Run the same command again when nothing "
            "else writes to it."
        )


def is_finished(
    out: Path, config: dict[str, Any], inputs: list[dict[str, object]], overwrite: bool
) -> bool:
    """Whether ``out`` already holds the result of this command.

    Raises:
      UserError: ``out`` holds something else that may not be replaced.
    """
    check_outside(out, {"--input": [Path(str(entry["path"])) for entry in inputs]})
    if overwrite:
        check_ours(out)
        return False
    if not _is_in_use(out):
        return False
    manifest = PreparedData.load(out).manifest
    recorded = manifest["config"]
    # Options that came later are off in a manifest that does not name them.
    is_same = all(
        recorded[name] == value if name in recorded else not value for name, value in config.items()
    )
    if is_same and manifest["inputs"] == inputs:
        return True
    same_inputs = manifest["inputs"] == inputs
    origin = "with other options" if same_inputs else "from another input, or the input has changed"
    raise UserError(
        f"--out {out} already exists and was made {origin}. Pass --overwrite to replace it, or "
        "choose another folder."
    )


def check_ours(out: Path) -> None:
    """Checks that prepared data may be written to ``out``, in place of what is there.

    Raises:
      UserError: ``out`` holds something else.
    """
    if _is_in_use(out):
        check_replaceable(out, PREPARED, {})


def _is_in_use(out: Path) -> bool:
    """Whether a folder is there that is not empty.

    Raises:
      UserError: it is not one of prepared data.
    """
    if not out.is_dir() or not any(out.iterdir()):
        return False
    if not (out / MANIFEST).is_file():
        raise UserError(
            f"--out {out} contains files that prepare did not write, so it is not replaced. "
            "Choose another folder."
        )
    return True


def print_summary(manifest: dict[str, Any], out: Path) -> None:
    """Prints the statistics in ``manifest`` and the command to run next."""
    statistics = manifest["statistics"]
    has_time = manifest["order"] == "time"
    order = "sorted by time" if has_time else "in the order of the file"
    print(f"\n{out}: {statistics['items']:,} items, interactions {order}\n")
    may_have_time = manifest["source"] in ("csv", "tsv", "parquet")
    if may_have_time and not has_time and manifest["config"]["time_column"] is None:
        print("note: no time column was found. If the file has one, name it with --time-column.\n")
    print(
        f"{'':8}{'users':>12}{'interactions':>15}{'targets':>12}{'cold':>10}{'repeated':>10}"
        f"{'dropped users':>16}"
    )
    for name, split in statistics["splits"].items():
        targets, cold, repeated = (
            f"{split[key]:,}" if key in split else ""
            for key in ("target_interactions", "cold_targets", "repeated_targets")
        )
        dropped = split["dropped_users"] + sum(
            split.get(f"users_without_{what}", 0) for what in ("targets", "items")
        )
        print(
            f"{name:8}{split['users']:>12,}{split['interactions']:>15,}"
            f"{targets:>12}{cold:>10}{repeated:>10}{dropped:>16,}"
        )
    config = manifest["config"]
    are_dropped = [kind for kind in ("cold", "repeated") if config.get(f"drop_{kind}_targets")]
    if are_dropped:
        print(f"{' and '.join(are_dropped)} targets are left out, after they were counted")
    counts = {
        "rows in the input": statistics["rows"] + statistics["bad_rows"],
        "bad rows left out": statistics["bad_rows"],
        "rows of other kinds left out": statistics["unwanted_rows"],
        "duplicates left out": statistics["duplicates"],
        "interactions filtered out": statistics["filtered_interactions"],
        "users filtered out": statistics["filtered_users"],
        "items filtered out": statistics["filtered_items"],
        "users without a train interaction": statistics.get("users_not_in_train", 0),
        "items without a train interaction": statistics["items_not_in_train"],
        "items held out of train": statistics.get("held_out_items", 0),
        "interactions held out of train": statistics.get("held_out_interactions", 0),
    }
    print()
    for title, count in counts.items():
        if count:
            print(f"{title:34}{count:>15,}")
    for entry in statistics["bad_rows_by_kind"]:
        lines = ", ".join(map(str, entry["first_lines"]))
        print(f"  {entry['file']}: {entry['kind']}: {entry['rows']:,} (first lines {lines})")
    print_features(manifest)
    print("\nNext:")
    print("  " + command("train", "--data", out, "--out", "work/run"))
