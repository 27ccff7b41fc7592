"""A unit: what commits together or not at all."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from agentbus.addresses import Address, topic
from agentbus.limits import check_range, check_text
from agentbus.operations import Operation, Part
from agentbus.operations.agents import ProgressRequest, progress
from agentbus.operations.leases import AckRequest, ack
from agentbus.operations.messages import SendRequest, send

if TYPE_CHECKING:
    from agentbus.handle import Handle
    from agentbus.message import Message


class Unit:
    """Collects what an agent wants to do, and commits it in one transaction when its block ends.

    Its calls are not awaited. They check their arguments at once; what only the database can refuse (an unknown
    recipient, a lost lease) raises at the end of the block, and then nothing of it is written.

    >>> async with agent.unit() as unit:                                              # doctest: +SKIP
    ...     unit.send("reviewer-1", "note", {"text": "look at this"})
    ...     unit.progress(50)
    """

    def __init__(self, agent: Handle, session: str | None = None) -> None:
        self._agent = agent
        self._session = session
        self._parts: list[Part] = []
        self._settled: list[Message] = []

    def send(self, to: str | Address, type: str, payload: Any = None, **options: Any) -> None:
        """Send a message; the options are those of ``Agent.send``.

        >>> unit.send("planner-1", "completion_notification", {"ok": True})           # doctest: +SKIP
        """
        options.setdefault("session", self._session)
        draft = self._agent.draft(to, type, payload, **options)
        self._add(send, SendRequest(self._agent.actor, (draft,)))

    def publish(self, name: str, type: str, payload: Any = None, **options: Any) -> None:
        """Publish to a topic.

        >>> unit.publish("plans", "note", {"plan": 3})                                # doctest: +SKIP
        """
        self.send(topic(name), type, payload, **options)

    def reply(self, message: Message, type: str, payload: Any = None, **options: Any) -> None:
        """Answer a request (or any message) in the same commit.

        >>> unit.reply(message, "coordination_response", {"ready": True})             # doctest: +SKIP
        """
        draft = message.reply_draft(type, payload, options)
        self._add(send, SendRequest(self._agent.actor, (draft,)))

    def ack(self, *messages: Message) -> None:
        """Acknowledge messages in the same commit.

        >>> unit.ack(first, second)                                                   # doctest: +SKIP
        """
        # First, so that a lost lease is found before anything is written.
        leases = tuple(message.lease for message in messages)
        self._parts.insert(0, Part(ack, AckRequest(self._agent.actor, leases)))
        self._settled.extend(messages)

    def progress(self, percent: int, note: str | None = None) -> None:
        """Note how far the agent is.

        >>> unit.progress(80, "tests pass")                                           # doctest: +SKIP
        """
        percent = check_range(percent, "progress", 0, 100)
        note = None if note is None else check_text(note, "note")
        self._add(progress, ProgressRequest(self._agent.actor, percent, note))

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(self._parts)

    async def commit(self) -> None:
        """Write everything collected so far. The block does it by itself at its end."""
        parts, self._parts = tuple(self._parts), []
        settled, self._settled = self._settled, []
        if parts:
            await self._agent.commit(parts)
        for message in settled:
            message.settled = True

    async def __aenter__(self) -> Unit:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.commit()

    def _add(self, operation: Operation[Any, Any], request: Any) -> None:
        self._parts.append(Part(operation, request))
