"""The worked examples of the architecture page run, and do what the page says."""

from __future__ import annotations

import ast
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.support.processes import ROOT, python_output
from tfrs_croloss.losses import kernels
from tfrs_croloss.losses._chunk_sums import has_fast_form

# Each folder imports from those before it.
FOLDERS = {
    "tfrs_croloss": [
        ["losses"],
        ["tasks", "metrics", "memory", "optimizers", "indexes"],
        ["models", "serving"],
    ],
    "pipelines": [
        ["common"],
        ["data"],
        ["runs"],
        ["synthesize", "prepare"],
        ["train"],
        ["evaluate"],
        ["experiments", "export"],
        ["serve"],
        ["query"],
    ],
}

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def page():
    """The names that the page's blocks define, run in order in one namespace."""
    assert len(BLOCKS) >= 4
    names = {"__name__": "architecture_page"}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"docs/architecture.md, block {number}", "exec"), names)
    yield names
    del kernels.NAMED["smooth_hinge"]


@pytest.mark.parametrize("package", FOLDERS)
def test_imports_run_downwards(package):
    places = {name: place for place, names in enumerate(FOLDERS[package]) for name in names}
    files = list((ROOT / package).glob("*/**/*.py"))
    assert {file.relative_to(ROOT / package).parts[0] for file in files} <= set(places)
    checked = 0
    for file in (*files, ROOT / package / "memory.py"):
        if not file.exists():
            continue
        folder = file.relative_to(ROOT / package).with_suffix("").parts[0]
        for imported in _imported(file, package):
            if imported in places and imported != folder:
                checked += 1
                assert places[imported] < places[folder], f"{file} imports {imported}"
    assert checked > 20


def _imported(file, package):
    """The folders of the package that a file imports from."""
    parents = file.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = list(parents[: len(parents) - node.level + 1]) if node.level else []
            path = base + (node.module.split(".") if node.module else [])
            for alias in node.names:
                full = [*path, alias.name]
                if full[0] == package:
                    yield full[1]


def test_the_kernel_is_fast_and_gives_the_numbers_of_the_readable_form(page):
    loss = page["loss"]
    assert has_fast_form(loss.objective)
    readable = type(loss).from_config(loss.get_config())
    readable.kernel = kernels.FunctionKernel(page["SmoothHinge"](margin=2.0))
    assert not has_fast_form(readable.objective)
    arguments = page["queries"], page["items"]
    results = []
    for one in (loss, readable):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            value = page["Retrieval"](one, temperature=0.1)(*arguments)
        results.append((value, *tape.gradient(value, arguments)))
    for fast, slow in zip(*results):
        np.testing.assert_allclose(fast, slow, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(results[0][0], page["value"], rtol=1e-6)


def test_the_loss_has_the_gradient_of_its_value(page):
    loss = page["SquaredError"](0.3)
    scores = np.array([[0.5, 2.0, -1.0, np.nan], [1.5, 0.2, 0.3, 0.4]])
    labels, mask = [[1, 0, 0, 0], [0, 1, 1, 0]], [[True, True, True, False], [True] * 4]
    values = loss.per_query(scores, labels, mask=mask)
    expected = [0.5**2 + 0.3 * (2.0**2 + 1.0), 0.8**2 + 0.7**2 + 0.3 * (1.5**2 + 0.4**2)]
    np.testing.assert_allclose(values, expected)
    variable = tf.constant(scores)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        values = loss.per_query(variable, labels, mask=mask)
    expected = [[-1.0, 0.6 * 2.0, -0.6, 0.0], [0.6 * 1.5, -1.6, -1.4, 0.6 * 0.4]]
    np.testing.assert_allclose(tape.gradient(values, variable), expected)


def test_the_training_step_lowers_the_loss(page):
    assert float(page["after"]) < float(page["before"])
    config = page["SquaredError"](0.3, 99).get_config()
    assert page["SquaredError"].from_config(config).get_config() == config
    assert config["negative_weight"] == 0.3


@pytest.mark.slow
def test_the_registry_entry_is_all_that_the_pipelines_need(tiny_data, tmp_path):
    """In a process of its own, since the settings get their fields when they are imported."""
    (entry,) = re.findall(r"^```py\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    (example,) = [block for block in BLOCKS if "class SquaredError" in block]
    (words,) = re.findall(r"`train` takes `(.*?)`", PAGE)
    command = ["train", "--data", str(tiny_data), "--out", str(tmp_path / "run"), *words.split()]
    command += "--dim 8 --batch-size 32 --negatives-per-example 2 --max-steps 2".split()
    program = f"""
import tensorflow as tf
import tfrs_croloss.losses
{example}
tfrs_croloss.losses.SquaredError = SquaredError

from pipelines.runs.losses import baselines
exec({entry!r}, vars(baselines))

from pipelines.__main__ import build_parser, main
from pipelines.experiments import compare, tune
from pipelines.runs.build import build_loss
from pipelines.runs.folder import Run

assert main({command!r}) == 0
settings = Run.load({str(tmp_path / "run")!r}).settings
print(settings.loss, build_loss(settings, 9).negative_weight, settings.loss_title, sep=", ")
words = ["--data", "d", "--retrieval-size", "5", "--losses", "squared_error"]
args = build_parser("compare").parse_args(["compare", *words])
contestants = compare.chosen_contestants(args.losses)
print(contestants["squared_error"].space["negative_weight"].high)
print(tune.chosen_losses(build_parser("tune").parse_args(["tune", *words]).losses))
"""
    assert python_output("-c", program).splitlines()[-3:] == [
        "squared_error, 0.2, squared error (negatives of weight 0.2)",
        "1.0",
        "('squared_error',)",
    ]
