"""A program that loads a SavedModel without importing anything of this project.

Usage: ``python -I fresh_process.py MODEL REQUESTS OP_LIBRARY``. REQUESTS is a JSON file with a list
of ``[signature, inputs]``; the answers are printed as a JSON list. OP_LIBRARY is loaded first,
unless it is empty. Strings stand for bytes, one character for each (Latin-1), since ids need not be
UTF-8.

The model itself is called if the signature is a list: of the form of its argument (``tensor``,
``mapping`` or ``sequence``), the names of the tensors in it, and ``k``.
"""

import json
import sys

import numpy as np
import tensorflow as tf

NOT_IMPORTED = ("tfrs_croloss", "tfrs_croloss_pipelines", "pipelines", "tensorflow_recommenders")


def _tensor(value: object, dtype: tf.DType) -> tf.Tensor:
    if dtype != tf.string:
        return tf.constant(value, dtype)
    array = np.array(value, object)
    flat = [text.encode("latin-1") for text in array.reshape(-1)]
    return tf.reshape(tf.constant(flat, tf.string), array.shape)


def _plain(value: tf.Tensor) -> object:
    array = value.numpy()
    if array.dtype != object:
        return array.tolist()
    flat = [text.decode("latin-1") for text in array.reshape(-1)]
    return np.array(flat, object).reshape(array.shape).tolist()


def _arranged(form: str, names: list, tensors: dict) -> object:
    if form == "mapping":
        return tensors
    values = [tensors[name] for name in names]
    return values[0] if form == "tensor" else values


def main(model: str, requests: str, op_library: str) -> None:
    """Prints the answers to the requests."""
    if op_library:
        tf.load_op_library(op_library)
    loaded = tf.saved_model.load(model)
    answers = []
    with open(requests, encoding="utf-8") as file:
        pairs = json.load(file)
    for name, inputs in pairs:
        signature = loaded.signatures[name if isinstance(name, str) else "serving_default"]
        specs = signature.structured_input_signature[1]
        tensors = {key: _tensor(value, specs[key].dtype) for key, value in inputs.items()}
        if isinstance(name, str):
            outputs = signature(**tensors)
        else:
            form, names, k = name
            scores, item_ids = loaded(_arranged(form, names, tensors), k)
            outputs = {"scores": scores, "item_ids": item_ids}
        answers.append({key: _plain(value) for key, value in outputs.items()})
    imported = {module.split(".")[0] for module in sys.modules}
    if imported & set(NOT_IMPORTED):
        raise AssertionError(f"modules {sorted(imported & set(NOT_IMPORTED))} were imported")
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
