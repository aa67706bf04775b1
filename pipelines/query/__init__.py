"""Step ``query``: asks the newest version of an exported model for items."""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import cli
from ..common.files import read_json
from ..common.json_shapes import check_shape
from ..common.program import command
from ..data.features import TIMES
from ..errors import UserError
from ..export.versions import newest_version
from ..prepare.rows.values import DATE, parse_time, time_form
from ..serve.temporary import Server, temporary_server

_HISTORY = "history"
# The parts of export.json that are read, if they are present.
_RECORD_SHAPE = {
    "top_n": int,
    "inputs": [str],
    "optional_inputs": [str],
    "features": {"*": {"kind": str}},
    "signatures": {"*": {"inputs": {"*": str}}},
}

# A function of a signature and its inputs, a list for each, that returns its outputs.
Ask = Callable[[str, dict[str, Any]], dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this step."""
    parser.add_argument("--model", required=True, help="folder of the model, with its versions")
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument(
        "--history",
        metavar="IDS",
        help="comma-separated item ids, oldest first; '' stands for an empty history",
    )
    who.add_argument(
        "--user", metavar="ID", help="id of the user, for a model that takes one id as its query"
    )
    parser.add_argument(
        "--top-n",
        type=cli.positive,
        default=10,
        metavar="N",
        help="number of items to return (%(default)s)",
    )
    parser.add_argument(
        "--feature",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="value of a feature of the user or of the context, such as country=DE, tags=a|b or "
        "hour=2026-11-18T07:00:00Z; may be repeated (all are missing)",
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
    parser.add_argument(
        "--rest",
        action="store_true",
        help="ask over REST: start a server on a free port of this machine, and stop it afterwards "
        "(load the model in this process)",
    )


def run(args: argparse.Namespace) -> None:
    """Prints the items that the model recommends."""
    path = newest_version(Path(args.model))
    if args.exclude_history and args.history is None:
        raise UserError("--exclude-history requires --history. Leave it out with --user.")
    record = _record(path)
    limit = int(record["top_n"])
    if args.top_n > limit:
        raise UserError(
            f"--top-n should be at most {limit}, the limit of {path}. Received: {args.top_n}. "
            "Export again with a larger --top-n."
        )
    history = None if args.history is None else _ids(args.history)
    name, inputs = _query(args, record, path)
    inputs.update(_features(args.feature, record, path))
    inputs["top_n"] = [args.top_n]
    signature = "recommend"
    if args.exclude is not None or args.exclude_history:
        signature = "recommend_excluding"
        inputs["excluded_ids"] = [history if args.exclude_history else _ids(args.exclude)]
    elif args.among is not None:
        signature = "recommend_among"
        inputs["allowed_ids"] = [_ids(args.among)]
    with _asking(args.rest, path, record) as ask:
        answer = ask(signature, inputs)
        if history is None:
            print(f"{path}, for the {name} {args.user}")
        else:
            _print_history(path, history, ask)
        if "is_default" in answer and answer["is_default"][0]:
            print(
                f"the {name} is not known: this is the answer for the average {name}"
                if history is None
                else "no item of the history is known: this is the answer to an empty history"
            )
        _print_items(answer)


def _query(
    args: argparse.Namespace, record: dict[str, Any], path: Path
) -> tuple[str, dict[str, Any]]:
    """The name of the query's feature, and the inputs that it gives."""
    # Versions that were exported before other queries were possible do not name their inputs.
    optional = record.get("optional_inputs", [])
    names = [name for name in record.get("inputs", [_HISTORY]) if name not in optional]
    if args.history is not None and names == [_HISTORY]:
        return _HISTORY, {_HISTORY: [_ids(args.history)]}
    if args.user is not None and len(names) == 1 and names != [_HISTORY]:
        return names[0], {names[0]: [args.user]}
    remedy = "--user" if len(names) == 1 else f"a request to '{command('serve')}'"
    if names == [_HISTORY]:
        remedy = "--history"
    raise UserError(
        f"{path} takes {', '.join(names)} as its query. Received: "
        f"{'--user' if args.history is None else '--history'}. Use {remedy}."
    )


def _features(given: list[str], record: dict[str, Any], path: Path) -> dict[str, list[Any]]:
    """The values of ``--feature``, by name, as text; those that are empty are left out."""
    optional = record.get("optional_inputs", [])
    names: set[str] = set()
    found: dict[str, list[Any]] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or name not in optional or name in names:
            raise UserError(
                "--feature should be NAME=VALUE, each name once, of a feature that "
                f"{path} takes: {', '.join(optional) or 'it takes none'}. Received: {text!r}."
            )
        names.add(name)
        if not value.strip(" "):
            continue  # A missing value, as in a table.
        kind = record.get("features", {}).get(name, {}).get("kind")
        found[name] = [str(_seconds(name, value)) if kind in TIMES else value]
    return found


def _seconds(name: str, text: str) -> int:
    """Whole seconds since 1970, from a number or a date."""
    form = time_form(text)
    if form is None:
        raise UserError(
            f"--feature {name} should be a time: seconds since 1970, or a date such as "
            f"2026-11-18T07:00:00Z. Received: {text!r}."
        )
    time = parse_time(text, form == DATE)
    return math.floor(time / 1_000_000 if form == DATE else time)


@contextlib.contextmanager
def _asking(over_rest: bool, path: Path, record: dict[str, Any]) -> Iterator[Ask]:
    """A function that asks the model, in this process or over REST."""
    if over_rest:
        with temporary_server(path.parent) as server:
            print(f"POST {server.url}:predict")
            yield functools.partial(_ask_server, server, record)
        print("\nthe server has stopped")
        return
    # Imported here, since '--help', a wrong folder and a server need no TensorFlow.
    from ..export.loading import load_model

    loaded = load_model(path)
    defaults = loaded.defaults() if record.get("optional_inputs") else {}
    yield functools.partial(_ask_model, loaded.signatures, defaults)


def _ask_server(
    server: Server, record: dict[str, Any], signature: str, inputs: dict[str, Any]
) -> dict[str, Any]:
    # As the export has written them: "int64 [any]".
    types = record["signatures"][signature]["inputs"]
    return server.predict(
        signature,
        {name: _values(name, value, types[name].split()[0]) for name, value in inputs.items()},
    )


def _ask_model(
    signatures: Any, defaults: dict[str, Any], name: str, inputs: dict[str, Any]
) -> dict[str, Any]:
    import tensorflow as tf

    signature = signatures[name]
    specs = signature.structured_input_signature[1]
    tensors = {key: value for key, value in defaults.items() if key in specs}
    for key, value in inputs.items():
        if key not in specs:
            raise UserError(
                f"the model should take {key}, as its export.json says. It takes: "
                f"{', '.join(sorted(specs))}. Export it again."
            )
        spec = specs[key]
        if spec.shape.rank != (2 if isinstance(value[0], list) else 1):
            raise UserError(
                f"the model takes {key} of shape {spec.shape}, which is not one id. Use a request "
                f"to '{command('serve')}'."
            )
        tensors[key] = tf.constant(_values(key, value, spec.dtype.name), spec.dtype)
    return {key: value.numpy() for key, value in signature(**tensors).items()}


def _values(name: str, value: list[Any], dtype: str) -> list[Any]:
    """Ids from the command line, as the model takes them."""
    is_text = dtype == "string"
    # An empty list is a list of padding.
    rows = value if value[0] != [] else [["" if is_text else "-1"]]
    if is_text:
        return rows

    def number(text: str) -> float | int:
        value = float(text) if "float" in dtype else int(text)
        if isinstance(value, int) and not -(2**63) <= value < 2**63 or abs(value) == math.inf:
            raise ValueError(f"{text} is too large")
        return value

    try:
        return [
            [number(one) for one in row] if isinstance(row, list) else number(row) for row in rows
        ]
    except ValueError as error:
        raise UserError(f"the model takes {name} as {dtype}: {error}.") from error


def _print_history(path: Path, history: list[str], ask: Ask) -> None:
    print(f"{path}, for the history {', '.join(history) or '(empty)'}")
    if history:
        known = ask("item_embedding", {"item_ids": history})["is_known"]
        unknown = [item for item, is_known in zip(history, known) if not is_known]
        if unknown:
            print(f"skipped, since they are not in the catalogue: {', '.join(unknown)}")


def _print_items(answer: dict[str, Any]) -> None:
    count = int(answer["num_results"][0])
    if not count:
        print("\nno items to recommend")
        return
    found = answer["item_ids"][0][:count]
    items = [
        item.decode(errors="replace") if isinstance(item, bytes) else str(item) for item in found
    ]
    width = max(len("item"), *(len(item) for item in items))
    print(f"\n{'':>4}  {'item':<{width}}  {'score':>8}")
    for place, (item, score) in enumerate(zip(items, answer["scores"][0]), start=1):
        print(f"{place:>4}  {item:<{width}}  {score:>8.4f}")


def _record(path: Path) -> dict[str, Any]:
    """What the export says about itself."""
    if not (path / "export.json").is_file():
        raise UserError(
            f"{path} is not a SavedModel that '{command('export')}' has written: it has no "
            "export.json."
        )
    record: dict[str, Any] = read_json(path / "export.json", dict)
    check_shape(path / "export.json", record, _RECORD_SHAPE, "Export the model again.")
    record["top_n"]  # A record without it names the file.
    return record


def _ids(text: str) -> list[str]:
    return [item for item in text.split(",") if item]
