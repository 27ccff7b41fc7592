"""A sequence of calls that leaves every kind of event, and the expected events."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from unittest.mock import ANY

import msgspec

from agentbus import Bus, pool, topic
from agentbus.records import EventRecord
from tests.api.helpers import take, worker

SECRET = "top-secret"
"""In every payload, value, snapshot and result of the story, and in no line of the trail."""

Line = tuple[str, str, str, str | None, dict[str, Any]]


class Survey(msgspec.Struct):
    """A type that its first use defines."""

    text: str


def line(event: EventRecord) -> Line:
    return event.kind, f"{event.subject_kind}:{event.subject}", "by", event.actor, event.facts


class Story:
    """The expected audit log so far."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.lines: list[Line] = []

    def now(self, kind: str, subject: str, actor: str | None = None, **facts: Any) -> None:
        self.lines.append((kind, subject, "by", actor, facts))

    async def tell(self) -> list[Line]:
        """All of it, on a fresh bus."""
        await self._words()
        await self._lives()
        await self._session()
        await self._recovery()
        await self._letters()
        await self._checkpoints()
        return self.lines

    async def _words(self) -> None:
        await self.bus.define("deploy_request", description="please deploy")
        self.now("type_defined", "vocabulary:message/deploy_request", schema=False)
        await self.bus.define("deploy_request", description="deploy this", schema={"type": "object"})
        self.now("type_changed", "vocabulary:message/deploy_request", changed=["description", "schema"])
        await self.bus.define("deployer", kind="agent")
        self.now("type_defined", "vocabulary:agent/deployer", schema=False)
        await self.bus.declare(pool("p"), topic("t"))
        self.now("mailbox_declared", "mailbox:pool:p")
        self.now("mailbox_declared", "mailbox:topic:t")

    async def _lives(self) -> None:
        await self.bus.expect("b", type="worker")
        self.now("agent_expected", "agent:b", "b", type="worker", epoch=0, before=None)
        old = await worker(self.bus, "a")
        self.now("agent_registered", "agent:a", "a", type="worker", epoch=1, before=None)
        await old.send("b", Survey(SECRET))
        self.now("type_defined", "vocabulary:message/survey", "a", schema=True)
        self.a = await worker(self.bus, "a", takeover=True)
        self.now("agent_taken_over", "agent:a", "a", type="worker", epoch=2, before="running")
        await self.a.state.set("k", SECRET)
        await self.a.progress(50, SECRET)

    async def _session(self) -> None:
        me = self.bus._engine.process
        with suppress(ZeroDivisionError):
            async with self.bus.session("planning", id="s", milestone="m", metadata={"x": SECRET}) as session:
                self.now("session_started", "session:s", operation="planning", milestone="m", process=me)
                await session.pause("lunch")
                self.now("session_paused", "session:s", before="active", reason="lunch")
                await session.continue_()
                self.now("session_continued", "session:s", before="paused")
                await session.state.set("k", SECRET)
                await session.document("output").save({"text": SECRET})
                await (await session.participants(["m"])).finish("m", SECRET)
                for n in range(3):
                    await session.checkpoint("c", {"n": n, "text": SECRET}, notes=SECRET)
                await self.bus.checkpoints.prune("s", "c", keep=1, kind="session")
                self.now("checkpoints_pruned", "session:s", count=2, name="c", keep=1)
                c = await worker(self.bus, "c", session="s")
                self.now("agent_registered", "agent:c", "c", type="worker", epoch=1, before=None)
                await c.fail("the model is gone")
                self.now("agent_failed", "agent:c", "c", error="the model is gone")
                self.now("session_interrupted", "session:s", before="active", reason="c failed: the model is gone")
                c = await worker(self.bus, "c")
                self.now("session_continued", "session:s", "c", before="interrupted")
                self.now("agent_registered", "agent:c", "c", type="worker", epoch=2, before="failed")
                await c.stop("enough")
                self.now("agent_stopped", "agent:c", "c", error="enough")
                _ = 1 / 0
        self.now("session_failed", "session:s", before="active", error="ZeroDivisionError: division by zero")
        async with self.bus.session("planning", id="s2"):
            self.now("session_started", "session:s2", operation="planning", milestone=None, process=me)
        self.now("session_completed", "session:s2", before="active")

    async def _recovery(self) -> None:
        me = self.bus._engine.process
        with suppress(KeyboardInterrupt):
            async with self.bus.session("execution", id="s3") as session:
                self.now("session_started", "session:s3", operation="execution", milestone=None, process=me)
                await session.state.set("k", SECRET)
                point = await session.checkpoint_all("half", notes=SECRET)
                await session.state.set("k", 2)
                await session.document("output").save({"text": SECRET})
                raise KeyboardInterrupt
        self.now("session_interrupted", "session:s3", before="active", reason="KeyboardInterrupt")
        done = (await (await self.bus.recovery.plan("s3")).rollback(point.id)).rollback
        assert done is not None
        self.now(
            "session_rolled_back", "session:s3", checkpoint=point.id, saved=done.saved, documents=0, removed=1,
            entries=1, participants=0,
        )  # fmt: skip
        self.now("session_continued", "session:s3", before="interrupted")
        self.now(
            "session_recovered", "session:s3", action="rollback", before="interrupted", agents=[], checkpoint=point.id
        )

    async def _letters(self) -> None:
        receipt = await self.a.send("a", "note", {"text": SECRET})
        letter = f"message:{receipt.message_id}"
        await (await take(self.a)).reject("it cannot be done")
        self.now("message_dead", letter, "a", type="note", error="it cannot be done")
        assert receipt.message_id is not None
        await self.bus.messages.requeue(receipt.message_id)
        self.now("messages_requeued", "bus:messages", count=1, attempts={receipt.message_id: 1})
        async with await take(self.a):
            pass
        await self.a.send("b", "note", {"text": SECRET}, message_id="for-b")
        await self.bus.agents.delete("b")
        survey = next(iter((await self.bus.messages.list(type="survey")).items)).message_id
        self.now("message_dead", f"message:{survey}", None, type="survey", error="its recipient was deleted")
        self.now("message_dead", "message:for-b", None, type="note", error="its recipient was deleted")
        self.now("agent_deleted", "agent:b", checkpoints=0)
        assert await self.bus.messages.purge(status="dead") == 2
        self.now("messages_purged", "bus:messages", count=2, status="dead", before=ANY)
        assert await self.bus.messages.purge() == 1
        self.now("messages_purged", "bus:messages", count=1, status=None, before=ANY)

    async def _checkpoints(self) -> None:
        saved = [await self.a.checkpoint("c", {"n": n, "text": SECRET}, notes=SECRET) for n in range(4)]
        await self.bus.checkpoints.delete(saved[0].id)
        self.now("checkpoint_deleted", f"checkpoint:{saved[0].id}", owner_kind="agent", owner="a", name="c")
        await self.bus.checkpoints.prune("a", keep=2)
        self.now("checkpoints_pruned", "agent:a", count=1, name=None, keep=2)
        await self.a.complete()
        self.now("agent_completed", "agent:a", "a")
        await self.bus.agents.delete("a")
        self.now("agent_deleted", "agent:a", checkpoints=2)
