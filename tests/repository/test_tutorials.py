"""The notebooks of docs/tutorials: their outputs are those of one run, and they run again."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from docs.tutorials import film_log
from tests.support import environments
from tests.support.processes import ROOT, python_output

FOLDER = ROOT / "docs" / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
LARGEST = 300 * 1024


def cells(path, kind):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def outputs(path):
    return [output for cell in cells(path, "code") for output in cell["outputs"]]


def text_of(cell):
    return "".join(cell["source"])


def test_the_index_lists_the_notebooks():
    page = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert len(NAMES) == 6
    assert re.findall(r"^\| \[.*?\]\((\w+)\.ipynb\)", page, flags=re.MULTILINE) == NAMES
    assert page.split("```{toctree}")[1].split("```")[0].split()[1:] == NAMES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_outputs_are_those_of_one_run(path):
    code = cells(path, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {output["output_type"] for output in outputs(path)}
    assert "stream" in kinds and "error" not in kinds
    assert not [output for output in outputs(path) if output.get("name") == "stderr"]
    assert [output for output in outputs(path) if "image/png" in output.get("data", {})]
    assert path.stat().st_size < LARGEST


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_outputs_tell_nothing_of_the_machine(path):
    shown = [
        "".join(output.get("text", output.get("data", {}).get("text/plain", "")))
        for output in outputs(path)
    ]
    places = re.compile(r"(?<![\w.:/])/(?:home|tmp|root|usr|var|work|Users|private|opt)\b|[A-Z]:\\")
    assert not [text for text in shown if places.search(text)]
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["metadata"].keys() == {"kernelspec", "language_info"}
    assert all(not cell["metadata"] for cell in notebook["cells"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_links_of_the_text_lead_somewhere(path):
    text = "\n".join(text_of(cell) for cell in cells(path, "markdown"))
    assert text.startswith(f"# {path.stem.split('_')[0]}. ")
    targets = re.findall(r"\]\((?![a-z]+:)([^)#]+)[^)]*\)", text)
    assert targets
    assert not [target for target in targets if not (FOLDER / target).exists()]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_the_first_cell_comes_before_tensorflow(path):
    first = text_of(cells(path, "code")[0])
    assert first.index("TF_USE_LEGACY_KERAS") < first.index("import tensorflow")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_notebooks_run(path):
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: `make tutorials` does it")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    from docs.tutorials.execute import execute

    notebook = execute(nbformat.read(path, as_version=4))
    nbformat.validate(notebook)
    # The run shows what the stored run shows, up to its numbers.
    fresh = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell, stored in zip(fresh, cells(path, "code")):
        kinds = [output["output_type"] for output in stored["outputs"]]
        assert [output.output_type for output in cell.outputs] == kinds, cell.source


@pytest.mark.slow
def test_warnings_stay_and_native_logs_go():
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    from docs.tutorials.execute import execute

    program = """
import os, sys
os.write(2, b"I0000 00:00:17.8 20468 kmeans.cc:58] Size of the sample: 60552\\n")
print("a warning", file=sys.stderr)
"""
    code = [nbformat.v4.new_code_cell(program), nbformat.v4.new_code_cell("1 + 1")]
    first, second = execute(nbformat.v4.new_notebook(cells=code)).cells
    assert "".join(output.text for output in first.outputs) == "a warning\n"
    assert second.outputs[0].data["text/plain"] == "2"


@pytest.mark.slow
def test_a_cell_that_fails_fails_the_run():
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    from nbclient.exceptions import CellExecutionError

    from docs.tutorials.execute import execute

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute(notebook)


def test_contexts_are_the_films_before():
    users = np.array(["b", "a", "a", "b", "a"])
    items = np.array([4, 0, 3, 1, 2])
    timestamps = np.array([10, 30, 10, 20, 20])
    contexts = film_log.contexts(users, items, timestamps)
    assert contexts.shape == (5, film_log.CONTEXT_LENGTH)
    nothing = [-1] * film_log.CONTEXT_LENGTH
    expected = [nothing, nothing + [3, 2], nothing, nothing + [4], nothing + [3]]
    for context, films in zip(contexts.tolist(), expected):
        assert context == films[-film_log.CONTEXT_LENGTH :]


def test_movielens_is_read_as_tensorflow_datasets_has_it(monkeypatch):
    tfds = pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is missing")
    films = {"movie_id": ["1", "2", "3"], "movie_title": ["Heat", "Babe", "Heat"]}
    ratings = {
        "movie_id": ["3", "2", "1"],
        "movie_title": ["Heat", "Babe", "Heat"],
        "user_id": ["7", "7", "8"],
        "timestamp": [200, 100, 300],
        "user_rating": [4.0, 5.0, 1.0],
    }

    def as_dataset(builder, *unused, **options):
        rows = films if builder.builder_config.name == "100k-movies" else ratings
        dataset = tf.data.Dataset.from_tensor_slices(rows).map(
            lambda row: {
                name: tf.cast(value, builder.info.features[name].tf_dtype)
                if value.dtype != tf.string
                else value
                for name, value in row.items()
            }
        )
        # The columns have the names and types of the real data set.
        for name, spec in dataset.element_spec.items():
            assert spec.dtype == builder.info.features[name].tf_dtype, name
        return dataset

    monkeypatch.setenv(film_log.VARIABLE, "movielens")
    with tfds.testing.mock_data(as_dataset_fn=as_dataset):
        log = film_log.load()
    assert log.titles.tolist() == ["Babe", "Heat"]
    rows = sorted(zip(log.users, log.titles[log.items], log.timestamps, log.ratings))
    assert rows == [("7", "Babe", 100, 5.0), ("7", "Heat", 200, 4.0), ("8", "Heat", 300, 1.0)]
    [second] = np.flatnonzero(log.timestamps == 200)
    assert log.contexts[second].tolist() == [-1] * 9 + [0]


def test_other_data_is_an_error(monkeypatch):
    monkeypatch.setenv(film_log.VARIABLE, "netflix")
    with pytest.raises(ValueError, match="'films' or 'movielens'. Received: 'netflix'"):
        film_log.load()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2_negatives", "3_choosing_n", "5_sequences"])
def test_the_code_runs_in_keras_3_with_the_names_of_the_guide(name, tmp_path):
    """As the guide says: another base of the model, and our task in place of TFRS'."""
    code = "\n".join(text_of(cell) for cell in cells(FOLDER / f"{name}.ipynb", "code"))
    guide = (ROOT / "docs" / "guide" / "keras3.md").read_text(encoding="utf-8")
    for theirs, ours in (
        ("tfrs.Model", "tfrs_croloss.models.RetrievalModel"),
        ("tfrs.tasks.Retrieval", "tfrs_croloss.tasks.Retrieval"),
    ):
        assert theirs in code or theirs == "tfrs.tasks.Retrieval"
        assert f"| `{theirs}` | `{ours}` |" in guide
        code = re.sub(rf"\b{re.escape(theirs)}\b", ours, code)
    code = code.replace("import tensorflow_recommenders as tfrs\n", "")
    code, count = re.subn(r"\bTF_USE_LEGACY_KERAS\"\] = \"1\"", 'TF_USE_LEGACY_KERAS"] = "0"', code)
    assert count == 1
    # One epoch instead of several, since the numbers are those of Keras 2.
    code, count = re.subn(r"epochs=\d", "epochs=1", code)
    assert count == 1
    code += """
assert tf.keras.__version__.startswith("3.")
values = tests if "tests" in globals() else reports
recalls = [report.recall[100] for report in values.values()]
# One epoch is too short for the smallest N.
assert len(recalls) >= 3 and sorted(recalls)[1] > 0.15, recalls
"""
    python_output(
        "-c",
        code,
        environment={"PYTHONPATH": f"{ROOT}:{FOLDER}", "MPLBACKEND": "agg"},
        folder=tmp_path,
        python=environments.without(environments.TFRS, tmp_path / "environment"),
    )
