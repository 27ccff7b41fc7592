"""A bus of a version before histories."""

from __future__ import annotations

from agentbus import Bus, HistoryPut


async def check_histories(bus: Bus) -> None:
    """Check that an upgraded bus stores histories."""
    assert (await bus.histories.list()).items == []
    history = await bus.histories.write("k", "h", [HistoryPut(body=b"\0"), HistoryPut(key="a", body=b"1")])
    assert (history.version, history.items) == (1, 2)
    assert [item.body for item in await bus.histories.items("k", "h")] == [b"\0", b"1"]
