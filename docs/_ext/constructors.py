"""Signatures of classes as they are called: the arguments of their ``__init__``.

Keras gives its losses, layers and models a ``__new__(cls, *args, **kwargs)``, which Sphinx would
show in place of what the constructor takes.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx
from sphinx.util.inspect import signature, stringify_signature


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects the extension."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-signature", show_arguments)
    return {"parallel_read_safe": True}


def show_arguments(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, shown: str | None, returned: str
) -> tuple[str, None] | None:
    """The arguments of a constructor; None for everything else, which is shown as it is."""
    if what != "class" or shown != "(*args, **kwargs)":
        return None
    arguments = signature(obj.__init__, bound_method=True)
    return stringify_signature(arguments, show_annotation=False, show_return_annotation=False), None
