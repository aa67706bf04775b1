"""The paper's numbers, in percent, and the data sets that they belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SIZES = (50, 100, 200, 500)

Figures = dict[int, float]

_ITEMS = {"books": 313_966, "taobao": 1_708_530}
# Filters differ in details from one copy of a log to the next.
_TOLERANCE = 0.05


def published_dataset(manifest: dict[str, Any]) -> str | None:
    """``books`` or ``taobao`` if prepared data is one of the paper's two sets, or None.

    This goes by the source and the names of the files, and by the size of the catalogue: a sample
    of Books is another data set.

    Args:
      manifest: manifest of the prepared data.
    """
    source = manifest["source"]
    names = " ".join(Path(entry["path"]).name.lower() for entry in manifest["inputs"])
    if source == "taobao" or (source == "authors" and "taobao" in names):
        dataset = "taobao"
    elif source in ("amazon-reviews", "amazon-ratings", "authors") and "book" in names:
        dataset = "books"
    else:
        return None
    expected = _ITEMS[dataset]
    near = abs(manifest["statistics"]["items"] - expected) <= _TOLERANCE * expected
    return dataset if near else None


def _figures(*values: float) -> Figures:
    return dict(zip(SIZES, values))


MAIN: dict[str, dict[str, Figures]] = {
    "books": {
        "cross-entropy": _figures(9.68, 13.24, 17.46, 24.26),
        "triplet": _figures(7.53, 11.21, 15.93, 24.11),
        "BPR": _figures(8.24, 12.08, 16.96, 25.21),
        "CROLoss": _figures(10.20, 14.03, 18.63, 26.06),
        "CROLoss-lambda": _figures(10.17, 14.07, 18.81, 26.20),
    },
    "taobao": {
        "cross-entropy": _figures(4.71, 6.59, 9.01, 13.13),
        "triplet": _figures(2.46, 3.71, 5.43, 8.84),
        "BPR": _figures(2.89, 4.33, 6.35, 10.25),
        "CROLoss": _figures(4.75, 6.65, 9.06, 13.13),
        "CROLoss-lambda": _figures(5.27, 7.35, 10.01, 14.57),
    },
}

# For each kernel and N, in the order of ALPHAS.
ALPHAS = {"books": (0.6, 0.8, 1.0, 1.2), "taobao": (1.0, 1.2, 1.4, 1.6)}
KERNELS: dict[str, dict[str, tuple[tuple[float, ...], ...]]] = {
    "books": {
        "hinge": (
            (9.03, 9.50, 9.88, 9.53),
            (12.95, 13.35, 13.55, 12.87),
            (17.64, 18.04, 17.94, 16.76),
            (25.56, 25.63, 24.99, 22.91),
        ),
        "sigmoid": (
            (9.57, 9.94, 9.96, 10.05),
            (13.63, 13.77, 13.94, 13.88),
            (18.51, 18.56, 18.59, 18.38),
            (26.59, 26.35, 26.09, 25.66),
        ),
        "exponential": (
            (8.90, 9.39, 9.68, 9.99),
            (12.44, 12.87, 13.24, 13.56),
            (16.75, 17.11, 17.46, 17.71),
            (23.81, 24.13, 24.26, 24.33),
        ),
        "softplus": (
            (9.63, 9.97, 10.20, 10.19),
            (13.54, 13.85, 14.03, 14.03),
            (18.30, 18.59, 18.63, 18.49),
            (26.20, 26.19, 26.06, 25.51),
        ),
        "lambda": (
            (9.65, 9.80, 10.17, 10.19),
            (13.58, 13.78, 14.07, 14.01),
            (18.39, 18.50, 18.81, 18.46),
            (26.29, 26.25, 26.20, 25.96),
        ),
    },
    "taobao": {
        "hinge": (
            (3.75, 3.96, 4.02, 3.72),
            (5.37, 5.62, 5.62, 5.09),
            (7.51, 7.82, 7.68, 6.84),
            (11.35, 11.64, 11.18, 9.63),
        ),
        "sigmoid": (
            (3.89, 4.04, 4.11, 4.13),
            (5.62, 5.84, 5.87, 5.87),
            (7.91, 8.21, 8.15, 8.13),
            (11.93, 12.19, 12.13, 11.96),
        ),
        "exponential": (
            (4.71, 4.74, 4.75, 4.61),
            (6.59, 6.71, 6.65, 6.42),
            (9.01, 9.20, 9.06, 8.69),
            (13.13, 13.33, 13.13, 12.44),
        ),
        "softplus": (
            (4.21, 4.30, 4.36, 4.38),
            (5.98, 6.12, 6.21, 6.15),
            (8.32, 8.55, 8.52, 8.44),
            (12.51, 12.70, 12.54, 12.25),
        ),
        "lambda": (
            (4.55, 5.04, 5.27, 5.31),
            (6.39, 7.06, 7.35, 7.44),
            (8.75, 9.68, 10.01, 9.98),
            (12.90, 14.28, 14.57, 14.54),
        ),
    },
}

LAMBDA: dict[str, dict[tuple[str, str], Figures]] = {
    "books": {
        ("unit_step", "hinge"): _figures(9.07, 12.865, 17.46, 24.96),
        ("unit_step", "exponential"): _figures(8.74, 12.15, 16.35, 23.20),
        ("unit_step", "softplus"): _figures(9.98, 13.85, 18.53, 25.96),
        ("sigmoid", "hinge"): _figures(9.435, 13.305, 17.995, 25.69),
        ("sigmoid", "exponential"): _figures(8.79, 12.10, 16.26, 22.90),
        ("sigmoid", "softplus"): _figures(10.17, 14.07, 18.81, 26.20),
    },
    "taobao": {
        ("unit_step", "hinge"): _figures(3.30, 4.79, 6.79, 10.30),
        ("unit_step", "exponential"): _figures(4.85, 6.81, 9.36, 13.70),
        ("unit_step", "softplus"): _figures(4.25, 6.07, 8.47, 12.62),
        ("sigmoid", "hinge"): _figures(3.82, 5.49, 7.70, 11.60),
        ("sigmoid", "exponential"): _figures(5.27, 7.35, 10.01, 14.57),
        ("sigmoid", "softplus"): _figures(4.74, 6.71, 9.26, 13.62),
    },
}


def kernel_figures(dataset: str, kernel: str, alpha: float) -> Figures:
    """Recall@N of a kernel and an alpha; ``lambda`` is the paper's best pair of kernels.

    >>> kernel_figures("books", "softplus", 1.0)
    {50: 10.2, 100: 14.03, 200: 18.63, 500: 26.06}
    """
    column = ALPHAS[dataset].index(alpha)
    rows = KERNELS[dataset][kernel]
    return {size: row[column] for size, row in zip(SIZES, rows)}
