"""Versions that come and go while the server answers."""

import asyncio
import contextlib
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tensorflow_serving.apis import get_model_status_pb2

from pipelines.serve.counters import Counters
from pipelines.serve.settings import ServerSettings
from pipelines.serve.versions import Model
from tests.support.server_process import Server, wait_for
from tests.support.serving_model import publish
from tfrs_croloss.serving.manifest import MANIFEST, write_manifest

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
        wait_for(lambda: self.answers or self.errors)
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
    # The newest goes last: without it, the server would turn to the one before, which is right.
    for version in sorted(folder.iterdir()):
        shutil.rmtree(version)
    polls = server.metric('serve_requests_total{kind="status",protocol="rest",status="200"}')
    for _ in range(20):
        assert answering(server) == before
        states(server)
    assert (
        server.metric('serve_requests_total{kind="status",protocol="rest",status="200"}')
        == polls + 20
    )


# Whole or not, without a server


@pytest.fixture
def watched(tmp_path):
    """An empty folder, its model, and a function that looks for versions and returns states."""
    folder = tmp_path / "books"
    folder.mkdir()
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as pool, contextlib.closing(loop):
        model = Model(ServerSettings(folder, "books", keep_versions=1), pool, Counters())

        def look():
            loop.run_until_complete(model.refresh())
            return {one.number: (one.state.name, one.code.name) for one in model.statuses("books")}

        yield folder, model, look
        loop.run_until_complete(model.close())


def copy_in_two_steps(saved, folder, name, keep):
    """Copies a version, one file of which is cut short; returns the function that completes it."""
    shutil.copytree(saved, folder)
    (file,) = [path for path in folder.rglob("*") if path.match(name)]
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content))])
    return lambda: file.write_bytes(content)


@pytest.mark.parametrize(
    "name", ["variables.data-*", "item_ids.txt", "saved_model.pb", "MANIFEST*"]
)
def test_a_version_that_is_half_copied_does_not_take_over(watched, saved, tmp_path, name):
    folder, model, look = watched
    whole = tmp_path / "whole"
    shutil.copytree(saved, whole)
    (whole / "assets" / "item_ids.txt").write_text("a\nb\nc\n")
    write_manifest(whole)
    shutil.copytree(whole, folder / "1")
    assert look() == {1: ("AVAILABLE", "OK")}
    complete = copy_in_two_steps(whole, folder / "2", name, 0.5)
    for _ in range(3):
        assert look() == {1: ("AVAILABLE", "OK"), 2: ("END", "DATA_LOSS")}
    assert name.rstrip("*") in model.statuses("books", 2)[0].message
    # It was tried once: its files have not changed since.
    assert model._counters.loads.labels("failed")._value.get() == 1
    complete()
    assert look()[2] == ("AVAILABLE", "OK")
    assert [one.number for one in model.available()] == [2]


def test_a_flipped_bit_is_noticed(watched, saved):
    folder, model, look = watched
    shutil.copytree(saved, folder / "1")
    write_manifest(folder / "1")
    (file,) = (folder / "1").rglob("variables.data-*")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert look() == {1: ("END", "DATA_LOSS")}
    assert f"{file} should have the SHA-256" in model.statuses("books", 1)[0].message


def test_a_version_without_a_manifest_is_loaded_when_its_files_are_stable(watched, saved):
    folder, model, look = watched
    complete = copy_in_two_steps(saved, folder / "1", "variables.data-*", 0.5)
    assert look() == {}
    complete()
    assert look() == {}  # It has changed since.
    assert look() == {1: ("AVAILABLE", "OK")}
    assert not (folder / "1" / MANIFEST).exists()


def test_a_server_that_starts_looks_twice(saved, tmp_path):
    folder = tmp_path / "books"
    folder.mkdir()
    shutil.copytree(saved, folder / "3")
    (folder / str(2**63)).mkdir()  # No version: it does not fit into an int64.
    with ThreadPoolExecutor(1) as pool:

        async def start():
            model = Model(ServerSettings(folder, "books", poll_seconds=0.01), pool, Counters())
            await model.start()
            available = [one.number for one in model.available()]
            await model.close()
            return available

        assert asyncio.run(start()) == [3]


@pytest.mark.parametrize("name", ["assets/item_ids.txt", "saved_model.pb"])
def test_a_version_that_changes_while_it_is_loaded_is_not_used(watched, saved, monkeypatch, name):
    """A file that is new, and one of another's size and times that takes its place."""
    folder, model, look = watched
    shutil.copytree(saved, folder / "1")
    write_manifest(folder / "1")
    from pipelines.serve import versions

    class Swapped(versions.SavedModel):
        """The file is swapped after the check, before the end of loading."""

        def __init__(self, path):
            super().__init__(path)
            if (path / name).exists():
                shutil.copy2(path / name, path.parent / "other")
                os.replace(path.parent / "other", path / name)
            else:
                (path / name).parent.mkdir(exist_ok=True)
                (path / name).write_text("other")

    with monkeypatch.context() as patch:
        patch.setattr(versions, "SavedModel", Swapped)
        assert look() == {1: ("END", "UNAVAILABLE")}
    assert "changed while it was loaded" in model.statuses("books", 1)[0].message
    # The next look tries it again.
    assert look() == {1: ("AVAILABLE", "OK")}


def test_files_that_change_all_the_time_are_tried_once_in_a_look(watched, saved, monkeypatch):
    folder, model, look = watched
    shutil.copytree(saved, folder / "1")
    (folder / "1" / MANIFEST).write_text("{")
    from pipelines.serve import versions

    changes = iter(range(10**6))
    monkeypatch.setattr(versions, "contents_of", lambda _: {MANIFEST: (next(changes), 0, 0)})
    started = time.monotonic()
    assert look() == {1: ("END", "DATA_LOSS")}
    assert time.monotonic() - started < 10
    assert model._counters.loads.labels("failed")._value.get() == 1
