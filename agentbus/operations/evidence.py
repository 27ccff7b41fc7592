"""What a verdict on an agent rests on. It is kept with the verdict, and shown to people."""

from __future__ import annotations

from typing import Any

import msgspec

from agentbus.clock import Now

PROCESS_WIDE = frozenset({"stalled", "unreachable"})
"""Verdicts on all agents of a process: they are taken back as soon as the process beats."""


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """Ages are seconds of awake time.

    The verdicts: ``dead`` (its process is gone), ``rebooted`` (the machine was restarted), ``stalled`` (its process is
    there, and does not beat), ``unreachable`` (the same of a process that cannot be seen from here), ``stuck`` (its
    process beats, but the agent does nothing, waits for nothing, and did not say that it would be busy), ``silent`` (a
    visiting agent whose patience is over), ``absent`` (it was started, and never registered).
    """

    verdict: str
    process: int | None = None
    pid: int | None = None
    alive: bool | None = None
    """Whether the process was seen, by its pid and start time; None if it cannot be."""
    beat_age: float | None = None
    call_age: float | None = None
    busy_age: float | None = None
    """How long ago the time was over for which it had said to be busy."""
    progress: int | None = None
    patience: float | None = None

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = msgspec.to_builtins(self)
        return facts


class Silence(msgspec.Struct, frozen=True):
    """What an agent's own row says of it."""

    agent: str
    process: int | None
    last_call: int | None
    busy_until: int | None
    progress: int

    def evidence(self, verdict: str, now: Now, **more: Any) -> Evidence:
        return Evidence(
            verdict,
            process=self.process,
            call_age=age(self.last_call, now),
            busy_age=age(self.busy_until, now),
            progress=self.progress,
            **more,
        )


def age(awake: int | None, now: Now) -> float | None:
    """How many seconds ago something was; None for what never was, or belongs to another boot's count."""
    return None if awake is None or awake > now.awake else round((now.awake - awake) / 1000, 1)
