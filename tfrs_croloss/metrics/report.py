r"""From ranks to a report: recall, NDCG, MRR and expected recall, with standard errors.

Everything follows from the ranks of the positives, so that every cutoff comes from one pass.
Two averages are in use: over pairs of query and positive (the paper's formula) and over users
(the authors' code: each user's share of targets retrieved, then the mean over users).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrs_croloss.losses.weightings import PowerWeighting
from tfrs_croloss.metrics.catalogues import as_catalogue, check_embeddings
from tfrs_croloss.metrics.ranks import exact_ranks, flatten_positives

DEFAULT_CUTOFFS = (50, 100, 200, 500)


@dataclasses.dataclass(frozen=True)
class Averages:
    """Averages over pairs or over users, with the standard error of each figure.

    Attributes:
      num: pairs or users averaged over.
      recall: for each cutoff N, the share of positives with a rank of at most N.
      ndcg: for each cutoff N, normalized discounted cumulative gain.
      mrr: mean reciprocal rank; over users, of each user's best-ranked target.
      mean_rank: mean of the ranks; over users, of each user's mean.
      expected_recall: recall averaged over all cutoffs, weighted as the loss weights them.
      standard_errors: standard error of each figure, by its name; ``None`` for a single unit.
    """

    num: int
    recall: dict[int, float]
    ndcg: dict[int, float]
    mrr: float
    mean_rank: float
    expected_recall: float
    standard_errors: dict[str, float | None]

    def figures(self) -> dict[str, float]:
        """All figures by name: ``recall@50``, ..., ``ndcg@50``, ..., ``mrr``, ..."""
        return {
            **{f"recall@{cutoff}": value for cutoff, value in self.recall.items()},
            **{f"ndcg@{cutoff}": value for cutoff, value in self.ndcg.items()},
            "mrr": self.mrr,
            "mean_rank": self.mean_rank,
            "expected_recall": self.expected_recall,
        }

    def as_dict(self) -> dict[str, Any]:
        """Figures and standard errors, ready for JSON."""
        return {"num": self.num, **self.figures(), "standard_errors": dict(self.standard_errors)}


@dataclasses.dataclass(frozen=True)
class RankingReport:
    """Metrics of a test set, computed from ranks.

    Attributes:
      num_items: size of the catalogue.
      alpha: exponent of the weighting in ``expected_recall``.
      median_rank: median over pairs.
      pairs: averages over pairs, with standard errors that allow for pairs of one user being alike.
      users: averages over users.
      ranks: ``[num_pairs]``: the ranks themselves.
      user_rows: ``[num_pairs]``: which ranks belong to one user.
    """

    num_items: int
    alpha: float
    median_rank: float
    pairs: Averages
    users: Averages
    ranks: np.ndarray = dataclasses.field(repr=False, compare=False)
    user_rows: np.ndarray = dataclasses.field(repr=False, compare=False)

    @property
    def recall(self) -> dict[int, float]:
        """Recall over pairs, by cutoff, as the paper defines it."""
        return self.pairs.recall

    @property
    def cutoffs(self) -> tuple[int, ...]:
        """The cutoffs that recall and NDCG were computed at."""
        return tuple(self.pairs.recall)

    def at(self, cutoffs: Sequence[int]) -> RankingReport:
        """The report of the same ranks at other cutoffs: nothing is counted again."""
        return summarize_ranks(
            self.ranks,
            num_items=self.num_items,
            cutoffs=cutoffs,
            user_rows=self.user_rows,
            alpha=self.alpha,
        )

    def as_dict(self) -> dict[str, Any]:
        """The figures, without the ranks, as plain numbers and strings, ready for JSON."""
        return {
            "num_items": self.num_items,
            "alpha": self.alpha,
            "median_rank": self.median_rank,
            "pairs": self.pairs.as_dict(),
            "users": self.users.as_dict(),
        }

    def __str__(self) -> str:
        lines = [
            f"{self.pairs.num:,} pairs of {self.users.num:,} users, {self.num_items:,} items",
            f"{'':<16}{'over pairs':>24}{'over users':>24}",
        ]
        for name in self.pairs.figures():
            cells = [
                _with_error(average.figures()[name], average.standard_errors[name])
                for average in (self.pairs, self.users)
            ]
            lines.append(f"{name:<16}{cells[0]:>24}{cells[1]:>24}")
        lines.append(f"{'median_rank':<16}{f'{self.median_rank:,.1f}':>24}")
        lines.append(f"expected_recall is for alpha = {self.alpha:g}; ± is one standard error")
        return "\n".join(lines)


def _with_error(value: float, error: float | None) -> str:
    digits = 4 if abs(value) < 10 else 1
    return f"{value:,.{digits}f} ± " + ("?" if error is None else f"{error:,.{digits}f}")


def rank_weight_integral(ranks: Any, num_items: int, alpha: float) -> np.ndarray:
    r""":math:`W_\alpha(R)`, normalized on ``[1, num_items + 1)``: 0 at rank 1, 1 at the end.

    >>> rank_weight_integral([1, 10, 100], num_items=99, alpha=1.0)
    array([0. , 0.5, 1. ])
    """
    integral = PowerWeighting(alpha, normalized=True).integral(
        tf.constant(ranks, tf.float64), tf.constant(float(num_items), tf.float64)
    )
    return np.asarray(integral)


def summarize_ranks(
    ranks: Any,
    *,
    num_items: int,
    cutoffs: Sequence[int] = DEFAULT_CUTOFFS,
    user_rows: Any = None,
    alpha: float = 1.0,
) -> RankingReport:
    r"""Averages the ranks of a test set into a report.

    A rank of ``num_items + 1`` stands for an item that is never retrieved. Expected recall is
    :math:`E_w[\mathrm{Recall@}x] = 1 - \mathrm{mean}(W_\alpha(R))` under the density
    :math:`w(x) \propto x^{-\alpha}` on ``[1, num_items + 1)``.

    >>> report = summarize_ranks([1, 4, 9], num_items=9, cutoffs=[1, 5], user_rows=[0, 0, 1])
    >>> print(f"{report.recall[5]:.3f} {report.users.recall[5]:.3f}")
    0.667 0.500

    Args:
      ranks: ``[num_pairs]`` integers from 1 to ``num_items + 1``.
      num_items: size of the catalogue.
      cutoffs: the N of Recall@N and NDCG@N.
      user_rows: ``[num_pairs]`` integers that say which pairs belong to one user. By default each
        pair is a user of its own.
      alpha: exponent of the weighting, at least 0.

    Returns:
      The report. The standard error over users is that of a mean of independent users; over pairs
      it is that of a ratio of sums over users, which is the same if each user has one pair.
    """
    rank = np.asarray(ranks)
    if not (np.issubdtype(rank.dtype, np.integer) and rank.ndim == 1 and len(rank)):
        raise ValueError(
            "`ranks` should be a flat list of integers, at least one. "
            f"Received: {rank.dtype} of shape {rank.shape}."
        )
    if rank.min() < 1 or rank.max() > num_items + 1:
        raise ValueError(
            f"`ranks` should be between 1 and num_items + 1 = {num_items + 1}. "
            f"Received: from {rank.min()} to {rank.max()}."
        )
    sizes = check_cutoffs(cutoffs)
    if not (np.ndim(alpha) == 0 and math.isfinite(alpha) and alpha >= 0):
        raise ValueError(f"`alpha` should be a finite number of at least 0. Received: {alpha!r}.")
    users = np.arange(len(rank)) if user_rows is None else np.asarray(user_rows)
    if users.shape != rank.shape:
        raise ValueError(
            f"`user_rows` should have one entry for each of the {len(rank)} ranks. "
            f"Received: shape {users.shape}."
        )
    owner = np.unique(users, return_inverse=True)[1].reshape(-1)
    num_targets = np.bincount(owner)

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(owner, weights=values, minlength=len(num_targets))

    gain = 1.0 / np.log2(1.0 + rank)
    ideal = np.concatenate([[0.0], np.cumsum(1.0 / np.log2(2.0 + np.arange(num_targets.max())))])
    expected = 1.0 - rank_weight_integral(rank, num_items, alpha)
    best = np.zeros(len(num_targets))
    np.maximum.at(best, owner, 1.0 / rank)

    over_pairs = {f"recall@{n}": (rank <= n).astype(np.float64) for n in sizes}
    over_pairs.update({f"ndcg@{n}": gain * (rank <= n) for n in sizes})
    over_pairs.update(mrr=1.0 / rank, mean_rank=rank.astype(np.float64), expected_recall=expected)
    over_users = {name: total(values) / num_targets for name, values in over_pairs.items()}
    for n in sizes:
        dcg = total(over_pairs[f"ndcg@{n}"])
        over_users[f"ndcg@{n}"] = dcg / ideal[np.minimum(num_targets, n)]
    over_users["mrr"] = best

    pair_means = {name: float(np.mean(values)) for name, values in over_pairs.items()}
    pair_errors = {
        name: _standard_error(total(values) - num_targets * pair_means[name], len(rank))
        for name, values in over_pairs.items()
    }
    user_means = {name: float(np.mean(values)) for name, values in over_users.items()}
    user_errors = {
        name: _standard_error(values - user_means[name], len(values))
        for name, values in over_users.items()
    }
    return RankingReport(
        num_items=int(num_items),
        alpha=float(alpha),
        median_rank=float(np.median(rank)),
        pairs=_averages(len(rank), sizes, pair_means, pair_errors),
        users=_averages(len(num_targets), sizes, user_means, user_errors),
        ranks=rank,
        user_rows=users,
    )


def check_cutoffs(cutoffs: Sequence[int]) -> list[int]:
    """Distinct ascending positive integers, or an error."""
    values = np.asarray(list(cutoffs))
    if not len(values) or not np.issubdtype(values.dtype, np.integer) or values.min() < 1:
        raise ValueError(
            f"`cutoffs` should be integers of at least 1, and not empty. Received: {cutoffs!r}."
        )
    return [int(value) for value in np.unique(values)]


def _standard_error(deviations: np.ndarray, divisor: int) -> float | None:
    """The standard error of a sum of independent terms over ``divisor``; None for a single term."""
    count = len(deviations)
    if count < 2:
        return None
    return float(math.sqrt(np.sum(deviations**2) * count / (count - 1)) / divisor)


def _averages(
    num: int, cutoffs: list[int], means: dict[str, float], errors: dict[str, float | None]
) -> Averages:
    return Averages(
        num=num,
        recall={n: means[f"recall@{n}"] for n in cutoffs},
        ndcg={n: means[f"ndcg@{n}"] for n in cutoffs},
        mrr=means["mrr"],
        mean_rank=means["mean_rank"],
        expected_recall=means["expected_recall"],
        standard_errors=errors,
    )


def evaluate(
    query_embeddings: Any,
    candidate_embeddings: Any,
    positives: Any,
    *,
    query_rows: Any = None,
    excluded: Any = None,
    excluded_positives: str = "error",
    cutoffs: Sequence[int] = DEFAULT_CUTOFFS,
    alpha: float = 1.0,
    candidate_block_size: int = 512,
    query_block_size: int = 2048,
) -> RankingReport:
    """Exact metrics of a whole test set over a whole catalogue.

    Each query is a user: averages over users are over the queries with at least one positive.

    Args:
      query_embeddings: ``[num_queries, dim]`` floats.
      candidate_embeddings: ``[num_items, dim]`` floats, row ``i`` the item with id ``i``; or a
        catalogue that keeps them elsewhere, such as `tfrs_croloss.metrics.ShardedCatalogue`.
      positives: one id for each query; or ragged ids; or flat ids with their ``query_rows``.
      query_rows, excluded, excluded_positives, candidate_block_size, query_block_size: as for
        `tfrs_croloss.metrics.exact_ranks`.
      cutoffs, alpha: as for `summarize_ranks`.

    Returns:
      The report.
    """
    check_cutoffs(cutoffs)
    queries = check_embeddings(query_embeddings, "query_embeddings")
    catalogue = as_catalogue(candidate_embeddings)
    num_items = catalogue.num_items
    ids, rows = flatten_positives(positives, query_rows, int(queries.shape[0]), num_items)
    ranks = exact_ranks(
        queries,
        catalogue,
        ids,
        query_rows=rows,
        excluded=excluded,
        excluded_positives=excluded_positives,
        candidate_block_size=candidate_block_size,
        query_block_size=query_block_size,
    )
    return summarize_ranks(ranks, num_items=num_items, cutoffs=cutoffs, user_rows=rows, alpha=alpha)
