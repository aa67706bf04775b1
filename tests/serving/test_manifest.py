"""The manifest of a model's files: what is whole passes, everything else is named."""

from __future__ import annotations

import hashlib
import json
import os

import pytest

from tests.support.processes import python_output
from tfrs_croloss.serving.manifest import MANIFEST, ManifestError, check_manifest, write_manifest


@pytest.fixture
def version(tmp_path):
    (tmp_path / "variables").mkdir()
    (tmp_path / "saved_model.pb").write_bytes(b"graph")
    (tmp_path / "variables" / "variables.data").write_bytes(b"0123456789")
    write_manifest(tmp_path)
    return tmp_path


def test_it_has_the_size_and_the_checksum_of_every_file(version):
    written = json.loads((version / MANIFEST).read_text())
    assert written == {
        "format": 1,
        "files": {
            "saved_model.pb": {"bytes": 5, "sha256": hashlib.sha256(b"graph").hexdigest()},
            "variables/variables.data": {
                "bytes": 10,
                "sha256": hashlib.sha256(b"0123456789").hexdigest(),
            },
        },
    }
    assert check_manifest(version) == list(written["files"])
    # Others may read it, if they may read files of this user at all.
    expected = os.stat(version / "saved_model.pb").st_mode
    assert os.stat(version / MANIFEST).st_mode == expected
    assert sorted(os.listdir(version)) == [MANIFEST, "saved_model.pb", "variables"]


def test_it_can_be_written_again(version):
    (version / "model_card.md").write_text("new")
    write_manifest(version)
    assert "model_card.md" in check_manifest(version)


def test_other_files_do_not_matter(version):
    (version / "notes.txt").write_text("mine")
    check_manifest(version)


@pytest.mark.parametrize(
    "content, expected",
    [
        (None, "cannot be read"),
        (b"01234", "should have 10 bytes"),
        (b"01234567890", "should have 10 bytes"),
        (b"012345678X", "SHA-256"),
    ],
)
def test_a_file_that_differs_is_named(version, content, expected):
    file = version / "variables" / "variables.data"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ManifestError, match=expected) as failure:
        check_manifest(version)
    assert str(file) in str(failure.value)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "should have the format 1"),
        ('{"format": 2, "files": {}}', "Received: 2"),
        ('{"format": 1, "files": {}}', "Received: none"),
        ('{"format": 1, "files": {"a": 3}}', "neither for 'a'"),
        ('{"format": 1, "files": {"a": {"bytes": true, "sha256": ""}}}', "neither for 'a'"),
        ('{"format": 1, "files": {"../a": {"bytes": 0, "sha256": ""}}}', "in its folder"),
        ('{"format": 1, "files": {"/etc/passwd": {"bytes": 0, "sha256": ""}}}', "in its folder"),
        ('{"format": 1, "files": {"a//b": {"bytes": 0, "sha256": ""}}}', "in its folder"),
    ],
)
def test_a_manifest_that_is_broken_is_an_error(version, text, expected):
    (version / MANIFEST).write_text(text)
    with pytest.raises(ManifestError, match=expected) as failure:
        check_manifest(version)
    assert MANIFEST in str(failure.value)


def test_no_manifest_is_another_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        check_manifest(tmp_path)


def test_it_needs_the_standard_library_only():
    program = (
        "import runpy, sys; runpy.run_path('tfrs_croloss/serving/manifest.py'); "
        "print([name for name in ('tensorflow', 'numpy') if name in sys.modules])"
    )
    assert python_output("-c", program).strip() == "[]"
