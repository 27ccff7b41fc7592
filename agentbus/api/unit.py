"""A unit: calls that commit together or not at all."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from msgspec import Struct

from agentbus.api.block import AsyncOnly
from agentbus.api.sending import SendOptions, draft_from, must_check, reply_draft
from agentbus.api.state import UnitState
from agentbus.core.addresses import Address, topic
from agentbus.core.validation import KEEP_VERSIONS, check_range, check_scope, check_text
from agentbus.engine.interface import Engine
from agentbus.errors import Misuse
from agentbus.operations.agents import ProgressRequest, progress
from agentbus.operations.protocol import Part
from agentbus.operations.receive import AckRequest, Settlement, ack, check_delivery
from agentbus.operations.rows import Draft
from agentbus.operations.send import SendRequest, send

if TYPE_CHECKING:
    from agentbus.api.agent import Agent
    from agentbus.api.checkpoints import CheckpointOptions
    from agentbus.api.message import Message
    from agentbus.records import TaskMessage


class DeferredPart(Protocol):
    """A checkpoint or a document, whose value or files are hashed before it is part of a unit."""

    async def part(self, engine: Engine) -> Part: ...


class Unit(AsyncOnly):
    """Collect the calls of a block, and commit them in one transaction when it ends.

    Its calls are not awaited. They check their arguments at once. Errors that need the database (an unknown recipient,
    a lost lease), files, large values or a schema are raised at the end of the block, and then nothing is written.

    >>> async with agent.unit() as unit:                                              # doctest: +SKIP
    ...     unit.send("reviewer-1", "note", {"text": "look at this"})
    ...     unit.progress(50)
    """

    _block_form = "async with agent.unit() as unit:"

    def __init__(self, agent: Agent, session: str | None = None) -> None:
        self._agent = agent
        self._session = session
        self._done: list[Message] = []
        self._replied: list[Message] = []
        self._drafts: list[Draft] = []
        self._others: list[Part | DeferredPart] = []
        self._open = False

    def send(self, to: str | Address, type: str | Struct, payload: Any = None, **options: Unpack[SendOptions]) -> None:
        """Send a message, as ``Agent.send`` does, with the same options.

        >>> unit.send("planner-1", "completion_notification", {"ok": True})           # doctest: +SKIP
        """
        self._check()
        options.setdefault("session", self._session)
        self._drafts.append(draft_from(self._agent, to, type, payload, options))

    def publish(self, name: str, type: str | Struct, payload: Any = None, **options: Unpack[SendOptions]) -> None:
        """Publish to a topic.

        >>> unit.publish("plans", "note", {"plan": 3})                                # doctest: +SKIP
        """
        self.send(topic(name), type, payload, **options)

    def reply(
        self, message: Message | TaskMessage, type: str | Struct, payload: Any = None, **options: Unpack[SendOptions]
    ) -> None:
        """Reply to a request (or any message) in the same commit.

        >>> unit.reply(message, "coordination_response", {"ready": True})             # doctest: +SKIP
        """
        self._check()
        self._drafts.append(reply_draft(self._agent, message, type, payload, options))
        if not isinstance(message, Struct):
            self._replied.append(message)

    def ack(self, *messages: Message) -> None:
        """Acknowledge messages in the same commit.

        >>> unit.ack(first, second)                                                   # doctest: +SKIP
        """
        self._check()
        self._done.extend(messages)

    def progress(self, percent: int, note: str | None = None) -> None:
        """Report the progress of the agent in the same commit.

        >>> unit.progress(80, "tests pass")                                           # doctest: +SKIP
        """
        percent = check_range(percent, "progress", 0, 100)
        note = None if note is None else check_text(note, "note")
        self._add(Part(progress, ProgressRequest(self._agent._actor, percent, note)))

    @property
    def state(self) -> UnitState:
        """The agent's own state, changed in the same commit.

        >>> unit.state.set("last", result)                                            # doctest: +SKIP
        """
        return self.state_of(self._agent.id)

    def state_of(self, scope: str) -> UnitState:
        """Return the state of another scope, changed in the same commit; the agent is its author.

        >>> unit.state_of("builds").increment("count")                                # doctest: +SKIP
        """
        return UnitState(self._agent._composer(check_scope(scope)), self._add)

    def document(self, name: str, value: Any, *, keep: int = KEEP_VERSIONS) -> None:
        """Save a new version of a document of the agent's session; the agent is its author.

        >>> unit.document("planning_output", {"phases": ["design", "build"]})         # doctest: +SKIP
        """
        self._add(self._agent._draft_document(name, value, keep))

    def checkpoint(self, name: str, snapshot: Any, **options: Unpack[CheckpointOptions]) -> None:
        """Save a checkpoint of the agent in the same commit, as ``Agent.checkpoint`` does. Its files are hashed at the
        end of the block.

        >>> unit.checkpoint("after_design", {"step": 2}, files=["design.md"])         # doctest: +SKIP
        """
        self._add(self._agent._draft_checkpoint(name, snapshot, **options))

    @property
    def _empty(self) -> bool:
        return not (self._done or self._drafts or self._others)

    @property
    def _prepared(self) -> bool:
        """True if nothing is left to be hashed or checked before the commit."""
        if must_check(self._agent._vocabulary, self._drafts):
            return False
        return all(isinstance(part, Part) for part in self._others)

    async def _prepare(self) -> list[Part]:
        """Do the work that needs no database: hash files and large values, check payloads. It is done only once."""
        if must_check(self._agent._vocabulary, self._drafts):
            drafts, _ = await self._agent._checker.check(self._drafts)
            self._drafts = list(drafts)
        parts: list[Part] = []
        for index, part in enumerate(self._others):
            finished = part if isinstance(part, Part) else await part.part(self._agent._engine)
            self._others[index] = finished
            parts.append(finished)
        return parts

    async def _commit(self, *messages: Message, first: Part | None = None) -> None:
        """Commit the collected calls and the acknowledgement of ``messages``, after ``first``."""
        others = await self._prepare()
        actor = self._agent._actor
        done, drafts = [*self._done, *messages], self._drafts
        parts: list[Part] = [] if first is None else [first]
        if done:
            # Before the sends: a lost lease is found before anything is written.
            parts.append(Part(ack, AckRequest(actor, tuple(message._lease for message in done))))
        acked = {message._lease for message in done}
        replied = tuple({message._lease: None for message in self._replied if message._lease not in acked})
        if replied:
            parts.append(Part(check_delivery, Settlement(actor, replied)))
        if drafts:
            parts.append(Part(send, SendRequest(actor, tuple(drafts))))
        parts += others
        if parts:
            await self._agent._commit(tuple(parts))
        # Only after the commit: one that failed can be retried.
        self._done, self._replied, self._drafts, self._others = [], [], [], []
        for message in done:
            message._settled = True

    def _begin(self) -> Unit:
        self._open = True
        return self

    def _end(self) -> None:
        self._open = False

    def _add(self, part: Part | DeferredPart) -> None:
        self._check()
        self._others.append(part)

    def _check(self) -> None:
        if not self._open:
            raise Misuse(
                reason="a unit is used inside its block: async with agent.unit() as unit, or async with message"
            )

    async def __aenter__(self) -> Unit:
        return self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        if error is None:
            await self._commit()
