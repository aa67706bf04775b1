"""Draws the figures of the README and of the documentation. Run with ``make figures``."""

from __future__ import annotations

import pathlib

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from matplotlib.patches import FancyBboxPatch

import tfrs_croloss
from tfrs_croloss.losses import kernels

FOLDER = pathlib.Path(__file__).parent
NUM_ITEMS = 313_966  # Amazon Books, the paper's smaller data set
ALPHAS = (0.0, 0.6, 1.0, 1.4, 2.0)
# Distinct for readers who do not see all colours, in this order.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")

# From the top; each layer imports from those below it, and a step also from those left of it.
LAYERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "pipelines: the steps",
        "#fde9d9",
        (
            "synthesize",
            "prepare",
            "train",
            "evaluate",
            "experiments",
            "embed, export",
            "serve",
            "query",
        ),
    ),
    ("pipelines: shared", "#fdf4e3", ("runs", "data", "common")),
    ("tfrs_croloss: whole models", "#d6ebf5", ("models", "serving")),
    ("tfrs_croloss: parts", "#e3f2ee", ("tasks", "metrics", "memory", "optimizers", "indexes")),
    ("tfrs_croloss: losses", "#e3f2ee", ("croloss", "baselines", "kernels", "weightings", "ranks")),
    (
        "other libraries",
        "#eeeeee",
        ("TensorFlow and Keras", "TensorFlow Recommenders", "ScaNN", "DuckDB or Spark"),
    ),
)


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
    axes.plot(gaps, step, label="unit step: the true rank", color="black", linestyle="--")
    axes.set(
        title="Comparison kernel: how much one negative adds to the rank",
        xlabel="score of the negative minus score of the positive",
        ylabel="added to the rank",
        ylim=(-0.15, 4.0),
    )
    axes.legend(frameon=False)


def draw_weights(axes: plt.Axes) -> None:
    """How the weight is spread over ranks: the weight of an octave of ranks."""
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
        title=f"Alpha: which ranks matter, of {NUM_ITEMS:,} items",
        xlabel="rank of the positive",
        ylabel="% of the weight per doubling of the rank",
        xscale="log",
        ylim=(0.0, 75.0),
    )
    axes.legend(frameon=False, loc="upper center")


def draw_pulls(axes: plt.Axes) -> None:
    """How strongly each loss pulls a positive, relative to its push, by the positive's rank."""
    generator = np.random.default_rng(0)
    temperature, num_negatives = 0.2, 1_200
    negatives = np.sort(generator.normal(scale=0.25, size=num_negatives))[::-1] / temperature
    ranks = np.unique(np.geomspace(1, num_negatives, 40).astype(int))
    # The positive lies halfway between its neighbours; the first one lies above all negatives.
    bounds = np.concatenate([[negatives[0] + 0.5], (negatives[1:] + negatives[:-1]) / 2])
    rows = [np.concatenate([[bounds[rank - 1]], negatives]) for rank in ranks]
    scores = tf.constant(np.array(rows))
    labels = tf.one_hot(tf.zeros([len(ranks)], tf.int32), num_negatives + 1)

    def eased(easing: float, least: float) -> tfrs_croloss.LambdaCROLoss:
        pull = tfrs_croloss.losses.Pull(easing=easing, least=least)
        return tfrs_croloss.LambdaCROLoss(1.4, "sigmoid", "exponential", pull=pull)

    drawn: dict[str, tfrs_croloss.RetrievalLoss] = {
        "softmax and CROLoss": tfrs_croloss.CROLoss.softmax_cross_entropy(),
        "BSL, exponent 1.17": tfrs_croloss.BilateralSoftmax(1.17),
        "SL@20": tfrs_croloss.SoftmaxAtK(20, weight_temperature=2.5 / temperature),
        "LambdaCROLoss, easing 0.03": eased(0.03, least=0.8),
        "LambdaCROLoss, easing 0.3, at least 0.8": eased(0.3, least=0.8),
    }
    for color, (name, loss) in zip(COLORS, drawn.items()):
        with tf.GradientTape() as tape:
            tape.watch(scores)
            losses = loss.per_query(scores, labels)
        gradient = tape.gradient(losses, scores).numpy()
        share = -gradient[:, 0] / gradient[:, 1:].sum(axis=1)
        axes.plot(ranks, share, label=name, color=color, linewidth=2)
    axes.set(
        title="Pull of the positive, relative to the push of its negatives",
        xlabel=f"rank of the positive among {num_negatives:,} negatives",
        ylabel="pull / push",
        xscale="log",
        ylim=(0.6, 1.05),
    )
    axes.legend(frameon=False, loc="lower left")


def draw_layers(axes: plt.Axes) -> None:
    """The layers of the code, as rows of boxes."""
    height, width, title_width = 1.0, 12.0, 2.9
    for row, (title, color, boxes) in enumerate(reversed(LAYERS)):
        bottom = row * 1.25
        axes.text(0.0, bottom + height / 2, title, va="center", fontweight="bold")
        each = (width - title_width) / len(boxes)
        for place, name in enumerate(boxes):
            left = title_width + place * each
            axes.add_patch(
                FancyBboxPatch(
                    (left + 0.08, bottom + 0.1),
                    each - 0.16,
                    height - 0.2,
                    boxstyle="round,pad=0.04",
                    facecolor=color,
                    edgecolor="#666666",
                )
            )
            text = name.replace(" and ", "\nand ").replace(" Recommenders", "\nRecommenders")
            text = text.replace(" or ", "\nor ").replace(", export", ",\nexport")
            axes.text(left + each / 2, bottom + height / 2, text, ha="center", va="center")
    axes.set(xlim=(-0.05, width + 0.1), ylim=(-0.15, 1.25 * len(LAYERS)))
    axes.axis("off")


def main() -> None:
    """Writes the figures beside this file."""
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.4), layout="constrained")
    draw_kernels(left)
    draw_weights(right)
    figure.savefig(FOLDER / "kernels_and_weights.png", dpi=110)
    figure, axes = plt.subplots(figsize=(12, 5.2), layout="constrained")
    draw_layers(axes)
    figure.savefig(FOLDER / "layers.png", dpi=110)
    figure, axes = plt.subplots(figsize=(8, 4.4), layout="constrained")
    draw_pulls(axes)
    figure.savefig(FOLDER / "push_and_pull.png", dpi=110)
    print("drew kernels_and_weights.png, layers.png and push_and_pull.png")


if __name__ == "__main__":
    main()
