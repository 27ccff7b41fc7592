"""A history survives kill -9 of its writer: nothing acknowledged is lost, and no part of a write is visible."""

from pathlib import Path

import pytest

import agentbus
from tests.faults.rows import integrity
from tests.support.figures import Figure, Scale
from tests.support.processes import Team


async def kill_writers(url: str, team: Team, kills: int) -> int:
    """Kill one writer after the other; return the number of acknowledged writes."""
    acknowledged = 0
    for kill in range(kills):
        writer = team.start("worker_histories", url)
        for _ in range(5 + 3 * kill % 7):
            acknowledged = int(writer.expect("wrote"))
        writer.kill()
        acknowledged = max([acknowledged, *(int(line.split()[1]) for line in writer.said() if line)])
        async with agentbus.connect(url) as bus:
            history = await bus.histories.find("k", "h")
            assert history is not None
            number = history.meta["n"]
            # One more may have been committed whose acknowledgement was cut off.
            assert acknowledged <= number <= acknowledged + 1
            acknowledged = number
            items = {(item.part, item.key): item for item in await bus.histories.items("k", "h")}
            appended = [item for item in items.values() if item.key.startswith("000")]
            assert [int(item.body) for item in appended] == list(range(1, number + 1))
            assert [key for part, key in items if part == "p"] == [f"{n}-a" for n in range(1, number + 1)]
            assert [key for part, key in items if part == "m"] == [f"{number}-moved"]
            assert int(items["", "last"].body) == number
            assert (history.version, history.items) == (number, len(items)) == (number, 2 * number + 2)
            assert history.size == sum(item.size for item in items.values())
            assert [check.text for check in await bus.doctor() if check.status == "error"] == []
    return acknowledged


@pytest.mark.slow
@pytest.mark.fault(26)
async def test_a_killed_writer_of_a_history_leaves_whole_writes(
    tmp_path: Path, team: Team, figure: Figure, scale: Scale
) -> None:
    kills = scale(2, 20)
    acknowledged = await kill_writers(str(tmp_path / "bus"), team, kills)
    assert integrity(tmp_path / "bus") == "ok"
    figure(f"of writers of a history: {acknowledged} writes", kills=kills, lost=0)


@pytest.mark.slow
@pytest.mark.fault(26)
async def test_a_killed_writer_of_a_history_on_a_server_leaves_whole_writes(
    url: str, team: Team, figure: Figure, scale: Scale
) -> None:
    kills = scale(1, 20)
    acknowledged = await kill_writers(url, team, kills)
    figure(f"of writers of a history on a server: {acknowledged} writes", kills=kills, lost=0)
