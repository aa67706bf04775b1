"""The error of an export that is refused."""

from __future__ import annotations


class ExportError(ValueError):
    """A model was not published; the message says why, and the remedy."""
