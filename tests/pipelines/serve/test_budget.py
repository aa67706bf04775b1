"""The memory that requests share, and what a request may cost."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines.__main__ import main
from pipelines.errors import UserError
from pipelines.serve import budget as module
from pipelines.serve import json_format, protos
from pipelines.serve.budget import Budget
from pipelines.serve.counters import Counters
from pipelines.serve.errors import Code, RequestError
from pipelines.serve.limits import Limits
from pipelines.serve.saved_model import SavedModel
from pipelines.serve.signatures import Signature, TensorSpec


def test_the_memory_of_all_requests_is_bounded():
    budget = Budget(100, Counters())
    with budget.lease() as first:
        first.resize(60)
        with budget.lease() as second:
            second.add(40)
            with pytest.raises(RequestError, match="used up") as failure:
                first.add(1)
            assert (failure.value.code, failure.value.http_status) == (Code.RESOURCE_EXHAUSTED, 503)
            second.resize(10)
            first.add(30)
            assert budget.used == 100
            # An answer that is there cannot be refused, but it counts.
            second.add_in_any_case(50)
            assert budget.used == 150
        assert budget.used == 90
    assert budget.used == 0


def test_what_never_fits_is_the_clients_fault():
    budget = Budget(100, Counters())
    with budget.lease() as lease, pytest.raises(RequestError, match="Send fewer rows") as failure:
        lease.resize(101)
    assert (failure.value.code, failure.value.http_status) == (Code.INVALID_ARGUMENT, 413)


def test_slow_clients_give_way(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    budget = Budget(100, Counters())
    dropped = []
    with budget.lease() as oldest, budget.lease() as older, budget.lease() as new:
        with (
            budget.waiting_for_client(oldest, lambda: dropped.append("oldest")),
            budget.waiting_for_client(older, lambda: dropped.append("older")),
        ):
            oldest.add(50)
            older.add(50)
            # Clients have a moment to send.
            with pytest.raises(RequestError, match="used up"):
                new.add(10)
            now[0] += module.PATIENCE + 1
            new.add(10)
            assert (dropped, oldest.held, budget.used) == (["oldest"], 0, 60)
            new.add(90)
            assert dropped == ["oldest", "older"]
    assert budget.used == 0


def test_a_request_that_is_run_does_not_give_way(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    budget = Budget(100, Counters())
    with budget.lease() as running, budget.lease() as new:
        with budget.waiting_for_client(running, lambda: pytest.fail("dropped")):
            running.add(100)
        now[0] += 100
        with pytest.raises(RequestError, match="used up"):
            new.add(1)


@pytest.mark.parametrize(
    "body",
    [b"[" * 3 + b"1," * 50_000 + b"1]", b"[" + b"{}," * 50_000, b"[" + b'"ab",' * 50_000]
    + [b"[" + b"[]," * 50_000, b"[" + b'{"a":1},' * 50_000, b"[" + b"1.5," * 50_000],
    ids=["ints", "objects", "strings", "lists", "pairs", "floats"],
)
def test_a_parsed_body_takes_no_more_than_estimated(body):
    import json
    import tracemalloc

    body = body.rstrip(b",").rstrip(b"]") + b"]" * body.count(b"[", 0, 3)
    tracemalloc.start()
    value = json.loads(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert value and peak <= json_format.parsed_bytes(body)


def spec(dtype, shape=(None,)):
    return TensorSpec("x", "x:0", tf.dtypes.as_dtype(dtype), shape)


def signature(dtype, shape=(None,)):
    return Signature("s", {"x": spec(dtype, shape)}, {})


@pytest.mark.parametrize(
    "value",
    [
        np.array([0.5, 1.5], np.float32),
        np.array([0.5, 1.5]),
        np.array([1, 2], np.int32),
        np.array([1, 2], np.uint8),
        np.array([1, 2]),
        np.array([1, 2], np.uint64),
        np.array([True, False]),
        np.array([b"a", b"b"], object),
        np.array([1 + 2j, 3]),
        np.array([0.5, 1.5], np.float16),
    ],
    ids=lambda value: value.dtype.name,
)
def test_messages_have_as_many_values_as_their_shapes_say(value):
    limits, wanted = Limits(), signature(tf.dtypes.as_dtype(value.dtype))
    typed = protos.to_proto(value)
    packed = tf.make_tensor_proto(value)
    for proto in (typed, packed):
        np.testing.assert_array_equal(protos.to_inputs(wanted, {"x": proto}, limits)["x"], value)
        for size in (1, 3, 100, 1000):
            proto.tensor_shape.dim[0].size = size
            with pytest.raises(RequestError, match="as its shape says. Received: "):
                protos.to_inputs(wanted, {"x": proto}, limits)


@pytest.mark.parametrize(
    "shape, expected",
    [
        ([10**6, 2**40], "rows"),
        ([1, 2**20 + 1], "at most 1048576 values"),
        ([0, 2**62], "at most 1048576 values"),
        ([-1], "known shape"),
        ([1] + [10**6] * 100, "at most 32 dimensions. Received: 101"),
    ],
    ids=["rows", "values", "none", "unknown", "dimensions"],
)
def test_shapes_are_checked_before_anything_is_allocated(shape, expected):
    proto = protos.to_proto(np.array([b"a"], object))
    del proto.tensor_shape.dim[:]
    for size in shape:
        proto.tensor_shape.dim.add().size = size
    with pytest.raises(RequestError, match=expected):
        protos.to_inputs(signature(tf.string, None), {"x": proto}, Limits())


@pytest.mark.parametrize("number", [20, 21, 999, -1, 0])
def test_types_that_are_no_values_are_refused(number):
    proto = protos.to_proto(np.array([1], np.int32))
    proto.dtype = number
    with pytest.raises(RequestError) as failure:
        protos.to_inputs(signature(tf.int32), {"x": proto}, Limits())
    assert failure.value.code is Code.INVALID_ARGUMENT
    if number in (20, 21):  # DT_RESOURCE and DT_VARIANT
        dtype = tf.dtypes.as_dtype(number)
        with pytest.raises(RequestError, match="cannot be sent"):
            protos.to_inputs(signature(dtype), {"x": proto}, Limits())


def test_the_values_of_all_inputs_count():
    limits = Limits(max_values=10)
    assert limits.check_shapes({"a": (2, 3), "b": (4,)}) == 10
    with pytest.raises(RequestError, match="at most 10 values. Received: shape .5. for input 'b'"):
        limits.check_shapes({"a": (2, 3), "b": (5,)})


def test_an_id_may_become_a_vector(saved):
    """Gathering 1,024 x 8,192 vectors of width 64 takes 2 GiB, and is refused."""
    model = SavedModel(saved)
    # The widest vector of this model's signatures has two numbers of four bytes.
    assert model.input_bytes(1000) - model.input_bytes(0) >= 1000 * 2 * 4
    wide = spec(tf.float32, (None, 64))
    assert wide.vector_size == 64
    model._width = wide.vector_size
    limits = Limits(max_values=1024 * 8192)
    budget = Budget(limits.budget_bytes, Counters())
    with budget.lease() as lease, pytest.raises(RequestError, match="Send fewer rows"):
        lease.resize(model.input_bytes(limits.max_values))
    model.close()


def test_memory_that_is_too_small_for_a_body_is_refused_at_the_start(tmp_path, capsys):
    Limits().check_memory()
    with pytest.raises(UserError, match="--max-memory-mb should be at least 128 times"):
        Limits(max_body_mb=9).check_memory()
    for option, expected in (
        (("--max-body-mb", "64"), "--max-memory-mb should be at least 128 times --max-body-mb"),
        (("--name", "a/b"), "--name should be a name without '/' and ':'"),
        (("--name", "a:b"), "--name should be a name without '/' and ':'"),
    ):
        assert main(["serve", "--model", str(tmp_path), *option]) == 2
        assert f"error: {expected}" in capsys.readouterr().err
