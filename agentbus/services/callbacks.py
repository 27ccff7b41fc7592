"""Functions that callers hand in: what can be said of them before they are called, and being cancelled by them."""

from __future__ import annotations

import asyncio
import inspect

from agentbus.errors import InvalidInput


def check_callback(callback: object, name: str, argument: str) -> None:
    """One that cannot be called with its argument would fail every time."""
    if not callable(callback):
        raise InvalidInput(reason=f"{name} is not callable")
    try:
        inspect.signature(callback).bind(None)
    except TypeError:
        raise InvalidInput(reason=f"{name} must take one argument: {name}({argument})") from None
    except ValueError:
        return  # not everything that can be called says how


def being_cancelled() -> bool:
    """Whether this task was cancelled, or only something that it called raised a CancelledError of its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
