"""Folders that are complete or absent."""

import errno
import os
import shutil
import subprocess
import sys

import pytest

from pipelines.common import files
from pipelines.errors import UserError
from tests.support.processes import ROOT, python_output


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_folder_appears_when_all_is_written(tmp_path):
    out = tmp_path / "a" / "b" / "out"
    with files.atomic_folder(out) as folder:
        (folder / "x").write_text("1")
        assert folder.parent == out.parent
        assert not out.exists()
    assert names(out) == ["x"]
    assert names(out.parent) == ["out"]


def test_new_folder_has_the_usual_permissions(tmp_path):
    with files.atomic_folder(tmp_path / "out"):
        pass
    (tmp_path / "usual").mkdir()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_error_leaves_nothing(tmp_path):
    with pytest.raises(KeyError):
        with files.atomic_folder(tmp_path / "out") as folder:
            (folder / "x").write_text("1")
            raise KeyError
    assert names(tmp_path) == []


@pytest.mark.parametrize("can_exchange", [True, False])
def test_overwrite_replaces_the_whole_folder_at_the_end(tmp_path, monkeypatch, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(files, "_exchange", lambda first, second: False)
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").write_text("1")
    with files.atomic_folder(out, overwrite=True) as folder:
        (folder / "new").write_text("2")
        assert names(out) == ["old"]
    assert names(out) == ["new"]
    assert names(tmp_path) == ["out"]


def test_existing_folder_needs_overwrite(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with files.atomic_folder(out) as folder:  # Empty: nothing to lose.
        (folder / "x").write_text("1")
    # Not every step has an option to overwrite.
    with pytest.raises(UserError, match="Run the same command again"):
        with files.atomic_folder(out):
            raise AssertionError("must not get here")
    with pytest.raises(UserError, match="a file has that name"):
        with files.atomic_folder(out / "x", overwrite=True):
            raise AssertionError("must not get here")


def test_leftovers_of_dead_runs_go_and_live_runs_stay(tmp_path):
    out = tmp_path / "out"
    script = (
        "import os, sys\n"
        "from pipelines.common.files import atomic_folder\n"
        "with atomic_folder(sys.argv[1]) as folder:\n"
        "    (folder / 'half').write_text('x')\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    os._exit(9)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(out)],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == "ready\n"
    unrelated = tmp_path / ".tmp-out-of-office"
    unrelated.mkdir()
    with files.atomic_folder(out):
        pass
    assert len(list(tmp_path.glob(f".tmp-out-{process.pid}-*"))) == 1
    process.communicate("\n")
    assert process.returncode == 9
    assert len(list(tmp_path.glob(f".tmp-out-{process.pid}-*"))) == 1
    with files.atomic_folder(out):
        pass
    assert names(tmp_path) == [".tmp-out-of-office", "out"]


def test_a_result_in_the_middle_of_a_rename_comes_back(tmp_path):
    old = tmp_path / ".old-out"
    old.mkdir()
    (old / "x").write_text("1")
    with pytest.raises(UserError, match="already exists"):
        with files.atomic_folder(tmp_path / "out"):
            raise AssertionError("must not get here")
    assert names(tmp_path / "out") == ["x"]


def test_json_round_trip_and_errors(tmp_path):
    path = tmp_path / "x.json"
    files.write_json(path, {"é": [1, None]})
    assert files.read_json(path) == {"é": [1, None]}
    with pytest.raises(ValueError):
        files.write_json(path, float("nan"))
    assert files.read_json(path) == {"é": [1, None]}
    assert names(tmp_path) == ["x.json"]
    path.write_text("{")
    with pytest.raises(UserError, match="should be a JSON file"):
        files.read_json(path)
    with pytest.raises(UserError, match="cannot read"):
        files.read_json(tmp_path / "y.json")


def test_sha256(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    # The example of the standard, FIPS 180-2.
    assert files.sha256(path) == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_versions_come_without_imports():
    script = (
        "import sys; from pipelines.common.files import installed_versions\n"
        "found = installed_versions()\n"
        "assert {'python', 'numpy', 'duckdb'} <= set(found), found\n"
        "assert not {'tensorflow', 'duckdb', 'numpy'} & set(sys.modules)"
    )
    python_output("-c", script)


def test_a_drive_without_locks(tmp_path, monkeypatch):
    """Nothing is known of other folders there, so that none is taken for a leftover."""
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with files.atomic_folder(tmp_path / "out") as one:
        with files.atomic_folder(tmp_path / "out") as other:
            (other / "file").write_text("other")
        (one / "file").write_text("one")
        shutil.rmtree(tmp_path / "out")
    assert (tmp_path / "out/file").read_text() == "one"


def test_a_file_is_replaced_when_the_new_one_is_complete(tmp_path):
    path = tmp_path / "x"
    files.replace_file(path, b"old")
    with pytest.raises(RuntimeError), files.atomic_file(path) as temporary:
        temporary.write_bytes(b"half of the n")
        assert path.read_bytes() == b"old"
        raise RuntimeError
    assert path.read_bytes() == b"old" and names(tmp_path) == ["x"]
    with files.atomic_file(path) as temporary:
        temporary.write_bytes(b"new")
    assert path.read_bytes() == b"new" and names(tmp_path) == ["x"]


def test_a_lock_is_held_by_one(tmp_path):
    with open(tmp_path / "x", "w") as one, open(tmp_path / "x", "w") as other:
        assert files.lock(one) is True
        assert files.lock(other) is False
        one.close()
        assert files.lock(other, wait=True) is True


def test_the_hash_of_a_value_does_not_depend_on_the_order_of_its_keys():
    assert files.json_sha256({"a": 1, "b": 2}) == files.json_sha256({"b": 2, "a": 1})
    assert files.json_sha256({"a": 1}) != files.json_sha256({"a": 2})


def test_a_link_under_a_temporary_name_is_not_followed(tmp_path, monkeypatch):
    """Somebody who can write to the folder waits for us with a link to a file of ours."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    out = tmp_path / "out"
    out.mkdir()
    for name in (f".tmp-x.json-{os.getpid()}", ".lock"):
        (out / name).symlink_to(victim)
    files.write_json(out / "x.json", {})
    with pytest.raises(OSError), files.locked_file(out / ".lock"):
        raise AssertionError("must not get here")
    assert victim.read_text() == "precious"
    seen = set()
    for _ in range(3):
        with files.atomic_file(out / "y") as temporary:
            seen.add(temporary.name)
    assert len(seen) == 3


def test_a_new_file_has_the_usual_permissions(tmp_path):
    files.replace_file(tmp_path / "out", b"x")
    (tmp_path / "usual").touch()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_full_disk_names_what_was_to_be_written(tmp_path):
    for write in (files.atomic_file, files.atomic_folder):
        with pytest.raises(OSError) as caught, write(tmp_path / "out"):
            raise OSError(errno.ENOSPC, "No space left on device")
        assert caught.value.filename == str(tmp_path / "out")


def test_a_missing_key_names_the_file(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"a": [{"b": 1}]}')
    value = files.read_json(path, dict)
    assert value["a"][0]["b"] == 1
    with pytest.raises(UserError, match=r"x.json has no `c`"):
        value["a"][0]["c"]
    with pytest.raises(UserError, match=r"x.json should hold a list. Received: Record"):
        files.read_json(path, list)
