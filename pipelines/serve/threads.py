"""Runs slow work in a thread, so that the event loop goes on with other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

# Bodies and answers above these sizes are converted in a thread.
LARGE_BODY = 1 << 16
LARGE_ANSWER = 1 << 14

_Result = TypeVar("_Result")


async def off_loop_if(is_large: bool, function: Callable[..., _Result], *arguments: Any) -> _Result:
    """The result of a function, which is called in a thread if it has much to do."""
    if not is_large:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)
