"""Run the doctor on a bus with data."""

from __future__ import annotations

from agentbus import Bus

NAMES = [
    "integrity", "foreign keys", "schema", "sqlite", "file system", "permissions", "log", "disk", "backups", "orphans",
    "lock", "payloads of messages", "payloads of state", "payloads of documents", "payloads of participants",
    "payloads of checkpoints", "payloads of tasks", "payloads of steps", "payloads of approvals",
    "payloads of signals", "payloads of histories", "processes",
    "leases", "holds", "clock", "expected documents", "dependencies", "room",
]  # fmt: skip


async def busy(bus: Bus) -> None:
    """Something of every kind."""
    async with bus.session("planning", id="s1", expects={"a": "plan"}) as session:
        async with session.agent("a", type="worker") as agent:
            await agent.send("a", "note", {"x": 1})
            await agent.state.set("k", [1])
            await agent.checkpoint("n", {"step": 1})
        await session.document("plan").save({"v": 1})
        await (await session.participants(["x"])).finish("x", {"agrees": True})
