"""The settings that belong to the loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..common.options import dashed
from ..errors import UserError
from .losses import LOSSES, loss_options

if TYPE_CHECKING:
    from .settings import TrainSettings


def settled(settings: TrainSettings) -> dict[str, Any]:
    """The settings that follow from the name of the loss.

    Raises:
      UserError: settings were given that do not go with the loss, or are missing.
    """
    loss = LOSSES[settings.loss]
    settled: dict[str, Any] = {}
    for name, option in loss_options().items():
        value = getattr(settings, name)
        if name in loss.options:
            if value is None and name in loss.defaults:
                settled[name] = loss.defaults[name]
            if value is None and name in loss.required:
                raise UserError(f"--loss {settings.loss} requires {dashed(name)}. Received: none.")
        elif option.defining:
            fixed = loss.fixed.get(name, option.default)
            if value not in (fixed, option.default):
                raise does_not_take(settings.loss, dashed(name), name, value)
            settled[name] = fixed
        replaced = option.replaces
        if replaced is not None and replaced in loss.options and value is not None:
            other = getattr(settings, replaced)
            if other != loss.options[replaced].default:
                raise UserError(
                    f"{dashed(name)} cannot be combined with {dashed(replaced)}, which it "
                    f"replaces. Received: {value!r} and {other!r}. Leave out one of them."
                )
    return settled


def foreign(loss: str, given: Iterable[str]) -> list[str]:
    """The settings of other losses among those that were given: they would have no effect."""
    return [name for name in given if name in loss_options() and name not in LOSSES[loss].options]


def does_not_take(loss: str, label: str, name: str, value: Any) -> UserError:
    """The error about an option of other losses; ``label`` says how it was given."""
    takers = ", ".join(other for other, entry in LOSSES.items() if name in entry.options)
    return UserError(
        f"--loss {loss} cannot be combined with {label}, which is an option of --loss {takers}. "
        f"Received: {value!r}. Leave out one or the other."
    )
