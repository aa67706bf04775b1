"""The parser, types of command-line arguments, and options that several steps take.

A value that does not fit its type is an error that says what is required.
"""

from __future__ import annotations

import argparse
from typing import NoReturn

SEPARATORS = {"tab": "\t", r"\t": "\t", "space": " ", "comma": ","}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as those of the steps are, without all the options."""

    def error(self, message: str) -> NoReturn:
        """Prints the message, and ends the program with exit code 2."""
        self.exit(2, f"error: {message}. '{self.prog} --help' lists the options.\n")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Adds ``--run`` and ``--data``, for the steps that read a run: ``run_folder`` and ``data``."""
    parser.add_argument(
        "--run", dest="run_folder", required=True, metavar="RUN", help="folder of the run"
    )
    parser.add_argument(
        "--data",
        help="folder of the run's prepared data, if it has moved (the folder in its configuration)",
    )


def separator(text: str) -> str:
    """One character, or its name."""
    mark = SEPARATORS.get(text, text)
    if len(mark) != 1 or not mark.isascii() or mark in '"\r\n':
        raise argparse.ArgumentTypeError(f"should be one ASCII character. Received: {text!r}")
    return mark


def count(text: str) -> int:
    """A whole number of at least 0."""
    return _whole(text, 0)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return _whole(text, 1)


def _whole(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"should be a whole number of at least {least}. Received: {text!r}"
        )
    return int(text)


def share(text: str) -> float:
    """A number between 0 and 1, both excluded."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"should be between 0 and 1. Received: {text!r}")
    return value


def shares(text: str) -> tuple[int, int, int]:
    """Three whole numbers between colons: sizes relative to each other."""
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(
            f"should be three whole numbers above 0 such as 8:1:1. Received: {text!r}"
        )
    return int(parts[0]), int(parts[1]), int(parts[2])


def setting(text: str) -> tuple[str, str]:
    """A name and a value with an equals sign between them."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"should be KEY=VALUE. Received: {text!r}")
    return name.strip(), value
