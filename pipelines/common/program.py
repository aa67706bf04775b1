"""The name of the program: every command that a step prints can be run as it stands."""

from __future__ import annotations

import shlex

# The wheel installs this package under another name, with the command `croloss`.
PROGRAM = "python -m pipelines" if __name__.startswith("pipelines.") else "croloss"


def command(*words: object) -> str:
    """A command that the user can run, quoted for a shell.

    >>> command("evaluate", "--run", "work/my run")
    "python -m pipelines evaluate --run 'work/my run'"
    """
    return f"{PROGRAM} {shlex.join(map(str, words))}"
