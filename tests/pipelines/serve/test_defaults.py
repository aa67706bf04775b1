"""Inputs that a request may leave out, over REST and over gRPC."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from pipelines.serve import json_format, protos
from pipelines.serve.errors import RequestError
from pipelines.serve.limits import Limits
from pipelines.serve.signatures import Signature

NAN = float("nan")
MISSING = -(2**63)


def make_signature() -> Signature:
    proto = meta_graph_pb2.SignatureDef()
    shapes = {"history": [None, None], "country": [None], "age": [None], "hour": [None]}
    types = {"history": tf.string, "country": tf.string, "age": tf.float64, "hour": tf.int64}
    for name, shape in shapes.items():
        proto.inputs[name].name = f"{name}:0"
        proto.inputs[name].dtype = types[name].as_datatype_enum
        proto.inputs[name].tensor_shape.CopyFrom(tf.TensorShape(shape).as_proto())
    for name, default in {"country": "", "age": NAN, "hour": MISSING}.items():
        proto.defaults[name].CopyFrom(tf.make_tensor_proto([default], types[name]))
    return Signature.from_proto("recommend", proto)


SIGNATURE = make_signature()


def from_json(**body: Any) -> dict[str, np.ndarray]:
    return json_format.to_inputs(SIGNATURE, json_format.parse(json.dumps(body).encode()), Limits())


def from_messages(**values: Any) -> dict[str, np.ndarray]:
    messages = {name: tf.make_tensor_proto(value) for name, value in values.items()}
    return protos.to_inputs(SIGNATURE, messages, Limits())


def check(inputs: dict[str, np.ndarray], **expected: Any) -> None:
    assert set(inputs) == set(SIGNATURE.inputs)
    for name, values in expected.items():
        np.testing.assert_array_equal(inputs[name], np.array(values, inputs[name].dtype))


def test_rows_may_leave_out_different_inputs() -> None:
    inputs = from_json(
        instances=[
            {"history": ["a"], "age": 30},
            {"history": ["b"], "country": "de", "age": None},
            {"history": ["c"]},
        ]
    )
    check(inputs, country=[b"", b"de", b""], age=[30.0, NAN, NAN], hour=[MISSING] * 3)


def test_columns_may_be_left_out_and_have_nulls() -> None:
    check(from_json(inputs={"history": [["a"], ["b"]]}), country=[b"", b""], age=[NAN, NAN])
    inputs = from_json(inputs={"history": [["a"], ["b"]], "hour": [7, None]})
    check(inputs, hour=[7, MISSING])


def test_the_only_input_that_is_needed_needs_no_name() -> None:
    check(from_json(instances=[["a", "b"]]), history=[[b"a", b"b"]], country=[b""])


def test_messages_may_leave_out_inputs() -> None:
    check(from_messages(history=[["a"], ["b"]]), country=[b"", b""], hour=[MISSING] * 2)
    inputs = from_messages(history=[["a"]], age=np.array([3.0]))
    check(inputs, age=[3.0], country=[b""])


def test_an_input_with_too_many_rows_does_not_lengthen_those_that_are_absent() -> None:
    # The model says which input is wrong, and how many queries there are.
    inputs = from_messages(history=[["a"]], age=np.array([3.0, 4.0]))
    check(inputs, age=[3.0, 4.0], country=[b""], hour=[MISSING])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"history": ["a"], "age": "old"}, "input 'age' should be float64: received \"old\""),
        ({"history": ["a"], "hour": 1.5}, "input 'hour' should be int64: received 1.5"),
        ({"history": ["a"], "country": 3}, "input 'country' should be string: received 3"),
        ({"history": ["a"], "country": ["x"]}, "input 'country' should have shape"),
        ({"history": ["a"], "color": "x"}, "may get age, country, hour. Unknown: color"),
        ({"age": 3.0}, "inputs history, and may get age, country, hour. Missing: history"),
        ({"history": None}, "input 'history'"),
    ],
)
def test_wrong_inputs_are_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        from_json(instances=[row])


def test_wrong_messages_are_named() -> None:
    with pytest.raises(RequestError, match="input 'age' should be float64. Received: string"):
        from_messages(history=[["a"]], age=["x"])
