"""The data of the tutorials: a made-up log of films that people watched, or MovieLens 100K.

Both have the columns and the size of the data of TFRS' tutorials. The made-up log needs no
download. MovieLens is downloaded by tensorflow-datasets.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

VARIABLE = "TUTORIAL_DATA"
"""The environment variable that chooses the data: "films" or "movielens"."""

NUM_USERS, NUM_ITEMS, NUM_EVENTS = 943, 1682, 100_000
CONTEXT_LENGTH = 10
_GENRES, _TASTES = 18, 6
_YEAR = 365 * 24 * 3600
_ACTIVITY = 20  # every user has at least this many events, as in MovieLens


@dataclasses.dataclass(frozen=True)
class FilmLog:
    """Events in random order, with the columns that the tutorials use.

    Attributes:
      titles: ``[num_items]`` strings; words of a title tell the genre.
      users: ``[num_events]`` strings.
      items: ``[num_events]`` integers, rows of ``titles``.
      timestamps: ``[num_events]`` seconds.
      ratings: ``[num_events]`` 1.0 to 5.0.
      contexts: ``[num_events, 10]`` integers, rows of ``titles``: what the user watched before, the
        last film last; -1 where there is nothing before.
    """

    titles: np.ndarray
    users: np.ndarray
    items: np.ndarray
    timestamps: np.ndarray
    ratings: np.ndarray
    contexts: np.ndarray


def load(name: str | None = None) -> FilmLog:
    """The log that the tutorials use.

    Args:
      name: "films" for the made-up log, "movielens" for MovieLens 100K; by default what the
        environment variable ``TUTORIAL_DATA`` says, and "films" if it is not set.
    """
    name = name or os.environ.get(VARIABLE, "films")
    if name == "films":
        return film_log()
    if name == "movielens":
        return movielens()
    raise ValueError(f"`{VARIABLE}` should be 'films' or 'movielens'. Received: {name!r}.")


def movielens(**options: Any) -> FilmLog:
    """MovieLens 100K, by tensorflow-datasets, which downloads it if it is not there.

    Args:
      **options: further arguments of ``tfds.load``, such as ``data_dir``.
    """
    import tensorflow_datasets as tfds

    films = tfds.load("movielens/100k-movies", split="train", **options)
    ratings = tfds.load("movielens/100k-ratings", split="train", **options)
    # Some titles stand twice.
    titles = np.unique([_text(film["movie_title"]) for film in films.as_numpy_iterator()])
    rows = list(ratings.as_numpy_iterator())
    users = np.array([_text(row["user_id"]) for row in rows])
    items = np.searchsorted(titles, [_text(row["movie_title"]) for row in rows])
    timestamps = np.array([row["timestamp"] for row in rows], np.int64)
    user_ratings = np.array([row["user_rating"] for row in rows], np.float32)
    shuffled = np.random.default_rng(0).permutation(len(rows))
    return FilmLog(
        titles,
        users[shuffled],
        items[shuffled],
        timestamps[shuffled],
        user_ratings[shuffled],
        contexts(users, items, timestamps)[shuffled],
    )


def _text(value: bytes) -> str:
    return value.decode("utf-8")


def contexts(users: np.ndarray, items: np.ndarray, timestamps: np.ndarray) -> np.ndarray:
    """The ten films before each event, as `FilmLog` has them.

    Args:
      users, items, timestamps: ``[num_events]``, in any order.
    """
    by_time = np.lexsort([timestamps, users])
    ordered_users, ordered_items = users[by_time], items[by_time]
    before = np.full([len(users), CONTEXT_LENGTH], -1, np.int64)
    for back in range(1, CONTEXT_LENGTH + 1):
        same_user = ordered_users[back:] == ordered_users[:-back]
        before[by_time[back:][same_user], -back] = ordered_items[:-back][same_user]
    return before


def film_log(seed: int = 0, order_noise: float = 5.0) -> FilmLog:
    """Makes the log.

    Few films have most of the events. Users like some genres, and within a genre some styles; what
    they like changes with the season, and they watch films of one genre in a row. So the id, the
    time, the words of the title and the films before all tell something about the next film.

    Args:
      seed: of everything that is random.
      order_noise: how many films are out of turn. With 1, users watch long runs of one genre.
    """
    random = np.random.default_rng(seed)
    genres = random.integers(0, _GENRES, NUM_ITEMS)
    centres = random.normal(size=[_GENRES, _TASTES])
    styles = centres[genres] + 0.6 * random.normal(size=[NUM_ITEMS, _TASTES])
    places = random.permutation(NUM_ITEMS)
    popularity = -0.0025 * places - 0.6 * np.log(1.0 + places / 20.0)
    tastes = 0.8 * random.normal(size=[NUM_USERS, _TASTES])
    starts = random.uniform(0.0, 0.6, NUM_USERS)
    seasons = 2.0 * np.pi * (starts[:, np.newaxis] + np.arange(_TASTES) / _TASTES)
    liking = (tastes + 0.5 * np.sin(seasons)) @ styles.T
    # The best of scores with Gumbel noise are a sample without replacement from their softmax.
    noisy = popularity + liking + random.gumbel(size=liking.shape)
    order = np.argsort(-noisy, axis=1)
    counts = _activities(random)

    users = np.repeat(np.arange(NUM_USERS), counts)
    items = np.concatenate([order[user, :count] for user, count in enumerate(counts)])
    # Genres one after the other, in an order of the user's own, with many films out of turn.
    turns = random.permuted(np.tile(np.arange(_GENRES), [NUM_USERS, 1]), axis=1)
    turn = turns[users, genres[items]] + random.exponential(order_noise, NUM_EVENTS)
    by_time = np.lexsort([turn, users])
    users, items = users[by_time], items[by_time]
    first = np.repeat(np.cumsum(counts) - counts, counts)
    position = np.arange(NUM_EVENTS) - first
    timestamps = _YEAR * (starts[users] + 0.1 * position / counts[users])
    ratings = np.clip(
        np.round(2.8 + 0.4 * liking[users, items] + random.normal(size=NUM_EVENTS)),
        1,
        5,
    )
    shuffled = random.permutation(NUM_EVENTS)
    return FilmLog(
        np.array(
            [
                f"{_word(genre)} {_word(item)} ({1930 + item % 70})"
                for item, genre in enumerate(genres)
            ]
        ),
        (users[shuffled] + 1).astype(str),
        items[shuffled],
        874_724_710 + timestamps[shuffled].astype(np.int64),
        ratings[shuffled].astype(np.float32),
        contexts(users, items, timestamps)[shuffled],
    )


def _activities(random: np.random.Generator) -> np.ndarray:
    """How many events each user has: many have few, and few have many."""
    shares = random.gamma(0.8, size=NUM_USERS)
    spare = NUM_EVENTS - _ACTIVITY * NUM_USERS
    counts = _ACTIVITY + np.floor(spare * shares / shares.sum()).astype(np.int64)
    counts[: NUM_EVENTS - counts.sum()] += 1
    return counts


def _word(number: int) -> str:
    """A word for a number."""
    syllables = ["ba", "do", "fe", "gi", "ku", "la", "mo", "ne", "pi", "ru"]
    return "".join(syllables[int(digit)] for digit in str(number))
