"""A workflow that many rules of tasks are shown with."""

from __future__ import annotations

import msgspec

import agentbus
from agentbus import Task


class Plan(msgspec.Struct):
    files: int
    parts: tuple[str, ...] = ()


class Report(msgspec.Struct):
    plan: Plan
    done: bool = True


def make_plan(request: str) -> Plan:
    return Plan(len(request), ("design", "build"))


@agentbus.workflow("feature")
async def feature(task: Task, request: str) -> Report:
    plan = await task.step("plan", make_plan, request)
    return Report(plan)
