"""Two processes on one bus: audit log, session state and checkpoints, and point reads while the lock is held."""

import asyncio
import json
import time
from pathlib import Path

import agentbus
from tests.api.event_story import SECRET, Story
from tests.support.processes import Team


async def test_a_follower_in_another_process_receives_every_event(short: Path, team: Team) -> None:
    path = short / "bus"
    follower = team.start("worker_whole", "follow", path)
    await asyncio.to_thread(follower.expect, "ready")
    async with agentbus.connect(path, beat_every=3600) as bus:
        told = await Story(bus).tell()
        heard = [json.loads(await asyncio.to_thread(follower.expect, "event", 10)) for _ in told]
    assert [tuple(line) for line in heard] == told
    assert SECRET not in json.dumps(heard)


async def test_a_sessions_state_and_checkpoints_are_shared_with_another_process(short: Path, team: Team) -> None:
    path = short / "bus"
    async with agentbus.connect(path, beat_every=3600) as bus, bus.session("planning", id="s") as session:
        await session.checkpoint("begun", {"step": 1})
        helper = team.start("worker_whole", "answer", path)
        assert json.loads(await asyncio.to_thread(helper.expect, "ready")) == {"step": 1}
        answers = session.state.watch("answer")
        for number in range(1, 11):
            assert await session.state.set("question", number) == number
            entry = await asyncio.wait_for(anext(answers), 30)
            assert (entry.value, entry.version, entry.author) == (number, number, None)
            assert await session.state.get("answer") == number
            await asyncio.to_thread(helper.expect, "answered")
            last = await session.restore()
            assert last is not None
            assert (last.name, last.snapshot) == ("answered", number)
        await answers.aclose()
        await session.state.set("question", "last")
        await asyncio.to_thread(helper.expect, "answered")
        # A question and the end at once: the helper sees the question when the session is over.
        helper.stop()
        await session.state.set("question", "too late")
        await session.complete()
        helper.resume()
        assert await asyncio.to_thread(helper.expect, "refused") == "SessionEnded"
        assert await session.state.get("answer") == "last"
    helper.finish()


async def test_point_reads_continue_while_another_process_holds_the_lock(short: Path, team: Team) -> None:
    path = short / "bus"
    async with (
        agentbus.connect(path, beat_every=3600) as bus,
        bus.session("planning", id="s") as session,
        session.agent("a", type="worker") as a,
    ):
        await a.state.set("k", 1)

        async def looks() -> float:
            begun = time.perf_counter()
            for _ in range(500):
                assert await a.state.get("k") == 1
                assert await a.pending() is False
                assert await bus.agents.get("a") is not None
                assert await bus.sessions.get("s") is not None
            return time.perf_counter() - begun

        free = await looks()
        holder = team.start("worker_whole", "hold", path)
        await asyncio.to_thread(holder.expect, "held")
        writing = asyncio.create_task(a.state.set("k", 2))
        took = await looks()
        # No read waited for the lock: it is held until all have finished.
        assert not writing.done()
        holder.tell("let go")
        await writing
        assert await a.state.get("k") == 2
        holder.finish()
    print(f"2,000 looks in {took:.3f} s while another process held the lock, in {free:.3f} s while none did")
