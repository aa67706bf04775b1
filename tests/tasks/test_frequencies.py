"""Sampling probabilities from counts, and estimated while training."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

from tests.support.processes import python_output
from tfrs_croloss import CROLoss, LambdaCROLoss
from tfrs_croloss.tasks import CandidateFrequencies, Retrieval, StreamingFrequencies

IDS = np.array(["a", "b", "a", "c", "a", "d"])
VECTORS = np.random.default_rng(0).normal(size=[6, 3]).astype("float32")


@pytest.mark.parametrize(
    "frequencies",
    [
        CandidateFrequencies(["a", "b", "c"], [5, 3, 2]),
        CandidateFrequencies.from_counts({"a": 5, "b": 3, "c": 2, "never": 0}),
        CandidateFrequencies.from_ids(list("abcabcabaa")),
        CandidateFrequencies.from_dataset(tf.data.Dataset.from_tensor_slices(list("abcabcabaa"))),
        CandidateFrequencies.from_dataset(
            tf.data.Dataset.from_tensor_slices(list("abcabcabaa")).batch(3)
        ),
    ],
)
def test_shares_of_a_counted_log(frequencies):
    shares = [0.5, 0.3, 0.5, 0.2, 0.5, 0.2]
    np.testing.assert_allclose(frequencies.probabilities(tf.constant(IDS)), shares, rtol=1e-6)
    for loss in (CROLoss(), CROLoss(reduction="none"), None):
        counted = Retrieval(loss, sampling_probability=frequencies)
        given = Retrieval(loss)
        np.testing.assert_allclose(
            counted(VECTORS, VECTORS, candidate_ids=IDS),
            given(VECTORS, VECTORS, candidate_sampling_probability=np.float32(shares)),
            rtol=1e-5,
        )


def test_shares_of_integers():
    frequencies = CandidateFrequencies.from_ids(np.array([-3, 7, 7, 10**15]))
    ids = tf.constant([7, -3, 5, 10**15], tf.int64)
    np.testing.assert_allclose(frequencies.probabilities(ids), [0.5, 0.25, 0.25, 0.25])


def observe(frequencies, batches):
    estimate = None
    for batch in batches:
        estimate, update = frequencies.observe(tf.constant(batch))
        update()
    return estimate


@pytest.mark.parametrize("as_text", [False, True])
def test_a_zipf_stream_is_estimated(as_text):
    """Items that were drawn a hundred times or more are known to a few times ten percent."""
    random = np.random.default_rng(1)
    shares = 1.0 / np.arange(1.0, 2001.0)
    shares /= shares.sum()
    names = np.array([f"item {number}" for number in range(2000)]) if as_text else np.arange(2000)
    frequencies = StreamingFrequencies(num_buckets=2**13)
    draw = tf.function(lambda ids: (frequencies.observe(ids), None)[0][1]() and None)
    for _ in range(150):
        draw(tf.constant(names[random.choice(2000, 1024, p=shares)]))
    estimate, _ = frequencies.observe(tf.constant(names), tf.zeros([2000], tf.bool))
    ratios = estimate.numpy() / shares
    often = shares * 150 * 1024 > 100
    assert often.sum() > 150
    assert np.abs(np.log(ratios[often])).max() < 0.5
    assert np.abs(np.log(ratios[often])).mean() < 0.1
    assert np.median(ratios[~often]) == pytest.approx(1.0, abs=0.3)


def test_frequent_items_are_told_apart_although_every_batch_has_them():
    batches = [[1] * 6 + [2] * 2] * 20
    estimate = observe(StreamingFrequencies(), batches)
    np.testing.assert_allclose(estimate, [0.75] * 6 + [0.25] * 2, rtol=1e-5)


def test_the_estimate_follows_a_change():
    frequencies = StreamingFrequencies(learning_rate=0.05)
    observe(frequencies, [[1, 2, 2, 2]] * 200)
    estimate = observe(frequencies, [[1, 1, 1, 2]] * 200)
    np.testing.assert_allclose(estimate, [0.75] * 3 + [0.25], rtol=0.01)


def test_only_draws_count():
    frequencies = StreamingFrequencies()
    _, update = frequencies.observe(
        tf.constant([1, 1, 2, 3]), tf.constant([False, True, True, False])
    )
    update()
    estimate, _ = frequencies.observe(tf.constant([1, 2, 3]), tf.zeros([3], tf.bool))
    np.testing.assert_allclose(estimate, [1 / 2, 1 / 2, 1 / 3])


class Model(tfrs.Model):
    def __init__(self, task):
        super().__init__()
        self.users, self.items = (tf.keras.layers.Embedding(20, 4) for _ in range(2))
        self.task = task

    def compute_loss(self, features, training=False):
        items = self.items(features["item"])
        return self.task(self.users(features["user"]), items, candidate_ids=features["item"])


def log():
    random = np.random.default_rng(3)
    items = random.choice([0, 0, 0, 1, 2, 3], 96).astype("int32")
    return tf.data.Dataset.from_tensor_slices({"user": items, "item": items}).batch(12)


def state(model):
    return [variable.numpy() for variable in model.task._frequencies.variables]


def test_training_updates_the_estimate_and_validation_does_not(tmp_path):
    model = Model(Retrieval(LambdaCROLoss(), sampling_probability="streaming"))
    model.compile(optimizer=tf.keras.optimizers.Adagrad(0.1))
    model.evaluate(log(), verbose=0)
    assert all((values == 0).all() for values in state(model))
    model.fit(log(), verbose=0)
    draws = [values for values in state(model) if values.shape == ()]
    assert draws == [96]
    trained = state(model)
    model.evaluate(log(), verbose=0)
    for before, after in zip(trained, state(model)):
        np.testing.assert_array_equal(before, after)

    model.save_weights(tmp_path / "weights")
    other = Model(Retrieval(LambdaCROLoss(), sampling_probability="streaming"))
    other.compute_loss(next(iter(log())))
    other.load_weights(tmp_path / "weights")
    for saved, loaded in zip(trained, state(other)):
        np.testing.assert_array_equal(saved, loaded)


def test_the_streaming_estimate_is_what_the_loss_gets():
    """In a first batch, each item's share of it."""
    task = Retrieval(CROLoss(), sampling_probability=StreamingFrequencies())
    shares = np.float32([1 / 2, 1 / 6, 1 / 2, 1 / 6, 1 / 2, 1 / 6])
    assert float(task(VECTORS, VECTORS, candidate_ids=IDS)) == pytest.approx(
        float(Retrieval(CROLoss())(VECTORS, VECTORS, candidate_sampling_probability=shares)),
        rel=1e-5,
    )


def test_the_estimate_compiles_with_xla():
    frequencies = StreamingFrequencies()
    compiled = tf.function(
        lambda ids: (lambda estimate, update: (estimate, update())[0])(*frequencies.observe(ids)),
        jit_compile=True,
    )
    compiled(tf.constant([5, 5, 6, 7]))
    np.testing.assert_allclose(compiled(tf.constant([5, 5, 6, 7])), [0.5, 0.5, 0.25, 0.25])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Retrieval(sampling_probability="counted"), "`sampling_probability` should be"),
        (
            lambda: Retrieval(sampling_probability="streaming")(VECTORS, VECTORS),
            "`candidate_ids` should be given where the task has a `sampling_probability`",
        ),
        (
            lambda: Retrieval(sampling_probability=CandidateFrequencies([1], [2]))(
                VECTORS, VECTORS, candidate_ids=IDS
            ),
            "`candidate_ids` should be of the type that was counted",
        ),
        (lambda: CandidateFrequencies([1, 2], [3]), "`counts` should have one number"),
        (lambda: CandidateFrequencies([1, 2], [3, 0]), "`counts` should be above 0"),
        (lambda: CandidateFrequencies([1, 1], [3, 1]), "`ids` should be distinct"),
        (lambda: StreamingFrequencies(num_buckets=1000), "`num_buckets` should be a power of 2"),
        (lambda: StreamingFrequencies(num_hashes=7), "`num_hashes` should be at most 6"),
        (lambda: StreamingFrequencies(learning_rate=2.0), "`learning_rate` should be at most 1"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()


REPLICAS = """
import json
import numpy as np
import tensorflow as tf
from tests.support.replica_steps import mirrored_strategy
from tfrs_croloss import CROLoss
from tfrs_croloss.tasks import Retrieval

BATCHES = np.random.default_rng(0).choice([f"item {n}" for n in range(9)], [3, 8])

def run(strategy, share):
    with strategy.scope():
        task = Retrieval(CROLoss(), sampling_probability="streaming")
        table = tf.Variable(np.random.default_rng(1).normal(size=[8, 4]).astype("float32"))

    @tf.function
    def step(batch):
        def own():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            rows = tf.range(share) + replica * share
            with tf.GradientTape() as tape:
                vectors = tf.gather(table, rows)
                loss = task(vectors, vectors, candidate_ids=tf.gather(batch, rows))
            tape.gradient(loss, table)
            return loss

        return strategy.reduce("SUM", strategy.run(own), axis=None)

    values = [float(step(tf.constant(batch))) for batch in BATCHES]
    copies = [
        [np.asarray(copy).ravel() for copy in strategy.experimental_local_results(variable)]
        for variable in task._frequencies.variables
    ]
    assert all((copy == one[0]).all() for one in copies for copy in one)
    sums = [float((one[0] * np.cos(np.arange(one[0].size))).sum()) for one in copies]
    return values + sums

mirrored = mirrored_strategy(2)
print(json.dumps([run(tf.distribute.get_strategy(), 8), run(mirrored, 4)]))
"""


@pytest.mark.slow
def test_replicas_have_the_estimate_of_one_device():
    alone, together = json.loads(python_output("-c", REPLICAS).splitlines()[-1])
    np.testing.assert_allclose(together, alone, rtol=1e-5)
