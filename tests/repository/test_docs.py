"""The documentation: links lead somewhere, examples run, commands and names exist."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

import tfrs_croloss
from pipelines.__main__ import build_parser
from tests.support import markdown
from tests.support.processes import ROOT, python_output

PAGES = markdown.pages()
NAMES = [markdown.name_of(page) for page in PAGES]
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
SERVING = ROOT / "docs" / "guide" / "serving.md"
KERAS_3 = ROOT / "docs" / "guide" / "keras3.md"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    for target in markdown.links(page):
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), target
        if anchor:
            # A page of the site that stands for a file elsewhere has the headings of that file.
            assert anchor in markdown.anchors(path), target


def test_there_are_links_to_check():
    assert sum(len(markdown.links(page)) for page in PAGES) > 60


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_parse(page):
    for command in markdown.commands(page):
        assert build_parser(command[0]).parse_args(command).step == command[0]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_options_in_the_text_exist(page):
    for step, *words in markdown.mentions(page):
        subparsers = build_parser(step)._subparsers
        assert subparsers is not None
        choices = subparsers._group_actions[0].choices
        options = choices[step]._option_string_actions  # type: ignore[index]
        for word in words:
            assert not word.startswith("--") or word in options, f"{step} {word}"


def test_there_are_commands_to_check():
    assert sum(len(markdown.commands(page)) for page in PAGES) > 40
    assert sum(len(markdown.mentions(page)) for page in PAGES) > 20


def test_every_source_has_its_command():
    from pipelines.prepare.sources import SOURCES

    commands = markdown.commands(ROOT / "docs" / "pipelines.md")
    shown = {
        command[command.index("--source") + 1] for command in commands if "--source" in command
    }
    assert shown == set(SOURCES)


def test_the_configuration_file_is_one_that_train_reads(tmp_path):
    from pipelines.runs.command_line import settings_of

    [example] = markdown.blocks(ROOT / "docs" / "pipelines.md", "yaml")
    file = tmp_path / "run.yaml"
    file.write_text(example, encoding="utf-8")
    command = ["train", "--data", "x", "--out", "y", "--config", str(file), "--dim", "48"]
    settings = settings_of(build_parser("train").parse_args(command))
    assert (settings.loss, settings.retrieval_size, settings.dim) == ("lambda", 100, 48)


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, flags=re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"(?:`|^    )make(?: [A-Z]+=\S+)*((?: [a-z][a-z-]+)+)", text, flags=re.M)
        for words in named:
            assert set(words.split()) <= targets, f"{page.name}: make{words}"


@pytest.mark.slow
def test_the_examples_of_the_guide_run(tmp_path):
    """One process for all pages; each page has names of its own."""
    programs = {
        page.name: "\n".join(
            block for block in markdown.blocks(page, "python") if not _is_client(block)
        )
        for page in GUIDE
        if page != KERAS_3
    }
    assert sum(map(bool, programs.values())) >= 5
    program = f"""
for name, page in {programs!r}.items():
    exec(compile(page, name, "exec"), {{"__name__": name}})
print("ran")
"""
    environment = {"TF_USE_LEGACY_KERAS": "1"}
    output = python_output("-c", program, environment=environment, folder=tmp_path)
    assert output.strip().endswith("ran")
    _check_client(tmp_path / "saved_models" / "demo")


@pytest.mark.slow
def test_the_examples_of_the_keras_3_page_run(tmp_path):
    """Without keras-rs, those before it are run."""
    blocks = markdown.blocks(KERAS_3, "python")
    [first] = [number for number, block in enumerate(blocks) if "import keras_rs" in block]
    has_keras_rs = importlib.util.find_spec("keras_rs") is not None
    program = "\n".join(blocks if has_keras_rs else blocks[:first])
    program += "\nimport sys\nprint('tensorflow_recommenders' in sys.modules)"
    environment = {"TF_USE_LEGACY_KERAS": None}
    output = python_output("-c", program, environment=environment, folder=tmp_path)
    assert first >= 2 and output.split()[-1] == "False"
    if not has_keras_rs:
        pytest.skip("the examples beside keras-rs were not run: keras-rs is not installed")


def _is_client(block: str) -> bool:
    return "grpc.insecure_channel" in block


def _check_client(model):
    """The gRPC client of the page, against the model that the page's first example has saved."""
    [client] = [block for block in markdown.blocks(SERVING, "python") if _is_client(block)]
    assert "127.0.0.1:8500" in client
    rest, grpc = _free_ports(2)
    command = ["-m", "pipelines", "serve", "--model", model, "--port", rest, "--grpc-port", grpc]
    server = subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(f"http://127.0.0.1:{rest}/healthz", server)
        output = python_output("-c", client.replace(":8500", f":{grpc}"))
    finally:
        server.terminate()
        server.wait(timeout=60)
    assert "num_results [3]" in output


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert server.poll() is None, "the server has ended"
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise AssertionError(f"{url} does not answer")


def test_files_that_the_architecture_names_exist():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    text += (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:tfrs_croloss|pipelines|tests)/[\w/.]*)`", text))
    assert len(named) > 30
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_new_names_of_the_changelog_exist():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `tfrs_croloss\.(\w+).*?` .*\| (.+) \|$", text, flags=re.MULTILINE)
    assert len(rows) > 15
    for old, new in rows:
        still_there = old in tfrs_croloss.__all__
        assert still_there or not hasattr(tfrs_croloss, old), old
        for name in re.findall(r"`tfrs_croloss\.([\w.]+)`", new):
            if name.startswith("_"):
                importlib.import_module(f"tfrs_croloss.{name}")
                continue
            found = tfrs_croloss
            for part in name.split("."):
                found = getattr(found, part)


def test_the_reference_has_every_package():
    packages = {
        name for name in tfrs_croloss.__all__ if hasattr(getattr(tfrs_croloss, name), "__path__")
    } | {"memory"}
    shown = {path.stem for path in (ROOT / "docs" / "api").glob("*.md")} - {"index"}
    assert shown == packages


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path):
    pytest.importorskip("sphinx", reason="Sphinx is not installed: `make docs` installs it")
    pytest.importorskip("furo", reason="furo is not installed: `make docs` installs it")
    site = tmp_path / "site"
    options = [
        "--nitpicky",
        "--fail-on-warning",
        "--keep-going",
        "--quiet",
        "-d",
        tmp_path / "trees",
    ]
    python_output("-m", "sphinx", *options, "docs", site)
    html = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert len(html) > 25
    for path, text in html.items():
        # Nothing is fetched when a page is looked at.
        fetched = re.findall(r'<(?:script|img|iframe|source)[^>]* src="(https?:[^"]+)"', text)
        fetched += re.findall(r'<link[^>]* rel="[^"]*(?:stylesheet|icon|preload)[^"]*"[^>]*>', text)
        assert not [one for one in fetched if "http" in one], path.name
    losses = html[site / "guide" / "losses.html"]
    assert "<math" in losses and "W_\\alpha" not in losses
    # Constructors are shown with their arguments.
    reference = re.sub(r"<[^>]+>", "", html[site / "api" / "losses.html"])
    assert "tfrs_croloss.losses.CROLoss(alpha=1.0, kernel=" in reference
    # Every public name has its entry; a kernel has it in its own module.
    for package in ("losses", "tasks", "metrics", "models", "indexes", "serving"):
        page = html[site / "api" / f"{package}.html"]
        module = importlib.import_module(f"tfrs_croloss.{package}")
        for name in module.__all__:
            entries = {f"tfrs_croloss.{package}.{name}", f"tfrs_croloss.losses.kernels.{name}"}
            if not inspect.ismodule(getattr(module, name)):
                assert any(f'id="{entry}"' in page for entry in entries), name
