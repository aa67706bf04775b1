"""The history of a run as CSV, JSON, TensorBoard scalars and a plot."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path
from typing import Any

import tensorflow as tf

from ..common.files import replace_file, write_json
from ..common.page import picture

Rows = list[dict[str, Any]]

_NOT_SCALARS = ("step", "epoch")


class Records:
    """Writes the history of one run.

    Args:
      run_folder: folder of the run.
      pictures: whether to draw the learning curves.
      writes: whether to write at all; of several workers, only the chief does.
    """

    def __init__(self, run_folder: Path, pictures: bool = True, writes: bool = True) -> None:
        self._pictures = pictures and writes
        self._writes = writes
        self._folder = run_folder
        self._writer: Any = None
        self._num_written = 0

    def write(self, rows: Rows) -> None:
        """Writes the history.

        The first call starts new TensorBoard files: an interrupted run may have written events
        after the checkpoint that it continues from.
        """
        if not self._writes:
            return
        write_json(self._folder / "history.json", rows)
        _write_csv(self._folder / "history.csv", rows)
        if self._writer is None:
            shutil.rmtree(self._folder / "tensorboard", ignore_errors=True)
            self._writer = tf.summary.create_file_writer(str(self._folder / "tensorboard"))
        with self._writer.as_default():
            for row in rows[self._num_written :]:
                for name, value in row.items():
                    if name not in _NOT_SCALARS:
                        tf.summary.scalar(name.replace("@", "_at_"), value, step=row["step"])
        self._writer.flush()
        self._num_written = len(rows)

    def draw(self, rows: Rows, kept: dict[str, Any] | None, monitor: str) -> None:
        """Draws the learning curves.

        Args:
          rows: the history.
          kept: the row whose weights are kept; None before the first validation.
          monitor: the metric that chose it.
        """
        if kept is not None and self._pictures:
            draw_learning_curves(self._folder / "learning_curves.png", rows, kept, monitor)


def _write_csv(path: Path, rows: Rows) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(path, text.getvalue().encode())


def draw_learning_curves(path: Path, rows: Rows, kept: dict[str, Any], monitor: str) -> None:
    """Draws loss, Recall@N, ranks and the share of zero gradients over the training steps.

    Args:
      path: PNG file to write.
      rows: the history.
      kept: the row whose weights are kept, which is marked.
      monitor: the metric that chose it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    ((loss, recall), (ranks, done)) = figure.subplots(2, 2)
    steps = [row["step"] for row in rows]
    is_best = kept[monitor] == max(row[monitor] for row in rows)
    mark = f"best {monitor}" if is_best else "last, which is kept"

    def plot(axes: Any, column: str, label: str | None = None) -> None:
        axes.plot(steps, [row[column] for row in rows], marker=".", label=label)

    plot(loss, "loss")
    loss.set_title("training loss (mean since the previous validation)")
    for column in rows[0]:
        if column.startswith("recall@"):
            plot(recall, column, column)
    recall.axvline(kept["step"], color="grey", linestyle=":", label=mark)
    recall.set_title("validation recall, exact, whole catalogue")
    recall.set_ylim(bottom=0.0)
    recall.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    plot(ranks, "mean_hard_rank", "true rank")
    plot(ranks, "mean_soft_rank", "soft rank")
    ranks.set_title("mean rank of positives among sampled candidates")
    ranks.legend(fontsize="small")
    plot(done, "zero_gradient_share")
    done.set_title("share of examples with a zero gradient")
    done.set_ylim(-0.02, 1.02)
    for axes in (loss, recall, ranks, done):
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    replace_file(path, picture(figure))
