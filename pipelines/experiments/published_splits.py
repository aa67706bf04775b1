"""Results that others have published on data sets that come split, in percent.

Matrix factorisations of 64 dimensions with L2-normalised embeddings: Recall@20 and NDCG@20 over
users, where only a user's training items are excluded. Health and Electronic are those of PSL
(NeurIPS 2024) and SL@K (KDD 2025), Beauty that of Talos (WWW 2026).
"""

from __future__ import annotations

LEADERBOARD = "leaderboard"
"""The name of the table."""
LEADERBOARD_LOSSES = (
    "bpr",
    "llpauc",
    "softmax",
    "bsl",
    "psl",
    "sl_at_k",
    "talos",
    "lambda-softplus",
    "lambda-exponential",
    "lambda-softplus-eased",
    "lambda-exponential-eased",
)
LEADERBOARD_TRIALS = 20

SIZE = 20
"""The N of Recall@N and NDCG@N."""

Published = dict[str, tuple[float, float]]

PUBLISHED: dict[str, Published] = {
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
"""By data set and loss: Recall@20 and NDCG@20."""
