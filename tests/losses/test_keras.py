"""The losses as Keras objects: reductions, weights, saving, graphs, XLA, mixed precision, fit."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import tensorflow as tf

import tfrs_croloss
from tests.support import oracle
from tests.support.repeats import first_of_each
from tfrs_croloss import CROLoss, LambdaCROLoss

SCORES = tf.constant(np.random.default_rng(0).normal(scale=3.0, size=[4, 7]), tf.float32)
LABELS = tf.eye(4, 7)
LOSSES = [CROLoss(0.5, kernel, 100) for kernel in oracle.DIFFERENTIABLE] + [
    LambdaCROLoss(1.4, rank_kernel, kernel, 100)
    for rank_kernel, kernel in itertools.product(("sigmoid", "unit_step"), oracle.DIFFERENTIABLE)
]


@tf.keras.utils.register_keras_serializable(package="tests")
def shifted_relu(gaps):
    return tf.nn.relu(gaps + 1.0)


@tf.keras.utils.register_keras_serializable(package="tests")
class Scaled(tfrs_croloss.ComparisonKernel):
    def __init__(self, slope=1.0):
        self.slope = slope

    def __call__(self, gaps):
        return tf.sigmoid(self.slope * gaps)

    def get_config(self):
        return {"slope": self.slope}


@tf.keras.utils.register_keras_serializable(package="tests")
class Flat(tfrs_croloss.RankWeighting):
    def __init__(self, height=1.0):
        self.height = height

    def density(self, rank, num_items):
        return self.height * tf.ones_like(rank)

    def integral(self, rank, num_items):
        return self.height * (rank - 1.0)

    def get_config(self):
        return {"height": self.height}


def value_and_gradient(loss, scores=SCORES, labels=LABELS):
    with tf.GradientTape() as tape:
        tape.watch(scores)
        value = loss(labels, scores)
    return value, tape.gradient(value, scores)


def test_defaults_are_those_of_the_readme():
    loss = CROLoss()
    assert (loss.alpha, loss.num_items) == (1.0, None)
    assert loss.kernel == tfrs_croloss.losses.kernels.Softplus()
    loss = LambdaCROLoss()
    assert loss.rank_kernel == tfrs_croloss.losses.kernels.Sigmoid()
    assert loss.kernel == tfrs_croloss.losses.kernels.Softplus()


@pytest.mark.parametrize(
    "loss",
    [
        CROLoss(),
        CROLoss.triplet(),
        LambdaCROLoss(retrieval_size=100),
        tfrs_croloss.BinaryCrossEntropy(),
        tfrs_croloss.PairwiseSoftmaxLoss(),
        tfrs_croloss.BilateralSoftmax(),
        tfrs_croloss.SoftmaxAtK(2),
        tfrs_croloss.Talos(2),
        tfrs_croloss.LowerLeftPartialAUC(),
    ],
    ids=lambda loss: loss.name,
)
def test_every_loss_is_summed_over_the_batch(loss):
    """The learning rates of TFRS' tutorials are for a sum."""
    assert loss.reduction == "sum"
    np.testing.assert_allclose(loss(LABELS, SCORES), np.sum(loss.call(LABELS, SCORES)), rtol=1e-6)


def test_a_compiled_model_descends_the_sum():
    """One step of SGD with a rate of 1 moves the scores by the gradients of the rows."""
    table = tf.keras.layers.Embedding(4, 3, embeddings_initializer="zeros")
    model = tf.keras.Sequential([table])
    model.compile(optimizer=tf.keras.optimizers.SGD(1.0), loss=CROLoss.softmax_cross_entropy())
    labels = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]]
    model.train_on_batch(np.arange(4), labels)
    np.testing.assert_allclose(table.get_weights()[0], labels - 1.0 / 3.0, rtol=1e-6)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_reductions_and_sample_weights(loss):
    rows = loss.call(LABELS, SCORES).numpy()
    weights = np.array([0.0, 1.0, 2.0, 0.5])
    rebuilt = {
        reduction: type(loss).from_config({**loss.get_config(), "reduction": reduction})
        for reduction in ("none", "sum", "sum_over_batch_size")
    }
    np.testing.assert_allclose(rebuilt["none"](LABELS, SCORES), rows, rtol=1e-6)
    np.testing.assert_allclose(
        rebuilt["none"](LABELS, SCORES, sample_weight=weights), rows * weights, rtol=1e-6
    )
    np.testing.assert_allclose(
        rebuilt["sum"](LABELS, SCORES, sample_weight=weights), np.sum(rows * weights), rtol=1e-6
    )
    np.testing.assert_allclose(
        rebuilt["sum_over_batch_size"](LABELS, SCORES), np.mean(rows), rtol=1e-6
    )
    for reduction, other in rebuilt.items():
        np.testing.assert_allclose(
            other.reduce(rows, weights),
            other(LABELS, SCORES, sample_weight=weights),
            rtol=1e-6,
            err_msg=reduction,
        )


@pytest.mark.parametrize(
    "loss",
    [
        CROLoss(
            0.7,
            {"name": "hinge", "margin": 2.5},
            99,
            rank_estimate="unbiased",
            normalized=True,
            mask_rows_without_positive=True,
            check_scores=True,
            reduction="sum",
            name="mine",
        ),
        LambdaCROLoss(1.4, "unit_step", "exponential", 99, reduction="none", name="other"),
        CROLoss(kernel=shifted_relu),
        LambdaCROLoss(rank_kernel=Scaled(2.0), kernel=Scaled(0.5), weighting=Flat(3.0)),
        CROLoss.triplet(margin=2.0),
    ],
    ids=lambda loss: loss.name,
)
def test_serialised_and_loaded_by_keras_own_mechanism(loss):
    config = json.loads(json.dumps(tf.keras.losses.serialize(loss)))
    loaded = tf.keras.losses.deserialize(config)
    assert type(loaded) is type(loss)
    assert loaded.get_config() == loss.get_config()
    np.testing.assert_array_equal(loaded(LABELS, SCORES), loss(LABELS, SCORES))


def test_a_lambda_cannot_be_saved_and_says_so():
    with pytest.raises(ValueError, match="register_keras_serializable"):
        CROLoss(kernel=lambda gaps: tf.exp(gaps)).get_config()


@pytest.mark.parametrize("loss", first_of_each(LOSSES, lambda loss: loss.kernel), ids=repr)
def test_graph_with_unknown_shapes_without_retracing(loss):
    traces = []

    @tf.function(input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([None, None])])
    def graph(labels, scores):
        traces.append(1)
        return value_and_gradient(loss, scores, labels)

    for rows, columns in ((4, 7), (2, 3), (1, 1), (0, 5)):
        scores, labels = SCORES[:rows, :columns], LABELS[:rows, :columns]
        if not rows:
            scores, labels = tf.zeros([0, columns]), tf.zeros([0, columns])
        expected = value_and_gradient(loss, scores, labels)
        for actual, wanted in zip(graph(labels, scores), expected):
            np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-7)
    assert len(traces) == 1


@pytest.mark.parametrize("loss", first_of_each(LOSSES, type), ids=repr)
def test_compiles_with_xla(loss):
    compiled = tf.function(lambda: value_and_gradient(loss), jit_compile=True)()
    for actual, wanted in zip(compiled, value_and_gradient(loss)):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-7)


def test_several_positives_compile_with_xla():
    labels = tf.constant([[1.0, 1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 0, 0]])
    loss = LambdaCROLoss(1.2, num_items=50)
    compiled = tf.function(lambda: value_and_gradient(loss, SCORES[:2], labels), jit_compile=True)
    for actual, wanted in zip(compiled(), value_and_gradient(loss, SCORES[:2], labels)):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-7)


def test_a_shape_mismatch_that_only_shows_when_it_runs_names_both():
    graph = tf.function(CROLoss(), input_signature=[tf.TensorSpec([None, None])] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`labels` should have the shape of"):
        graph(tf.eye(2, 3), tf.zeros([2, 1]))


def classifier(num_items=12, dtype="float32"):
    return tf.keras.Sequential(
        [
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.Dense(num_items, dtype=dtype),
        ]
    )


@pytest.mark.parametrize("loss", first_of_each(LOSSES[::-1], lambda loss: True), ids=repr)
def test_trains_inside_compile_and_survives_a_saved_model(loss, tmp_path):
    tf.keras.utils.set_random_seed(1)
    positives = np.arange(240) % 12
    features = np.eye(12)[positives].astype("float32") @ np.random.normal(size=[12, 6])
    labels = np.eye(12, dtype="float32")[positives]
    model = classifier()
    model.compile(loss=loss, optimizer=tf.keras.optimizers.Adam(0.02))
    before = model.evaluate(features, labels, verbose=0)
    history = model.fit(features, labels, epochs=15, batch_size=48, verbose=0).history["loss"]
    # The sigmoid kernel is flat far from a tie, and a lambda loss is no measure of progress.
    ranks = tfrs_croloss.soft_rank(model.predict(features, verbose=0), labels, kernel="unit_step")
    assert float(tf.reduce_mean(ranks)) < 2.0
    assert np.isfinite(history).all() and before > 0
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = tf.keras.models.load_model(path)
    assert loaded.loss.get_config() == loss.get_config()
    np.testing.assert_allclose(
        loaded.evaluate(features, labels, verbose=0),
        model.evaluate(features, labels, verbose=0),
        rtol=1e-5,
    )


@pytest.mark.parametrize(
    "policy", ["mixed_float16", pytest.param("mixed_bfloat16", marks=pytest.mark.slow)]
)
def test_trains_under_mixed_precision(policy):
    tf.keras.utils.set_random_seed(2)
    before = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        # The last layer gives half precision too, which the loss has to bear.
        model = classifier(dtype=policy)
        loss = LambdaCROLoss(1.0, num_items=1000)
        model.compile(loss=loss, optimizer=tf.keras.optimizers.Adam(0.01))
        positives = np.arange(240) % 12
        features = np.eye(12, dtype="float32")[positives]
        labels = features
        model.fit(features, labels, epochs=20, batch_size=48, verbose=0)
        scores = tf.cast(model.predict(features, verbose=0), tf.float32)
        ranks = tfrs_croloss.soft_rank(scores, labels, kernel="unit_step")
        assert float(tf.reduce_mean(ranks)) < 1.5
        assert model(features[:2]).dtype == tf.as_dtype(policy.removeprefix("mixed_"))
    finally:
        tf.keras.mixed_precision.set_global_policy(before)


KERAS_3 = """
import numpy as np
import tensorflow as tf
import tfrs_croloss
assert tf.keras.__version__.startswith("3."), tf.keras.__version__

@tf.keras.utils.register_keras_serializable(package="mine")
def mine(gaps):
    return tf.nn.elu(gaps) + 1.0

features = np.eye(12, dtype="float32")[np.arange(240) % 12]
for loss in (tfrs_croloss.CROLoss(1.2, kernel=mine), tfrs_croloss.LambdaCROLoss(num_items=99)):
    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential([tf.keras.layers.Dense(12)])
    model.compile(loss=loss, optimizer=tf.keras.optimizers.Adam(0.05))
    model.fit(features, features, epochs=20, batch_size=48, verbose=0)
    ranks = tfrs_croloss.soft_rank(model.predict(features, verbose=0), features, kernel="unit_step")
    assert float(tf.reduce_mean(ranks)) < 1.5, float(tf.reduce_mean(ranks))
    loaded = tf.keras.losses.deserialize(tf.keras.losses.serialize(loss))
    assert loaded.get_config() == loss.get_config()
import sys
assert "tensorflow_recommenders" not in sys.modules
print("trained")
"""


@pytest.mark.slow
def test_the_losses_train_and_are_saved_in_a_keras_3_program(run_python):
    assert run_python(KERAS_3, {"TF_USE_LEGACY_KERAS": None}).strip() == "trained"


def test_importing_the_package_leaves_the_environment_alone(run_python):
    program = (
        "import os; before = dict(os.environ); import tfrs_croloss; "
        "assert {k: v for k, v in os.environ.items() if 'TF_' not in k or k in before} == before; "
        "print(os.environ.get('TF_USE_LEGACY_KERAS'))"
    )
    assert run_python(program, {"TF_USE_LEGACY_KERAS": None}).strip() == "None"
