"""Metrics and reports that are computed from ranks."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tfrs_croloss.metrics.report import rank_weight_integral, summarize_ranks


def test_summary_over_pairs_and_users():
    # User 7 has ranks 1 and 4, user 3 has rank 2.
    report = summarize_ranks([1, 2, 4], num_items=9, cutoffs=[3, 1], user_rows=[7, 3, 7], alpha=0.0)
    pairs, users = report.pairs, report.users
    assert (pairs.num, users.num) == (3, 2)
    assert report.recall == pairs.recall == {1: 1 / 3, 3: 2 / 3}
    assert users.recall == {1: (1 / 2 + 0) / 2, 3: (1 / 2 + 1) / 2}
    assert pairs.ndcg[3] == pytest.approx((1 + 1 / math.log2(3)) / 3)
    ideal = 1 + 1 / math.log2(3)
    assert users.ndcg[3] == pytest.approx((1 / ideal + 1 / math.log2(3)) / 2)
    assert users.ndcg[1] == pytest.approx((1 + 0) / 2)
    assert pairs.mrr == pytest.approx((1 + 1 / 2 + 1 / 4) / 3)
    assert users.mrr == pytest.approx((1 + 1 / 2) / 2)
    assert pairs.mean_rank == pytest.approx(7 / 3)
    assert users.mean_rank == pytest.approx((5 / 2 + 2) / 2)
    assert report.median_rank == 2.0
    # With alpha 0, W(R) = (R - 1) / 9.
    assert pairs.expected_recall == pytest.approx(1 - (0 + 1 + 3) / 27)
    assert users.expected_recall == pytest.approx(1 - ((0 + 3) / 18 + 1 / 9) / 2)


def test_standard_errors():
    independent = summarize_ranks([1, 2, 5, 9], num_items=9, cutoffs=[3])
    hits = [1.0, 1.0, 0.0, 0.0]
    expected = np.std(hits, ddof=1) / math.sqrt(4)
    assert independent.pairs.standard_errors["recall@3"] == pytest.approx(expected)
    assert independent.users.standard_errors["recall@3"] == pytest.approx(expected)
    expected = np.std([1, 2, 5, 9], ddof=1) / math.sqrt(4)
    assert independent.pairs.standard_errors["mean_rank"] == pytest.approx(expected)

    # Users with 2 of 2, 1 of 1 and 0 of 2 hits; 3 of 5 over pairs.
    grouped = summarize_ranks([1, 2, 3, 8, 9], num_items=9, cutoffs=[3], user_rows=[0, 0, 1, 2, 2])
    assert grouped.users.standard_errors["recall@3"] == pytest.approx(
        np.std([1.0, 1.0, 0.0], ddof=1) / math.sqrt(3)
    )
    residuals = [2 - 2 * 0.6, 1 - 0.6, 0 - 2 * 0.6]
    assert grouped.pairs.standard_errors["recall@3"] == pytest.approx(
        math.sqrt(3 / 2 * sum(residual**2 for residual in residuals)) / 5
    )
    single = summarize_ranks([1], num_items=9, cutoffs=[3])
    assert single.pairs.standard_errors["recall@3"] is None
    assert "?" in str(single)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.999999, 1.0, 1.4, 3.0])
def test_expected_recall_is_recall_integrated_over_all_sizes(alpha):
    num_items = 20
    ranks = np.array([1, 1, 3, 7, 20, 21])
    # Recall@x is constant between integers, where the density integrates in closed form.

    def antiderivative(x):
        return math.log(x) if alpha == 1 else (x ** (1 - alpha) - 1) / (1 - alpha)

    expected = sum(
        (antiderivative(size + 1) - antiderivative(size)) * np.mean(ranks <= size)
        for size in range(1, num_items + 1)
    ) / antiderivative(num_items + 1)
    report = summarize_ranks(ranks, num_items=num_items, cutoffs=[1], alpha=alpha)
    assert report.pairs.expected_recall == pytest.approx(expected, rel=1e-9)
    ends = rank_weight_integral([1, num_items + 1], num_items, alpha)
    assert ends.tolist() == pytest.approx([0.0, 1.0])


def test_report_is_json_ready_and_readable():
    report = summarize_ranks(np.array([1, 30]), num_items=1000, cutoffs=(50, 10), user_rows=[0, 1])
    loaded = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert loaded["pairs"]["recall@10"] == 0.5
    assert loaded["users"]["standard_errors"]["recall@10"] == pytest.approx(0.5)
    assert report.cutoffs == (10, 50)
    text = str(report)
    assert "recall@10" in text and "0.5000 ± 0.5000" in text and "1,000 items" in text


def test_a_report_gives_other_cutoffs_from_the_same_ranks():
    ranks, user_rows = [1, 4, 9], [0, 0, 1]
    report = summarize_ranks(ranks, num_items=9, cutoffs=[5], user_rows=user_rows, alpha=1.4)
    others = report.at([1, 9])
    assert report.ranks.tolist() == ranks
    # Of the first user one target of two ranks first, of the second none.
    assert others.users.recall == {1: (1 / 2 + 0) / 2, 9: 1.0}
    assert others.pairs.expected_recall == report.pairs.expected_recall


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"ranks": []}, "at least one"),
        ({"ranks": [0]}, "between 1 and"),
        ({"ranks": [12]}, "num_items \\+ 1 = 11"),
        ({"ranks": [1.5]}, "integers"),
        ({"cutoffs": []}, "`cutoffs`"),
        ({"cutoffs": [0]}, "`cutoffs`"),
        ({"alpha": -1.0}, "`alpha`"),
        ({"alpha": math.nan}, "`alpha`"),
        ({"user_rows": [1, 2]}, "`user_rows`"),
    ],
)
def test_summary_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        summarize_ranks(**{"ranks": [1], "num_items": 10, **changes})
