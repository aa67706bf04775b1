"""The settings of a run as options: added to a step, read from it, and printed as a command."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from ..common.options import add_options, dashed, given_options, options_of
from ..common.program import command
from ..errors import UserError
from . import encoders
from .config_file import read_config
from .loss_settings import does_not_take, foreign
from .losses import LOSSES, loss_options
from .settings import TrainSettings


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds ``--config`` and the options of all settings."""
    add_config(parser)
    add_options(parser, options_of(TrainSettings))


def settings_of(args: argparse.Namespace) -> TrainSettings:
    """The settings from the options of ``add_settings``, and from the file of ``--config``."""
    options = options_of(TrainSettings)
    given = given_options(args, options)
    file = read_config(args.config, options) if args.config else None
    from_file = {} if file is None else dict(file.values)
    own = from_file.get("loss", options["loss"].default)
    loss = given.get("loss", own)
    for name in foreign(loss, given):
        raise does_not_take(loss, dashed(name), name, given[name])
    if loss != own:
        # The options of the loss in the file belong to that loss alone.
        from_file = {k: v for k, v in from_file.items() if k not in loss_options()}
    elif file is not None and not file.is_record:
        for name in foreign(loss, from_file):
            fixed = LOSSES[loss].fixed.get(name, options[name].default)
            if from_file[name] != fixed:
                label = f"`{name}` in {args.config}"
                raise does_not_take(loss, label, name, from_file[name])
    for name, option in options.items():
        # An option that is given also overrides its counterpart in the file.
        if option.replaces in given and name not in given:
            from_file.pop(name, None)
        if option.replaces is not None and name in given:
            from_file.pop(option.replaces, None)
    try:
        return TrainSettings(**{**from_file, **given})
    except UserError as error:
        if not from_file:
            raise
        raise UserError(f"{error} Some settings are from --config {args.config}.") from error


def add_config(parser: argparse.ArgumentParser) -> None:
    """Adds ``--config``."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="YAML or JSON file of settings, whose keys are the names of the options with "
        "underscores, such as batch_size: 256; or the config.json of a run. Options on the "
        "command line override it (none)",
    )


def add_shared_settings(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Adds ``--config`` and some settings to a step that has defaults of its own for them."""
    add_config(parser)
    options = options_of(TrainSettings)
    title = "settings of every run (by default those of the experiment)"
    add_options(parser, {name: options[name] for name in names}, title, defaults=False)


def shared_settings(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The settings that were given through ``add_shared_settings``."""
    from_file: dict[str, Any] = {}
    if args.config:
        from_file = read_config(args.config, options_of(TrainSettings), names).values
    return {**from_file, **given_options(args, names)}


def train_command(settings: TrainSettings, data: str, out: str) -> str:
    """The command that trains with these settings, without the options at their defaults.

    >>> train_command(TrainSettings(loss="lambda", alpha=1.2, exclude_history=True), "d", "o")
    'python -m pipelines train --data d --out o --loss lambda --alpha 1.2 --exclude-history'
    """
    words = ["train", "--data", data, "--out", out]
    loss = LOSSES[settings.loss]
    of_others = set(loss_options()) - set(loss.options)
    for name, option in options_of(TrainSettings).items():
        value = getattr(settings, name)
        default = loss.defaults.get(name, option.default)
        if name == "positions":
            default = encoders.default_positions(settings)
        if name in of_others or value == default or value is None:
            continue
        if isinstance(value, bool):
            words.append(dashed(name) if value else f"--no-{dashed(name)[2:]}")
        elif isinstance(value, tuple):
            words += [dashed(name), *map(str, value)]
        else:
            words += [dashed(name), str(value)]
    return command(*words)
