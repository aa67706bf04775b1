"""What is known of an exported model, for people: its card, and what its index is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..train.history import picture, replace_file

CARD = "model_card.md"
RECALL_TABLE = "index_recall.md"
RECALL_PICTURE = "index_recall.png"


def model_card(record: dict[str, Any]) -> str:
    """The card, in Markdown.

    Args:
      record: what is written to ``export.json``.
    """
    settings, index, data = record["settings"], record["index"], record["data"]
    lines = [
        f"# {record['name']}, version {record['version']}",
        "",
        "A two-tower retrieval model: a history of item ids in, the items of highest score out.",
        "",
        "## Data",
        "",
        f"- source: {data['source']}",
        *(f"- {name.replace('_', ' ')}: {value:,}" for name, value in data["statistics"].items()),
        f"- checksum of the prepared data: `{record['data_checksum']}`",
        "",
        "## Training",
        "",
        f"- loss: {record['loss']}",
        *(
            f"- {name.replace('_', ' ')}: {settings[name]}"
            for name in ("rank_kernel", "kernel", "alpha", "temperature", "dim", "encoder")
        ),
        f"- history: the latest {settings['history_length']} items",
        f"- weights of step {record['best']['step']:,}, the best by validation "
        f"{settings['monitor']}",
        f"- seed: {record['seed']}",
        "",
        "## Recall@N",
        "",
        *_recall_lines(record),
        "",
        "## Index",
        "",
        f"`{index['settings']['kind']}`, at most {record['top_n']} items an answer, of "
        f"{record['num_items']:,}. It finds {index['recall']:.2%} of the exact top "
        f"{record['top_n']}, measured on {index['num_queries']:,} held-out users"
        + (
            f"; {index['recall_target']:.0%} was required. All that was tried: "
            f"[{RECALL_TABLE}]({RECALL_TABLE})."
            if index["recall_target"]
            else "."
        ),
        "",
        _row(["setting", "value"]),
        _row(["---", "---"]),
        *(_row([name, f"`{value}`"]) for name, value in index["settings"].items()),
        "",
        "## Signatures",
        "",
        _row(["signature", "inputs", "outputs"]),
        _row(["---", "---", "---"]),
        *(
            _row([f"`{name}`", _tensors(parts["inputs"]), _tensors(parts["outputs"])])
            for name, parts in record["signatures"].items()
        ),
        "",
        'Histories and lists of ids are padded with `""`. Unknown ids in a history are skipped; '
        '`is_default` says that none was known. Places without an item have the id `""`; '
        "`num_results` counts the others.",
        "",
        "## Versions",
        "",
        *(f"- {name} {version}" for name, version in record["versions"].items()),
    ]
    return "\n".join(lines) + "\n"


def write_measurements(folder: Path, measurements: list[dict[str, Any]], title: str) -> None:
    """The table and the picture of recall against latency.

    Args:
      folder: to write into.
      measurements: each with ``settings``, ``recall``, ``single_ms``, ``batch_ms`` and
        ``chosen``.
      title: of both.
    """
    lines = [
        f"# {title}",
        "",
        f"![Recall against latency]({RECALL_PICTURE})",
        "",
        _row(["settings", "recall", "one query, ms", "256 queries, ms", ""]),
        _row(["---", "---:", "---:", "---:", "---"]),
    ]
    for measured in sorted(measurements, key=lambda entry: entry["recall"]):
        lines.append(
            _row(
                [
                    ", ".join(f"{name} {value}" for name, value in measured["settings"].items()),
                    f"{measured['recall']:.4f}",
                    f"{measured['single_ms']:.3f}",
                    f"{measured['batch_ms']:.3f}",
                    "chosen" if measured["chosen"] else "",
                ]
            )
        )
    replace_file(folder / RECALL_TABLE, ("\n".join(lines) + "\n").encode())
    _draw(folder / RECALL_PICTURE, measurements, title)


def _draw(path: Path, measurements: list[dict[str, Any]], title: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    for column, label, marker in (
        ("single_ms", "one query", "o"),
        ("batch_ms", "a batch of 256 queries", "s"),
    ):
        recall = [measured["recall"] for measured in measurements]
        axes.scatter(
            recall, [measured[column] for measured in measurements], label=label, marker=marker
        )
        for measured in measurements:
            if measured["chosen"]:
                axes.scatter(
                    measured["recall"],
                    measured[column],
                    s=180,
                    facecolors="none",
                    edgecolors="black",
                    label="chosen" if column == "single_ms" else None,
                )
    axes.set_yscale("log")
    axes.set_xlabel("recall of the exact answer")
    axes.set_ylabel("milliseconds")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend()
    replace_file(path, picture(figure))


def _recall_lines(record: dict[str, Any]) -> list[str]:
    evaluation = record["evaluation"]
    if evaluation is None:
        best = record["best"]
        names = sorted((name for name in best if name.startswith("recall@")), key=_cutoff)
        return [
            "On validation users; the test split was not evaluated before this export.",
            "",
            _row(["N", *(name.removeprefix("recall@") for name in names)]),
            _row(["---"] + ["---:"] * len(names)),
            _row(["model", *(f"{best[name]:.4f}" for name in names)]),
        ]
    systems = evaluation["systems"]
    cutoffs = [str(cutoff) for cutoff in evaluation["cutoffs"]]
    history = "excluded" if evaluation["exclude_history"] else "not excluded"
    return [
        f"Exact, over pairs, on the {evaluation['split']} split, history {history}.",
        "",
        _row(["N", *cutoffs]),
        _row(["---"] + ["---:"] * len(cutoffs)),
        *(
            _row([name, *(f"{system['pairs'][f'recall@{n}']:.4f}" for n in cutoffs)])
            for name, system in systems.items()
        ),
    ]


def _cutoff(name: str) -> int:
    return int(name.removeprefix("recall@"))


def _tensors(specs: dict[str, str]) -> str:
    return ", ".join(f"`{name}` {spec}" for name, spec in specs.items())


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
