"""Run random operations until killed. Returned calls are recorded in a file first."""

import asyncio
import json
import os
import random
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import agentbus
from agentbus import Agent, Bus, Message, Session
from agentbus.errors import AgentFenced, VersionConflict, WrongState
from tests.faults.audited import accept_audit
from tests.support.processes import say

TASKS = 3


class Soaker:
    """One task of a life; every name that it makes is its own."""

    def __init__(self, bus: Bus, session: Session, agent: Agent, log: int, name: str, seed: str) -> None:
        self.bus = bus
        self.session = session
        self.agent = agent
        self.name = name
        self.chance = random.Random(f"{seed}/{name}")
        self.shared = bus.state("shared")
        self._log = log
        self._number = 0

    def note(self, kind: str, *facts: Any) -> None:
        os.write(self._log, json.dumps([kind, *facts]).encode() + b"\n")

    def own(self) -> str:
        """A name that was not used before."""
        self._number += 1
        return f"{self.name}.{self._number}"

    async def run(self) -> None:
        acts: list[Callable[[], Awaitable[None]]] = [
            self.set, self.set_shared, self.forget_shared, self.count, self.compare_and_set, self.let_expire,
            self.document, self.checkpoint, self.checkpoint_session, self.send, self.send, self.publish,
            self.handle, self.handle, self.handle, self.give_back, self.fail_a_unit, self.come_and_go, self.take_over,
            self.advance, self.pause, self.meet, self.look,
        ]  # fmt: skip
        while True:
            await self.chance.choice(acts)()

    async def set(self) -> None:
        key = self.own()
        await self.agent.state.set(key, key)
        self.note("set", self.agent.id, key)
        assert await self.agent.state.get(key) == key
        key = self.own()
        with suppress(WrongState):
            await self.session.state.set(key, key)
            self.note("set", "session:soak", key)

    async def set_shared(self) -> None:
        key = f"k{self.chance.randrange(4)}"
        self.note("version", key, await self.shared.set(key, self.own()))

    async def forget_shared(self) -> None:
        await self.shared.delete(f"k{self.chance.randrange(4)}")

    async def count(self) -> None:
        await self.shared.increment("count")
        self.note("counted")

    async def compare_and_set(self) -> None:
        entry = await self.shared.entry("sum")
        value, version = (entry.value, entry.version) if entry else (0, 0)
        with suppress(VersionConflict):
            self.note("version", "sum", await self.shared.set("sum", value + 1, if_version=version))
            self.note("summed")

    async def let_expire(self) -> None:
        key = f"e{self.chance.randrange(4)}"
        self.note("version", key, await self.shared.set(key, self.own(), ttl=0.05))

    async def document(self) -> None:
        value = self.own()
        with suppress(WrongState):
            record = await self.session.document(f"d{self.chance.randrange(3)}", keep=10_000).save(value)
            self.note("document", record.name, record.version, value)

    async def checkpoint(self) -> None:
        value = self.own()
        self.note("checkpoint", (await self.agent.checkpoint("c", value)).id, value)

    async def checkpoint_session(self) -> None:
        value = self.own()
        with suppress(WrongState):
            self.note("checkpoint", (await self.session.checkpoint("c", value)).id, value)

    async def send(self) -> None:
        name = self.own()
        await self.agent.send(agentbus.pool("jobs"), "note", name, message_id=name, max_attempts=1000)
        self.note("sent", name)

    async def publish(self) -> None:
        await self.agent.publish("news", "note", self.own())

    async def handle(self) -> None:
        message = await self._job()
        if message is None:
            return
        value = self.own()
        async with message as unit:
            unit.state_of("shared").increment("handled")
            unit.state.set(value, value)
            unit.send("sink", "note", value, message_id=f"result-{message.message_id}")
            unit.checkpoint("u", value)
            unit.document("u", value, keep=10_000)
            unit.progress(self.chance.randrange(101))
        self.note("handled", message.message_id, value)

    async def give_back(self) -> None:
        message = await self._job()
        if message is not None:
            self.note("giving", message.id)
            await message.nack(delay=self.chance.choice([0, 0.01]))

    async def fail_a_unit(self) -> None:
        message = await self._job()
        if message is not None:
            self.note("giving", message.id)
            with suppress(VersionConflict):
                async with message as unit:
                    unit.state_of("shared").increment("handled")
                    unit.checkpoint("never", "never")
                    unit.send("sink", "note", "never")
                    unit.state.set("never", 1, if_version=77)
                raise AssertionError("it must fail")

    async def come_and_go(self) -> None:
        name = self.own()
        async with self.session.agent(name, type="worker") as agent:
            await agent.state.set("k", 1)
            await agent.checkpoint("c", 1)
        await self.bus.agents.delete(name)
        self.note("deleted", name)

    async def take_over(self) -> None:
        ghost = await self.bus.register("ghost", type="worker", takeover=True)
        with suppress(AgentFenced):
            self.note("version", "ghost", await ghost.state.set("k", ghost.epoch))

    async def advance(self) -> None:
        await self.session.progress(self.chance.randrange(101))
        await self.bus.messages.purge(status="expired")

    async def pause(self) -> None:
        with suppress(WrongState):
            await self.session.pause()
        with suppress(WrongState):
            await self.session.continue_()

    async def meet(self) -> None:
        member = self.own()
        meeting = await self.session.participants([member])
        await meeting.finish(member, member)
        self.note("finished", member)

    async def look(self) -> None:
        record = await self.bus.agents.get(self.agent.id)
        assert record is not None
        assert record.status == "running"
        await self.agent.pending()
        await self.bus.sessions.get("soak")
        assert [event async for event in self.bus.events(limit=5)]

    async def _job(self) -> Message | None:
        message = await self.agent.receive(timeout=0)
        while message is not None and message.recipient != "pool:jobs":
            await message.ack()
            message = await self.agent.receive(timeout=0)
        return message


async def main(path: str, log: str, name: str, seed: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        async with agentbus.connect(path, beat_every=0.5) as bus:
            session = await bus.sessions.open("soak")
            agent = await bus.register(name, type="worker", session="soak", pools=["jobs"], topics=["news"])
            say("begun")
            tasks = [Soaker(bus, session, agent, file, f"{name}.{n}", seed).run() for n in range(TASKS)]
            await asyncio.gather(*tasks)
    except BaseException:
        os.write(file, json.dumps(["crash", traceback.format_exc()]).encode() + b"\n")
        raise


if __name__ == "__main__":
    accept_audit()
asyncio.run(main(*sys.argv[1:]))
