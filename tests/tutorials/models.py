"""The retrieval models of TFRS' tutorials, written anew: towers, dot products and a task."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs

from docs.tutorials.film_log import FilmLog

DIM = 32


def id_embedding(ids: np.ndarray) -> tf.keras.Sequential:
    """An embedding of strings, and one more for a string that is not among ``ids``."""
    vocabulary = np.unique(ids)
    return tf.keras.Sequential(
        [
            tf.keras.layers.StringLookup(vocabulary=vocabulary, mask_token=None),
            tf.keras.layers.Embedding(len(vocabulary) + 1, DIM),
        ]
    )


class BasicRetrieval(tfrs.Model):
    """Basic retrieval, and the model of efficient serving: one embedding for each user and film."""

    def __init__(self, log: FilmLog, task: tf.keras.layers.Layer) -> None:
        super().__init__()
        self.user_model = id_embedding(log.users)
        self.movie_model = id_embedding(log.titles)
        self.task = task

    def queries(self, features):
        return self.user_model(features["user_id"])

    def candidates(self, titles):
        return self.movie_model(titles)

    def compute_loss(self, features, training=False):
        return self.task(
            self.queries(features),
            self.candidates(features["movie_title"]),
            compute_metrics=not training,
        )


class SequentialRetrieval(BasicRetrieval):
    """Sequential retrieval: a recurrent layer over the films that the user watched before."""

    def __init__(self, log: FilmLog, task: tf.keras.layers.Layer) -> None:
        super().__init__(log, task)
        self.user_model = tf.keras.Sequential(
            [*id_embedding(log.titles).layers, tf.keras.layers.GRU(DIM)]
        )

    def queries(self, features):
        return self.user_model(features["context_titles"])


class UserFeatures(tf.keras.Model):
    """The id of the user, the time in thousand buckets, and the normalised time."""

    def __init__(self, log: FilmLog) -> None:
        super().__init__()
        times = log.timestamps.astype(np.float32)
        buckets = np.linspace(times.min(), times.max(), num=1000)
        self.user_embedding = id_embedding(log.users)
        self.time_embedding = tf.keras.Sequential(
            [
                tf.keras.layers.Discretization(buckets.tolist()),
                tf.keras.layers.Embedding(len(buckets) + 1, DIM),
            ]
        )
        self.normalized_time = tf.keras.layers.Normalization(
            axis=None, mean=times.mean(dtype=np.float64), variance=times.var(dtype=np.float64)
        )

    def call(self, features):
        times = tf.cast(features["timestamp"], tf.float32)
        return tf.concat(
            [
                self.user_embedding(features["user_id"]),
                self.time_embedding(times),
                self.normalized_time(times)[:, tf.newaxis],
            ],
            axis=1,
        )


class FilmFeatures(tf.keras.Model):
    """The title as an id, and the mean over its words."""

    def __init__(self, log: FilmLog) -> None:
        super().__init__()
        words = tf.keras.layers.TextVectorization(max_tokens=10_000)
        words.adapt(log.titles)
        self.title_embedding = id_embedding(log.titles)
        self.text_embedding = tf.keras.Sequential(
            [
                words,
                tf.keras.layers.Embedding(10_000, DIM, mask_zero=True),
                tf.keras.layers.GlobalAveragePooling1D(),
            ]
        )

    def call(self, titles):
        return tf.concat([self.title_embedding(titles), self.text_embedding(titles)], axis=1)


class ContextFeatures(BasicRetrieval):
    """Context features: the features above and one dense layer, in both towers."""

    hidden_sizes: tuple[int, ...] = ()

    def __init__(self, log: FilmLog, task: tf.keras.layers.Layer) -> None:
        super().__init__(log, task)
        self.user_model = tf.keras.Sequential([UserFeatures(log), *self.dense_layers()])
        self.movie_model = tf.keras.Sequential([FilmFeatures(log), *self.dense_layers()])

    def dense_layers(self):
        hidden = [tf.keras.layers.Dense(size, activation="relu") for size in self.hidden_sizes]
        return [*hidden, tf.keras.layers.Dense(DIM)]

    def queries(self, features):
        names = ("user_id", "timestamp")
        return self.user_model({name: features[name] for name in names})


class DeepRetrieval(ContextFeatures):
    """Deep retrieval: one more dense layer in both towers."""

    hidden_sizes = (64,)


class Multitask(BasicRetrieval):
    """Multitask: the embeddings also predict ratings, and the two losses are added."""

    def __init__(self, log: FilmLog, task: tf.keras.layers.Layer) -> None:
        super().__init__(log, task)
        self.rating_model = tf.keras.Sequential(
            [
                tf.keras.layers.Dense(256, activation="relu"),
                tf.keras.layers.Dense(128, activation="relu"),
                tf.keras.layers.Dense(1),
            ]
        )
        self.rating_task = tfrs.tasks.Ranking(loss=tf.keras.losses.MeanSquaredError())

    def compute_loss(self, features, training=False):
        users, films = self.queries(features), self.candidates(features["movie_title"])
        ratings = self.rating_model(tf.concat([users, films], axis=1))
        rating_loss = self.rating_task(labels=features["user_rating"], predictions=ratings)
        return rating_loss + self.task(users, films, compute_metrics=not training)
