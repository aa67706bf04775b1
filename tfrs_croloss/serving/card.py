"""The card of an exported model, and the table and picture of its index measurements."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

CARD = "model_card.md"
RECALL_TABLE = "index_recall.md"
RECALL_PICTURE = "index_recall.png"


def model_card(record: Mapping[str, Any], sections: Mapping[str, str]) -> str:
    """The model card, in Markdown.

    Args:
      record: the content of ``export.json``.
      sections: text of further sections by title, which come first.
    """
    index = record["index"]
    lines = [
        f"# {record['name']}, version {record['version']}",
        "",
        f"A two-tower retrieval model. It takes {_listed(record['inputs'])} and returns the items "
        "with the highest scores.",
        "",
    ]
    for title, text in sections.items():
        lines += [f"## {title}", "", text, ""]
    lines += [
        "## Index",
        "",
        f"A `{index['settings']['kind']}` index of {record['num_items']:,} items. A request may "
        f"ask for up to {record['top_n']} of them. The index finds {index['recall']:.2%} of the "
        f"exact top {record['top_n']}, measured on {index['num_queries']:,} held-out queries"
        + (
            f"; the target was {index['recall_target']:.0%}. [{RECALL_TABLE}]({RECALL_TABLE}) "
            "lists all settings that were tried."
            if index["recall_target"]
            else "."
        ),
        "",
        table(
            ["setting", "value"],
            [[name, f"`{value}`"] for name, value in index["settings"].items()],
        ),
        "",
        "## Signatures",
        "",
        table(
            ["signature", "inputs", "outputs"],
            [
                [f"`{name}`", _tensors(parts["inputs"]), _tensors(parts["outputs"])]
                for name, parts in record["signatures"].items()
            ],
        ),
        "",
        " ".join(_rules(record)),
        "",
        "## Software",
        "",
        *(f"- {name} {version}" for name, version in record["versions"].items()),
    ]
    if record["notes"]:
        lines += ["", "## Notes", "", *(f"- {note}" for note in record["notes"])]
    return "\n".join(lines) + "\n"


def write_measurements(
    folder: Path, measurements: Sequence[Mapping[str, Any]], title: str
) -> list[str]:
    """Writes the table and, if Matplotlib is installed, the picture of recall against latency.

    Args:
      folder: folder to write into.
      measurements: mappings with ``settings``, ``recall``, ``single_ms``, ``batch_ms`` and
        ``chosen``.
      title: title of both.

    Returns:
      What was left out, and how to get it.
    """
    rows = [
        [
            ", ".join(f"{name} {value}" for name, value in measured["settings"].items()),
            f"{measured['recall']:.4f}",
            f"{measured['single_ms']:.3f}",
            f"{measured['batch_ms']:.3f}",
            "chosen" if measured["chosen"] else "",
        ]
        for measured in sorted(measurements, key=lambda entry: float(entry["recall"]))
    ]
    header = ["settings", "recall", "1 query, ms", "256 queries, ms", ""]
    lines = [f"# {title}", "", table(header, rows, "lrrrl")]
    notes = []
    try:
        picture = _draw(measurements, title)
    except ModuleNotFoundError as error:
        notes.append(
            f"There is no picture of the measurements, since {error.name} is not installed: pip "
            "install 'tfrs-croloss[pipelines]'."
        )
    else:
        (folder / RECALL_PICTURE).write_bytes(picture)
        lines[2:2] = [f"![Recall against latency]({RECALL_PICTURE})", ""]
    (folder / RECALL_TABLE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return notes


def table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    r"""A table in Markdown.

    >>> print(table(["loss", "recall"], [["a|b", "0.5"]], "lr"))
    | loss | recall |
    | --- | ---: |
    | a\|b | 0.5 |

    Args:
      header: names of the columns.
      rows: cells, as many in each row as in the header.
      align: a letter per column, ``l`` or ``r``; by default all are left-aligned.
    """
    rule = ["---:" if letter == "r" else "---" for letter in align or "l" * len(header)]
    escaped = ([cell.replace("|", "\\|") for cell in cells] for cells in [header, rule, *rows])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)


def _draw(measurements: Sequence[Mapping[str, Any]], title: str) -> bytes:
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
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    return content.getvalue()


def _rules(record: Mapping[str, Any]) -> list[str]:
    """What a client has to know about padding and unknown ids."""
    outputs = record["signatures"]["serving_default"]["outputs"]
    padding = '`""`' if outputs["item_ids"].startswith("string") else "-1"
    rules = [
        f"Pad lists of ids with {padding}. The first `num_results` items of each row are results, "
        f"and the rest of the row has the id {padding}."
    ]
    if record["ragged_inputs"]:
        rules.append(
            f'Pad {_listed(record["ragged_inputs"])} at the end: strings with `""`, integers '
            "with -1, floats with the lowest finite number."
        )
    if record.get("optional_inputs"):
        rules.append(f"A request may leave out {_listed(record['optional_inputs'])}.")
    if "known_items" in outputs:
        rules.append("Unknown ids in a history are skipped.")
    if "is_default" in outputs:
        rules.append("`is_default` is true if no id of the query is known.")
    return rules


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _tensors(specs: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}` {spec}" for name, spec in specs.items())
