"""The sections of a model card that say where a model comes from: its data, training and recall."""

from __future__ import annotations

from typing import Any

from ..common.page import markdown_table

# Settings of the run that the card names, with their titles.
_TRAINING = {
    "rank_kernel": "rank kernel",
    "kernel": "kernel",
    "alpha": "alpha",
    "temperature": "temperature",
    "dim": "embedding dimension",
    "tower": "query tower",
    "encoder": "history encoder",
}
_SELF_ATTENTION = {"blocks": "blocks", "heads": "attention heads", "dropout": "dropout"}


def card_sections(record: dict[str, Any]) -> dict[str, str]:
    """The text of each section by its title, in Markdown.

    Args:
      record: what ``export.json`` says about the run.
    """
    settings, data = record["settings"], record["data"]
    numbers = list(data["statistics"].items())
    takes_history = settings["tower"] == "history"
    training = [
        f"- loss: {record['loss']}",
        *(
            f"- {title}: {settings[name]}"
            for name, title in _TRAINING.items()
            if settings[name] is not None and (takes_history or name != "encoder")
        ),
    ]
    if takes_history and settings["encoder"] == "transformer":
        training += [f"- {title}: {settings[name]}" for name, title in _SELF_ATTENTION.items()]
    if settings.get("hidden"):
        training.append(f"- hidden layers: {' '.join(map(str, settings['hidden']))}")
    if takes_history:
        training.append(f"- history: the {settings['history_length']} latest items of a user")
    chosen = f"which has the best validation {settings['monitor']}"
    if data.get("train_on_valid"):
        chosen = "the last one, trained on the interactions of validation too"
    training += [
        f"- checkpoint: step {record['best']['step']:,}, {chosen}",
        f"- seed: {record['seed']}",
    ]
    features = record.get("features", {})
    sections = {"Features": _features(features)} if features else {}
    new = record.get("new_items", 0)
    numbers = [*numbers, *([("new items, without interactions", new)] if new else [])]
    return {
        "Data": "\n".join(
            [
                f"- source: {data['source']}",
                *(f"- {name.replace('_', ' ')}: {value:,}" for name, value in numbers),
                f"- checksum of the prepared data: `{record['data_checksum']}`",
            ]
        ),
        **sections,
        "Training": "\n".join(training),
        "Recall@N": "\n".join(_recall_lines(record)),
    }


# What a request has as the value of a feature, for each kind.
_RAW = {
    "category": "one value of the column",
    "tags": "several values, with the separator between them",
    "number": "a number",
    "quantiles": "a number",
    "hour": "a time, in seconds since 1970",
    "weekday": "a time, in seconds since 1970",
    "age": "a time, in seconds since 1970",
    "text": "a text",
}


def _features(features: dict[str, Any]) -> str:
    rows = [
        [f"`{name}`", one["of"], one["kind"], f"`{one['column']}`", _RAW[one["kind"]]]
        for name, one in features.items()
    ]
    return (
        "Features of users and of the context are inputs of the signatures, with raw values, and a "
        "request may leave any of them out. Those of items are part of the item vectors.\n\n"
        + markdown_table(["feature", "of", "kind", "column", "raw value"], rows)
    )


def _recall_lines(record: dict[str, Any]) -> list[str]:
    evaluation = record["evaluation"]
    if evaluation is None:
        best = record["best"]
        names = sorted((name for name in best if name.startswith("recall@")), key=_cutoff)
        users = "validation users"
        if record["data"].get("train_on_valid"):
            users += ", who are part of the training data, so the figures say little"
        return [
            f"Measured on {users}. The test split was not evaluated before this export.",
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
