"""Results that others have published, on data sets and with protocols that everybody uses.

``leaderboard``: matrix factorisations of 64 dimensions with L2-normalised embeddings; Recall@20 and
NDCG@20 over users, where only a user's training items are excluded. Health and Electronic are those
of PSL (NeurIPS 2024) and SL@K (KDD 2025), Beauty that of Talos (WWW 2026).

``sequences``: the next item of a sequence, leave-one-out; Recall@10 and NDCG@10 over all items but
those of the history, from the benchmark page of RecTools and the papers of the models.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

Published = Mapping[str, tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A table on data with published results.

    Attributes:
      title: title of the page.
      size: the N of Recall@N and NDCG@N.
      sets: the data sets by default.
      losses: the losses by default, as in ``compare``; those with attributes of the items only if
        the data sets have some.
      trials: the number of trials of each loss by default.
      published: Recall@N and NDCG@N in percent, by data set, and by loss or by the name of another
        model.
    """

    title: str
    size: int
    sets: tuple[str, ...]
    losses: tuple[str, ...]
    trials: int
    published: Mapping[str, Published]


SAMPLED_SOFTMAX = "softmax-sampled"
"""Softmax over a sample of the catalogue, among losses that are over all of it."""

ATTRIBUTES_SOFTMAX = "softmax-sampled-attributes"
"""The same with the attributes of the items as side features."""

_EASED = ("lambda-softplus-eased", "lambda-exponential-eased")
_LAMBDA = ("lambda-softplus", "lambda-exponential", *_EASED)

_SPLITS: dict[str, Published] = {
    "health": {
        "bpr": (16.27, 12.34),
        "llpauc": (16.44, 12.09),
        "softmax": (17.19, 12.61),
        "bsl": (17.19, 12.61),
        "psl": (17.18, 12.68),
        "sl_at_k": (18.23, 13.90),
    },
    "electronic": {
        "bpr": (8.16, 5.27),
        "llpauc": (8.21, 4.99),
        "softmax": (8.21, 5.29),
        "bsl": (8.34, 5.30),
        "psl": (8.38, 5.41),
        "sl_at_k": (9.01, 5.90),
    },
    "beauty": {
        "llpauc": (13.36, 7.37),
        "softmax": (14.03, 8.13),
        "psl": (14.32, 8.20),
        "talos": (14.99, 8.51),
    },
}

_SEQUENCES: dict[str, Published] = {
    "beauty": {
        "TIGER": (6.48, 3.84),
        "ActionPiece": (7.75, 4.24),
        "HSTU": (7.88, 4.39),
        "SASRec, sampled softmax": (9.21, 5.31),
        "eSASRec": (9.28, 5.23),
    },
    "sports": {
        "TIGER": (4.00, 2.25),
        "ActionPiece": (5.00, 2.64),
        "HSTU": (4.37, 2.43),
        "SASRec, sampled softmax": (5.69, 3.14),
        "eSASRec": (5.60, 3.23),
    },
    "toys": {
        "TIGER": (7.12, 4.32),
        "HSTU": (7.78, 4.50),
        "SASRec, sampled softmax": (9.70, 5.80),
        "eSASRec": (9.39, 5.38),
    },
}

BENCHMARKS = {
    "leaderboard": Benchmark(
        title="Leaderboard on published splits",
        size=20,
        sets=("health", "electronic", "beauty"),
        losses=("bpr", "llpauc", "softmax", "bsl", "psl", "sl_at_k", "talos", *_LAMBDA),
        trials=20,
        published=_SPLITS,
    ),
    "sequences": Benchmark(
        title="Self-attention over sequences, leave-one-out",
        size=10,
        sets=("beauty", "sports"),
        # No eased pull: it collapses this tower.
        losses=(
            *("softmax", SAMPLED_SOFTMAX, ATTRIBUTES_SOFTMAX),
            *("lambda-softplus", "lambda-exponential"),
        ),
        trials=6,
        published=_SEQUENCES,
    ),
}
"""The tables of ``reproduce`` with published results, by name."""
