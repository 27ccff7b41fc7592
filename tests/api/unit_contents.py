"""One of everything that a unit can hold, a world to try it in, and all that can go wrong with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from agentbus import Agent, Bus, Message, Session, Unit, pool
from agentbus.errors import (
    AgentBusError,
    AgentEnded,
    AgentFenced,
    InvalidPayload,
    LeaseLost,
    MessageIdConflict,
    SnapshotTooLarge,
    UnknownFile,
    UnknownRecipient,
    UnknownSession,
    UnknownType,
    UnsafePath,
    VersionConflict,
    WrongState,
)
from tests.api.helpers import known, queued, stored, take, worker
from tests.support.clock import FakeClock

SCOPES = ("a", "shared", "session:s")


class Finding(Struct):
    """A type that is defined by its first use."""

    files: int


class World:
    """A session with an agent that handles messages of a pool, one who could take them from it, and one who listens."""

    def __init__(self, bus: Bus, session: Session, root: Path) -> None:
        self.bus = bus
        self.session = session
        self.root = root
        self.clock: FakeClock
        self.a: Agent
        self.rival: Agent

    async def message(self, payload: Any = "job") -> Message:
        """A message for the agent, which it holds."""
        await self.rival.send(pool("p"), "coordination_request", payload, correlation="c", max_attempts=100)
        return await take(self.a, lease=30)

    def fill(self, unit: Unit, message: Message, value: Any = "new") -> None:
        """One of each."""
        unit.reply(message, "coordination_response", value)
        unit.send("b", "note", value, message_id=f"sent-{value}")
        unit.send("b", Finding(3))
        unit.publish("t", "note", value)
        unit.state.set("last", value)
        unit.state.delete("draft")
        unit.state.increment("handled")
        unit.state_of("shared").set("by", value)
        unit.state_of("session:s").set("phase", value)
        (self.root / "plan.md").write_text(f"the plan {value}")
        unit.checkpoint("half", {"value": value}, files=["plan.md"], root=self.root)
        unit.document("output", {"value": value})
        unit.progress(50, f"note {value}")

    async def look(self) -> dict[str, Any]:
        """All that there is, but for how the pool's messages stand."""
        bus = self.bus
        messages = [
            (record.message_id, record.status, record.payload)
            for record in (await bus.messages.list(limit=1000)).items
            if record.recipient != "pool:p"
        ]
        return {
            "messages": messages,
            "state": [entry for scope in SCOPES for entry in (await bus.state(scope).list()).items],
            "checkpoints": (await bus.checkpoints.list()).items,
            "documents": await self.session.document("output").history(),
            "agents": [(one.id, one.progress, one.note) for one in (await bus.agents.list()).items],
            "types": [one.name for one in await bus.types("message")],
        }

    async def all_of(self, message: Message, value: Any = "new") -> bool:
        """Return True if everything that ``fill`` asks for is stored; fail if only part of it is."""
        bus = self.bus
        found: dict[str, bool] = {
            "acknowledged": (await stored(bus, message.message_id)).status == "acked",
            "sent": await bus.messages.get(f"sent-{value}") is not None,
            "replied": value in await queued(bus, "rival"),
            "published": value in await queued(bus, "listener") or value in await self._heard(),
            "set": await bus.state("a").get("last") == value,
            "elsewhere": await bus.state("shared").get("by") == value,
            "in the session": await bus.state("session:s").get("phase") == value,
            "checkpoint": ((last := await self.a.restore("half")) is not None and last.snapshot == {"value": value}),
            "document": await self.session.document("output").latest() == {"value": value},
            "progress": (await known(bus, "a")).note == f"note {value}",
        }
        assert len(set(found.values())) == 1, f"neither all nor nothing: {found}"
        return found["acknowledged"]

    async def _heard(self) -> list[Any]:
        copies = await self.bus.messages.list(sender="a", type="note", limit=1000)
        return [copy.payload for copy in copies.items if copy.recipient == "topic:t"]


@asynccontextmanager
async def world_on(bus: Bus, clock: FakeClock, root: Path) -> AsyncIterator[World]:
    async with bus.session("planning", id="s") as session:
        world = World(bus, session, root)
        world.clock = clock
        world.a = await worker(bus, "a", session="s", pools=["p"])
        world.rival = await worker(bus, "rival", pools=["p"])
        await worker(bus, "listener", topics=["t"])
        await bus.expect("b", type="worker")
        await (await worker(bus, "gone")).complete()
        await bus.define("deploy_result", schema={"type": "object", "required": ["url"]})
        await world.a.state.set("draft", 1)
        yield world
        session.ended = True  # how a test leaves it is its business


def in_the_block(world: World, message: Message) -> AbstractAsyncContextManager[Unit]:
    """``async with message as unit``"""
    return message


@asynccontextmanager
async def in_a_unit(world: World, message: Message) -> AsyncIterator[Unit]:
    """``agent.unit()``"""
    async with world.a.unit() as unit:
        unit.ack(message)
        yield unit


Way = Callable[[World, Message], AbstractAsyncContextManager[Unit]]


# What can go wrong


async def lose_the_lease(world: World, message: Message, unit: Unit) -> None:
    # No timer fires meanwhile, as in a process that hangs: it is not renewed.
    world.clock.stall(31)
    assert (await take(world.rival)).message_id == message.message_id


async def name_no_agent(world: World, message: Message, unit: Unit) -> None:
    unit.send("nobody", "note")


async def name_no_topic(world: World, message: Message, unit: Unit) -> None:
    unit.publish("no-such-topic", "note")


async def name_who_has_ended(world: World, message: Message, unit: Unit) -> None:
    unit.send("gone", "note")


async def name_no_type(world: World, message: Message, unit: Unit) -> None:
    unit.send("b", "no-such-type")


async def misfit(world: World, message: Message, unit: Unit) -> None:
    unit.send("b", "deploy_result", {"uri": "misspelt"})


async def use_an_id_again(world: World, message: Message, unit: Unit) -> None:
    await world.rival.send("b", "note", "another", message_id="used")
    unit.send("b", "note", "this", message_id="used")


async def expect_another_version(world: World, message: Message, unit: Unit) -> None:
    unit.state.set("draft", 2, if_version=7)


async def delete_another_version(world: World, message: Message, unit: Unit) -> None:
    unit.state_of("shared").delete("nothing", if_version=7)


async def add_to_text(world: World, message: Message, unit: Unit) -> None:
    await world.bus.state("shared").set("text", "x")
    unit.state_of("shared").increment("text")


async def end_the_session(world: World, message: Message, unit: Unit) -> None:
    await world.session.complete()


async def name_no_session(world: World, message: Message, unit: Unit) -> None:
    unit.state_of("session:nowhere").set("k", 1)


async def let_the_file_vanish(world: World, message: Message, unit: Unit) -> None:
    (world.root / "other.md").write_text("soon gone")
    unit.checkpoint("other", 1, files=["other.md"], root=world.root)
    (world.root / "other.md").unlink()


async def be_taken_over(world: World, message: Message, unit: Unit) -> None:
    world.a = await worker(world.bus, "a", takeover=True, session="s", pools=["p"])


async def snap_too_much(world: World, message: Message, unit: Unit) -> None:
    unit.checkpoint("huge", "x" * 20_000)


async def write_too_much(world: World, message: Message, unit: Unit) -> None:
    unit.document("huge", "x" * 20_000)


async def send_what_is_no_json(world: World, message: Message, unit: Unit) -> None:
    unit.state.set("k", float("nan"))


async def leave_the_root(world: World, message: Message, unit: Unit) -> None:
    unit.checkpoint("other", 1, files=["../secret"], root=world.root)


Spoil = Callable[[World, Message, Unit], Awaitable[None]]
AT_THE_END: list[tuple[Spoil, type[AgentBusError]]] = [
    (name_no_agent, UnknownRecipient),
    (name_no_topic, UnknownRecipient),
    (name_who_has_ended, AgentEnded),
    (name_no_type, UnknownType),
    (misfit, InvalidPayload),
    (use_an_id_again, MessageIdConflict),
    (expect_another_version, VersionConflict),
    (delete_another_version, VersionConflict),
    (add_to_text, WrongState),
    (name_no_session, UnknownSession),
]
"""Changes that make the database refuse one unit, and no other."""
SPOILING: list[tuple[Spoil, type[AgentBusError]]] = [
    *AT_THE_END,
    (lose_the_lease, LeaseLost),
    (end_the_session, WrongState),
    (let_the_file_vanish, UnknownFile),
    (be_taken_over, AgentFenced),
    (snap_too_much, SnapshotTooLarge),
    (write_too_much, SnapshotTooLarge),
    (send_what_is_no_json, InvalidPayload),
    (leave_the_root, UnsafePath),
]
