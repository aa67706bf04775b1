"""The parts of the server that need no sockets: conversion, limits, batching, loading."""

import asyncio
import functools
import importlib.util
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pipelines.serve import json_format, protos
from pipelines.serve.batching import Batcher, run_together
from pipelines.serve.counters import Counters
from pipelines.serve.errors import Code, LoadError, RequestError
from pipelines.serve.limits import Limits
from pipelines.serve.saved_model import SavedModel, first_line
from pipelines.serve.settings import BatchSettings, ServerSettings
from pipelines.serve.signatures import Signature, TensorSpec
from tests.support.server_process import refuse_constant

SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4)
VALUES = st.one_of(
    arrays.arrays(np.float32, SHAPES),
    arrays.arrays(np.float64, SHAPES),
    arrays.arrays(np.int32, SHAPES),
    arrays.arrays(np.int64, SHAPES),
    arrays.arrays(bool, SHAPES),
    arrays.arrays(object, SHAPES, elements=st.binary(max_size=5), fill=st.nothing()),
)


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_what_is_answered_can_be_sent_back(value):
    answer = json_format.to_answer({"x": value}, rows=False)
    values = json.loads(answer, parse_constant=refuse_constant)["outputs"]
    spec = TensorSpec("x", "x:0", tf.dtypes.as_dtype(value.dtype), None)
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        with pytest.raises(RequestError, match="received null"):
            json_format.to_array(spec, values)
        return
    back = json_format.to_array(spec, values)
    assert back.dtype == value.dtype
    np.testing.assert_array_equal(back, value)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_messages_keep_type_shape_and_values(value):
    proto = protos.to_proto(value)
    back = tf.make_ndarray(type(proto).FromString(proto.SerializeToString()))
    assert back.dtype == value.dtype
    np.testing.assert_array_equal(back, value)


@pytest.mark.parametrize(
    "value",
    [
        np.array(3, np.int32),
        np.empty((2, 0), np.float32),
        np.array(0.5, np.float16),
        np.array([1 + 2j], np.complex64),
    ],
)
def test_messages_of_unusual_tensors(value):
    back = tf.make_ndarray(protos.to_proto(value))
    assert back.dtype == value.dtype and back.shape == value.shape
    np.testing.assert_array_equal(back, value)


def test_help_needs_no_tensorflow(run_python):
    printed = run_python(
        "import contextlib, sys\n"
        "from pipelines.__main__ import main\n"
        "for step in ('serve', 'export', 'query'):\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        main([step, '--help'])\n"
        "print('tensorflow' in sys.modules)\n"
    )
    # Defaults are those of the settings, each stated once.
    settings = ServerSettings(Path(), "")
    for default in (settings.port, settings.grpc_port, settings.batching.max_batch):
        assert f"({default})" in printed
    assert printed.splitlines()[-1] == "False"


def test_limits_name_what_arrived():
    limits = Limits(max_rows=3, max_top_n=4)
    limits.check({"top_n": np.array([4, 1, 2]), "history": np.empty((3, 9), object)})
    with pytest.raises(RequestError, match="at most 4. Received: 5"):
        limits.check({"top_n": np.array([1, 5])})
    with pytest.raises(RequestError, match="at most 3 rows. Received: 4"):
        limits.check({"history": np.empty((4, 1), object)})


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            "Graph execution error:\n\nDetected at node 'x' defined at (most recent call last):\n"
            "assertion failed: [ids should be known] [Condition x > 0 did not hold] [x = ] [0]\n"
            "\t [[{{node x}}]]",
            "ids should be known",
        ),
        ("Key not found [[{{node lookup}}]]", "Key not found"),
        ("", "InvalidArgumentError"),
    ],
)
def test_first_line(text, expected):
    assert first_line(tf.errors.InvalidArgumentError(None, None, text)) == expected


@pytest.fixture(scope="module")
def model(saved):
    loaded = SavedModel(saved)
    yield loaded
    loaded.close()


def test_together_or_alone_the_answer_is_the_same(model):
    signature = model.signature("recommend")
    requests = [
        {
            "history": np.array([[f"{place}", ""]] * rows, object),
            "top_n": np.full(rows, 3, np.int32),
        }
        for place, rows in enumerate((1, 3, 2))
    ]
    together = run_together(model, signature, requests)
    for inputs, outputs in zip(requests, together):
        alone = model.run(signature, inputs)
        assert set(outputs) == set(alone)
        for name, value in alone.items():
            np.testing.assert_array_equal(outputs[name], value)


def test_outputs_that_are_not_one_per_row_are_run_alone(model):
    class Total:
        """Its output has one row, whatever goes in."""

        def run(self, signature, inputs):
            return {"total": np.sum(inputs["x"], keepdims=True)}

    signature = Signature("total", {}, {})
    requests = [{"x": np.array([1.0, 2.0])}, {"x": np.array([5.0])}]
    answers = run_together(Total(), signature, requests)
    assert [answer["total"].tolist() for answer in answers] == [[3.0], [5.0]]


def test_batches_have_bounds(model):
    async def run():
        settings = BatchSettings(max_batch=8, batch_wait_ms=50, threads=2)
        batcher = Batcher(model, pool, settings, Counters())
        signature = model.signature("batch_size")
        return await asyncio.gather(
            *(
                batcher.run(signature, {"values": np.full(rows, float(rows), np.float32)})
                for rows in (3, 3, 3, 20, 1)
            )
        )

    with ThreadPoolExecutor(2) as pool:
        answers = asyncio.run(run())
    # 3 + 3 fit into 8; the third 3 does not, and 20 are more than any batch: they run alone.
    assert [answer["rows"][0] for answer in answers] == [6, 6, 3, 20, 1]
    assert [len(answer["rows"]) for answer in answers] == [3, 3, 3, 20, 1]


def test_a_full_queue_refuses_requests(model):
    async def run():
        settings = BatchSettings(batch_wait_ms=50, max_queue=2, threads=1)
        batcher = Batcher(model, pool, settings, Counters())
        inputs = {"values": np.ones(1, np.float32)}
        run_one = functools.partial(batcher.run, model.signature("batch_size"), inputs)
        answers = await asyncio.gather(*(run_one() for _ in range(4)), return_exceptions=True)
        return [*answers, await run_one()]

    with ThreadPoolExecutor(1) as pool:
        first, second, third, fourth, later = asyncio.run(run())
    assert first["rows"].tolist() == second["rows"].tolist() == [2]
    for refused in (third, fourth):
        assert isinstance(refused, RequestError) and refused.http_status == 503
        assert "2 requests are waiting" in refused.message
    assert later["rows"].tolist() == [1]


def test_a_client_that_goes_away_does_not_disturb_its_batch(model):
    async def run():
        batcher = Batcher(model, pool, BatchSettings(batch_wait_ms=50), Counters())
        signature = model.signature("batch_size")
        first, second = (
            asyncio.create_task(batcher.run(signature, {"values": np.ones(1, np.float32)}))
            for _ in range(2)
        )
        await asyncio.sleep(0.01)
        first.cancel()
        return (await second)["rows"].tolist()

    with ThreadPoolExecutor(1) as pool:
        assert asyncio.run(run()) == [1]


LOAD_SCANN = """
import sys
from pathlib import Path
import numpy as np
from pipelines.serve.saved_model import SavedModel
assert not [name for name in sys.modules if name.startswith("scann")]
model = SavedModel(Path({path!r}))
signature = model.signature("")
print(model.run(signature, {{"query": np.ones((2, 8), np.float32)}})["places"].tolist())
"""


@pytest.mark.skipif(importlib.util.find_spec("scann") is None, reason="ScaNN is not installed")
def test_scann_models_load_by_themselves(run_python, tmp_path, monkeypatch):
    from scann.scann_ops.py import scann_ops

    items = np.eye(40, 8, dtype=np.float32) + np.arange(40, dtype=np.float32)[:, None] * 0.01
    searcher = scann_ops.builder(items, 3, "dot_product").score_brute_force().build()

    class Module(tf.Module):
        def __init__(self):
            super().__init__()
            self.parts = searcher.serialize_to_module()

        @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, name="query")])
        def search(self, query):
            return {"places": scann_ops.searcher_from_module(self.parts).search_batched(query)[0]}

    module, path = Module(), str(tmp_path / "1")
    tf.saved_model.save(module, path, signatures={"serving_default": module.search})
    # Item n sums to 0.08 n, the first eight to one more: the last item has 3.12.
    assert run_python(LOAD_SCANN.format(path=path)).strip() == str([[39, 38, 37]] * 2)

    # None stands for a module that cannot be imported.
    monkeypatch.setitem(sys.modules, "scann.scann_ops.py.scann_ops", None)
    with pytest.raises(LoadError, match="operations cannot be loaded") as failure:
        SavedModel(tmp_path / "1")
    assert failure.value.code is Code.UNIMPLEMENTED
