"""The manifest of prepared data: the input it came from, and a summary for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..common.program import command
from ..data.prepared import MANIFEST, PreparedData
from ..errors import UserError


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


def is_finished(
    out: Path, config: dict[str, Any], inputs: list[dict[str, object]], overwrite: bool
) -> bool:
    """Whether ``out`` already holds the result of this command.

    Raises:
      UserError: ``out`` holds something else that may not be replaced.
    """
    if not out.is_dir() or not any(out.iterdir()):
        return False
    if not (out / MANIFEST).is_file():
        raise UserError(
            f"--out {out} contains files that prepare did not write, so it is not replaced. "
            "Choose another folder."
        )
    if overwrite:
        return False
    manifest = PreparedData.load(out).manifest
    if manifest["config"] == config and manifest["inputs"] == inputs:
        return True
    same_inputs = manifest["inputs"] == inputs
    origin = "with other options" if same_inputs else "from another input, or the input has changed"
    raise UserError(
        f"--out {out} already exists and was made {origin}. Pass --overwrite to replace it, or "
        "choose another folder."
    )


def print_summary(manifest: dict[str, Any], out: Path) -> None:
    """Prints the statistics in ``manifest`` and the command to run next."""
    statistics = manifest["statistics"]
    print(f"\n{out}: {statistics['items']:,} items, order by {manifest['order']}\n")
    print(f"{'':8}{'users':>12}{'interactions':>15}{'targets':>12}{'dropped users':>16}")
    for name, split in statistics["splits"].items():
        targets = split.get("target_interactions")
        print(
            f"{name:8}{split['users']:>12,}{split['interactions']:>15,}"
            f"{'' if targets is None else f'{targets:,}':>12}{split['dropped_users']:>16,}"
        )
    counts = {
        "rows in the input": statistics["rows"] + statistics["bad_rows"],
        "bad rows left out": statistics["bad_rows"],
        "rows of other kinds left out": statistics["unwanted_rows"],
        "duplicates left out": statistics["duplicates"],
        "interactions filtered out": statistics["filtered_interactions"],
        "users filtered out": statistics["filtered_users"],
        "items filtered out": statistics["filtered_items"],
        "items without a train interaction": statistics["items_not_in_train"],
    }
    print()
    for title, count in counts.items():
        if count:
            print(f"{title:34}{count:>15,}")
    for entry in statistics["bad_rows_by_kind"]:
        lines = ", ".join(map(str, entry["first_lines"]))
        print(f"  {entry['file']}: {entry['kind']}: {entry['rows']:,} (first lines {lines})")
    print("\nNext:")
    print("  " + command("train", "--data", out, "--out", "work/run"))
