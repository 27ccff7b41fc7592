"""Structs that are sent as messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta, Struct

from agentbus import Bus


class Step(Struct):
    name: str
    done: bool = False


class Plan(Struct):
    files: int
    steps: list[Step] = []
    due: datetime | None = None


class Shape(Struct, tag="shape/circle"):
    radius: Annotated[float, Meta(gt=0)]


class Answer(Struct, frozen=True):
    ready: bool


class Row(Struct, array_like=True):
    id: int
    name: str


class Table(Struct):
    rows: dict[int, dict[float, bytes]]
    seen: set[int]


class Other(Struct, tag="plan"):
    """Of the same name as Plan, but something else."""

    title: str


class TaskAssignment(Struct):
    phase: str


PLAN = Plan(12, [Step("design", True), Step("build")], datetime(2024, 5, 1, tzinfo=UTC))


TABLE = Table({1: {2.5: b"x"}}, {3, 4})


async def types(bus: Bus) -> set[str]:
    """The types that are not built in."""
    return {type.name for type in await bus.types() if not type.builtin}
