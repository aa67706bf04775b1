"""Towers under any names, and ids of any kind, in the callback and in the metric."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

from tfrs_croloss import metrics
from tfrs_croloss.metrics._identifiers import Identifiers

USERS = ["ann", "bob", "cid"]
TITLES = ["Chaos", "Emma", "Hamlet", "Emma", "Lear"]  # one of them twice
# The score of each title for each user. The copy of Emma scores as much as Emma.
SCORES = np.array([[4, 5, 3, 5, 2], [1, 2, 3, 2, 4], [5, 4, 3, 4, 2]], np.float32)
WATCHED = ["Hamlet", "Emma", "Emma"]  # behind Emma and Chaos; Lear and Hamlet; Chaos
RANKS = [3, 3, 2]


def lookup(words, rows):
    """A tower of the tutorials' kind: a string, its number, its row."""
    words = list(dict.fromkeys(words))
    table = tf.keras.layers.Embedding(len(words) + 1, rows.shape[1], trainable=False)
    tower = tf.keras.Sequential(
        [tf.keras.layers.StringLookup(vocabulary=words, mask_token=None), table]
    )
    tower(tf.constant(words))
    table.set_weights([np.concatenate([np.zeros([1, rows.shape[1]]), rows])])
    return tower


class Films(tfrs.Model):
    """Two towers under names of the caller's choice."""

    def __init__(self, query_name="user_model", candidate_name="movie_model"):
        super().__init__()
        setattr(self, query_name, lookup(USERS, SCORES))
        setattr(self, candidate_name, lookup(TITLES, np.eye(5, dtype=np.float32)[[0, 1, 2, 4]]))
        self.task = tfrs.tasks.Retrieval()


def dataset(values):
    return tf.data.Dataset.from_tensor_slices(values)


def callback(model=None, **options):
    arguments = {
        "queries": dataset(USERS).batch(2),
        "candidates": dataset(TITLES).batch(2),
        "positives": WATCHED,
        "cutoffs": [1, 2, 3],
        **options,
    }
    made = metrics.RecallCallback(**arguments)
    made.set_model(model or Films())
    return made


def ranks_of(report):
    """The ranks that the recall of three pairs at 1, 2 and 3 stands for, sorted."""
    found = [round(3 * report.recall[cutoff]) for cutoff in (1, 2, 3)]
    return [1] * found[0] + [2] * (found[1] - found[0]) + [3] * (found[2] - found[1])


pytestmark = pytest.mark.filterwarnings("ignore:.*have the id of an earlier one")


@pytest.mark.parametrize(
    "names",
    [
        ("user_model", "movie_model"),  # basic retrieval, multitask, efficient serving
        ("query_model", "candidate_model"),  # context features, deep retrieval
        ("_query_model", "_candidate_model"),  # sequential retrieval
        ("user_embeddings", "movie_embeddings"),
        ("user_embedding_model", "item_embedding_model"),
    ],
)
def test_the_names_of_the_tutorials_are_known(names):
    assert ranks_of(callback(Films(*names)).evaluate()) == sorted(RANKS)


def test_towers_of_any_names_are_taken_as_functions_layers_or_names():
    model = Films("people", "films")
    model.inner = Films("people", "films")
    for query, candidate in [
        ("people", "films"),
        ("inner.people", "inner.films"),
        (model.people, lambda titles: model.films(titles)),
    ]:
        made = callback(model, query_embedder=query, candidate_embedder=candidate)
        assert ranks_of(made.evaluate()) == sorted(RANKS)


def test_an_unknown_name_is_answered_with_the_layers_that_the_model_has():
    model = Films("people", "films")
    layers = r"Films has the layers people \(Sequential\), films \(Sequential\): .* such as"
    with pytest.raises(ValueError, match=rf"`query_embedder` .*{layers} query_embedder='people'"):
        callback(model).evaluate()
    with pytest.raises(ValueError, match=rf"`candidate_embedder` .*'movies'\. The {layers}"):
        callback(model, query_embedder="people", candidate_embedder="movies").evaluate()
    with pytest.raises(TypeError, match="`query_embedder` .* the class Embedding"):
        callback(model, query_embedder=tf.keras.layers.Embedding).evaluate()


@pytest.mark.parametrize(
    "positives",
    [
        WATCHED,
        [title.encode() for title in WATCHED],
        np.array(WATCHED),
        np.array(WATCHED, object),
        tf.constant(WATCHED),
        dataset(WATCHED).batch(2),
        dataset(WATCHED),
        tf.ragged.constant([[title] for title in WATCHED]),
        [[title] for title in WATCHED],
        [2, 3, 1],  # rows of the candidates; row 3 is the copy of Emma
    ],
    ids=["str", "bytes", "U", "O", "tensor", "batches", "dataset", "ragged", "lists", "rows"],
)
def test_positives_are_ids_of_any_kind(positives):
    assert ranks_of(callback(positives=positives).evaluate()) == sorted(RANKS)


def test_ids_may_be_numbers_that_are_no_rows():
    numbers = {"Chaos": 70, "Emma": 10, "Hamlet": 90, "Lear": 30}
    ids = np.array([numbers[title] for title in TITLES])
    positives = np.array([numbers[title] for title in WATCHED])
    for options in (
        {"candidates": dataset((ids, TITLES)).batch(2)},
        {"candidates": dataset({"title": TITLES}).batch(2), "identifiers": ids},
    ):
        if "identifiers" in options:
            options["candidate_embedder"] = lambda batch: model.movie_model(batch["title"])
        model = Films()
        made = callback(model, positives=positives, **options)
        assert ranks_of(made.evaluate()) == sorted(RANKS)


def test_excluded_items_are_ids_too_and_may_be_unknown():
    made = callback(excluded=[["Emma", "no such film"], ["Lear", "Hamlet"], []])
    assert ranks_of(made.evaluate()) == [1, 2, 2]  # Chaos is still ahead of Hamlet, and of Emma


def test_ids_that_stand_twice_are_counted_and_said_and_the_first_is_kept():
    made = callback()
    with pytest.warns(UserWarning, match="1 of 5 candidates have the id .* 'Emma' in row 3"):
        report = made.evaluate()
    assert report.num_items == 4
    with pytest.raises(ValueError, match="different ids where duplicates='error'.* 1 of 5 cand"):
        callback(duplicates="error").evaluate()
    with pytest.raises(ValueError, match="`duplicates` should be one of"):
        callback(duplicates="last")


def test_positives_of_no_candidate_are_counted_and_named():
    with pytest.raises(ValueError, match="`positives` .* 1 of 3 .* 'Lost' at position 1"):
        callback(positives=["Emma", "Lost", "Emma"]).evaluate()
    with pytest.raises(ValueError, match="`identifiers` should be given where `positives` are str"):
        callback(
            candidates=lambda: tf.eye(5), queries=lambda: tf.constant(SCORES), positives=WATCHED
        ).evaluate()
    with pytest.raises(ValueError, match="should be integers like the ids of the candidates"):
        Identifiers([1, 2]).rows(["1"], "positives")


def test_inputs_that_the_tower_does_not_take_are_explained():
    made = callback(queries=dataset({"user": USERS, "watched": WATCHED}).batch(2))
    with pytest.raises(ValueError, match=r"`queries` should have the inputs .*\.map\(lambda x"):
        made.evaluate()
    with pytest.raises(TypeError, match="`queries` .* the layer .* tower as `query_embedder`"):
        callback(queries=Films().user_model)
    with pytest.raises(TypeError, match="`candidates` should be a dataset"):
        callback(candidates=np.eye(3))


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("with_ids", [False, True])
def test_the_metric_embeds_ids_and_leaves_copies_out(in_graph, with_ids):
    model = Films()
    metric = metrics.FactorizedRecall(
        dataset(TITLES), ks=[1, 2, 3], candidate_embedder=model.movie_model
    )

    def ranks():
        ids = tf.constant(WATCHED) if with_ids else None
        films = model.movie_model(tf.constant(WATCHED))
        return metric.ranks(model.user_model(tf.constant(USERS)), films, ids)

    ranks = tf.function(ranks) if in_graph else ranks
    with pytest.warns(UserWarning, match="1 of 5 candidates have the id of an earlier one"):
        assert ranks().numpy().tolist() == RANKS


def test_the_metric_refuses_duplicates_if_it_is_told_to():
    with pytest.raises(ValueError, match="different ids"):
        metrics.FactorizedRecall(np.eye(5), identifiers=TITLES, duplicates="error")
    pairs = dataset((TITLES, np.eye(5, dtype=np.float32))).batch(2)
    metric = metrics.FactorizedRecall(pairs, duplicates="error")
    with pytest.raises(ValueError, match="different ids"):
        metric.ranks(tf.ones([1, 5]), tf.ones([1, 5]))


def test_the_metric_ignores_ids_of_further_negatives_as_tfrs_passes_them():
    metric = metrics.FactorizedRecall(np.eye(3, dtype=np.float32), ks=[1])
    task = tfrs.tasks.Retrieval(metrics=metric)
    task(tf.eye(3)[:2], tf.eye(3), candidate_ids=tf.range(3))
    assert float(metric.metrics[0].result()) == 1.0


@pytest.mark.parametrize(
    "candidates, options, message",
    [
        (lambda: dataset(TITLES).batch(2), {}, "candidate_embedder=movie_model"),
        (lambda: dataset(np.eye(5)), {}, "batches of embeddings"),
        (lambda: Films().movie_model, {}, "the layer .* which items to embed"),
        (lambda: tf.keras.layers.Embedding, {}, "the class Embedding"),
        (lambda: dataset(TITLES), {"candidate_embedder": "movie_model"}, "Write self.movie_model"),
        (lambda: np.eye(5), {"candidate_embedder": len}, "only where `candidates` is a dataset"),
    ],
    ids=["titles", "single", "layer", "class", "name", "array"],
)
def test_the_metric_says_what_to_write(candidates, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        metrics.FactorizedRecall(candidates(), **options)
