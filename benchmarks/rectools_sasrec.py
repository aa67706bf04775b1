"""Trains SASRec of RecTools on arrays: ``PYTHON -m benchmarks.rectools_sasrec FOLDER``.

RecTools needs an older NumPy than TensorFlow does, so this runs in an environment of its own, of
``pip install torch 'rectools[torch]'``; ``benchmarks.time_to_recall --rectools PYTHON`` starts it.
FOLDER has ``input.npz`` and ``settings.json``. Each validation prints a line of JSON with the
seconds of training so far and the Recall@N over users.

The model, its loss, its batches and its optimizer are RecTools' own; the recall is measured here,
from the vectors of its model, since ``recommend`` would take most of the time.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np


def main(folder: Path) -> None:
    """Trains until the time is up."""
    import pandas as pd
    import torch
    from pytorch_lightning import Callback, Trainer
    from rectools import Columns
    from rectools.dataset import Dataset
    from rectools.models import SASRecModel
    from rectools.models.nn.item_net import IdEmbeddingsItemNet

    warnings.filterwarnings("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    settings = json.loads((folder / "settings.json").read_text())
    arrays = np.load(folder / "input.npz")
    torch.manual_seed(settings["seed"])
    torch.set_num_threads(settings["threads"])
    users = np.repeat(np.arange(len(arrays["lengths"])), arrays["lengths"])
    log = pd.DataFrame(
        {
            Columns.User: users,
            Columns.Item: arrays["items"],
            Columns.Weight: 1.0,
            Columns.Datetime: pd.to_datetime(np.arange(len(users)), unit="s"),
        }
    )
    start = time.perf_counter()

    class Measure(Callback):
        """Prints the recall, at a time that does not count."""

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            nonlocal start
            if trainer.global_step % settings["steps_per_epoch"]:
                return
            stopped = time.perf_counter()
            recall = _recall(model, module, arrays, settings)
            print(json.dumps([stopped - start, recall]), flush=True)
            trainer.should_stop = stopped - start > settings["seconds"]
            start += time.perf_counter() - stopped

    def trainer() -> Trainer:
        return Trainer(
            max_epochs=100_000,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[Measure()],
        )

    model = SASRecModel(
        n_factors=settings["dim"],
        n_blocks=settings["blocks"],
        n_heads=settings["heads"],
        dropout_rate=settings["dropout"],
        session_max_len=settings["length"],
        loss="sampled_softmax",
        n_negatives=settings["negatives"],
        lr=settings["learning_rate"],
        batch_size=settings["batch_size"],
        item_net_block_types=(IdEmbeddingsItemNet,),
        get_trainer_func=trainer,
    )
    model.fit(Dataset.construct(log))


def _recall(model: Any, module: Any, arrays: Any, settings: dict[str, Any]) -> float:
    """Recall@N over the validation users, of exact ranks over the whole catalogue."""
    import torch

    network, length = module.torch_model, settings["length"]
    network.eval()
    # Items that were not trained on are padding for RecTools, and cannot be recommended.
    numbers = np.zeros(settings["num_items"] + 1, np.int64)
    known = model.data_preparator.item_id_map.external_ids
    extra = model.data_preparator.n_item_extra_tokens
    numbers[known[extra:].astype(np.int64)] = np.arange(extra, len(known))
    found, counts = 0.0, np.bincount(arrays["target_users"])
    with torch.no_grad():
        items = network.item_model.get_all_embeddings()
        for first in range(0, len(counts), 256):
            rows = numbers[arrays["histories"][first : first + 256]]
            # RecTools pads at the beginning; id 0 is its padding.
            padded = np.zeros((len(rows), length), np.int64)
            for place, row in enumerate(rows):
                row = row[row > 0][-length:]
                padded[place, length - len(row) :] = row
            states = network.encode_sessions({"x": torch.from_numpy(padded)}, items)[:, -1]
            scores = states @ items.T
            mine = (arrays["target_users"] >= first) & (arrays["target_users"] < first + 256)
            owners = arrays["target_users"][mine] - first
            targets = numbers[arrays["targets"][mine]]
            positives = scores[owners, targets]
            ranks = (scores[owners, extra:] >= positives[:, None]).sum(dim=1)
            hits = ((ranks <= settings["size"]) & torch.from_numpy(targets > 0)).numpy()
            found += float((hits / counts[owners + first]).sum())
    network.train()
    return found / len(counts)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
