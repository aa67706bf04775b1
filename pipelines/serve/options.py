"""Options of the command line that are derived from the fields of a dataclass."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from .. import cli

_Settings = TypeVar("_Settings")


def option(default: Any, help_text: str, kind: Callable[[str], Any] = cli.positive) -> Any:
    """A field of a dataclass that is also an option of the command line.

    Args:
      default: default value, or a function that returns it.
      help_text: what the value is. The default is appended unless it is None.
      kind: converts the text of the option.
    """
    metadata = {"help": help_text, "kind": kind}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def add_options(parser: argparse._ActionsContainer, settings: type) -> None:
    """Adds an option for each field of a dataclass that was made by ``option``."""
    for field in _options(settings):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        text = field.metadata["help"]
        parser.add_argument(
            "--" + field.name.replace("_", "-"),
            type=field.metadata["kind"],
            default=default,
            help=text if default is None else f"{text} (%(default)s)",
        )


def read_options(args: argparse.Namespace, settings: type[_Settings], **others: Any) -> _Settings:
    """The dataclass with the values that were given on the command line.

    Args:
      args: parsed arguments.
      settings: class of the result.
      **others: values of its fields that are not options.
    """
    given = {field.name: getattr(args, field.name) for field in _options(settings)}
    return settings(**given, **others)


def port_number(text: str) -> int:
    """The number of a port; 0 stands for any that is free."""
    number = cli.count(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"should be at most 65535. Received: {text!r}")
    return number


def duration(text: str) -> float:
    """A number of at least 0, in the unit that the option names."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"should be a number from 0 up. Received: {text!r}")
    return value


def _options(settings: Any) -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(settings) if "kind" in field.metadata]
