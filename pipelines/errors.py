"""Errors that a user can do something about; the command line prints them as one line."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake in the arguments or the data, with its remedy in the message.

    The command line prints the message as one ``error: …`` line and exits with code 2.
    """


class DivergedError(UserError):
    """The training loss is no longer finite; other settings may train well."""


class LostWorkerError(RuntimeError):
    """Another process of the cluster is gone; training continues once all are started again."""
