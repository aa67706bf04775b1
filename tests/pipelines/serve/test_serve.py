"""The server, in a process of its own, asked over real sockets by real clients."""

import gzip
import http.client
import re
import socket
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    predict_pb2,
)

from pipelines.__main__ import main
from tests.support.server_process import Server, wait_for
from tests.support.serving_model import LIMIT, publish

OPTIONS = ("--max-body-mb", 1, "--max-rows", 50, "--batch-wait-ms", 30)


@pytest.fixture(scope="module")
def folder(saved, tmp_path_factory):
    path = tmp_path_factory.mktemp("serve") / "books"
    path.mkdir()
    publish(saved, path, 7, warm_up=[["warm", "up"]])
    return path


@pytest.fixture(scope="module")
def server(folder):
    running = Server(folder, *OPTIONS)
    yield running
    assert running.stop() == 0


def at_once(function, arguments):
    """Calls a function with each argument, all at the same time."""
    barrier = threading.Barrier(len(arguments))

    def call(argument):
        barrier.wait()
        return function(argument)

    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(call, arguments))


# REST


def test_status_of_the_model_and_of_a_version(server):
    expected = {
        "model_version_status": [
            {
                "version": "7",
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""},
            }
        ]
    }
    assert server.get("/v1/models/books") == (200, expected)
    assert server.get("/v1/models/books/versions/7") == (200, expected)


def test_metadata_has_names_types_and_shapes(server):
    for path in ("/v1/models/books/metadata", "/v1/models/books/versions/7/metadata"):
        status, answer = server.get(path)
        assert status == 200
        assert answer["model_spec"] == {"name": "books", "signature_name": "", "version": "7"}
        signature = answer["metadata"]["signature_def"]["signature_def"]["norm"]
        query = signature["inputs"]["query_embedding"]
        assert query["dtype"] == "DT_FLOAT"
        assert [dim["size"] for dim in query["tensor_shape"]["dim"]] == ["-1", "2"]
        assert signature["method_name"] == "tensorflow/serving/predict"


@pytest.mark.parametrize("path", [":predict", "/versions/7:predict"])
@pytest.mark.parametrize("instance", [["a", "b"], {"history": ["a", "b"]}])
def test_rows_of_several_outputs_are_objects(server, path, instance):
    status, answer = server.post({"instances": [instance]}, path)
    # Two items of history, and version 7, make 9; the second score is a quarter less.
    assert (status, answer) == (
        200,
        {
            "predictions": [
                {
                    "item_ids": ["a-0", "a-1"],
                    "scores": [9.0, 8.75],
                    "num_results": 2,
                    "is_default": False,
                }
            ]
        },
    )


def test_columns(server):
    status, answer = server.post(
        {
            "signature_name": "recommend",
            "inputs": {"history": [["a", ""], ["", ""]], "top_n": [1, 3]},
        }
    )
    assert status == 200
    assert answer == {
        "outputs": {
            "item_ids": [["a-0", "a-1", "a-2"], ["-0", "-1", "-2"]],
            "scores": [[8.0, 7.75, 7.5], [7.0, 6.75, 6.5]],
            "num_results": [1, 3],
            "is_default": [False, True],
        }
    }


def test_one_output_is_bare(server):
    body = {"signature_name": "norm"}
    expected = pytest.approx([np.log(25.0), np.log(2.0)], rel=1e-6)
    rows = server.post({**body, "instances": [[3, 4], [1, -1.0]]})[1]
    assert rows == {"predictions": expected}
    columns = server.post({**body, "inputs": [[3, 4], [1, -1.0]]})[1]
    assert columns == {"outputs": expected}
    named = server.post({**body, "inputs": {"query_embedding": [[3, 4], [1, -1.0]]}})[1]
    assert named == {"outputs": expected}


def test_floats_are_short_and_exact(server):
    answer = server.post({"signature_name": "item_embedding", "instances": ["a"]})[1]
    third = answer["predictions"][0]["embedding"][1]
    assert np.float32(third) == np.float32(1 / 3) and len(repr(third)) <= 11


def test_what_is_not_finite_is_null(server):
    # The logarithm of 0.
    assert server.post({"signature_name": "norm", "instances": [[0, 0], [1, 0]]}) == (
        200,
        {"predictions": [None, 0.0]},
    )


def test_bytes_and_text(server):
    status, answer = server.post(
        {
            "signature_name": "mirror",
            "instances": [
                {"data": {"b64": "/wA="}, "flip": True},
                {"data": 'é\u2028"', "flip": False},
            ],
        }
    )
    assert status == 200
    assert answer["predictions"] == [
        {"data_bytes": {"b64": "/wA="}, "text": {"b64": "/wA="}, "flipped": False},
        {"data_bytes": {"b64": "w6nigKgi"}, "text": 'é\u2028"', "flipped": True},
    ]


def test_bare_bytes(server):
    answer = server.post({"signature_name": "item_embedding", "instances": [{"b64": "YWJj"}]})[1]
    assert answer == {"predictions": [{"embedding": [3.0, 1.0], "known": True}]}


def test_scalars_fit_columns_only(server):
    values = {"values": [1, 2, 3], "factor": 10}
    assert server.post({"signature_name": "scale", "inputs": values}) == (200, {"outputs": 60})
    status, answer = server.post({"signature_name": "scale", "instances": [values]})
    assert status == 400 and "'factor' should have shape []" in answer["error"]


HISTORY = [["a"]]
BAD_BODIES = [
    (b"no JSON", "should be JSON"),
    (b"", "should be JSON"),
    (b"\xff\xfe\xfd", "should be JSON"),
    (b"[" * 100_000, "too deep"),
    (b'{"instances": [[NaN, 1]], "signature_name": "norm"}', "NaN is not JSON"),
    (b'{"instances": [[1e999, 1]], "signature_name": "norm"}', "too large"),
    (b'{"instances": [[1e39, 1]], "signature_name": "norm"}', "too large"),
    (b'{"instances": ["\\ud800"], "signature_name": "item_embedding"}', "surrogates"),
    (b'{"instances": ["a"], "signature_name": "\\ud800"}', "should be one of"),
    (b'{"inputs": {"\\ud800": ["a"]}}', "Unknown: ?"),
    (b'{"\\ud800": 1, "inputs": ["a"]}', "signature_name and instances or inputs"),
    (b'{"instances": ' + b"[" * 70 + b"]" * 70 + b"}", "at most 32 levels"),
    (b'{"instances": ' + b"[" * 900 + b"]" * 900 + b"}", "at most 32 levels"),
    (b'{"instances": [' + b"9" * 5000 + b'], "signature_name": "batch_size"}', "should be JSON"),
    ([1], "a JSON object. Received: a list"),
    ({}, "Received: neither"),
    ({"instances": HISTORY, "inputs": HISTORY}, "Received: both"),
    ({"instances": HISTORY, "singature_name": "x"}, "'singature_name'"),
    ({"instances": HISTORY, "signature_name": 3}, "should be a string. Received: 3"),
    ({"instances": HISTORY, "signature_name": "nope"}, "one of batch_size, item_embedding,"),
    ({"instances": HISTORY, "signature_name": "__saved_model_init_op"}, "should be one of"),
    ({"instances": []}, "Received: an empty list"),
    ({"instances": {"history": HISTORY}}, "Received: an object"),
    ({"instances": [["a"], ["a", "b"]]}, "lists of equal length at each level"),
    ({"instances": [["a"], "b"]}, "lists of equal length at each level"),
    ({"instances": ["a"]}, "'history' should have shape [?, ?]. Received: [1]"),
    ({"instances": [[["a"]]]}, "'history' should have shape [?, ?]. Received: [1, 1, 1]"),
    ({"instances": [[1]]}, "'history' should be string: received 1"),
    ({"instances": [[None]]}, "'history' should be string: received null"),
    ({"instances": [[{"b64": "*"}]]}, "not base64"),
    ({"instances": [{"history": ["a"]}, ["b"]]}, "all be objects or all be bare"),
    ({"instances": [{"history": ["a"], "x": 1}]}, "instances[0]: signature 'serving_default'"),
    ({"inputs": {"other": HISTORY}}, "Missing: history. Unknown: other"),
    ({"inputs": HISTORY, "signature_name": "recommend"}, "2 inputs (history, top_n)"),
    (
        {"inputs": {"history": HISTORY, "top_n": [1.0]}, "signature_name": "recommend"},
        "'top_n' should be int32: received 1.0",
    ),
    (
        {"inputs": {"history": HISTORY, "top_n": [True]}, "signature_name": "recommend"},
        "'top_n' should be int32: received true",
    ),
    (
        {"inputs": {"history": HISTORY, "top_n": ["1"]}, "signature_name": "recommend"},
        "'top_n' should be int32: received \"1\"",
    ),
    (
        {"inputs": {"history": HISTORY, "top_n": [2**31]}, "signature_name": "recommend"},
        "'top_n' should be int32",
    ),
    ({"instances": [[1, 2, 3]], "signature_name": "norm"}, "shape [?, 2]. Received: [1, 3]"),
    ({"instances": [{"data": "a", "flip": 1}], "signature_name": "mirror"}, "bool: received 1"),
    ({"instances": [["a"]] * 51}, "at most 50 rows. Received: 51"),
]


@pytest.mark.parametrize("body, fragment", BAD_BODIES, ids=[text for _, text in BAD_BODIES])
def test_bad_bodies(server, body, fragment):
    status, answer = server.post(body)
    assert (status, set(answer)) == (400, {"error"})
    assert fragment in answer["error"]


def test_an_error_of_the_model_is_one_line(server):
    body = {"signature_name": "recommend", "instances": [{"history": ["a"], "top_n": LIMIT + 1}]}
    assert server.post(body) == (400, {"error": "top_n should be at most 5. Received: 6"})
    negative = {"signature_name": "batch_size", "instances": [-1]}
    assert server.post(negative) == (400, {"error": "values should not be negative."})


@pytest.mark.parametrize(
    "path, status, fragment",
    [
        ("/v1/models/other", 404, "no model 'other'"),
        ("/v1/models/other/metadata", 404, "no model 'other'"),
        ("/v1/models/books/versions/8", 404, "no version 8"),
        ("/v1/models/books/versions/99999999999999999999/metadata", 404, "Served: 7"),
        (f"/v1/models/books/versions/{'9' * 5000}", 404, "no version 9999999999999999999…"),
        (f"/v1/models/books/versions/{2**63}", 404, f"no version {2**63}"),
        ("/v1/models/books/labels/stable", 404, "labels"),
        ("/v1/models/books:predict", 405, "should be sent with POST"),
        ("/v1/models/books:classify", 501, "Use :predict"),
        ("/v1/models/books:nonsense", 404, "Malformed request"),
        ("/v1/models/books/versions/x", 404, "Malformed request"),
        ("/nothing", 404, "Malformed request"),
    ],
)
def test_paths_that_do_not_answer(server, path, status, fragment):
    received, answer = server.get(path)
    assert received == status and set(answer) == {"error"} and fragment in answer["error"]


@pytest.mark.parametrize("path", [":predict", "/versions/8:predict"])
def test_predict_of_an_unknown_model_or_version(server, path):
    url = server.url
    name = "other" if path == ":predict" else "books"
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", f"{url}/v1/models/{name}{path}", b"{}")
    assert connection.getresponse().status == 404


@pytest.mark.parametrize("chunked", [False, True])
def test_huge_bodies_are_refused(server, chunked):
    body = b'{"instances": ["' + b"a" * (3 << 20) + b'"]}'
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    pieces = (body[start : start + 65536] for start in range(0, len(body), 65536))
    connection.request(
        "POST",
        "/v1/models/books:predict",
        pieces if chunked else body,
        encode_chunked=chunked,
        headers={"Transfer-Encoding": "chunked"} if chunked else {},
    )
    response = connection.getresponse()
    assert response.status == 413
    assert response.read().startswith(b'{\n "error": "the body should have at most 1048576 bytes')
    assert server.get("/healthz")[0] == 200


def test_a_length_that_is_only_promised_costs_nothing(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(
            b"POST /v1/models/books:predict HTTP/1.1\r\nHost: x\r\n"
            b"Content-Length: 99999999999\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_packed_bodies(server):
    def post(data):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request(
            "POST", "/v1/models/books:predict", data, headers={"Content-Encoding": "gzip"}
        )
        return connection.getresponse().status

    assert post(gzip.compress(b'{"instances": [["a"]]}')) == 200
    assert post(gzip.compress(b'{"instances": [["' + b"a" * (2 << 20) + b'"]]}')) == 413
    assert post(b"not gzip at all") == 400


def test_large_bodies_and_answers_within_the_bounds(server):
    # Both are above the sizes from which they are converted in a thread.
    history = [[f"item-{row}-{place}" for place in range(400)] for row in range(50)]
    status, answer = server.post({"instances": history})
    assert status == 200
    assert [row["item_ids"][0] for row in answer["predictions"]] == [
        f"item-{row}-0-0" for row in range(50)
    ]


# gRPC


def test_grpc_predict(server):
    response = server.predict(
        {"history": [["a", "b"]], "top_n": np.array([3], np.int32)}, "recommend", version=7
    )
    outputs = {name: tf.make_ndarray(proto) for name, proto in response.outputs.items()}
    assert outputs["item_ids"].tolist() == [[b"a-0", b"a-1", b"a-2"]]
    assert outputs["scores"].tolist() == [[9.0, 8.75, 8.5]]
    assert outputs["num_results"].tolist() == [3] and outputs["is_default"].tolist() == [False]
    assert outputs["scores"].dtype == np.float32 and outputs["num_results"].dtype == np.int32
    # Clients without TensorFlow read the typed fields.
    assert list(response.outputs["scores"].float_val) == [9.0, 8.75, 8.5]
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("books", 7, "recommend")


def test_grpc_output_filter(server):
    assert set(server.predict({"history": [["a"]]}, only=["scores"]).outputs) == {"scores"}


@pytest.mark.parametrize(
    "inputs, signature, options, code, fragment",
    [
        ({"history": [["a"]]}, "", {"name": "other"}, "NOT_FOUND", "no model 'other'"),
        ({"history": [["a"]]}, "", {"version": 9}, "NOT_FOUND", "no version 9"),
        ({"history": [["a"]]}, "nope", {}, "INVALID_ARGUMENT", "should be one of"),
        ({"history": [[1.0]]}, "", {}, "INVALID_ARGUMENT", "string. Received: float32"),
        ({"history": ["a"]}, "", {}, "INVALID_ARGUMENT", "shape [?, ?]. Received: [1]"),
        ({"items": ["a"]}, "", {}, "INVALID_ARGUMENT", "Missing: history"),
        ({"history": [["a"]] * 51}, "", {}, "INVALID_ARGUMENT", "at most 50 rows"),
        ({"history": [["a"]]}, "", {"only": ["x"]}, "INVALID_ARGUMENT", "Received: x"),
        (
            {"history": [["a"]], "top_n": [6]},
            "recommend",
            {},
            "INVALID_ARGUMENT",
            "top_n should be at most 5. Received: 6",
        ),
        ({"history": [["a" * (2 << 20)]]}, "", {}, "RESOURCE_EXHAUSTED", "larger than max"),
    ],
)
def test_grpc_errors(server, inputs, signature, options, code, fragment):
    with pytest.raises(grpc.RpcError) as failure:
        server.predict(inputs, signature, **options)
    assert failure.value.code() is grpc.StatusCode[code]
    assert fragment in failure.value.details()


def test_a_short_message_cannot_ask_for_much_memory(server):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "books"
    proto = tf.make_tensor_proto([["a"]])
    proto.tensor_shape.dim[1].size = 10**12
    request.inputs["history"].CopyFrom(proto)
    with pytest.raises(grpc.RpcError, match="at most 1048576 values"):
        server.predictions.Predict(request, timeout=30)
    # Within the limit, but the shape is not that of the one value.
    request.inputs["history"].tensor_shape.dim[1].size = 1000
    with pytest.raises(grpc.RpcError, match="1000 values in string_val.*Received: 1"):
        server.predictions.Predict(request, timeout=30)


def test_grpc_metadata(server):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "books"
    response = server.predictions.GetModelMetadata(request, timeout=30)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    assert set(signatures.signature_def["recommend"].inputs) == {"history", "top_n"}
    assert response.model_spec.version.value == 7
    request.metadata_field[:] = ["other"]
    with pytest.raises(grpc.RpcError, match="metadata_field should be"):
        server.predictions.GetModelMetadata(request, timeout=30)


def test_grpc_status_and_health(server):
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "books"
    (status,) = server.models.GetModelStatus(request, timeout=30).model_version_status
    assert status.version == 7
    assert status.state == get_model_status_pb2.ModelVersionStatus.AVAILABLE
    stub = health_pb2_grpc.HealthStub(server.channel)
    answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_grpc_methods_that_are_not_offered(server):
    with pytest.raises(grpc.RpcError) as failure:
        server.predictions.Classify(classification_pb2.ClassificationRequest(), timeout=30)
    assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED


# Batches, health and metrics


def test_concurrent_requests_run_together(server):
    def post(value):
        return server.post({"signature_name": "batch_size", "instances": [value, value]})

    answers = at_once(post, range(12))
    assert [status for status, _ in answers] == [200] * 12
    rows = [answer["predictions"] for _, answer in answers]
    assert [[row["values"] for row in pair] for pair in rows] == [[2.0 * n] * 2 for n in range(12)]
    assert max(row["rows"] for pair in rows for row in pair) > 2


def test_one_bad_request_does_not_spoil_its_batch(server):
    before = server.metric("serve_batch_requests_count")

    def post(value):
        return server.post({"signature_name": "batch_size", "instances": [value]})

    values = [1.0, 2.0, -3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    answers = at_once(post, values)
    # Had each run alone from the start, there would be as many batches as requests.
    assert server.metric("serve_batch_requests_count") - before < len(values)
    for value, (status, answer) in zip(values, answers):
        if value < 0:
            assert (status, answer) == (400, {"error": "values should not be negative."})
        else:
            assert status == 200 and answer["predictions"][0]["values"] == 2 * value


def test_an_answer_does_not_depend_on_who_else_asks(server):
    def post(top_n):
        return server.post(
            {
                "signature_name": "recommend",
                "instances": [{"history": ["a"] * (1 + top_n % 2), "top_n": top_n}],
            }
        )

    wanted = [1, 2, 3, 4, 5] * 4
    for top_n, (status, answer) in zip(wanted, at_once(post, wanted)):
        assert status == 200 and len(answer["predictions"][0]["item_ids"]) == top_n


def test_health_and_metrics(server):
    assert server.get("/healthz") == (200, {"status": "ok", "version": "7"})
    server.post({"instances": [["a"]]})
    server.post(b"no JSON")
    server.predict({"history": [["a"]]})
    text = server.metrics()
    for line in (
        'serve_requests_total{kind="predict",protocol="rest",status="200"}',
        'serve_requests_total{kind="predict",protocol="rest",status="400"}',
        'serve_requests_total{kind="predict",protocol="grpc",status="OK"}',
        'serve_request_seconds_bucket{kind="predict",le="0.1",protocol="rest"}',
        'serve_batch_rows_bucket{le="64.0"}',
    ):
        assert line in text and server.metric(line) > 0, line
    assert server.metric('serve_model_version{model="books"}') == 7
    assert server.metric("serve_queue") == 0
    assert server.metric('serve_in_flight{protocol="grpc"}') == 0


# Starting


def test_the_greeting_has_a_request_that_works(server):
    text = server.greeting()
    assert text.startswith("serving books, version 7: REST http://127.0.0.1:")
    assert "norm(query_embedding: float32 [?, 2]) -> norm" in text
    # The ids come from the warm-up request, so they are ids that the model knows.
    found = re.search(r"curl -d '(.*)' (http://.*)$", text, re.MULTILINE)
    assert found[1] == '{"instances": [{"history": ["warm", "up"]}]}'
    assert server.send(urllib.request.Request(found[2], found[1].encode()))[0] == 200
    assert "warm-up requests answered: 1" in "".join(server.log)


def test_a_start_that_fails_says_why_in_one_line(server, folder, tmp_path, capsys):
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "saved_model.pb").write_bytes(b"nonsense")
    free = ("--port", 0, "--grpc-port", 0)
    taken = "error: cannot listen on 127.0.0.1, port {}: it is in use. Choose another with {}."
    cases = [
        (
            ("--model", folder, "--grpc-port", 0, "--port", server.port),
            taken.format(server.port, "--port"),
        ),
        (
            ("--model", folder, "--port", 0, "--grpc-port", server.grpc_port),
            taken.format(server.grpc_port, "--grpc-port"),
        ),
        (
            ("--model", tmp_path / "broken", *free),
            f"error: no version in {tmp_path}/broken can be "
            f"served. 1: {tmp_path}/broken/1/saved_model.pb is not a SavedModel",
        ),
    ]
    for arguments, expected in cases:
        assert main(["serve", *map(str, arguments)]) == 2
        printed = capsys.readouterr()
        assert not printed.out
        (line,) = [line for line in printed.err.splitlines() if line.startswith("error: ")]
        assert line.startswith(expected)
        assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    "exists, expected",
    [
        (False, "should be a folder"),
        (True, "has no version of a model"),
    ],
)
def test_no_model(tmp_path, capsys, exists, expected):
    if exists:
        (tmp_path / "model").mkdir()
    assert main(["serve", "--model", str(tmp_path / "model")]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--port=65536", "--poll-seconds=-1", "--max-batch=0"])
def test_options_that_do_not_fit(option, capsys):
    assert main(["serve", "--model", ".", option]) == 2
    name, _, value = option.partition("=")
    error = capsys.readouterr().err
    assert error.startswith(f"error: {name} should be a ") and f"Received: {value}" in error


# Overload and the end


def slow(seconds, server):
    """A request to ``slow`` that takes about this many seconds, and its rounds."""
    started = time.perf_counter()
    server.post({"signature_name": "slow", "instances": [2000]})
    rounds = int(2000 * seconds / (time.perf_counter() - started))
    return {"signature_name": "slow", "instances": [rounds]}, rounds


@pytest.mark.slow
def test_overload_then_sigterm(folder):
    running = Server(
        folder,
        "--threads",
        1,
        "--max-batch",
        1,
        "--max-queue",
        16,
        "--max-top-n",
        3,
        "--max-in-flight",
        16,
        "--batch-wait-ms",
        0,
    )
    try:
        status, answer = running.post(
            {"signature_name": "recommend", "instances": [{"history": ["a"], "top_n": 4}]}
        )
        assert status == 400 and answer["error"] == "'top_n' should be at most 3. Received: 4."

        body, _ = slow(0.05, running)
        answers = at_once(lambda _: running.post(body), range(32))
        # What is above the limits is refused, and the others are answered.
        assert {status for status, _ in answers} == {200, 503}
        assert sum(status == 200 for status, _ in answers) >= 12
        assert all(
            "waiting" in answer["error"] or "too many requests" in answer["error"]
            for status, answer in answers
            if status == 503
        )

        idle = socket.create_connection(("127.0.0.1", running.port))
        body, rounds = slow(0.05, running)
        inputs = {"rounds": np.array([rounds], np.int32)}
        with ThreadPoolExecutor(15) as pool:
            rest = [pool.submit(running.post, body) for _ in range(3)]
            rpc = [pool.submit(running.predict, inputs, "slow") for _ in range(12)]
            # The signal comes while the server has received some and started few.
            wait_for(lambda: running.metric('serve_in_flight{protocol="grpc"}') >= 1)
            time.sleep(0.1)
            stopped = time.monotonic()
            running.process.terminate()
            time.sleep(0.3)
            with pytest.raises(OSError):
                socket.create_connection(("127.0.0.1", running.port))
            assert [one.result() for one in rest] == [(200, {"predictions": [rounds]})] * 3
            assert [list(one.result().outputs["done"].int_val) for one in rpc] == [[rounds]] * 12
        assert running.process.wait(30) == 0
        # An idle connection does not delay it.
        assert time.monotonic() - stopped < 20
        idle.close()
    finally:
        running.stop()
    assert not [line for line in running.log if "Traceback" in line]
