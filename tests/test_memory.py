"""The cross-batch memory: what it keeps, what it costs the gradient, and that ranks stay right."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfrs_croloss import CROLoss, soft_rank
from tfrs_croloss.memory import CandidateMemory, mixture_probability
from tfrs_croloss.tasks import Retrieval


def test_first_in_first_out_against_a_plain_list():
    memory, remembered = CandidateMemory(capacity=5, dim=1), []
    generator = np.random.default_rng(0)
    for size in (2, 1, 4, 0, 7, 3):
        ids = generator.integers(0, 1000, size)
        chance = generator.uniform(0.1, 1.0, size).astype("float32")
        found = memory.extend(ids[:, None].astype("float32"), ids, chance)
        assert sorted(found.ids.numpy()) == sorted([*ids, *(i for i, _ in remembered)])
        np.testing.assert_array_equal(found.ids[:size], ids)
        np.testing.assert_array_equal(found.embeddings[:, 0], found.ids)
        expected = {**dict(remembered), **dict(zip(ids, chance))}
        for item, probability in zip(found.ids.numpy(), found.sampling_probability.numpy()):
            assert probability == pytest.approx(expected[item])
        remembered = (remembered + list(zip(ids, chance)))[-5:]


def test_in_a_graph_with_batches_of_any_size_and_string_ids():
    memory = CandidateMemory(capacity=3, dim=2, id_dtype=tf.string)
    extend = tf.function(
        lambda embeddings, ids: memory.extend(embeddings, ids, 0.5).ids,
        input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([None], tf.string)],
    )
    assert extend(tf.zeros([2, 2]), ["a", "b"]).numpy().tolist() == [b"a", b"b"]
    assert extend(tf.zeros([1, 2]), ["c"]).numpy().tolist() == [b"c", b"a", b"b"]
    assert extend(tf.zeros([1, 2]), ["d"]).numpy().tolist() == [b"d", b"a", b"b", b"c"]
    assert extend(tf.zeros([1, 2]), ["e"]).numpy().tolist() == [b"e", b"d", b"b", b"c"]


def test_evaluation_remembers_nothing():
    memory = CandidateMemory(capacity=3, dim=1)
    memory.extend(tf.zeros([2, 1]), [1, 2], 0.5, remember=False)
    assert memory.extend(tf.zeros([1, 1]), [3], 0.5).ids.numpy().tolist() == [3]


def test_what_is_remembered_gets_no_gradient_and_counts_as_a_negative():
    memory = CandidateMemory(capacity=4, dim=2)
    old = tf.constant([[1.0, 0.0], [0.0, 1.0]])
    memory.extend(old, [7, 8], 0.25)
    queries = tf.constant([[1.0, 2.0]])
    new = tf.constant([[0.5, 0.5]])
    with tf.GradientTape() as tape:
        tape.watch([old, new])
        found = memory.extend(new, [9], 0.25)
        loss = Retrieval(CROLoss(num_items=100))(
            queries,
            found.embeddings,
            candidate_ids=found.ids,
            candidate_sampling_probability=found.sampling_probability,
        )
    gradients = tape.gradient(loss, [old, new])
    assert gradients[0] is None and np.abs(gradients[1]).max() > 0
    gaps = np.array([1.0 - 1.5, 2.0 - 1.5])
    rank = 1.0 + np.sum(np.log1p(np.exp(gaps))) / (2 * 0.25)
    assert float(loss) == pytest.approx(np.log(rank), rel=1e-5)


def test_it_is_saved_with_a_checkpoint(tmp_path):
    memory = CandidateMemory(capacity=3, dim=1)
    memory.extend(tf.constant([[5.0]]), [5], 0.5)
    path = tf.train.Checkpoint(memory=memory).write(str(tmp_path / "state"))
    other = CandidateMemory(capacity=3, dim=1)
    tf.train.Checkpoint(memory=other).read(path).assert_consumed()
    assert other.extend(tf.zeros([0, 1]), [], 0.5).ids.numpy().tolist() == [5]


def test_the_mixture_of_two_samplers_is_right_on_average():
    """Three draws by popularity and two uniform ones: the mean of the estimates is the rank."""
    generator = np.random.default_rng(1)
    scores = generator.normal(size=30)
    popularity = generator.random(30) + 0.1
    popularity /= popularity.sum()
    exact = 1.0 + np.sum(1 / (1 + np.exp(0.4 - scores)))
    draws = 40_000
    items = np.concatenate(
        [
            generator.choice(30, size=[draws, 3], p=popularity),
            generator.integers(0, 30, size=[draws, 2]),
        ],
        axis=1,
    )
    chance = mixture_probability([3, 2], [popularity[items], 1 / 30]).numpy()
    estimates = soft_rank(
        np.concatenate([np.full([draws, 1], 0.4), scores[items]], axis=1),
        np.eye(6)[np.zeros(draws, int)],
        sampling_probability=np.concatenate([np.ones([draws, 1]), chance], axis=1),
    ).numpy()
    assert abs(estimates.mean() - exact) < 4 * estimates.std() / np.sqrt(draws)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: CandidateMemory(0, 4), "`capacity`"),
        (lambda: CandidateMemory(4, -1), "`dim`"),
        (lambda: mixture_probability([1], [0.5, 0.5]), "`probabilities` should have one entry"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
