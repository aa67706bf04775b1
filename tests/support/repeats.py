"""Parametrized tests with many similar cases: some run in ``make test``, the rest when slow."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest


def first_of_each(cases: Iterable[Any], key: Callable[[Any], Hashable]) -> list[Any]:
    """All cases; those whose key an earlier case has are marked slow.

    Args:
      cases: arguments of the test; a tuple stands for several arguments.
      key: what makes two cases alike enough that one of them will do for a quick run.
    """
    seen: set[Hashable] = set()
    marked = []
    for case in cases:
        arguments = case if isinstance(case, tuple) else (case,)
        marks = [pytest.mark.slow] if key(case) in seen else []
        marked.append(pytest.param(*arguments, marks=marks))
        seen.add(key(case))
    return marked


def kernels_of(loss: Any) -> tuple[Hashable, ...]:
    """The kernels of a loss, whatever its alpha."""
    return type(loss), loss.kernel, getattr(loss, "rank_kernel", None)
