"""A unit: calls that commit together or not at all.

Written by ``make sync`` from ``agentbus.api.unit``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.api import unit as api
from agentbus.core.validation import KEEP_VERSIONS
from agentbus.sync.client.base import BlockWrapper, unwrap, unwrap_all

if TYPE_CHECKING:
    from typing import Any, Unpack

    from msgspec import Struct

    from agentbus.api.checkpoints import CheckpointOptions
    from agentbus.api.sending import SendOptions
    from agentbus.api.state import UnitState
    from agentbus.core.addresses import Address
    from agentbus.records import TaskMessage
    from agentbus.sync.client.message import Message


class Unit(BlockWrapper[api.Unit, "Unit"], wraps=api.Unit):
    """Collect the calls of a block, and commit them in one transaction when it ends.

    Its calls are not awaited. They check their arguments at once. Errors that need the database (an unknown recipient,
    a lost lease), files, large values or a schema are raised at the end of the block, and then nothing is written.

    >>> with agent.unit() as unit:                                              # doctest: +SKIP
    ...     unit.send("reviewer-1", "note", {"text": "look at this"})
    ...     unit.progress(50)
    """

    __slots__ = ()

    def send(self, to: str | Address, type: str | Struct, payload: Any = None, **options: Unpack[SendOptions]) -> None:
        """Send a message, as ``Agent.send`` does, with the same options.

        >>> unit.send("planner-1", "completion_notification", {"ok": True})           # doctest: +SKIP
        """
        self._inner.send(to, type, payload, **options)

    def publish(self, name: str, type: str | Struct, payload: Any = None, **options: Unpack[SendOptions]) -> None:
        """Publish to a topic.

        >>> unit.publish("plans", "note", {"plan": 3})                                # doctest: +SKIP
        """
        self._inner.publish(name, type, payload, **options)

    def reply(
        self, message: Message | TaskMessage, type: str | Struct, payload: Any = None, **options: Unpack[SendOptions]
    ) -> None:
        """Reply to a request (or any message) in the same commit.

        >>> unit.reply(message, "coordination_response", {"ready": True})             # doctest: +SKIP
        """
        self._inner.reply(unwrap(message), type, payload, **options)

    def ack(self, *messages: Message) -> None:
        """Acknowledge messages in the same commit.

        >>> unit.ack(first, second)                                                   # doctest: +SKIP
        """
        self._inner.ack(*unwrap_all(messages))

    def progress(self, percent: int, note: str | None = None) -> None:
        """Report the progress of the agent in the same commit.

        >>> unit.progress(80, "tests pass")                                           # doctest: +SKIP
        """
        self._inner.progress(percent, note)

    @property
    def state(self) -> UnitState:
        """The agent's own state, changed in the same commit.

        >>> unit.state.set("last", result)                                            # doctest: +SKIP
        """
        return self._inner.state

    def state_of(self, scope: str) -> UnitState:
        """Return the state of another scope, changed in the same commit; the agent is its author.

        >>> unit.state_of("builds").increment("count")                                # doctest: +SKIP
        """
        return self._inner.state_of(scope)

    def document(self, name: str, value: Any, *, keep: int = KEEP_VERSIONS) -> None:
        """Save a new version of a document of the agent's session; the agent is its author.

        >>> unit.document("planning_output", {"phases": ["design", "build"]})         # doctest: +SKIP
        """
        self._inner.document(name, value, keep=keep)

    def checkpoint(self, name: str, snapshot: Any, **options: Unpack[CheckpointOptions]) -> None:
        """Save a checkpoint of the agent in the same commit, as ``Agent.checkpoint`` does. Its files are hashed at the
        end of the block.

        >>> unit.checkpoint("after_design", {"step": 2}, files=["design.md"])         # doctest: +SKIP
        """
        self._inner.checkpoint(name, snapshot, **options)
