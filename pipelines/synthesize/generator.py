"""A synthetic interaction log with the structure of a real one, as plain numpy functions.

Items lie in clusters. Popularity has a long tail, across clusters and inside each. A user has a
few interests; an interest is a cluster and a taste, which is a direction in the space of the item
vectors. At every step one interest is active, usually the same as before, and an item is drawn in
two stages: candidates by popularity, then one of them by its fit to the taste. Interests drift: now
and then one moves to a neighbouring cluster, and tastes turn slowly. So a user's history tells the
cluster of the next item, and more than that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

# Users are generated in chunks of this size, each with its own seed, so that memory is bounded.
CHUNK_USERS = 20_000

_DIMENSION = 4
_CANDIDATES = 24
_TURN = np.float32(0.03)
_RECENT = 32
_TWO_YEARS = 2 * 365 * 86_400
_FIRST_SECOND = 1_600_000_000


@dataclass(frozen=True)
class SyntheticConfig:
    """Parameters of the log.

    Attributes:
      num_users, num_items: number of users and of items.
      mean_length: mean number of interactions per user; lengths are skewed, from 5 to 200.
      seed: seed of the log; equal seeds give equal logs.
      items_per_cluster: mean number of items in a cluster.
      num_interests: number of interests that a user has at any time.
      popularity: exponent of the long tail inside a cluster; 0 is uniform.
      cluster_popularity: exponent of the long tail across clusters; 0 is uniform.
      sharpness: how strictly users follow their tastes; at 0 they follow popularity alone.
      stay: probability that the next item belongs to the same interest.
      drift: probability per step that an interest moves to a neighbouring cluster.
    """

    num_users: int = 4_000
    num_items: int = 3_000
    mean_length: float = 25.0
    seed: int = 0
    items_per_cluster: float = 120.0
    num_interests: int = 3
    popularity: float = 0.8
    cluster_popularity: float = 0.6
    sharpness: float = 8.0
    stay: float = 0.7
    drift: float = 0.02


@dataclass(frozen=True)
class Catalogue:
    """The items, numbered cluster by cluster and inside a cluster by popularity.

    Attributes:
      starts: ``[num_clusters + 1]``, where the items of each cluster begin.
      vectors: ``[num_items, dimension]`` unit vectors.
      cluster_shares: ``[num_clusters]`` cumulative popularity of the clusters, up to 1.
      public_ids: ``[num_items]`` a permutation, so that an id tells nothing about its item.
    """

    starts: np.ndarray
    vectors: np.ndarray
    cluster_shares: np.ndarray
    public_ids: np.ndarray


@dataclass(frozen=True)
class Events:
    """Interactions, arrays of shape ``[num_events]`` each; ids are numbers from 0."""

    users: np.ndarray
    items: np.ndarray
    times: np.ndarray


def make_catalogue(config: SyntheticConfig) -> Catalogue:
    """Draws the items of a log."""
    rng = np.random.default_rng((config.seed, 0))
    num_clusters = max(1, round(config.num_items / config.items_per_cluster))
    # Cuts at random places give clusters of different sizes; every cluster has an item.
    cuts = np.sort(rng.choice(np.arange(1, config.num_items), num_clusters - 1, replace=False))
    ranks = rng.permutation(num_clusters) + 1.0
    shares = np.cumsum(ranks**-config.cluster_popularity)
    return Catalogue(
        starts=np.concatenate([[0], cuts, [config.num_items]]).astype(np.int64),
        vectors=_unit(rng.standard_normal((config.num_items, _DIMENSION), np.float32)),
        cluster_shares=shares / shares[-1],
        public_ids=rng.permutation(config.num_items),
    )


def make_events(config: SyntheticConfig) -> Iterator[Events]:
    """Generates the log in chunks of users; the events of a chunk are sorted by time."""
    catalogue = make_catalogue(config)
    for chunk, start in enumerate(range(0, config.num_users, CHUNK_USERS)):
        num_users = min(CHUNK_USERS, config.num_users - start)
        rng = np.random.default_rng((config.seed, 1 + chunk))
        events = _chunk_events(config, catalogue, num_users, rng)
        order = np.argsort(events.times, kind="stable")
        yield Events(start + events.users[order], events.items[order], events.times[order])


@dataclass(frozen=True)
class ItemFeatures:
    """Side features of items, by id; each tells something of the items that a user follows.

    Attributes:
      genres: ``[num_items]`` the cluster of an item; of every tenth item, any cluster.
      prices: ``[num_items]`` grows with the first coordinate of an item's vector.
      tags: ``[num_items, dimension]`` booleans, the signs of the coordinates.
      released: ``[num_items]`` seconds, before the first interaction.
    """

    genres: np.ndarray
    prices: np.ndarray
    tags: np.ndarray
    released: np.ndarray


@dataclass(frozen=True)
class UserFeatures:
    """Side features of a chunk of users.

    Attributes:
      users: ``[num_users]`` ids.
      segments: ``[num_users]`` the cluster of a user's first interest.
      ages: ``[num_users]`` years, which grow with that cluster.
    """

    users: np.ndarray
    segments: np.ndarray
    ages: np.ndarray


def make_item_features(config: SyntheticConfig) -> ItemFeatures:
    """Side features of the items of a log, which stays as it is without them."""
    catalogue = make_catalogue(config)
    rng = np.random.default_rng((config.seed, 0, 1))
    num_clusters = len(catalogue.cluster_shares)
    genres = np.repeat(np.arange(num_clusters), np.diff(catalogue.starts))
    wrong = rng.random(config.num_items) < 0.1
    genres[wrong] = rng.integers(num_clusters, size=int(wrong.sum()))
    noise = rng.normal(0.0, 0.2, config.num_items)
    prices = np.round(20.0 * np.exp(catalogue.vectors[:, 0] + noise), 2)
    released = _FIRST_SECOND - rng.integers(_TWO_YEARS, size=config.num_items)
    # From the order of the catalogue to that of the ids.
    order = np.argsort(catalogue.public_ids)
    return ItemFeatures(
        genres[order], prices[order], catalogue.vectors[order] > 0.0, released[order]
    )


def make_user_features(config: SyntheticConfig) -> Iterator[UserFeatures]:
    """Side features of the users of a log in chunks, from their interests before any drift."""
    catalogue = make_catalogue(config)
    num_clusters = len(catalogue.cluster_shares)
    for chunk, start in enumerate(range(0, config.num_users, CHUNK_USERS)):
        num_users = min(CHUNK_USERS, config.num_users - start)
        rng = np.random.default_rng((config.seed, 1 + chunk))
        _, names, clusters = _first_draws(config, catalogue, num_users, rng)
        order = np.argsort(names)
        segments = clusters[order, 0]
        noise = np.random.default_rng((config.seed, 1 + chunk, 1)).normal(0.0, 5.0, num_users)
        ages = np.clip(np.round(20 + 50 * segments / num_clusters + noise), 14, 99)
        yield UserFeatures(start + np.arange(num_users), segments, ages.astype(np.int64))


def _first_draws(
    config: SyntheticConfig, catalogue: Catalogue, num_users: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lengths, names and clusters of the users of a chunk."""
    # Longest first, so that the users who are still active are always the first rows.
    lengths = np.sort(_lengths(config, num_users, rng))[::-1]
    names = rng.permutation(num_users)
    return lengths, names, _draw_clusters(catalogue, (num_users, config.num_interests), rng)


def _chunk_events(
    config: SyntheticConfig, catalogue: Catalogue, num_users: int, rng: np.random.Generator
) -> Events:
    """The events of some users, numbered from 0, in no particular order."""
    lengths, names, clusters = _first_draws(config, catalogue, num_users, rng)
    tastes = _unit(rng.standard_normal((*clusters.shape, _DIMENSION), np.float32))
    interest = rng.integers(config.num_interests, size=num_users)
    times = _FIRST_SECOND + rng.integers(_TWO_YEARS, size=num_users)
    pace = 86_400 * rng.lognormal(0.0, 1.0, num_users)
    recent = np.full((num_users, _RECENT), -1, np.int64)
    users, items, seconds = [], [], []
    for step in range(int(lengths[0])):
        active = int(np.searchsorted(-lengths, -step, side="left"))
        rows = np.arange(active)
        switch = rng.random(active) > config.stay
        interest[:active][switch] = rng.integers(config.num_interests, size=int(switch.sum()))
        chosen = interest[:active]
        _drift(config, catalogue, clusters, tastes, chosen, rng)
        item = _choose_items(
            config,
            catalogue,
            clusters[rows, chosen],
            tastes[rows, chosen],
            recent[:active, :step],
            rng,
        )
        recent[:active, step % _RECENT] = item
        times[:active] += (pace[:active] * rng.exponential(1.0, active)).astype(np.int64)
        users.append(names[:active])
        items.append(catalogue.public_ids[item])
        seconds.append(times[:active].copy())
    return Events(np.concatenate(users), np.concatenate(items), np.concatenate(seconds))


def _lengths(config: SyntheticConfig, num_users: int, rng: np.random.Generator) -> np.ndarray:
    spread = 0.6
    middle = np.log(config.mean_length) - spread**2 / 2
    return np.clip(rng.lognormal(middle, spread, num_users), 5, 200).astype(np.int64)


def _draw_clusters(
    catalogue: Catalogue, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    return np.searchsorted(catalogue.cluster_shares, rng.random(shape), side="right")


def _drift(
    config: SyntheticConfig,
    catalogue: Catalogue,
    clusters: np.ndarray,
    tastes: np.ndarray,
    chosen: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Turns the tastes of the active interests, and moves a few to a neighbouring cluster."""
    rows = np.arange(len(chosen))
    noise = rng.standard_normal((len(chosen), _DIMENSION), np.float32)
    tastes[rows, chosen] = _unit(tastes[rows, chosen] + _TURN * noise)
    moving = rows[rng.random(len(chosen)) < config.drift]
    steps = rng.choice([-2, -1, 1, 2], len(moving))
    num_clusters = len(catalogue.cluster_shares)
    moved = (clusters[moving, chosen[moving]] + steps) % num_clusters
    clusters[moving, chosen[moving]] = moved


def _choose_items(
    config: SyntheticConfig,
    catalogue: Catalogue,
    clusters: np.ndarray,
    tastes: np.ndarray,
    recent: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Chooses one item per user: candidates by popularity, then one of them by taste.

    Args:
      config: parameters of the log.
      catalogue: the items.
      clusters: ``[num_users]`` active clusters.
      tastes: ``[num_users, dimension]`` active tastes.
      recent: ``[num_users, up to _RECENT]`` latest items of each user, which are not repeated.
      rng: random generator.
    """
    sizes = catalogue.starts[clusters + 1] - catalogue.starts[clusters]
    ranks = _long_tail(sizes[:, None], config.popularity, rng.random((len(sizes), _CANDIDATES)))
    candidates = catalogue.starts[clusters][:, None] + ranks
    fit = np.einsum("ucd,ud->uc", catalogue.vectors[candidates], tastes)
    # The largest of scores with Gumbel noise is a draw from their softmax.
    noise = rng.gumbel(size=fit.shape).astype(np.float32)
    scores = np.float32(config.sharpness) * fit + noise
    for column in range(recent.shape[1]):
        scores[candidates == recent[:, column, None]] -= 100.0
    best = scores.argmax(axis=1)
    return candidates[np.arange(len(best)), best]


def _long_tail(sizes: np.ndarray, exponent: float, uniform: np.ndarray) -> np.ndarray:
    """Ranks from 0 to ``sizes - 1`` with density ``(rank + 1) ** -exponent``, by inversion."""
    power = 1.0 - exponent
    if abs(power) < 1e-6:
        places = (sizes + 1.0) ** uniform
    else:
        places = (((sizes + 1.0) ** power - 1.0) * uniform + 1.0) ** (1.0 / power)
    return np.minimum(places.astype(np.int64), sizes) - 1


def _unit(vectors: np.ndarray) -> np.ndarray:
    unit: np.ndarray = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return unit
