"""Settings as the command that trains with them."""

from __future__ import annotations

import dataclasses

from ..common.program import command
from ..runs.settings import TrainSettings


def train_command(settings: TrainSettings, data: str, out: str) -> str:
    """The command, with the options that differ from the defaults.

    >>> train_command(TrainSettings(loss="lambda", alpha=1.2, exclude_history=True), "d", "o")
    'python -m pipelines train --data d --out o --loss lambda --alpha 1.2 --exclude-history'
    """
    words = ["train", "--data", data, "--out", out]
    # What a loss sets by itself is not to be given again.
    defaults = TrainSettings().with_loss(settings.loss, retrieval_size=settings.retrieval_size)
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        option = f"--{field.name.replace('_', '-')}"
        given_by_name = field.name in ("loss", "retrieval_size")
        default = field.default if given_by_name else getattr(defaults, field.name)
        if value == default or value is None:
            continue
        if isinstance(value, bool):
            words.append(option if value else f"--no-{option[2:]}")
        elif isinstance(value, tuple):
            words += [option, *map(str, value)]
        else:
            words += [option, str(value)]
    return command(*words)
