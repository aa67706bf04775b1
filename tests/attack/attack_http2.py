"""Floods of HTTP/2 over gRPC: streams, resets, control frames, headers and packed messages.

gRPC may refuse calls meanwhile, but REST answers, memory is bounded, and afterwards gRPC answers.
"""

from __future__ import annotations

import time
import zlib

import pytest
from tensorflow_serving.apis import predict_pb2

from tests.attack import http2
from tests.attack.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    LATEST,
    PING,
    PRIORITY,
    RESET,
    SETTINGS,
    WINDOW,
    Http2,
    frame,
    setting,
)
from tests.support.server_process import wait_for

pytestmark = pytest.mark.usefixtures("still_answers")
PREDICT = b"/tensorflow.serving.PredictionService/Predict"
# The connections that are open at a time.
MOST = 24


def question():
    import tensorflow as tf

    request = predict_pb2.PredictRequest()
    request.model_spec.name = "books"
    request.inputs["history"].CopyFrom(tf.make_tensor_proto([["a"]]))
    return http2.message(request.SerializeToString())


def streams(dice, most):
    return range(1, 2 * dice.randrange(1, most), 2)


def begun(stream, *more):
    return frame(HEADERS, END_HEADERS, stream, http2.call(PREDICT, *more))


def asked(stream):
    return begun(stream) + frame(DATA, END_STREAM, stream, question())


def open_streams(dice):
    return b"".join(begun(stream) for stream in streams(dice, 400))


def half_messages(dice):
    part = http2.message(
        b"a" * dice.randrange(2000), length=dice.choice([2001, 1 << 20, 2**32 - 1])
    )
    return b"".join(begun(one) + frame(DATA, 0, one, part) for one in streams(dice, 400))


def rapid_resets(dice):
    reset = dice.choice([b"\0\0\0\x08", b"\0\0\0\0"])
    return b"".join(asked(one) + frame(RESET, 0, one, reset) for one in streams(dice, 3000))


def questions(dice):
    return b"".join(map(asked, streams(dice, 300)))


def control_frames(dice):
    choices = [
        frame(PING, payload=b"12345678"),
        frame(SETTINGS, payload=setting(http2.INITIAL_WINDOW, dice.randrange(1 << 16))),
        frame(WINDOW, payload=b"\0\0\0\x01"),
        frame(PRIORITY, 0, 1, b"\0\0\0\0\x01"),
        frame(DATA, 0, 1),
        frame(99, 0, 1, b"unknown"),
    ]
    return begun(1) + dice.choice(choices) * dice.randrange(1, 20_000)


def many_fields(dice):
    more = [(b"x-%d" % n, b"b" * dice.randrange(60)) for n in range(dice.randrange(150))]
    return b"".join(begun(one, *more) for one in streams(dice, 200))


def fields_that_unfold(dice):
    """Each byte stands for a field of thousands."""
    block = http2.call(PREDICT) + http2.field(b"x", b"a" * 3900, remembered=True)
    block += LATEST * dice.randrange(100_000)
    return b"".join(
        http2.split(HEADERS, END_HEADERS, one, block) for one in streams(dice, 6)
    ) + frame(DATA, END_STREAM, 1, question())


def header_without_end(dice):
    parts = frame(CONTINUATION, 0, 1, LATEST * 10_000) * dice.randrange(20)
    start = http2.call(PREDICT) + http2.field(b"x", b"a" * 3900, remembered=True)
    return frame(HEADERS, 0, 1, start) + parts


def packed_messages(dice):
    packing = zlib.compressobj(9, zlib.DEFLATED, dice.choice([zlib.MAX_WBITS, 16 + zlib.MAX_WBITS]))
    bomb = packing.compress(bytes(dice.randrange(300 << 20))) + packing.flush()
    header = dice.choice(
        [[], *([(b"grpc-encoding", name)] for name in (b"gzip", b"deflate", b"x"))]
    )
    return begun(1, *header) + http2.split(DATA, END_STREAM, 1, http2.message(bomb, True))


def noise(dice):
    return b"".join(
        frame(dice.randrange(12), dice.randrange(256), dice.randrange(6), dice.randbytes(8))
        for _ in range(dice.randrange(1, 50))
    )


FLOODS = (
    open_streams,
    half_messages,
    rapid_resets,
    questions,
    control_frames,
    many_fields,
    fields_that_unfold,
    header_without_end,
    packed_messages,
    noise,
)


def test_floods_of_frames(server, dice, seconds):
    end, count, slowest = time.monotonic() + seconds, 0, 0.0
    connections = []
    try:
        while time.monotonic() < end:
            flood = dice.choice(FLOODS)
            # Half of the clients let nothing be sent to them.
            window = setting(http2.INITIAL_WINDOW, dice.choice([0, 65535]))
            connection = Http2(server.grpc_port, window)
            connections.append(connection)
            connection.send(flood(dice))
            if dice.random() < 0.2:
                connection.received()
            if len(connections) >= MOST:
                connections.pop(dice.randrange(MOST)).close()
            started = time.monotonic()
            assert server.post({"instances": [["a"]]})[0] == 200, flood.__name__
            slowest = max(slowest, time.monotonic() - started)
            count += 1
    finally:
        for connection in connections:
            connection.close()
    assert slowest < 10, f"the longest answer over REST took {slowest:.1f} s"
    wait_for(lambda: server.metric('serve_in_flight{protocol="grpc"}') == 0, 60)
    print(f"{count} floods, the longest answer over REST {slowest:.1f} s")
