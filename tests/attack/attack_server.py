"""Requests that no client should send, over REST and gRPC, and clients that use up a server.

The server may refuse anything, but it never fails, never takes more memory than it may, and goes on
answering those who mean well.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import re
import socket
import threading
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from tests.attack.conftest import ORDINARY
from tests.support.server_process import refuse_constant

SIGNATURES = {name: list(inputs) for name, inputs in ORDINARY.items()}
pytestmark = pytest.mark.usefixtures("still_answers")
CLIENTS_FAULT = {"INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE", "RESOURCE_EXHAUSTED"}


# REST


def some_value(dice, depth=0):
    """A JSON value, often nearly what a signature takes."""
    kind = dice.randrange(12 if depth < 4 else 7)
    if kind == 0:
        return dice.choice([None, True, False, "", "\ud800", "é", "a" * dice.randrange(3000)])
    if kind == 1:
        return dice.choice([0, -1, 2**31, -(2**63) - 1, 10**400, dice.randrange(10)])
    if kind == 2:
        return dice.choice([0.5, -0.0, 1e308, float("nan"), float("-inf"), 1e-320])
    if kind in (3, 4, 5, 6):
        return dice.choice(["a", "b", 1, 2.5])
    if kind == 7:
        return {"b64": dice.choice(["YQ==", "*", 3, "\ud800", ""])}
    if kind == 8:
        return {str(n): some_value(dice, depth + 1) for n in range(dice.randrange(4))}
    if kind == 9:
        return [[some_value(dice, depth + 2)] * dice.randrange(4)] * dice.randrange(60)
    return [some_value(dice, depth + 1) for _ in range(dice.randrange(5))]


def some_body(dice):
    kind = dice.randrange(8)
    if kind == 0:
        return dice.randbytes(dice.randrange(200))
    if kind == 1:
        deep = dice.randrange(1, 2000)
        return b'{"instances": ' + b"[" * deep + b"1" + b"]" * deep + b"}"
    name = dice.choice([*SIGNATURES, "\ud800", "", 3])
    body = {"signature_name": name}
    if dice.random() < 0.5:
        inputs = SIGNATURES.get(name, ["x"])
        if dice.random() < 0.2:
            inputs = [*inputs, dice.choice(["x", "\udfff", ""])]
        body["inputs"] = {one: some_value(dice) for one in inputs}
    else:
        body["instances"] = some_value(dice)
    if dice.random() < 0.1:
        body[dice.choice(["inputs", "instances", "x"])] = some_value(dice)
    text = bytearray(json.dumps(body).encode())
    if dice.random() < 0.3 and text:
        for _ in range(dice.randrange(1, 5)):
            text[dice.randrange(len(text))] = dice.randrange(256)
    return bytes(text)


def in_chunks(dice, body):
    """A body in chunks, most of which are as they should be."""
    parts = []
    while body and len(parts) < 2000:
        part, body = body[: (size := dice.choice([1, 2, 17, 5000, 1 << 16]))], body[size:]
        line = f"{len(part):{dice.choice('xX')}}"
        if dice.random() < 0.02:
            wrong = ["-1", "0x1", "+1", " 1", "1_0", "", "f" * 16, "7" + "f" * 15, "f" * 5000]
            line = dice.choice(
                [*wrong, "0" * 50 + line, line + ";a=" + "b" * dice.randrange(20_000)]
            )
        parts.append(line.encode() + b"\r\n" + part + dice.choice([b"\r\n"] * 99 + [b"\n", b""]))
    trailer = b"x: y\r\n" * dice.choice([0] * 9 + [dice.randrange(5000)])
    return b"".join(parts) + dice.choice([b"0\r\n" + trailer + b"\r\n"] * 9 + [b""])


def some_header(dice, body, is_chunked):
    path = dice.choice(
        [
            "/v1/models/books:predict",
            "/v1/models/books:predict",
            "/v1/models/books:predict",
            f"/v1/models/books/versions/{dice.choice([7, 8, 10**30, '9' * 5000])}:predict",
            f"/v1/models/%{dice.randrange(256):02x}{chr(dice.randrange(33, 127))}:predict",
            "/v1/models/books/labels/stable:predict",
            "/" + "".join(chr(dice.randrange(33, 127)) for _ in range(dice.randrange(30))),
        ]
    )
    method = dice.choice(["POST"] * 6 + ["GET", "PUT", "CONNECT", "OPTIONS", "X" * 30])
    lines = [f"{method} {path} HTTP/{dice.choice(['1.1'] * 6 + ['1.0', '2.0', '9'])}"]
    lines += ["Host: x", "Connection: close"]
    length = dice.choice([len(body)] * 6 + [len(body) + 5, max(0, len(body) - 5), -1, 10**30])
    if not is_chunked or dice.random() < 0.05:
        lines.append(f"Content-Length: {length}")
    if is_chunked:
        lines.append("Transfer-Encoding: chunked")
    if dice.random() < 0.2:
        lines.append(f"Content-Encoding: {dice.choice(['gzip', 'deflate', 'br', 'x', 'identity'])}")
    if dice.random() < 0.1:
        lines.append(f"Expect: {dice.choice(['100-continue', 'x'])}")
    if dice.random() < 0.1:
        lines.append("Transfer-Encoding: " + dice.choice(["chunked", "gzip, chunked", "x"]))
    if dice.random() < 0.1:
        lines.append("Upgrade: " + dice.choice(["websocket", "h2c"]))
    head = bytearray("\r\n".join([*lines, "", ""]).encode())
    if dice.random() < 0.1:
        head[dice.randrange(len(head))] = dice.randrange(256)
    return bytes(head)


def exchange(server, data):
    """What the server answers to bytes, until it closes the connection."""
    answer = b""
    with contextlib.suppress(ConnectionError):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            except OSError as error:
                # The server may have answered and hung up: that is no ConnectionError for shutdown.
                if not isinstance(error, ConnectionError) and error.errno != errno.ENOTCONN:
                    raise
            while part := connection.recv(65536):
                answer += part
    return answer


def parted(answers, to_head):
    """Status and body of each answer: a body that is longer than its header says is a request."""
    while answers:
        head, found, rest = answers.partition(b"\r\n\r\n")
        assert found, "an answer without an end of its header"
        length = re.search(rb"(?i)\r\ncontent-length: *([0-9]+)", head)
        size = int(length[1]) if length and not to_head else 0
        assert len(rest) >= size, "an answer that is cut off"
        yield int(head.split()[1]), rest[:size]
        answers = rest[size:]


def test_rest(server, dice, seconds):
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        body = some_body(dice)
        if dice.random() < 0.1:
            body = gzip.compress(body if dice.random() < 0.7 else bytes(20 << 20), 1)
        is_chunked = dice.random() < 0.2
        if is_chunked:
            body = in_chunks(dice, body)
        data = some_header(dice, body, is_chunked) + body
        answers = exchange(server, data)
        count += 1
        try:
            for status, text in parted(answers, data.startswith(b"HEAD")):
                assert status in (100, 200, 501) or 400 <= status < 500
                if text and status != 200:
                    assert set(json.loads(text, parse_constant=refuse_constant)) == {"error"}
        except (AssertionError, ValueError) as error:
            raise AssertionError(f"{error}: {data!r} was answered with {answers!r}") from error
    print(f"{count} requests over REST")


# gRPC


def some_tensor(dice):
    value = dice.choice(
        [
            np.array([["a", "b"]] * dice.randrange(4), object),
            np.array(["a"] * dice.randrange(1, 4), object),
            np.zeros(dice.randrange(4), np.int32),
            np.zeros((dice.randrange(4), 2), np.float32),
            np.array([True]),
            np.array(3),
        ]
    )
    proto = tf.make_tensor_proto(value)
    if dice.random() < 0.3:
        proto.dtype = dice.choice([0, 1, 3, 7, 9, 10, 18, 20, 21, 23, 101, 999, -5])
    if dice.random() < 0.3:
        proto.tensor_shape.dim.add().size = dice.choice([0, 1, 2, 10**6, 2**40, -1, 2**62])
    if dice.random() < 0.2 and proto.tensor_shape.dim:
        proto.tensor_shape.dim[0].size = dice.choice([0, 1, 1000, 10**7, 2**62, -2])
    if dice.random() < 0.1:
        proto.tensor_shape.unknown_rank = True
    if dice.random() < 0.2:
        proto.tensor_content = dice.randbytes(dice.randrange(30))
    if dice.random() < 0.1:
        proto.string_val.extend([b"x" * dice.randrange(5)] * dice.randrange(1000))
    if dice.random() < 0.1:
        proto.resource_handle_val.add().name = "x"
    if dice.random() < 0.1:
        proto.variant_val.add().type_name = "x"
    return proto


def some_message(dice):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = dice.choice(["books"] * 9 + ["other"])
    name = dice.choice([*SIGNATURES, "x" * dice.randrange(20_000)])
    request.model_spec.signature_name = name
    if dice.random() < 0.1:
        request.model_spec.version.value = dice.choice([7, -1, 2**63 - 1])
    if dice.random() < 0.05:
        request.model_spec.version_label = "stable"
    for one in [*SIGNATURES.get(name, ["x"]), *(["y"] if dice.random() < 0.1 else [])]:
        request.inputs[one].CopyFrom(some_tensor(dice))
    if dice.random() < 0.1:
        request.output_filter.append(dice.choice(["scores", "x"]))
    message = bytearray(request.SerializeToString())
    if dice.random() < 0.3 and message:
        for _ in range(dice.randrange(1, 4)):
            message[dice.randrange(len(message))] = dice.randrange(256)
    if dice.random() < 0.02:
        message += b"\x12\x00" * dice.randrange(1 << 19)
    return bytes(message)


def test_grpc(server, dice, seconds):
    predict = server.channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        message = some_message(dice)
        count += 1
        try:
            predict(message, timeout=30)
        except grpc.RpcError as error:
            assert error.code().name in CLIENTS_FAULT, (message[:2000], error)
    print(f"{count} messages over gRPC")


# Floods


def silent(server, dice):
    return socket.create_connection(("127.0.0.1", server.port), timeout=5)


def stalled_body(server, dice):
    connection = silent(server, dice)
    size = dice.randrange(1 << 20)
    connection.settimeout(0.2)
    connection.sendall(
        b"POST /v1/models/books:predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        % (1 << 20)
    )
    with contextlib.suppress(OSError):
        connection.sendall(b" " * size)
    return connection


def long_header(server, dice):
    connection = silent(server, dice)
    connection.settimeout(0.2)
    with contextlib.suppress(OSError):
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        for number in range(dice.randrange(120)):
            connection.sendall(b"name-%d: %b\r\n" % (number, b"a" * 8000))
    return connection


def unread_answer(server):
    """A call whose answer nobody looks at."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = "books", "mirror"
    request.inputs["data"].CopyFrom(tf.make_tensor_proto([b"a" * 200_000]))
    request.inputs["flip"].CopyFrom(tf.make_tensor_proto([True]))
    call = server.channel.stream_stream("/tensorflow.serving.PredictionService/Predict")
    return call(iter([request.SerializeToString()]), timeout=5)


def test_floods(server, dice, seconds):
    """Thousands of connections, of which most are silent and some stall, while others ask."""
    stop, failures, waits = threading.Event(), [], []

    def ask():
        while not stop.wait(0.2):
            started = time.monotonic()
            try:
                if server.get("/healthz")[0] != 200:
                    failures.append("health")
                # A request may be refused while the memory is used up.
                if server.post({"instances": [["a"]]})[0] not in (200, 503):
                    failures.append("predict")
            except Exception as error:
                failures.append(f"{error!r} after {time.monotonic() - started:.1f} s")
            waits.append(time.monotonic() - started)

    asking = threading.Thread(target=ask)
    asking.start()
    end, open_ones, unread = time.monotonic() + seconds, [], []
    never = threading.Event()
    call = server.channel.stream_unary("/tensorflow.serving.PredictionService/Predict")
    try:
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                make = dice.choice([stalled_body, long_header, *[silent] * 18])
                open_ones.append(make(server, dice))
            if dice.random() < 0.02:
                call.future(iter(lambda: never.wait(5) and b"", b""), timeout=5)
            if dice.random() < 0.02:
                unread.append(unread_answer(server))
            time.sleep(0.001)
            if len(open_ones) > 2500:
                open_ones.pop(dice.randrange(len(open_ones))).close()
    finally:
        stop.set()
        asking.join()
        for connection in open_ones:
            connection.close()
    # While more connections arrive than can be looked at, a new one may find no room.
    assert len(failures) <= len(waits) // 20, failures[:5]
    assert max(waits) < 30, f"the longest answer took {max(waits):.1f} s"
    print(f"{len(waits)} rounds of questions, the longest {max(waits):.1f} s")
