"""The retrieval tutorials of TFRS: our loss is at least as good as TFRS' softmax in each of them.

Each tutorial is trained with its own optimizer, learning rate and batch size, and scores by dot
products: as published, and with our task, with three seeds each. In two tutorials, one with ids
alone and one with features, our loss is also trained in TFRS' task with the first seed, where the
same steps have to give the same recall. All of them are measured on the same test events. Nothing
here may be tuned: a loss that falls behind is a defect of the loss.

The log has long runs of one genre, which is the hardest case known: the sequential model takes 21
steps on it (the tutorial, with a log of ten times the size, some 200), and with one of the seeds it
is behind softmax at 100 after these, and ahead after twice as many. One seed proves nothing here.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

import tfrs_croloss
from docs.tutorials.film_log import film_log
from tests.tutorials import models

CUTOFFS = (5, 10, 50, 100)
SEEDS = (1, 2, 3)
AGREEMENT = 0.01
NUM_TRAINED = 80_000  # the other events are the test set, as in the tutorials

TASKS = {
    "softmax": tfrs.tasks.Retrieval,
    "our loss": lambda: tfrs.tasks.Retrieval(loss=tfrs_croloss.LambdaCROLoss(retrieval_size=100)),
    "our task": lambda: tfrs_croloss.tasks.Retrieval(
        loss=tfrs_croloss.LambdaCROLoss(retrieval_size=100)
    ),
}
PAIR = ("softmax", "our task")


@dataclasses.dataclass(frozen=True)
class Tutorial:
    """A model and how it is trained; Adagrad with a learning rate of 0.1 trains all of them."""

    model: type[models.BasicRetrieval]
    batch_size: int
    columns: tuple[str, ...]
    epochs: int = 3
    num_trained: int = NUM_TRAINED


IDS = ("user_id", "movie_title")
BASIC = Tutorial(models.BasicRetrieval, 8192, IDS)
CONTEXT = Tutorial(models.ContextFeatures, 2048, (*IDS, "timestamp"))
TUTORIALS = {
    "basic": BASIC,
    "sequential": Tutorial(models.SequentialRetrieval, 12_800, ("context_titles", "movie_title")),
    # The tutorial trains for 300 epochs.
    "deep": Tutorial(models.DeepRetrieval, 2048, CONTEXT.columns, epochs=5),
    "context features": CONTEXT,
    "multitask": Tutorial(models.Multitask, 8192, (*IDS, "user_rating")),
}


@functools.cache
def log():
    return film_log(order_noise=1.0)


def events(columns, part):
    """Columns of some events, under the names that the tutorials use."""
    films = log()
    made = {
        "user_id": lambda: films.users[part],
        "movie_title": lambda: films.titles[films.items[part]],
        "timestamp": lambda: films.timestamps[part],
        "user_rating": lambda: films.ratings[part],
        # The first film also stands where there was nothing before.
        "context_titles": lambda: films.titles[np.maximum(films.contexts[part], 0)],
    }
    return {name: made[name]() for name in columns}


@functools.cache
def trained(tutorial, task, seed):
    tf.keras.utils.set_random_seed(seed)
    train = tf.data.Dataset.from_tensor_slices(
        events(tutorial.columns, slice(tutorial.num_trained))
    )
    model = tutorial.model(log(), TASKS[task]())
    model.compile(optimizer=tf.keras.optimizers.Adagrad(0.1))
    batches = train.shuffle(100_000, seed=seed).batch(tutorial.batch_size).cache()
    model.fit(batches, epochs=tutorial.epochs, verbose=0)
    return model


def exact_recall(tutorial, task, seed):
    """Recall of the test events at each cutoff, over the whole catalogue."""
    model = trained(tutorial, task, seed)
    test = tf.data.Dataset.from_tensor_slices(events(tutorial.columns, slice(NUM_TRAINED, None)))
    queries = tf.concat([model.queries(batch) for batch in test.batch(4096)], axis=0)
    candidates = model.candidates(tf.constant(log().titles))
    ranks = tfrs_croloss.metrics.exact_ranks(queries, candidates, log().items[NUM_TRAINED:])
    return [np.mean(ranks <= cutoff) for cutoff in CUTOFFS]


def served_recall(task, seed):
    """Recall of the titles that TFRS' index returns, as in the tutorial on efficient serving."""
    model = trained(BASIC, task, seed)
    titles = tf.data.Dataset.from_tensor_slices(log().titles).batch(128)
    index = tfrs.layers.factorized_top_k.ScaNN(
        model.user_model, k=max(CUTOFFS), num_leaves=40, num_reordering_candidates=500
    )
    index.index_from_dataset(titles.map(lambda batch: (batch, model.movie_model(batch))))
    test = events(IDS, slice(NUM_TRAINED, None))
    users, rows = np.unique(test["user_id"], return_inverse=True)
    found = index(tf.constant(users))[1].numpy()[rows] == test["movie_title"].astype(bytes)[:, None]
    return [np.mean(found[:, :cutoff].any(axis=1)) for cutoff in CUTOFFS]


def assert_at_least_as_good(recall):
    """Compares our task with TFRS' softmax seed by seed.

    Args:
      recall: from the name of a task and a seed to the recall at each cutoff.
    """
    softmax, ours = (np.array([recall(task, seed) for seed in SEEDS]) for task in PAIR)
    gains = ours - softmax
    errors = gains.std(axis=0, ddof=1) / np.sqrt(len(SEEDS))
    behind = gains.mean(axis=0) < -2.0 * errors
    assert not behind.any(), (dict(zip(CUTOFFS, gains.mean(axis=0))), softmax.mean(axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_the_one_line_is_at_least_as_good(name):
    assert_at_least_as_good(functools.partial(exact_recall, TUTORIALS[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["basic", "context features"])
def test_the_loss_does_in_the_task_of_tfrs_what_it_does_in_ours(name):
    one, other = (
        exact_recall(TUTORIALS[name], task, SEEDS[0]) for task in ("our loss", "our task")
    )
    # The two tasks round differently, so a few test events change sides.
    np.testing.assert_allclose(one, other, atol=AGREEMENT)


@pytest.mark.slow
def test_the_one_line_is_at_least_as_good_behind_an_index():
    pytest.importorskip("scann")
    assert_at_least_as_good(served_recall)
