"""Step ``query``: asks the newest version of an exported model for items."""

from __future__ import annotations

import argparse
from pathlib import Path

import tensorflow as tf

from pipelines import arguments
from pipelines.errors import UserError
from pipelines.export import model_versions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this step."""
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument(
        "--history", required=True, help="item ids, oldest first, with commas between"
    )
    parser.add_argument(
        "--top-n", type=arguments.positive, default=10, help="items to show (%(default)s)"
    )


def run(args: argparse.Namespace) -> None:
    """Prints what the model recommends."""
    folder = Path(args.model)
    versions = model_versions(folder)
    if not versions:
        raise UserError(
            f"--model {folder} has no version of a model. Run 'python -m pipelines export' first."
        )
    history = [item for item in args.history.split(",") if item]
    if not history:
        raise UserError("--history should name at least one item, such as a,b. Received: none.")
    path = folder / str(versions[-1])
    try:
        model = tf.saved_model.load(str(path))
    except (OSError, tf.errors.OpError) as error:
        raise UserError(f"{path} is not a SavedModel that can be loaded: {error}") from error
    answer = model.signatures["serving_default"](history=tf.constant([history]))
    items = [item.decode() for item in answer["item_ids"][0].numpy()]
    scores = answer["scores"][0].numpy()
    if args.top_n > len(items):
        raise UserError(
            f"--top-n should be at most {len(items)}, what {path} answers. Received: "
            f"{args.top_n}. Export again with a larger --top-n."
        )
    vectors = model.signatures["embed_items"](item_ids=tf.constant(history))["embeddings"]
    known = tf.reduce_any(tf.not_equal(vectors, 0.0), axis=-1).numpy()
    unknown = [item for item, is_known in zip(history, known) if not is_known]
    print(f"{path}, after {', '.join(history)}")
    if unknown:
        print(f"not in the catalogue, and left out: {', '.join(unknown)}")
    width = max(len("item"), *(len(item) for item in items[: args.top_n]))
    print(f"\n{'':>4}  {'item':<{width}}  {'score':>8}")
    for place, (item, score) in enumerate(zip(items[: args.top_n], scores), start=1):
        print(f"{place:>4}  {item:<{width}}  {score:>8.4f}")
