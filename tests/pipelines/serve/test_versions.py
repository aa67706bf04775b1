"""Versions that come and go while the server answers."""

import shutil
import threading

import pytest
from tensorflow_serving.apis import get_model_status_pb2

from tests.support.server_process import Server, wait_for
from tests.support.serving_model import publish

WARM_UP = [["a", "b"]]


@pytest.fixture(scope="module")
def served(saved, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "books"
    folder.mkdir()
    publish(saved, folder, 1, WARM_UP)
    server = Server(folder, "--poll-seconds", 0.1, "--keep-versions", 2)
    yield server, folder
    assert server.stop() == 0
    assert not [line for line in server.log if "Traceback" in line]


def answering(server, path=":predict"):
    """The version that answers: a history of one item has the score 1 plus the version."""
    status, answer = server.post({"instances": [["a"]]}, path)
    return answer["predictions"][0]["scores"][0] - 1.0 if status == 200 else status


def states(server):
    answer = server.get("/v1/models/books")[1]
    return {
        int(one["version"]): (one["state"], one["status"]["error_code"])
        for one in answer["model_version_status"]
    }


class Traffic:
    """Clients that send requests without a pause, over both protocols, and keep every answer."""

    def __init__(self, server):
        self.answers, self.errors = set(), []
        self._server, self._stop = server, threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(ask,))
            for ask in [self._rest] * 4 + [self._grpc] * 2
        ]

    def _rest(self):
        return answering(self._server)

    def _grpc(self):
        return self._server.predict({"history": [["a"]]}).outputs["scores"].float_val[0] - 1.0

    def _run(self, ask):
        while not self._stop.is_set():
            try:
                self.answers.add(ask())
            except Exception as error:
                self.errors.append(repr(error))

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception):
        self._stop.set()
        for thread in self._threads:
            thread.join(30)


def test_the_life_of_versions(served, saved):
    server, folder = served
    assert answering(server) == 1
    with Traffic(server) as traffic:
        publish(saved, folder, 2, WARM_UP)
        wait_for(lambda: answering(server) == 2)
        # Two versions are kept.
        assert answering(server, "/versions/1:predict") == 1
        publish(saved, folder, 3, WARM_UP)
        wait_for(lambda: answering(server) == 3)
        wait_for(lambda: states(server)[1] == ("END", "OK"))
    assert traffic.errors == [] and traffic.answers == {1.0, 2.0, 3.0}
    assert answering(server, "/versions/2:predict") == 2
    assert answering(server, "/versions/1:predict") == 404
    assert server.metric('serve_model_version{model="books"}') == 3

    with Traffic(server) as traffic:
        (folder / "4").mkdir()
        (folder / "4" / "saved_model.pb").write_bytes(b"nonsense")
        shutil.copytree(saved, folder / ".tmp-5")
        shutil.rmtree(folder / ".tmp-5" / "variables")
        (folder / ".tmp-5").rename(folder / "5")
        # A model that rejects its own warm-up request: it takes histories of rank 2.
        publish(saved, folder, 6, warm_up=["a"])
        wait_for(
            lambda: (
                {4, 5, 6} <= set(states(server))
                and all(states(server)[number][0] == "END" for number in (4, 5, 6))
            )
        )
    assert traffic.errors == [] and traffic.answers == {3.0}
    assert states(server)[4] == ("END", "INVALID_ARGUMENT")
    assert states(server)[5][1] != "OK"
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "books"
    request.model_spec.version.value = 6
    (status,) = server.models.GetModelStatus(request, timeout=30).model_version_status
    assert "warm-up request: input 'history' should have shape" in status.status.error_message
    assert any(
        "version 4 failed to load" in line and "(serving: 3, 2)" in line for line in server.log
    )
    assert server.metric('serve_version_loads_total{result="failed"}') == 3

    # A broken version that is repaired is loaded.
    shutil.rmtree(folder / "6")
    publish(saved, folder, 6, WARM_UP)
    wait_for(lambda: states(server)[6] == ("AVAILABLE", "OK"))
    assert server.get("/healthz")[1]["version"] == "6"

    # A version that is removed is replaced by the one before it.
    with Traffic(server) as traffic:
        shutil.rmtree(folder / "6")
        wait_for(lambda: states(server)[6] == ("END", "OK"))
        wait_for(lambda: states(server)[2] == ("AVAILABLE", "OK"))
        wait_for(lambda: answering(server) == 3)
    assert traffic.errors == [] and traffic.answers == {3.0, 6.0}


def test_a_folder_that_is_emptied_goes_on_answering(served):
    server, folder = served
    before = answering(server)
    for version in folder.iterdir():
        shutil.rmtree(version)
    polls = server.metric('serve_requests_total{kind="status",protocol="rest",status="200"}')
    for _ in range(20):
        assert answering(server) == before
        states(server)
    assert (
        server.metric('serve_requests_total{kind="status",protocol="rest",status="200"}')
        == polls + 20
    )
