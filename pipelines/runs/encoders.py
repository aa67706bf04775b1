"""The settings that belong to the encoder of the history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..common.options import Option, dashed
from ..errors import UserError

if TYPE_CHECKING:
    from .settings import TrainSettings

TRANSFORMER = "transformer"
ENCODERS = ("mean", "gru", TRANSFORMER)

_OF_TRANSFORMERS = ("blocks", "heads", "dropout")


def has_transformer(settings: TrainSettings) -> bool:
    """Whether users are encoded by self-attention over their histories."""
    return bool(settings.encoder == TRANSFORMER and settings.tower == "history")


def default_positions(settings: TrainSettings) -> str:
    """The training positions, if no setting says which."""
    return "sequences" if has_transformer(settings) else "all"


def settled(settings: TrainSettings, options: Mapping[str, Option]) -> dict[str, Any]:
    """The settings that follow from the encoder.

    Args:
      settings: settings of a run.
      options: what each of them is.

    Raises:
      UserError: settings were given that do not go with the encoder.
    """
    for name in _OF_TRANSFORMERS:
        value = getattr(settings, name)
        if not has_transformer(settings) and value != options[name].default:
            raise UserError(
                f"{dashed(name)} requires --tower history --encoder {TRANSFORMER}. "
                f"Received: {value!r} with --tower {settings.tower} --encoder {settings.encoder}. "
                "Leave it out."
            )
    if has_transformer(settings) and settings.dim % settings.heads:
        raise UserError(
            f"--heads should divide --dim. Received: {settings.heads} and {settings.dim}."
        )
    if settings.positions == "sequences" and settings.tower != "history":
        raise UserError(
            "--positions sequences requires --tower history. Received: --tower "
            f"{settings.tower}, whose users have one vector for all positions. Use --positions all."
        )
    if settings.positions == "sequences" and settings.min_history < 1:
        raise UserError(
            "--positions sequences requires --min-history of at least 1, since the query of a "
            f"position begins with an item. Received: {settings.min_history}."
        )
    return {"positions": default_positions(settings)} if settings.positions is None else {}
