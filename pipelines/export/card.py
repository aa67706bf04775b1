"""The card of an exported model, and the table and picture of its index measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..common.files import replace_file
from ..common.page import markdown_table, picture

CARD = "model_card.md"
RECALL_TABLE = "index_recall.md"
RECALL_PICTURE = "index_recall.png"

# Settings of the run that the card names, with their titles.
_TRAINING = {
    "rank_kernel": "rank kernel",
    "kernel": "kernel",
    "alpha": "alpha",
    "temperature": "temperature",
    "dim": "embedding dimension",
    "encoder": "history encoder",
}


def model_card(record: dict[str, Any]) -> str:
    """The model card, in Markdown.

    Args:
      record: the content of ``export.json``.
    """
    settings, index, data = record["settings"], record["index"], record["data"]
    lines = [
        f"# {record['name']}, version {record['version']}",
        "",
        "A two-tower retrieval model. It takes a history of item ids and returns the items with "
        "the highest scores.",
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
            f"- {title}: {settings[name]}"
            for name, title in _TRAINING.items()
            if settings[name] is not None
        ),
        f"- history: the {settings['history_length']} latest items of a user",
        f"- checkpoint: step {record['best']['step']:,}, which has the best validation "
        f"{settings['monitor']}",
        f"- seed: {record['seed']}",
        "",
        "## Recall@N",
        "",
        *_recall_lines(record),
        "",
        "## Index",
        "",
        f"A `{index['settings']['kind']}` index of {record['num_items']:,} items. A request may "
        f"ask for up to {record['top_n']} of them. The index finds {index['recall']:.2%} of the "
        f"exact top {record['top_n']}, measured on {index['num_queries']:,} held-out users"
        + (
            f"; the target was {index['recall_target']:.0%}. [{RECALL_TABLE}]({RECALL_TABLE}) "
            "lists all settings that were tried."
            if index["recall_target"]
            else "."
        ),
        "",
        markdown_table(
            ["setting", "value"],
            [[name, f"`{value}`"] for name, value in index["settings"].items()],
            align="ll",
        ),
        "",
        "## Signatures",
        "",
        markdown_table(
            ["signature", "inputs", "outputs"],
            [
                [f"`{name}`", _tensors(parts["inputs"]), _tensors(parts["outputs"])]
                for name, parts in record["signatures"].items()
            ],
            align="lll",
        ),
        "",
        'Pad histories and lists of ids with `""`. Unknown ids in a history are skipped; '
        "`is_default` is true if no id of the history is known. The first `num_results` items of "
        'each row are results, and the rest of the row has the id `""`.',
        "",
        "## Software",
        "",
        *(f"- {name} {version}" for name, version in record["versions"].items()),
    ]
    return "\n".join(lines) + "\n"


def write_measurements(folder: Path, measurements: list[dict[str, Any]], title: str) -> None:
    """Writes the table and the picture of recall against latency.

    Args:
      folder: folder to write into.
      measurements: dictionaries with ``settings``, ``recall``, ``single_ms``, ``batch_ms`` and
        ``chosen``.
      title: title of both.
    """
    rows = [
        [
            ", ".join(f"{name} {value}" for name, value in measured["settings"].items()),
            f"{measured['recall']:.4f}",
            f"{measured['single_ms']:.3f}",
            f"{measured['batch_ms']:.3f}",
            "chosen" if measured["chosen"] else "",
        ]
        for measured in sorted(measurements, key=lambda entry: entry["recall"])
    ]
    header = ["settings", "recall", "1 query, ms", "256 queries, ms", ""]
    lines = [
        f"# {title}",
        "",
        f"![Recall against latency]({RECALL_PICTURE})",
        "",
        markdown_table(header, rows, align="lrrrl"),
    ]
    replace_file(folder / RECALL_TABLE, ("\n".join(lines) + "\n").encode())
    _draw(folder / RECALL_PICTURE, measurements, title)


def _draw(path: Path, measurements: list[dict[str, Any]], title: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    for column, label, marker in (
        ("single_ms", "1 query", "o"),
        ("batch_ms", "batch of 256 queries", "s"),
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
    axes.set_xlabel("share of the exact top N that is found")
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
            "Measured on validation users. The test split was not evaluated before this export.",
            "",
            markdown_table(
                ["N", *(name.removeprefix("recall@") for name in names)],
                [["model", *(f"{best[name]:.4f}" for name in names)]],
            ),
        ]
    systems = evaluation["systems"]
    cutoffs = [str(cutoff) for cutoff in evaluation["cutoffs"]]
    history = "excluded" if evaluation["exclude_history"] else "not excluded"
    return [
        f"Exact recall on the {evaluation['split']} split, averaged over user-item pairs; items of "
        f"the history are {history}.",
        "",
        markdown_table(
            ["N", *cutoffs],
            [
                [name, *(f"{system['pairs'][f'recall@{n}']:.4f}" for n in cutoffs)]
                for name, system in systems.items()
            ],
        ),
    ]


def _cutoff(name: str) -> int:
    return int(name.removeprefix("recall@"))


def _tensors(specs: dict[str, str]) -> str:
    return ", ".join(f"`{name}` {spec}" for name, spec in specs.items())
