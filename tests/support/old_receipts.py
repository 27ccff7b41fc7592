"""A bus of a version before receipts, with its own message type of the name that is built in since."""

from __future__ import annotations

from agentbus import Bus

OWN_TYPE = "INSERT INTO vocabulary (kind, name, schema, created) VALUES ('message', 'steer', '{}', 0)"


async def check_receipts(bus: Bus, message_id: str) -> None:
    """Check that an old message takes receipts, that reach can be declared, and that the type is built in."""
    assert (await bus.messages.receipts(message_id), (await bus.messages.reach("a")).reach) == ([], "now")
    visitor = await bus.register_visitor("a", type="worker", takeover=True)
    await visitor.declare_reach("tool", channel="hook")
    await visitor.seen(message_id, channel="hook")
    assert [one.epoch for one in await bus.messages.receipts(message_id)] == [visitor.epoch]
    assert (await bus.messages.reach("a")).reach == "next_tool"
    (steer,) = [one for one in await bus.types("message") if one.name == "steer"]
    assert (steer.builtin, steer.schema) == (True, None)
