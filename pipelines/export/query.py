"""Step ``query``: asks the newest version of an exported model for items."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .. import cli
from ..common.files import read_json
from ..common.program import command
from ..errors import UserError
from .versions import newest_version


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this step."""
    parser.add_argument("--model", required=True, help="folder of the model, with its versions")
    parser.add_argument(
        "--history",
        required=True,
        metavar="IDS",
        help="comma-separated item ids, oldest first; '' asks for a user without a history",
    )
    parser.add_argument(
        "--top-n",
        type=cli.positive,
        default=10,
        metavar="N",
        help="number of items to return (%(default)s)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--exclude", metavar="IDS", help="comma-separated item ids to leave out (none)"
    )
    which.add_argument(
        "--exclude-history", action="store_true", help="leave out the items of the history"
    )
    which.add_argument(
        "--among", metavar="IDS", help="comma-separated item ids to choose from (all items)"
    )


def run(args: argparse.Namespace) -> None:
    """Prints the items that the model recommends."""
    # Imported here, since '--help' and a wrong folder need no TensorFlow.
    import tensorflow as tf

    from .loading import load_model

    path = newest_version(Path(args.model))
    limit = _limit(path)
    if args.top_n > limit:
        raise UserError(
            f"--top-n should be at most {limit}, the limit of {path}. Received: {args.top_n}. "
            "Export again with a larger --top-n."
        )
    signatures = load_model(path).signatures
    history = _ids(args.history)
    inputs: dict[str, Any] = {
        "history": tf.constant([history or [""]]),
        "top_n": tf.constant([args.top_n]),
    }
    signature = "recommend"
    if args.exclude is not None or args.exclude_history:
        signature = "recommend_excluding"
        excluded = history if args.exclude_history else _ids(args.exclude)
        inputs["excluded_ids"] = tf.constant([excluded or [""]])
    elif args.among is not None:
        signature = "recommend_among"
        inputs["allowed_ids"] = tf.constant([_ids(args.among) or [""]])
    answer = {name: value.numpy() for name, value in signatures[signature](**inputs).items()}
    known = signatures["item_embedding"](item_ids=tf.constant(history or [""]))["is_known"].numpy()
    print(f"{path}, for the history {', '.join(history) or '(empty)'}")
    unknown = [item for item, is_known in zip(history, known) if not is_known]
    if unknown:
        print(f"skipped, since they are not in the catalogue: {', '.join(unknown)}")
    if answer["is_default"][0]:
        print("no item of the history is known: this is the answer to an empty history")
    _print_items(answer)


def _print_items(answer: dict[str, Any]) -> None:
    count = int(answer["num_results"][0])
    if not count:
        print("\nno items to recommend")
        return
    items = [item.decode() for item in answer["item_ids"][0][:count]]
    width = max(len("item"), *(len(item) for item in items))
    print(f"\n{'':>4}  {'item':<{width}}  {'score':>8}")
    for place, (item, score) in enumerate(zip(items, answer["scores"][0]), start=1):
        print(f"{place:>4}  {item:<{width}}  {score:>8.4f}")


def _limit(path: Path) -> int:
    if not (path / "export.json").is_file():
        raise UserError(
            f"{path} is not a SavedModel that '{command('export')}' has written: it has no "
            "export.json."
        )
    return int(read_json(path / "export.json")["top_n"])


def _ids(text: str) -> list[str]:
    return [item for item in text.split(",") if item]
