"""Errors of a user's model in one line."""

from __future__ import annotations

import re

_LONGEST = 300


def summary_of(error: BaseException) -> str:
    r"""The informative part of an error that TensorFlow or Keras raised, as one sentence.

    >>> summary_of(ValueError("Exception encountered when calling layer 'a' (type A).\n\n"
    ...     "{{function_node __wrapped__Cast}} Cast int64 to string is not supported [Op:Cast]\n\n"
    ...     "Call arguments received by layer 'a' (type A):\n  • inputs=1"))
    'Cast int64 to string is not supported.'
    """
    lines = []
    for line in str(error).splitlines():
        line = re.sub(r"\{\{.*?\}\}|\[\[.*|\[Op:.*?\].*", "", line).strip()
        if line.startswith(("Call arguments received", "Arguments received")):
            break
        noise = ("Exception encountered", "in user code:", "File ", "Detected at node", "Traceback")
        if line and not line.startswith(noise) and not line.endswith("*"):
            lines.append(line)
    text = " ".join(lines)[:_LONGEST].strip() or type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."
