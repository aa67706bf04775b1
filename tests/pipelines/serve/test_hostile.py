"""Clients that are silent, slow, gone or hostile: others are answered, and memory is bounded."""

import asyncio
import contextlib
import gzip
import json
import re
import socket
import threading
import time
import urllib.request
import zlib

import grpc
import numpy as np
import pytest
from aiohttp import web
from aiohttp.http import HttpRequestParser, StreamWriter
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import predict_pb2

from pipelines.serve.bodies import receive_body
from pipelines.serve.budget import PATIENCE, Budget
from pipelines.serve.counters import Counters
from pipelines.serve.http_connections import Connections
from pipelines.serve.limits import Limits
from tests.support.server_process import Server, wait_for
from tests.support.serving_model import publish

PREDICT = "/v1/models/books:predict"
BODY = b'{"instances": [["a"]]}'
CHUNKED = b"16\r\n" + BODY + b"\r\n0\r\n\r\n"
CLOSE = "Connection: close"
MAX_CONNECTIONS = 20
OPTIONS = {
    "--max-body-mb": 1,
    "--max-memory-mb": 128,
    "--max-connections": MAX_CONNECTIONS,
    "--header-seconds": 1,
    "--body-seconds": 2,
    "--idle-seconds": 3,
    "--health-port": 0,
}


@pytest.fixture(scope="module")
def server(saved, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "books"
    folder.mkdir()
    publish(saved, folder, 7)
    (folder / str(2**63)).mkdir()  # No version: it does not fit into an int64.
    running = Server(folder, *(word for pair in OPTIONS.items() for word in pair))
    yield running
    assert running.stop() == 0
    # Nothing that a client does is a line of the log, or of that of gRPC (`call.cc:358]`).
    faults = ("Traceback", "ERROR", ".cc:")
    assert not [line for line in running.log if any(fault in line for fault in faults)]


@pytest.fixture
def connect(server):
    """Opens connections, which are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(data=b""):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            stack.enter_context(connection)
            connection.sendall(data)
            return connection

        yield make


def received(connection):
    """Everything that arrives until the server closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def post(body, *headers):
    lines = [f"POST {PREDICT} HTTP/1.1", "Host: x", *headers]
    if not any(header.startswith(("Transfer-Encoding", "Content-Length")) for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def status_and_error(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head, answer
    return int(head.split()[1]), json.loads(body)["error"]


# Errors are JSON, from the first byte on


@pytest.mark.parametrize(
    "data, status",
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", None),
        # What follows is no second request.
        (b"CONNECT / HTTP/1.1\r\nHost: x\r\nContent-Length: 22\r\n\r\n" + BODY, 404),
        (b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" + post(BODY), 404),
        (post(b"", "Content-Length: -1"), 400),
        (post(b"", "Content-Length: 1", "Transfer-Encoding: chunked"), 400),
        (post(b"zz\r\n", "Transfer-Encoding: chunked"), 400),
        (post(BODY, "Expect: a miracle", "Connection: close"), 417),
        (post(BODY, "Content-Encoding: br", "Connection: close"), 415),
        (post(BODY, "Content-Encoding: identity", "Content-Encoding: gzip", CLOSE), 415),
        (post(CHUNKED, "Transfer-Encoding: gzip, chunked", CLOSE), 501),
        (post(BODY, "Content-Encoding: gzip", "Connection: close"), 400),
        (post(gzip.compress(BODY)[:-4], "Content-Encoding: gzip", "Connection: close"), 400),
        (post(gzip.compress(BODY) + b"more", "Content-Encoding: gzip", "Connection: close"), 400),
    ],
)
def test_errors_are_json(connect, data, status):
    found, error = status_and_error(received(connect(data)))
    assert error and (found == status if status else 400 <= found < 500)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_bomb_is_refused_before_it_is_unpacked(server, connect, pack):
    before = memory(server)
    bomb = pack(bytes(60 << 20), 1)
    encoding = "gzip" if pack is gzip.compress else "deflate"
    answer = received(connect(post(bomb, f"Content-Encoding: {encoding}", "Connection: close")))
    assert status_and_error(answer) == (413, "the body should have at most 1048576 bytes.")
    assert memory(server) - before < 20 << 20


def memory(server, of="VmHWM"):
    """The most memory that the process has ever had, in bytes; what it has now with ``VmRSS``."""
    with open(f"/proc/{server.process.pid}/status") as file:
        return 1024 * int(re.search(rf"{of}:\s+(\d+) kB", file.read())[1])


def test_a_header_is_bounded(server, connect):
    before = memory(server, "VmRSS")
    many = b"".join(b"name-%d: %b\r\n" % (number, b"a" * 8000) for number in range(100))
    connections = [connect(b"GET /healthz HTTP/1.1\r\nHost: x\r\n") for _ in range(15)]
    for connection in connections:
        with contextlib.suppress(ConnectionError):
            connection.sendall(many)
    status, error = status_and_error(received(connections[-1]))
    assert (status, error) == (431, "the header should have at most 16384 bytes.")
    assert memory(server, "VmRSS") - before < 6 << 20


def test_a_trailer_is_bounded(connect):
    data = b"1\r\n[\r\n0\r\n" + b"".join(b"name-%d: %b\r\n" % (n, b"a" * 8000) for n in range(90))
    connection = connect(post(b"", "Transfer-Encoding: chunked"))
    with contextlib.suppress(ConnectionError):
        connection.sendall(data)
    status, error = status_and_error(connection.recv(1000))
    assert status == 400 and "trailer" in error


def test_what_is_sent_ahead_waits(server, connect):
    # On a busy machine, too, the first request is still running when the last one arrives.
    slow = json.dumps({"signature_name": "slow", "instances": [12_000]}).encode()
    assert server.post(slow)[0] == 200  # TensorFlow takes memory when it first runs a function.
    long = b"GET /healthz HTTP/1.1\r\nHost: x\r\n%b\r\n" % (b"name: " + b"a" * 8000 + b"\r\n")
    last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    connections = [connect() for _ in range(15)]
    before = memory(server, "VmRSS")
    senders = [
        threading.Thread(target=connection.sendall, args=(post(slow) + 100 * long + last,))
        for connection in connections
    ]
    for sender in senders:
        sender.start()
    wait_for(lambda: server.metric('serve_in_flight{protocol="rest"}') > 15)
    time.sleep(0.3)
    assert memory(server, "VmRSS") - before < 6 << 20
    for connection, sender in zip(connections, senders):
        connection.settimeout(60)
        assert received(connection).count(b"HTTP/1.1 200 ") == 102
        sender.join()


def test_the_memory_of_a_refused_message_ends_with_its_lease(server):
    predict = server.channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    before = memory(server)
    for _ in range(30):
        with pytest.raises(grpc.RpcError) as caught:
            predict(b"\x12\x00" * (1 << 18), timeout=30)  # Half a MiB, and 40 once it is parsed.
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert memory(server) - before < 60 << 20


def test_a_client_that_asks_first_may_send(connect):
    connection = connect(
        post(b"", "Expect: 100-continue", f"Content-Length: {len(BODY)}", "Connection: close")
    )
    assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(BODY)
    assert received(connection).startswith(b"HTTP/1.1 200 ")
    # One that asks for too much need not send it.
    connection = connect(post(b"", "Expect: 100-continue", "Content-Length: 99999999"))
    # What follows the number has other words in Python 3.13.
    assert connection.recv(13) == b"HTTP/1.1 413 "


# Silence


def test_silent_connections_make_room(server, connect):
    silent = [connect() for _ in range(MAX_CONNECTIONS)]
    time.sleep(0.2)  # They are not new any more.
    assert server.get("/healthz")[0] == 200
    assert server.post({"instances": [["a"]]})[0] == 200
    # The first has given way, long before its time was up.
    assert received(silent[0]) == b""
    closed = "serve_connections_closed_total"
    assert sum(server.metric(f'{closed}{{reason="{why}"}}') for why in ("room", "time")) >= 1


def test_stalled_bodies_make_room(server, connect):
    stalled = [connect(post(b"[" * 1000, "Content-Length: 2000")) for _ in range(5)]
    wait_for(lambda: server.metric('serve_in_flight{protocol="rest"}') >= 6)
    started = time.monotonic()
    for _ in range(MAX_CONNECTIONS - 5):
        connect()
    time.sleep(0.2)  # They are not new any more.
    assert server.post({"instances": [["a"]]})[0] == 200
    assert status_and_error(stalled[0].recv(1000))[0] == 408
    assert time.monotonic() - started < 1.5


@pytest.mark.parametrize(
    "data",
    [b"", b"GET /healthz HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"],
    ids=["silent", "half a header", "idle"],
)
def test_connections_end_in_time(connect, data):
    started = time.monotonic()
    answer = received(connect(data))
    assert answer == b"" or answer.startswith(b"HTTP/1.1 200 ")
    assert 0.5 < time.monotonic() - started < 5


def test_a_header_that_trickles_ends_in_time(connect):
    connection = connect(b"GET /healthz HTTP/1.1\r\n")
    started = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while time.monotonic() - started < 8:
            connection.sendall(b"a: b\r\n")
            time.sleep(0.2)
    assert time.monotonic() - started < 5


def test_a_body_that_trickles_ends_in_time(connect):
    connection = connect(post(b"[", "Content-Length: 1000"))
    started = time.monotonic()
    stop = threading.Event()

    def trickle():
        with contextlib.suppress(OSError):
            while not stop.wait(0.1):
                connection.sendall(b" ")

    sender = threading.Thread(target=trickle)
    sender.start()
    answer = connection.recv(1000)
    stop.set()
    sender.join()
    assert status_and_error(answer) == (408, "the body should arrive within 2 s.")
    assert time.monotonic() - started < 5


def test_an_answer_that_nobody_reads_ends_in_time(server, connect):
    before = server.metric('serve_connections_closed_total{reason="time"}')
    # Every answer has the text twice, so that ten are more than the buffers of a socket hold.
    instance = {"data": "a" * 700_000, "flip": True}
    body = json.dumps({"signature_name": "mirror", "instances": [instance]}).encode()
    connection = connect()
    connection.settimeout(1.0)
    with contextlib.suppress(OSError):
        connection.sendall(post(body) * 10)
    wait_for(
        lambda: server.metric('serve_connections_closed_total{reason="time"}') > before, seconds=15
    )


@pytest.mark.slow
def test_answers_that_nobody_reads_give_way(saved, tmp_path):
    folder = tmp_path / "books"
    folder.mkdir()
    publish(saved, folder, 7)
    server = Server(folder, "--max-body-mb", 1, "--max-memory-mb", 128, "--body-seconds", 60)
    instance = {"data": "a" * 700_000, "flip": True}
    body = json.dumps({"signature_name": "mirror", "instances": [instance]}).encode()
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        for _ in range(12):
            unread = socket.create_connection(("127.0.0.1", server.port), timeout=1)
            stack.enter_context(unread)
            with contextlib.suppress(OSError):
                unread.sendall(post(body) * 10)
        time.sleep(PATIENCE)
        assert server.metric("serve_memory_bytes") > 90 << 20
        assert server.post(body)[0] == 200


def test_health_has_a_port_of_its_own(server):
    (port,) = re.findall(r"health and metrics: http://127\.0\.0\.1:(\d+)", "".join(server.log))
    for path, status in (("/healthz", 200), ("/metrics", 200), ("/v1/models/books", 404)):
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
        if path == "/metrics":
            with urllib.request.urlopen(request, timeout=10) as response:
                assert b"serve_requests_total" in response.read()
        else:
            assert server.send(request)[0] == status


# Clients that leave


def test_a_client_that_has_finished_sending_gets_its_answer(connect):
    connection = connect(post(BODY))
    connection.shutdown(socket.SHUT_WR)
    started = time.monotonic()
    assert received(connection).startswith(b"HTTP/1.1 200 ")
    assert time.monotonic() - started < 2.5  # It is closed then, not when it has been idle.
    connection = connect(post(BODY) * 3)
    connection.shutdown(socket.SHUT_WR)
    assert received(connection).count(b"HTTP/1.1 200 ") == 3


def test_a_server_that_is_busy_answers_all_that_was_sent_together():
    async def answer(request):
        with request.protocol.request():
            time.sleep(0.06)  # Nothing else runs: what is due comes between two requests.
            return web.Response()

    async def exchange():
        connections = Connections(answer, Limits(), Counters())
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(connections.accept, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 8)
        writer.write_eof()
        try:
            return await asyncio.wait_for(reader.read(), 10)
        finally:
            writer.close()
            listener.close()
            await connections.shutdown(1)

    assert asyncio.run(exchange()).count(b"HTTP/1.1 200 ") == 8


def test_clients_that_hang_up_are_counted(server, connect):
    name = 'serve_hang_ups_total{protocol="rest"}'
    before = server.metric(name)
    connect(post(b"[", "Content-Length: 1000")).close()  # in the middle of the body
    wait_for(lambda: server.metric(name) == before + 1)
    slow = json.dumps({"signature_name": "slow", "instances": [20_000]}).encode()
    gone = connect(post(slow))
    time.sleep(0.2)
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    gone.close()  # in the middle of the work
    wait_for(lambda: server.metric(name) == before + 2)
    assert not [line for line in server.log if "Traceback" in line or "ERROR" in line]


def test_the_body_of_a_connection_that_is_lost():
    async def receive():
        loop = asyncio.get_running_loop()
        connection = Connections(None, Limits(), Counters()).accept()
        parser = HttpRequestParser(connection, loop, 2**16)
        ((message, content),), _, _ = parser.feed_data(post(b"[", "Content-Length: 1000"))
        writer = StreamWriter(connection, loop)
        task = asyncio.current_task()
        request = web.BaseRequest(message, content, connection, writer, task, loop)
        budget = Budget(1000, Counters())
        with budget.lease() as lease:
            await receive_body(request, Limits(), budget, lease)

    with pytest.raises(ConnectionResetError):
        asyncio.run(receive())


# gRPC


def call(server, method="/tensorflow.serving.PredictionService/Predict"):
    return server.channel.stream_unary(method)


def never_sends(until):
    until.wait(30)
    return
    yield


def test_messages_that_do_not_arrive_do_not_shut_others_out(server):
    done = threading.Event()
    # 32 MiB for messages of 1 MiB that arrive: 32 at a time.
    stalled = [call(server).future(never_sends(done)) for _ in range(40)]
    try:
        wait_for(lambda: server.metric('serve_in_flight{protocol="grpc"}') >= 40)
        started = time.monotonic()
        assert server.predict({"history": [["a"]]}).outputs["scores"].float_val[0] == 8.0
        assert time.monotonic() - started < 5
        codes = [one.code() for one in stalled]
        assert set(codes) == {grpc.StatusCode.DEADLINE_EXCEEDED}
    finally:
        done.set()
    wait_for(lambda: server.metric('serve_in_flight{protocol="grpc"}') == 0)
    assert server.metric("serve_memory_bytes") < 1 << 20  # this request's own


def test_answers_that_nobody_reads_stay_within_the_memory(server):
    import tensorflow as tf

    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = "books", "mirror"
    request.inputs["data"].CopyFrom(tf.make_tensor_proto([b"a" * 700_000]))
    request.inputs["flip"].CopyFrom(tf.make_tensor_proto([True]))
    answered = 'serve_requests_total{kind="predict",protocol="grpc",status="OK"}'
    before, ok = memory(server), server.metric(answered)
    # A client that asks for a stream, and does not look at it.
    options = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel:
        predict = channel.stream_stream("/tensorflow.serving.PredictionService/Predict")
        calls = [predict(iter([request.SerializeToString()])) for _ in range(120)]
        name = 'serve_requests_total{kind="predict",protocol="grpc",status="CANCELLED"}'
        wait_for(lambda: server.metric(name) >= 1)
        wait_for(lambda: server.metric("serve_memory_bytes") == 0)
        assert server.metric(answered) - ok < 10  # No more than the buffers of a connection hold.
        assert memory(server) - before < 128 << 20
        assert server.predict({"history": [["a"]]}).outputs["scores"].float_val[0] == 8.0
        for one in calls:
            one.cancel()


def test_packed_messages_are_refused(server):
    server.predict({"history": [["a"]]})  # The connection is not about to end.
    before = memory(server)
    predict = server.channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    with pytest.raises(grpc.RpcError) as failure:
        predict(bytes(24 << 20), timeout=60, compression=grpc.Compression.Gzip)
    assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert memory(server) - before < 12 << 20


@pytest.mark.parametrize("message", [b"\xff\xff", b"\x12\x05abc"])
def test_messages_that_are_none(server, message):
    predict = server.channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    with pytest.raises(grpc.RpcError, match="should be a PredictRequest") as failure:
        predict(message, timeout=10)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_long_name_does_not_burst_the_header(server):
    with pytest.raises(grpc.RpcError) as failure:
        server.predict({"history": [["a"]]}, "x" * 500_000)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "should be one of" in failure.value.details()


def test_a_message_that_would_take_much_memory_once_parsed(server):
    before = memory(server)
    predict = server.channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    with pytest.raises(grpc.RpcError):
        predict(b"\x12\x00" * (1 << 18), timeout=30)
    assert memory(server) - before < 96 << 20


def test_health_can_be_watched(server):
    stub = health_pb2_grpc.HealthStub(server.channel)
    watches = [
        stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=20) for name in ("", "x")
    ]
    expected = [
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
    ]
    assert [next(watch).status for watch in watches] == expected
    with pytest.raises(grpc.RpcError) as failure:
        stub.Check(health_pb2.HealthCheckRequest(service="x"), timeout=10)
    assert failure.value.code() is grpc.StatusCode.NOT_FOUND
    more = [stub.Watch(health_pb2.HealthCheckRequest(), timeout=20) for _ in range(63)]
    with pytest.raises(grpc.RpcError) as failure:
        for watch in more:
            next(watch)
    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    # Those who watch do not hold up anybody else.
    assert len(server.predict({"history": [["a"]]}, version=7).outputs) == 4
    for watch in [*watches, *more]:
        watch.cancel()


def test_a_call_that_is_cancelled_is_counted(server):
    name = 'serve_hang_ups_total{protocol="grpc"}'
    before = server.metric(name)
    with pytest.raises(grpc.RpcError) as failure:
        server.predictions.Predict(slow_request(), timeout=0.2)
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    wait_for(lambda: server.metric(name) == before + 1)


def slow_request():
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = "books", "slow"
    rounds = tf.make_tensor_proto(np.array([20_000], np.int32))
    request.inputs["rounds"].CopyFrom(rounds)
    return request
