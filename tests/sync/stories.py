"""Stories that are told once and happen on both APIs: on the asynchronous one each call is awaited.

A story is a generator: it yields what it calls, and gets the result back. What it yielded is its outcome.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from inspect import isawaitable
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

import agentbus
from agentbus import sync
from agentbus.errors import AgentBusError

Story = Callable[[Any], Generator[Any, Any, None]]


@dataclass
class Quiet:
    """A call whose result differs from run to run: a secret, a duration."""

    call: Any


@dataclass
class Refused:
    """A call that raises the error with this code."""

    code: str
    call: Callable[[], Any]


@dataclass
class Enter:
    block: Any


@dataclass
class Leave:
    block: Any


@dataclass
class First:
    """The first items of an iterator, or all."""

    items: Any
    number: int | None = None


def tell(story: Story, bus: sync.Bus) -> list[Any]:
    """Return the outcomes of a story on the synchronous API, and its events."""
    outcomes: list[Any] = []
    telling, result = story(bus), None
    while True:
        try:
            step = telling.send(result)
        except StopIteration:
            break
        if isinstance(step, Refused):
            result = _refusal(step)
        elif isinstance(step, Enter):
            result = step.block.__enter__()
        elif isinstance(step, Leave):
            result = bool(step.block.__exit__(None, None, None))
        elif isinstance(step, First):
            result = list(islice(step.items, step.number))
            getattr(step.items, "close", list)()
        else:
            result = step.call if isinstance(step, Quiet) else step
        if not isinstance(step, Quiet):
            outcomes.append(comparable(result))
    return [*outcomes, comparable(list(bus.events()))]


async def tell_async(story: Story, bus: agentbus.Bus) -> list[Any]:
    """Return the same of the asynchronous API."""
    outcomes: list[Any] = []
    telling, result = story(bus), None
    while True:
        try:
            step = telling.send(result)
        except StopIteration:
            break
        if isinstance(step, Refused):
            result = await _refusal_async(step)
        elif isinstance(step, Enter):
            result = await step.block.__aenter__()
        elif isinstance(step, Leave):
            result = bool(await step.block.__aexit__(None, None, None))
        elif isinstance(step, First):
            result = []
            while len(result) != step.number:
                try:
                    result.append(await anext(step.items))
                except StopAsyncIteration:
                    break
            await step.items.aclose()
        else:
            result = step.call if isinstance(step, Quiet) else step
            result = await result if isawaitable(result) else result
        if not isinstance(step, Quiet):
            outcomes.append(comparable(result))
    return [*outcomes, comparable([event async for event in bus.events()])]


def _refusal(step: Refused) -> Any:
    try:
        found = step.call()
    except AgentBusError as error:
        return _expected(step, error)
    raise AssertionError(f"not refused with {step.code}: {found!r}")


async def _refusal_async(step: Refused) -> Any:
    try:
        found = await step.call()
    except AgentBusError as error:
        return _expected(step, error)
    raise AssertionError(f"not refused with {step.code}: {found!r}")


def _expected(step: Refused, error: AgentBusError) -> Any:
    assert error.code == step.code
    return error.code, error.facts


def comparable(value: Any) -> Any:
    """Return a value as its kind and contents."""
    if isinstance(value, msgspec.Struct):
        return type(value).__name__, {name: comparable(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(one) for one in value]
    if isinstance(value, str):
        # Identities of buses, tokens and objects.
        known = re.sub(r"\b([0-9a-f]{16}|t-[0-9a-f]{8,}|0x[0-9a-f]+)\b", "…", value)
        return known.replace(str(Path.cwd()), ".")
    if value is None or isinstance(value, int | float | bytes | Path | BaseException):
        return value
    return comparable(str(value))
