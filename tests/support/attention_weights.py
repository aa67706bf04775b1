"""Prints the queries of a self-attention tower with the weights in two files, as JSON.

``python -m tests.support.attention_weights READ WRITTEN`` reads the weights in one file and writes
those of another tower into the other, with the Keras of the environment.
"""

from __future__ import annotations

import json
import sys

import tensorflow as tf

from pipelines.runs.build import build_model
from pipelines.runs.checkpoints import _weights
from pipelines.runs.settings import TrainSettings


def queries(path: str, reads: bool) -> list[list[float]]:
    """The queries of two histories, after the weights were read or written."""
    settings = TrainSettings(encoder="transformer", heads=2, dim=8, history_length=4)
    model = build_model(settings, num_items=20)
    if reads:
        _weights(model).read(path).assert_consumed()
    else:
        _weights(model).write(path)
    histories = tf.constant([[1, 2, 3, 20], [5, 6, 7, 8]])
    vectors: list[list[float]] = model.embed_queries({"history": histories}).numpy().tolist()
    return vectors


if __name__ == "__main__":
    print(json.dumps([queries(sys.argv[1], reads=True), queries(sys.argv[2], reads=False)]))
