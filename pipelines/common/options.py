"""What a setting is: its kind of value, its default and its help text.

A setting is a field of a dataclass (``TrainSettings``, ``ServerSettings``), an option of the
command line and, in training, a key of JSON and YAML files. All are derived from its ``Option``.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

_Settings = TypeVar("_Settings")


class Kind:
    """A kind of value: how it is read from the command line, and which values are valid.

    Attributes:
      metavar: what the help text calls the value.
    """

    metavar: str | None = None

    @property
    def requirement(self) -> str:
        """What a value should be, in the words that follow "should be"."""
        raise NotImplementedError

    def parse(self, text: str) -> Any:
        """The value of a command-line argument, which may still be out of range."""
        return text

    def check(self, value: Any) -> Any:
        """The value as it is stored.

        Raises:
          ValueError: the value is not valid.
        """
        raise NotImplementedError

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of ``add_argument`` for an option of this kind."""

        def convert(text: str) -> Any:
            try:
                return self.parse(text)
            except ValueError:
                raise argparse.ArgumentTypeError(
                    f"should be {self.requirement}. Received: {text!r}"
                ) from None

        return {"type": convert, "metavar": self.metavar}


@dataclasses.dataclass(frozen=True)
class Whole(Kind):
    """Whole numbers.

    >>> Whole(1).requirement
    'a whole number of at least 1'
    """

    least: int = 0
    most: int | None = None
    metavar = "N"

    @property
    def requirement(self) -> str:
        if self.most is None:
            return f"a whole number of at least {self.least}"
        return f"a whole number from {self.least} to {self.most}"

    def parse(self, text: str) -> int:
        return int(text)

    def check(self, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < self.least:
            raise ValueError
        if self.most is not None and value > self.most:
            raise ValueError
        return value


@dataclasses.dataclass(frozen=True)
class Real(Kind):
    """Finite numbers: above a bound, or from a bound on.

    >>> Real(above=0.0).requirement, Real(least=0.0, most=1.0).requirement
    ('a finite number above 0', 'a number from 0 to 1')
    >>> Real(above=0.0, most=1.0).requirement
    'a finite number above 0 and at most 1'
    """

    above: float | None = None
    least: float | None = None
    most: float | None = None
    metavar = "X"

    @property
    def requirement(self) -> str:
        if self.above is not None:
            end = "" if self.most is None else f" and at most {self.most:g}"
            return f"a finite number above {self.above:g}{end}"
        if self.most is not None:
            return f"a number from {self.least:g} to {self.most:g}"
        return f"a finite number of at least {self.least:g}"

    def parse(self, text: str) -> float:
        return float(text)

    def check(self, value: Any) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ValueError
        if not math.isfinite(value):
            raise ValueError
        too_low = (self.above is not None and value <= self.above) or (
            self.least is not None and value < self.least
        )
        if too_low or (self.most is not None and value > self.most):
            raise ValueError
        return float(value)


@dataclasses.dataclass(frozen=True)
class Text(Kind):
    """Any text that is not empty."""

    requirement = "a text"

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError
        return value


@dataclasses.dataclass(frozen=True)
class OneOf(Kind):
    """One of several names.

    Attributes:
      names: the names, or a function that returns them where loading them takes long.
    """

    names: tuple[str, ...] | Callable[[], Iterable[str]]

    @property
    def choices(self) -> tuple[str, ...]:
        """The names."""
        return tuple(self.names() if callable(self.names) else self.names)

    @property
    def requirement(self) -> str:
        return f"one of {', '.join(self.choices)}"

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.choices:
            raise ValueError
        return value

    @property
    def arguments(self) -> dict[str, Any]:
        return {"choices": self.choices}


@dataclasses.dataclass(frozen=True)
class Flag(Kind):
    """On or off."""

    requirement = "true or false"

    def check(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    @property
    def arguments(self) -> dict[str, Any]:
        return {"action": argparse.BooleanOptionalAction}


@dataclasses.dataclass(frozen=True)
class RecallAt(Kind):
    """The name of a metric, recall@N."""

    requirement = "recall@N, such as recall@50"
    metavar = "recall@N"

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(r"recall@[1-9]\d*", value):
            raise ValueError
        return value


@dataclasses.dataclass(frozen=True)
class Cutoffs(Kind):
    """Several whole numbers above 0, kept in ascending order."""

    requirement = "whole numbers of at least 1"
    metavar = "N"

    def parse(self, text: str) -> int:
        return int(text)

    def check(self, value: Any) -> tuple[int, ...]:
        if not isinstance(value, (list, tuple)) or not value:
            raise ValueError
        return tuple(sorted({Whole(1).check(number) for number in value}))

    @property
    def arguments(self) -> dict[str, Any]:
        return {**super().arguments, "nargs": "+"}


@dataclasses.dataclass(frozen=True)
class Option:
    """A setting.

    Attributes:
      kind: its kind of value.
      default: its default. None is a valid value where it is the default.
      help: a phrase that says what the value is, without the default.
      group: the title of its group in the help text.
      shown_default: what the help text gives as the default, where the value says too little.
      optional: whether None is a valid value though it is not the default.
      replaces: name of the setting that this one takes the place of when it is given.
      defining: whether it decides which loss is trained. Such a setting is an error with a loss
        that does not take it, whereas any other setting has no effect on that loss.
    """

    kind: Kind
    default: Any
    help: str
    group: str = "loss"
    shown_default: str | None = None
    optional: bool = False
    replaces: str | None = None
    defining: bool = False

    @property
    def requirement(self) -> str:
        """What a value should be, in the words that follow "should be"."""
        return self.kind.requirement

    def check(self, value: Any) -> Any:
        """The value as it is stored.

        Raises:
          ValueError: the value is not valid.
        """
        if value is None and (self.optional or self.default is None):
            return None
        # The default is valid; comparing is quicker than loading a list of names.
        if type(value) is type(self.default) and value == self.default:
            return value
        return self.kind.check(value)

    @property
    def field(self) -> Any:
        """The field of a dataclass for this setting."""
        return dataclasses.field(default=self.default, metadata={"option": self})

    @property
    def default_text(self) -> str:
        """The default, for the help text."""
        if self.shown_default is not None:
            return self.shown_default
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        if isinstance(self.default, tuple):
            return " ".join(map(str, self.default))
        return "none" if self.default is None else str(self.default)


def options_of(kind: type) -> dict[str, Option]:
    """The settings that the fields of a dataclass stand for, by name."""
    return {
        field.name: field.metadata["option"]
        for field in dataclasses.fields(kind)
        if "option" in field.metadata
    }


def dashed(name: str) -> str:
    """The command-line option of a setting.

    >>> dashed("batch_size")
    '--batch-size'
    """
    return f"--{name.replace('_', '-')}"


def add_options(
    parser: argparse.ArgumentParser,
    options: Mapping[str, Option],
    title: str | None = None,
    defaults: bool = True,
) -> None:
    """Adds options to a parser; those that are not given are None in the parsed arguments.

    Args:
      parser: parser of a step.
      options: settings by name.
      title: title of one group for all of them; by default each has its own group.
      defaults: whether the help text gives the defaults.
    """
    groups: dict[str, Any] = {}
    for name, option in options.items():
        heading = title or option.group
        if heading not in groups:
            groups[heading] = parser.add_argument_group(heading)
        text = f"{option.help} ({option.default_text})" if defaults else option.help
        groups[heading].add_argument(
            dashed(name), help=text.replace("%", "%%"), **option.kind.arguments
        )


def given_options(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The settings that were given on the command line."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def checked(option: Option, label: str, value: Any) -> Any:
    """The value of a setting as it is stored.

    Args:
      option: the setting.
      label: what the error calls it.
      value: the value that arrived.

    Raises:
      ValueError: the value is not valid, and the message says what would be.
    """
    try:
        return option.check(value)
    except ValueError:
        raise ValueError(f"{label} should be {option.requirement}. Received: {value!r}.") from None


def read_options(args: argparse.Namespace, kind: type[_Settings], **others: Any) -> _Settings:
    """A dataclass with the options that were given, and the defaults of those that were not.

    Args:
      args: parsed arguments.
      kind: the dataclass.
      **others: values of its fields that are not options.

    Raises:
      ValueError: a value is not valid, and the message says what would be.
    """
    options = options_of(kind)
    given = given_options(args, options)
    values = {name: checked(options[name], dashed(name), value) for name, value in given.items()}
    return kind(**values, **others)
