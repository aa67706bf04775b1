"""A tutorial-style TFRS model, trained with each loss on structured data."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

import tfrs_croloss
from tests.support import oracle
from tests.support.repeats import first_of_each

NUM_USERS, NUM_ITEMS, DIM, BATCH, STEPS = 400, 300, 8, 128, 300


@pytest.fixture(scope="module")
def log():
    """Users with four-dimensional tastes choose the items that they like, with some noise."""
    generator = np.random.default_rng(0)
    tastes = generator.normal(size=[NUM_USERS, 4])
    items = generator.normal(size=[NUM_ITEMS, 4])
    liking = tastes @ items.T + generator.gumbel(scale=0.5, size=[NUM_USERS, NUM_ITEMS])
    chosen = generator.permuted(np.argsort(-liking, axis=1)[:, :24], axis=1)
    return chosen[:, :18], chosen[:, 18:]


class TutorialModel(tfrs.Model):
    """Two embedding tables and a task, as in the TFRS tutorial."""

    def __init__(self, task):
        super().__init__()
        self.user_model = tf.keras.layers.Embedding(NUM_USERS, DIM)
        self.item_model = tf.keras.layers.Embedding(NUM_ITEMS, DIM)
        self.task = task

    def compute_loss(self, inputs, training=False):
        users = tf.math.l2_normalize(self.user_model(inputs["user"]), axis=1)
        items = tf.math.l2_normalize(self.item_model(inputs["item"]), axis=1)
        if isinstance(self.task, tfrs_croloss.tasks.Retrieval):
            known = {"known_positive_ids": inputs["chosen"]}
        else:
            known = {}
        return self.task(users, items, candidate_ids=inputs["item"], **known)

    def ranks(self, targets, seen):
        """Of each target among all items that its user has not seen, for users in order."""
        users = tf.math.l2_normalize(self.user_model.embeddings, axis=1)
        items = tf.math.l2_normalize(self.item_model.embeddings, axis=1)
        scores = (users @ tf.transpose(items)).numpy()
        np.put_along_axis(scores, seen, -np.inf, axis=1)
        positive = np.take_along_axis(scores, targets, axis=1)
        return (scores[:, None, :] >= positive[:, :, None]).sum(axis=2)


def train(loss, log, task_class=tfrs_croloss.tasks.Retrieval, temperature=None):
    tf.keras.utils.set_random_seed(3)
    train_items, test_items = log
    if temperature is None:
        # The exponential's gradient is unbounded in the paper's form of the Lambda method: with a
        # gap of 20 it squeezes all scores together before it ranks them. A milder temperature keeps
        # the gaps small.
        is_lambda = isinstance(loss, tfrs_croloss.LambdaCROLoss) and loss.descent == "rank"
        temperature = 0.3 if is_lambda and "Exponential" in repr(loss.kernel) else 0.1
    task = task_class(loss=loss, temperature=temperature, remove_accidental_hits=True)
    users = np.repeat(np.arange(NUM_USERS), train_items.shape[1])
    data = tf.data.Dataset.from_tensor_slices(
        {"user": users, "item": train_items.ravel(), "chosen": train_items[users]}
    )
    data = data.shuffle(len(users), seed=1).repeat().batch(BATCH).prefetch(1)
    model = TutorialModel(task)
    model.compile(optimizer=tf.keras.optimizers.Adam(0.02))
    model.fit(data, steps_per_epoch=STEPS, epochs=1, verbose=0)
    return model.ranks(test_items, train_items)


def recall(ranks, size):
    return float(np.mean(ranks <= size))


LOSSES = [tfrs_croloss.CROLoss(1.0, kernel, NUM_ITEMS) for kernel in oracle.DIFFERENTIABLE] + [
    tfrs_croloss.LambdaCROLoss(1.0, rank_kernel, kernel, NUM_ITEMS)
    for rank_kernel, kernel in itertools.product(
        ("sigmoid", "unit_step"), ("hinge", "exponential", "softplus")
    )
]


@pytest.mark.parametrize("loss", first_of_each(LOSSES, type), ids=repr)
def test_every_loss_raises_recall_well_above_a_random_model_s(loss, log):
    ranks = train(loss, log)
    for size, times in ((5, 5.0), (10, 5.0), (30, 4.0), (60, 3.0)):
        assert recall(ranks, size) > times * size / NUM_ITEMS, (size, recall(ranks, size))


@pytest.mark.parametrize(
    "temperature", [0.1, *(pytest.param(t, marks=pytest.mark.slow) for t in (0.05, 0.3, 1.0))]
)
def test_the_log_form_learns_at_every_temperature(log, temperature):
    """At 0.05 and 0.1, the paper's form with the exponential kernel ranks like a random model."""
    loss = tfrs_croloss.LambdaCROLoss(1.0, "sigmoid", "exponential", NUM_ITEMS, descent="log_rank")
    assert recall(train(loss, log, temperature=temperature), 20) > 6.0 * 20 / NUM_ITEMS


@pytest.mark.slow
def test_the_special_cases_learn_too(log):
    for make in ("softmax_cross_entropy", "triplet", "bpr"):
        loss = getattr(tfrs_croloss.CROLoss, make)(NUM_ITEMS)
        assert recall(train(loss, log), 30) > 4.0 * 30 / NUM_ITEMS


def test_the_one_line_change_works_in_tfrs_s_own_task(log):
    loss = tfrs_croloss.LambdaCROLoss(1.4, kernel="exponential", num_items=NUM_ITEMS)
    assert recall(train(loss, log, tfrs.tasks.Retrieval), 30) > 4.0 * 30 / NUM_ITEMS


@pytest.mark.slow
def test_a_larger_alpha_shifts_recall_to_smaller_sizes(log):
    """The paper's Figure 3, as the ratio of recall at a small size to that at a large one."""
    shares = []
    for alpha in (0.0, 0.6, 1.0):
        ranks = train(tfrs_croloss.LambdaCROLoss(alpha, "sigmoid", "softplus", NUM_ITEMS), log)
        shares.append(recall(ranks, 5) / recall(ranks, 60))
    assert shares[0] < shares[1] < shares[2], shares
