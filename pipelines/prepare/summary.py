"""What came out of ``prepare``, as a table for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..common.program import command


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
    left_out = {
        "rows in the input": statistics["rows"] + statistics["bad_rows"],
        "bad rows left out": statistics["bad_rows"],
        "rows of other kinds left out": statistics["unwanted_rows"],
        "duplicates left out": statistics["duplicates"],
        "filtered out: interactions": statistics["filtered_interactions"],
        "filtered out: users": statistics["filtered_users"],
        "filtered out: items": statistics["filtered_items"],
        "items that training never sees": statistics["items_not_in_train"],
    }
    print()
    for title, count in left_out.items():
        if count:
            print(f"{title:32}{count:>15,}")
    for entry in statistics["bad_rows_by_kind"]:
        lines = ", ".join(map(str, entry["first_lines"]))
        print(f"  {entry['file']}: {entry['kind']}: {entry['rows']:,} (first lines {lines})")
    print("\nNext:")
    print("  " + command("train", "--data", out, "--out", "work/run"))
