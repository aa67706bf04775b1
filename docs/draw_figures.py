"""Draws the README's figure: the comparison kernels, and what alpha does to each rank's weight.

Run with ``make figures``.
"""

from __future__ import annotations

import pathlib

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

import tfrs_croloss
from tfrs_croloss.losses import kernels

NUM_ITEMS = 313_966  # Amazon Books, the paper's smaller data set
ALPHAS = (0.0, 0.6, 1.0, 1.4, 2.0)
# Distinct for readers who do not see all colours, in this order.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")


def draw_kernels(axes: plt.Axes) -> None:
    """Every built-in kernel over the gap; the hinge with a margin that fits the picture."""
    gaps = np.linspace(-4.0, 2.5, 651).astype(np.float32)
    drawn: dict[str, kernels.ComparisonKernel] = {
        "exponential": kernels.Exponential(),
        "softplus": kernels.Softplus(),
        "hinge (margin 1)": kernels.Hinge(margin=1.0),
        "sigmoid": kernels.Sigmoid(),
    }
    for color, (name, kernel) in zip(COLORS, drawn.items()):
        axes.plot(gaps, kernel(tf.constant(gaps)), label=name, color=color, linewidth=2)
    step = kernels.UnitStep()(tf.constant(gaps))
    axes.plot(gaps, step, label="unit step", color="black", linestyle="--", linewidth=1.5)
    axes.set(
        title="How much one negative counts",
        xlabel="gap: score of the negative minus score of the positive",
        ylabel="counts as this many ranks",
        ylim=(-0.15, 4.0),
    )
    axes.legend(frameon=False)


def draw_weights(axes: plt.Axes) -> None:
    """How the weight is spread over ranks: what an octave of ranks weighs."""
    ranks = np.geomspace(1.0, NUM_ITEMS, 400)
    for color, alpha in zip(COLORS, ALPHAS):
        weighting = tfrs_croloss.PowerWeighting(alpha, normalized=True)
        items = tf.constant(float(NUM_ITEMS), tf.float64)
        density = weighting.density(tf.constant(ranks), items).numpy()
        axes.plot(
            ranks,
            100 * density * ranks * np.log(2),
            label=f"alpha = {alpha:g}",
            color=color,
            linewidth=2,
        )
    axes.set(
        title=f"Where the weight lies, of {NUM_ITEMS:,} items",
        xlabel="rank of the positive",
        ylabel="% of all weight, per doubling of the rank",
        xscale="log",
        ylim=(0.0, 75.0),
    )
    axes.legend(frameon=False, loc="upper center")


def main() -> None:
    """Writes ``docs/kernels_and_weights.png``."""
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.4), layout="constrained")
    draw_kernels(left)
    draw_weights(right)
    path = pathlib.Path(__file__).with_name("kernels_and_weights.png")
    figure.savefig(path, dpi=110)
    print(f"drew {path.name}")


if __name__ == "__main__":
    main()
