"""A program that loads a SavedModel without importing anything of this project.

Usage: ``python -I fresh_process.py MODEL REQUESTS OP_LIBRARY``. REQUESTS is a JSON file with a list
of ``[signature, inputs]``; the answers are printed as a JSON list. OP_LIBRARY is loaded first,
unless it is empty.
"""

import json
import sys

import tensorflow as tf

NOT_IMPORTED = ("tfrs_croloss", "tfrs_croloss_pipelines", "pipelines", "tensorflow_recommenders")


def _plain(value: tf.Tensor) -> object:
    array = value.numpy()
    return array.astype(str).tolist() if array.dtype == object else array.tolist()


def main(model: str, requests: str, op_library: str) -> None:
    """Prints the answers to the requests."""
    if op_library:
        tf.load_op_library(op_library)
    signatures = tf.saved_model.load(model).signatures
    answers = []
    with open(requests, encoding="utf-8") as file:
        pairs = json.load(file)
    for name, inputs in pairs:
        specs = signatures[name].structured_input_signature[1]
        tensors = {key: tf.constant(value, specs[key].dtype) for key, value in inputs.items()}
        outputs = signatures[name](**tensors)
        answers.append({key: _plain(value) for key, value in outputs.items()})
    loaded = {module.split(".")[0] for module in sys.modules}
    if loaded & set(NOT_IMPORTED):
        raise AssertionError(f"modules {sorted(loaded & set(NOT_IMPORTED))} were imported")
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
