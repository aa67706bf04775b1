"""The README: short, in its order, and every block and command of it works."""

from __future__ import annotations

import ast
import inspect
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

import tfrs_croloss
from tests.support import markdown
from tests.support.processes import ROOT, python_output

PATH = ROOT / "README.md"
README = PATH.read_text(encoding="utf-8")
BLOCKS = markdown.blocks(PATH, "python")
# It needs a model and data of the reader.
[EXPORT] = [block for block in BLOCKS if "serving.export" in block]


def test_it_fits_two_screens():
    assert len(README.split()) < 700


def test_it_has_its_order():
    headings = re.findall(r"^## (.+)$", README, flags=re.MULTILINE)
    assert headings == [
        "Install",
        "Losses on scores",
        "One line in a TFRS model",
        "Which alpha?",
        "Export to TensorFlow Serving",
        "Results",
        "From a raw log to a served model",
        "Documentation",
        "Citation",
    ]
    assert README.index("![") < README.index("## Install")


@pytest.mark.parametrize("keras", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_the_losses_need_no_tfrs_and_work_with_both_keras(run_python, keras):
    first = BLOCKS[0]
    assert "recommenders" not in first and len(first.strip().splitlines()) <= 6
    program = f"{first}\nimport sys\nassert 'tensorflow_recommenders' not in sys.modules\n"
    assert float(run_python(program, {"TF_USE_LEGACY_KERAS": keras}).strip()) > 0.0


def test_every_other_block_runs_by_itself(run_python):
    assert len(BLOCKS) >= 3
    for block in BLOCKS[1:]:
        if block == EXPORT:
            continue
        output = run_python(f"{block}\nprint('ran')\n", {"TF_USE_LEGACY_KERAS": None})
        assert output.strip().endswith("ran")


def test_the_export_has_arguments_that_exist():
    [call] = [node for node in ast.walk(ast.parse(EXPORT)) if _is_export(node)]
    names = [keyword.arg for keyword in call.keywords]
    inspect.signature(tfrs_croloss.serving.export).bind("path", **dict.fromkeys(names))


def _is_export(node):
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "export"


@pytest.mark.slow
def test_the_export_runs_with_a_model_as_in_the_tutorial(tmp_path):
    program = f"""
import tensorflow as tf
import tensorflow_recommenders as tfrs
import tfrs_croloss

users, titles = [str(n) for n in range(300)], [f"Film {{n}}" for n in range(200)]

class Movielens(tfrs.Model):
    def __init__(self):
        super().__init__()
        self.user_model, self.movie_model = (
            tf.keras.Sequential([
                tf.keras.layers.StringLookup(vocabulary=words, mask_token=None),
                tf.keras.layers.Embedding(len(words) + 1, 8),
            ])
            for words in (users, titles)
        )

model = Movielens()
test = tf.data.Dataset.from_tensor_slices({{"user_id": users}})
movies = tf.data.Dataset.from_tensor_slices(titles)
{EXPORT}
loaded = tf.saved_model.load("saved_models/movies/1")
scores, ids = loaded(["42"])
best = tf.nn.top_k(tf.matmul(
    model.user_model(tf.constant(["42"])), model.movie_model(tf.constant(titles)), transpose_b=True
), 100)
print(set(ids[0].numpy()) == {{titles[place].encode() for place in best.indices[0].numpy()}})
"""
    printed = python_output(
        "-c", program, environment={"TF_USE_LEGACY_KERAS": "1"}, folder=tmp_path
    )
    assert printed.splitlines()[-1] == "True"


class _Tutorial(tfrs.Model):
    """A model as in TFRS' first tutorial: ids, dot products, Adagrad with a rate of 0.1."""

    def __init__(self, task, num_users, num_items):
        super().__init__()
        self.users = tf.keras.layers.Embedding(num_users, 32)
        self.items = tf.keras.layers.Embedding(num_items, 32)
        self.task = task

    def compute_loss(self, features, training=False):
        users, items = self.users(features["user"]), self.items(features["item"])
        return self.task(users, items, compute_metrics=False)


def _recall(task, train, test, num_users, num_items):
    tf.keras.utils.set_random_seed(1)
    model = _Tutorial(task, num_users, num_items)
    model.compile(optimizer=tf.keras.optimizers.Adagrad(0.1))
    model.fit(tf.data.Dataset.from_tensor_slices(train).batch(1024), epochs=2, verbose=0)
    items = model.items(tf.range(num_items))
    scores = tf.matmul(model.users(test["user"]), items, transpose_b=True)
    return float(tf.reduce_mean(tf.cast(tf.math.in_top_k(test["item"], scores, 20), tf.float32)))


def test_the_line_trains_a_tfrs_model_as_well_as_softmax_does():
    """With the optimizer of TFRS' tutorials, which hardly moves if a loss is too small for it."""
    num_users, num_items, num_groups, num_train = 400, 200, 10, 10_240
    random = np.random.default_rng(0)
    users = random.integers(num_users, size=12_000)
    # Each user likes one item in ten, 20 in all; so chance is 0.1, and the best is 1.
    items = random.integers(num_items // num_groups, size=12_000) * num_groups + users % num_groups
    log = {"user": users.astype(np.int32), "item": items.astype(np.int32)}
    train = {name: values[:num_train] for name, values in log.items()}
    test = {name: values[num_train:] for name, values in log.items()}

    namespace: dict[str, object] = {}
    exec(next(block for block in BLOCKS if "tfrs.tasks" in block), namespace)
    assert isinstance(namespace["task"], tfrs_croloss.tasks.Retrieval)
    for task in (tfrs.tasks.Retrieval, tfrs_croloss.tasks.Retrieval):
        assert _recall(task(loss=namespace["loss"]), train, test, num_users, num_items) > 0.95


def test_the_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, flags=re.MULTILINE))
    named = set(re.findall(r"(?:`|    )make ([a-z][a-z-]+)", README))
    assert {"demo", "test", "docs"} <= named <= targets


def test_the_pipelines_take_six_commands():
    steps = [command[0] for command in markdown.commands(PATH)]
    assert steps == ["prepare", "train", "evaluate", "export", "query", "serve"]
