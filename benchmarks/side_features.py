"""What side features are worth: ``python -m benchmarks.side_features``.

MovieLens 100k, with the genres, the title and the date of films, and the age, the sex and the
occupation of users. A tenth of the films is held out of training, so that they are cold. The
same two-tower model is trained with and without the features, and the tables have Recall@N of test
users: on all targets, and on the cold ones. The steps are those of the command line.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data" / "ml-100k"
CUTOFFS = (10, 50, 100, 200)
GENRES = (
    "unknown Action Adventure Animation Children Comedy Crime Documentary Drama Fantasy Film-Noir "
    "Horror Musical Mystery Romance Sci-Fi Thriller War Western"
).split()
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
ITEM_FEATURES = "genres:tags,title:text,released=date:age"
USER_FEATURES = "years=age:quantiles,sex:category,occupation:category"
TRAINING = (
    "--loss cro --dim 32 --epochs 12 --batch-size 256 --learning-rate 0.003 --monitor recall@50 "
    "--cutoffs 10 50 100 200 --item-id-dropout 0.2"
).split()
CONTENDERS = {
    "without side features": ["--item-features", "none", "--user-features", "none"],
    "with side features": [],
}


def main() -> int:
    """Prints the tables, and writes them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of MovieLens 100k")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--out", type=Path, help="folder for report.md and summary.json")
    args = parser.parse_args()
    if not (args.data / "u.data.gz").is_file():
        print(f"skipped: {args.data} has no u.data.gz")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = measure(args.data, Path(folder), args.seeds)
    report = markdown(found, args.seeds)
    print(report)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "report.md").write_text(report, encoding="utf-8")
        (args.out / "summary.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(data: Path, folder: Path, num_seeds: int) -> dict[str, Any]:
    """Recall@N of every contender and seed, over pairs of user and target.

    Args:
      data: folder of MovieLens 100k.
      folder: folder to work in.
      num_seeds: number of seeds.
    """
    write_tables(data, folder)
    prepared = folder / "prepared"
    step(
        *("prepare", "--source", "csv", "--input", folder / "events.csv", "--out", prepared),
        *("--items", folder / "items.csv", "--item-features", ITEM_FEATURES),
        *("--users", folder / "users.csv", "--user-features", USER_FEATURES),
        *("--hold-out-items", "0.1"),
    )
    found: dict[str, Any] = {name: {"all": [], "cold": []} for name in CONTENDERS}
    for seed in range(num_seeds):
        for name, options in CONTENDERS.items():
            run = folder / f"run-{len(options)}-{seed}"
            step("train", "--data", prepared, "--out", run, "--seed", seed, *TRAINING, *options)
            step(
                *("evaluate", "--run", run, "--baselines", "random"),
                *("--cutoffs", *CUTOFFS, "--exclude-history"),
            )
            systems = json.loads((run / "recall.json").read_text(encoding="utf-8"))["systems"]
            model, chance = systems["model"], systems["random"]
            found[name]["all"].append(recall(model))
            found[name]["cold"].append(recall(model["cold_targets"]))
            found["items in random order"] = {
                "all": [recall(chance)],
                "cold": [recall(chance["cold_targets"])],
            }
            found["targets"] = {
                "all": model["pairs"]["num"],
                "cold": model["cold_targets"]["pairs"]["num"],
            }
    return found


def write_tables(data: Path, folder: Path) -> None:
    """Writes the log and the tables of films and users as ``prepare`` reads them."""
    with open(folder / "events.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "time"])
        for user, item, _, time in rows(data / "u.data.gz", "\t"):
            writer.writerow([user, item, time])
    with open(folder / "items.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["item", "title", "date", "genres"])
        for item, title, date, _, _, *flags in rows(data / "u.item.gz", "|"):
            genres = "|".join(genre for genre, flag in zip(GENRES, flags) if flag == "1")
            writer.writerow([item, title, iso_date(date), genres])
    with open(folder / "users.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "age", "sex", "occupation"])
        for user, age, sex, occupation, _ in rows(data / "u.user.gz", "|"):
            writer.writerow([user, age, sex, occupation])


def rows(path: Path, separator: str) -> Iterator[list[str]]:
    """The fields of each line."""
    with gzip.open(path, "rt", encoding="latin-1") as file:
        for line in file:
            yield line.rstrip("\n").split(separator)


def iso_date(text: str) -> str:
    """A date as ISO writes it.

    >>> iso_date("01-Jan-1995")
    '1995-01-01'
    """
    if not text:
        return ""
    day, month, year = text.split("-")
    return f"{year}-{MONTHS.index(month) + 1:02d}-{day}"


def step(*words: object) -> None:
    """Runs a step of the pipelines in a process of its own."""
    command = [sys.executable, "-m", "pipelines", *map(str, words)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} failed:\n{finished.stderr[-2000:]}")
    print(f"{words[0]}: done", file=sys.stderr, flush=True)


def recall(report: dict[str, Any]) -> dict[str, float]:
    """Recall@N over pairs, by N."""
    return {str(cutoff): report["pairs"][f"recall@{cutoff}"] for cutoff in CUTOFFS}


def markdown(found: dict[str, Any], num_seeds: int) -> str:
    """The tables, as means over the seeds with standard errors."""
    lines = [
        "# Side features on MovieLens 100k",
        "",
        f"`python -m benchmarks.side_features --seeds {num_seeds}`. {harness.environment()}",
        "",
        f"Test Recall@N in %, over pairs of user and target, mean of {num_seeds} seeds ± one "
        f"standard error. Items: `{ITEM_FEATURES}`. Users: `{USER_FEATURES}`. Training: "
        f"`{' '.join(TRAINING)}`. A tenth of the films has no training interactions; all films "
        "compete for all targets.",
    ]
    for part, title in (("all", "All targets"), ("cold", "Cold targets")):
        lines += ["", f"## {title}: {found['targets'][part]:,}", ""]
        lines.append("| | " + " | ".join(f"N = {cutoff}" for cutoff in CUTOFFS) + " |")
        lines.append("|---" * (len(CUTOFFS) + 1) + "|")
        for name, parts in found.items():
            if name != "targets":
                cells = [cell([one[str(cutoff)] for one in parts[part]]) for cutoff in CUTOFFS]
                lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def cell(values: list[float]) -> str:
    """A mean in %, with its standard error if there are several values.

    >>> cell([0.1, 0.3])
    '20.00 ± 10.00'
    """
    mean = f"{100 * statistics.mean(values):.2f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {100 * statistics.stdev(values) / len(values) ** 0.5:.2f}"


if __name__ == "__main__":
    sys.exit(main())
