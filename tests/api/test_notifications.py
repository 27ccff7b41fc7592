"""Notifications: what is notified, that each is delivered at least once by one process, what happens while the receiver
is down, and that only the settings of the user decide where they go."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from zlib import crc32

import anyio
import msgspec
import pytest

import agentbus
from agentbus import Bus, Task, pool
from agentbus.errors import InvalidSettings, UnknownNotifier
from agentbus.operations.notifications import MAX_WAITING, SettleRequest, settle_notification
from agentbus.records import EventRecord, Notification, NotifierRecord
from tests.api.helpers import eventually, take, worker
from tests.api.other_processes import ABSENT_PID, resident, stranger
from tests.api.task_workers import work_off
from tests.conftest import Engine
from tests.support.clock import FakeClock
from tests.support.receiver import SECRET, UserSettings, receiving, status, user

__all__ = ["user"]

HOSTILE = "$(touch here); \u202e\x1b[2J\r\nX-Injected: yes <script>"


@agentbus.workflow("deploy")
async def deploy(task: Task, text: str) -> bool:
    return (await task.approval("ship", show=text)).approved


@agentbus.workflow("broken")
async def broken(task: Task) -> None:
    raise RuntimeError(HOSTILE)


async def progress(bus: Bus) -> NotifierRecord:
    (found,) = await bus.notifications.list()
    return found


async def dead_letter(bus: Bus, *ids: str, session: str | None = None) -> None:
    """Messages that become dead letters, in one commit each."""
    async with bus.agent(f"sender-{ids[0]}", type="worker", session=session) as agent:
        for id in ids:
            await agent.send(agent.id, "note", {"secret": "payl0ad"}, message_id=id)
            await (await take(agent)).reject(HOSTILE)


async def fails(bus: Bus, agent: str) -> None:
    await (await worker(bus, agent)).fail(HOSTILE)


async def events(bus: Bus, kind: str) -> list[EventRecord]:
    return [event async for event in bus.events(kind=kind)]


# What is notified


async def test_a_monitor_notifies_of_what_needs_a_person(bus: Bus, clock: FakeClock, user: UserSettings) -> None:
    async with receiving() as receiver:
        user.webhook(receiver.port)
        # To start a session finds out which processes are dead.
        await bus.sessions.start("planning", id="s-1")
        await resident(bus, "gone", await stranger(bus, pid=ABSENT_PID, started="1"), session="s-1")
        async with bus.monitor(interval=5):
            task = await bus.tasks.start(deploy, HOSTILE)
            await work_off(bus, deploy)
            await dead_letter(bus, "m1", "m2")
            await clock.pass_time(10)
            await eventually(clock, lambda: len(receiver.requests) >= 5)
    found = {request.body["kind"]: msgspec.json.decode(request.raw, type=Notification) for request in receiver.requests}
    asked = found["approval_requested"]
    assert (asked.subject, asked.workflow, asked.severity) == (f"task:{task.id}", "deploy", "warning")
    assert asked.text == f"task {task.id} waits for approval ship"
    assert (found["message_dead"].count, found["message_dead"].facts) == (2, {"subjects": ["m1", "m2"]})
    assert found["agent_failed"].text == "agent gone failed"
    assert (found["agent_failed"].session, found["process_dead"].severity) == ("s-1", "error")
    died = found["process_dead"]
    assert (died.facts, f"(pid {ABSENT_PID}) died" in died.text) == ({"pid": ABSENT_PID}, True)
    assert found["session_interrupted"].text == "session s-1 was interrupted"
    assert all(request.is_signed() for request in receiver.requests)
    assert len({request.id for request in receiver.requests}) == len(receiver.requests)
    # Names and ids, and nothing that an agent wrote.
    whole = b"".join(request.raw for request in receiver.requests).decode()
    assert not [text for text in ("touch here", "payl0ad", "Injected", "script") if text in whole]
    assert (await progress(bus)).delivered == len(receiver.requests)


async def test_an_interrupted_session_is_notified(bus: Bus, user: UserSettings) -> None:
    async with receiving() as receiver:
        user.webhook(receiver.port, events=["session_interrupted"])
        await bus.notifications.deliver()
        await bus.sessions.start("planning", id="s-1")
        await (await worker(bus, "a", session="s-1")).fail(HOSTILE)
        await bus.notifications.deliver()
        (request,) = receiver.requests
        assert (request.body["session"], request.body["text"]) == ("s-1", "session s-1 was interrupted")
        assert (request.body["severity"], request.body["error"]) == ("error", None)


async def test_texts_of_agents_are_included_only_if_the_user_wants_them(bus: Bus, user: UserSettings) -> None:
    async with receiving() as receiver:
        user.webhook(receiver.port, include=["question", "error"])
        await bus.notifications.deliver()
        await bus.tasks.start(deploy, HOSTILE * 100)
        await bus.tasks.start(broken)
        await work_off(bus, deploy, broken)
        await bus.notifications.deliver()
        found = {request.body["kind"]: request.body for request in receiver.requests}
    assert len(found["approval_requested"]["question"]) == 2001
    assert found["approval_requested"]["question"].startswith(HOSTILE)
    assert "touch here" in found["task_failed"]["error"]
    assert not [request for request in receiver.requests if "x-injected" in request.headers]


async def test_an_approval_whose_question_is_damaged_is_notified_without_it(
    engine: Engine, bus: Bus, user: UserSettings
) -> None:
    async with receiving() as receiver:
        user.webhook(receiver.port, include=["question"])
        await bus.notifications.deliver()
        # The second has the checksum of what it shows, which is JSON to a database only.
        shown = '"\\ud800"'
        for damage in ("checksum = checksum + 1", f"shown = '{shown}', checksum = {crc32(shown.encode())}"):
            await bus.tasks.start(deploy, "?")
            await work_off(bus, deploy)
            is_damaged = await engine.tamper(f"UPDATE approvals SET {damage} WHERE status = 'open'")
            await bus.notifications.deliver()
            last = receiver.requests[-1].body
            assert (last["kind"], last["question"]) == ("approval_requested", None if is_damaged else "?")
        assert len(receiver.requests) == 2


async def test_an_event_that_is_no_condition_does_not_stop_a_notifier(
    engine: Engine, bus: Bus, user: UserSettings
) -> None:
    async with receiving() as receiver:
        user.webhook(receiver.port)
        await bus.notifications.deliver()
        # The last is JSON to a database, but no text has such a character.
        texts = ('{"condition": "task_failed"}', '{"condition": ["disk_low"]}', '{"x": "\\ud800"}')
        for id, facts in zip(("s-0", "s-1", "s-2"), texts, strict=True):
            await bus.sessions.start("planning", id=id)
            await engine.tamper(
                f"UPDATE events SET kind = 'condition_reported', facts = '{facts}' WHERE subject = '{id}'"
            )
        await fails(bus, "b")
        await bus.notifications.deliver()
        assert [request.body["subject"] for request in receiver.requests] == ["agent:b"]


async def test_an_approval_that_was_decided_meanwhile_is_not_notified(bus: Bus, user: UserSettings) -> None:
    async with receiving() as receiver:
        user.webhook(receiver.port)
        await bus.notifications.deliver()
        task = await bus.tasks.start(deploy, "?")
        await bus.tasks.start(deploy, "?", auto=True)
        await work_off(bus, deploy)
        await bus.tasks.approve(task.id, "ship", by="ada")
        assert (await bus.notifications.deliver(), receiver.requests) == ([], [])
        # Nor if it is decided between two attempts.
        task = await bus.tasks.start(deploy, "?")
        await work_off(bus, deploy)
        receiver.answers = [status(503)]
        (attempt,) = await bus.notifications.deliver()
        assert attempt.error == "HTTP status 503"
        await bus.tasks.approve(task.id, "ship", by="ada")
        FakeClock.advance(bus._engine.clock, 60)  # type: ignore[arg-type]
        assert await bus.notifications.deliver() == []
        await fails(bus, "a")
        assert [attempt.kind for attempt in await bus.notifications.deliver()] == ["agent_failed"]


async def test_a_notifier_gets_the_events_sessions_and_workflows_that_it_wants(bus: Bus, user: UserSettings) -> None:
    async with receiving() as receiver:
        each = f'secret = "{SECRET}"\nbuses = ["*"]\nallow = ["127.0.0.1"]\nurl = "http://127.0.0.1:{receiver.port}/'
        user.write(
            f'[webhook.letters]\n{each}letters"\nevents = ["message_dead"]\n'
            f'[webhook.session]\n{each}session"\nsessions = ["s-2"]\n'
            f'[webhook.deploys]\n{each}deploys"\nworkflows = ["deploy"]\n'
            f'[webhook.errors]\n{each}errors"\nseverity = "error"\n'
        )
        await bus.notifications.deliver()
        for session in ("s-1", "s-2"):
            await bus.sessions.start("planning", id=session)
            await dead_letter(bus, f"of-{session}", session=session)
            await bus.tasks.start(broken, session=session)
        await bus.tasks.start(deploy, "?", session="s-1")
        await work_off(bus, broken, deploy)
        await bus.notifications.deliver()
    found = Counter((request.first.split()[1], request.body["kind"]) for request in receiver.requests)
    # Both dead letters are one notification where no other event is between them.
    assert found == {
        ("/letters", "message_dead"): 1,
        ("/session", "message_dead"): 1,
        ("/session", "task_failed"): 1,
        ("/deploys", "approval_requested"): 1,
        ("/errors", "task_failed"): 1,
    }


async def test_a_lasting_condition_is_notified_once_by_all_monitors(
    engine: Engine, clock: FakeClock, user: UserSettings
) -> None:
    async with receiving() as receiver, engine.connect() as bus, engine.connect() as other:
        user.webhook(receiver.port)
        async with bus.agent("a", type="worker") as agent:
            await bus.declare(pool("nobody-there"))
            await agent.send(pool("nobody-there"), "note", 1)
        async with bus.monitor(interval=5), other.monitor(interval=5) as second:
            for _ in range(4):
                await clock.pass_time(5)
            await eventually(clock, lambda: second.sweeps > 2 and len(receiver.requests) > 0)
        (request,) = receiver.requests
        assert (request.body["kind"], request.body["subject"]) == ("pool_unattended", "mailbox:pool:nobody-there")
        # A monitor that starts again reports it, and the bus knows that it was notified.
        await bus.notifications.deliver((await bus.sweep()).findings)
        assert len(receiver.requests) == 1
        clock.advance(3601)
        await bus.notifications.deliver((await bus.sweep()).findings)
        assert receiver.kinds == ["pool_unattended"] * 2


async def test_what_was_before_the_notifier_is_not_notified(bus: Bus, user: UserSettings) -> None:
    async with receiving() as receiver:
        await fails(bus, "before")
        user.webhook(receiver.port)
        assert await bus.notifications.deliver() == []
        await fails(bus, "after")
        await bus.notifications.deliver()
        assert [request.body["subject"] for request in receiver.requests] == ["agent:after"]


# Retries


async def test_an_attempt_that_fails_is_repeated_with_the_same_id_and_content(
    bus: Bus, clock: FakeClock, user: UserSettings
) -> None:
    async with receiving() as receiver:
        user.webhook(receiver.port)
        await bus.notifications.deliver()
        await dead_letter(bus, "m1", "m2")
        receiver.answers = [status(503), status(500), status(429, Retry_After="600"), status(503, Retry_After="86400")]
        waits: list[float] = []
        while (await bus.notifications.deliver())[-1].error is not None:
            # More dead letters do not change what is being delivered.
            await dead_letter(bus, f"later-{len(waits)}")
            found = await progress(bus)
            assert (found.status, found.attempts, found.due is not None) == ("retrying", len(waits) + 1, True)
            assert found.due is not None
            waits.append((found.due - clock.now().wall) / 1000)
            clock.advance(waits[-1] - 0.001)
            assert await bus.notifications.deliver() == []
            clock.advance(0.001)
        # Doubled each time; the receiver may ask for more, but not for more than an hour.
        assert waits == [5, 10, 600, 3600]
        first, *others, last = receiver.requests
        assert [(one.id, one.raw) for one in others] == [(first.id, first.raw)] * 4
        assert (first.body["count"], last.body["count"], last.id == first.id) == (2, 4, False)
        found = await progress(bus)
        assert (found.status, found.delivered, found.dead, found.error) == ("idle", 2, 0, None)


async def test_after_the_last_attempt_it_is_given_up_visibly(bus: Bus, clock: FakeClock, user: UserSettings) -> None:
    async with receiving() as receiver:
        user.webhook(receiver.port, max_attempts=3)
        async with bus.monitor(interval=5) as monitor:
            receiver.answers = [status(500)] * 3
            await fails(bus, "a")
            with anyio.fail_after(60):
                while (await progress(bus)).dead == 0:
                    # An attempt takes no time on this clock.
                    under_way = (await progress(bus)).status == "delivering"
                    await (clock.settle() if under_way else clock.pass_time(5))
            await clock.pass_time(10)
            await eventually(clock, lambda: "notification_dead" in {one.kind for one in list(monitor._found)})
            found = list(monitor._found)
        assert len(receiver.requests) == 3
        (event,) = await events(bus, "notification_dead")
        assert event.facts == {
            "notifier": "ada/ops", "notification": receiver.requests[0].id, "about": "agent_failed", "count": 1,
            "attempts": 3, "error": "HTTP status 500",
        }  # fmt: skip
        (finding,) = [one for one in found if one.kind == "notification_dead"]
        assert finding.text == "notification of agent_failed by ada/ops was given up after 3 attempts: HTTP status 500"
        assert ((await progress(bus)).dead, (await progress(bus)).error) == (1, "HTTP status 500")
        # It is not notified of its own failures; the next event is notified.
        clock.advance(3600)
        await fails(bus, "b")
        await bus.notifications.deliver()
        assert [request.body["subject"] for request in receiver.requests[3:]] == ["agent:b"]


async def test_a_receiver_that_is_gone_gets_no_second_attempt(bus: Bus, user: UserSettings) -> None:
    async with receiving() as receiver:
        user.webhook(receiver.port)
        await bus.notifications.deliver()
        await fails(bus, "a")
        receiver.answers = [status(410)]
        await bus.notifications.deliver()
        assert ((await progress(bus)).dead, len(receiver.requests)) == (1, 1)


async def test_a_receiver_that_was_down_for_a_day_gets_the_newest_and_a_count(
    bus: Bus, clock: FakeClock, user: UserSettings
) -> None:
    async with receiving() as receiver:
        user.webhook(receiver.port, events=["session_interrupted", "agent_failed"])
        await bus.notifications.deliver()
        # As if they had happened while no attempt succeeded: two kinds in turn, so that none are joined.
        rows = [("session_interrupted", "session"), ("agent_failed", "agent")] * (MAX_WAITING + 600)
        from agentbus.core.clock import Now
        from agentbus.operations.events import event, record
        from agentbus.operations.protocol import Op, Outcome, single_operation

        @single_operation(durable=False)
        def happen(_: None, now: Now) -> Op[Outcome[None]]:
            yield from record([event(now.wall, kind, (of, f"x-{n}"), None) for n, (kind, of) in enumerate(rows)])
            return None

        await bus._engine.write(happen, None)
        before = (await bus.stats()).messages
        await bus.notifications.deliver()
        assert len(receiver.requests) == MAX_WAITING
        assert [request.body["dropped"] for request in receiver.requests[:2]] == [len(rows) - MAX_WAITING, 0]
        names = [request.body["subject"].partition(":")[2] for request in receiver.requests]
        assert names == [f"x-{n}" for n in range(len(rows) - MAX_WAITING, len(rows))]
        found = await progress(bus)
        assert (found.delivered, found.dropped) == (MAX_WAITING, len(rows) - MAX_WAITING)
        assert (await bus.stats()).messages == before


# One of many


async def test_of_several_monitors_one_delivers_each(engine: Engine, clock: FakeClock, user: UserSettings) -> None:
    async with receiving() as receiver, AsyncExitStack() as stack:
        user.webhook(receiver.port)
        buses = [await stack.enter_async_context(engine.connect()) for _ in range(4)]
        for bus in buses:
            await stack.enter_async_context(bus.monitor(interval=5))
        for number in range(3):
            await fails(buses[0], f"a-{number}")
            await clock.pass_time(5)
            await eventually(clock, lambda number=number: len(receiver.requests) > number)  # type: ignore[misc]
        await clock.pass_time(20)
        assert [request.body["subject"] for request in receiver.requests] == ["agent:a-0", "agent:a-1", "agent:a-2"]


async def test_a_lease_that_ran_out_is_taken_over_and_its_holder_fenced(
    engine: Engine, clock: FakeClock, user: UserSettings
) -> None:
    async with receiving() as receiver, engine.connect() as bus, engine.connect() as other:
        user.webhook(receiver.port)
        await bus.notifications.deliver()
        await fails(bus, "a")
        receiver.answers = [None, None]
        slow = asyncio.create_task(bus.notifications.deliver())
        await eventually(clock, lambda: len(receiver.requests) == 1)
        assert (await progress(other)).status == "delivering"
        clock.advance(89)
        assert await other.notifications.deliver() == []
        clock.advance(1)
        second = asyncio.create_task(other.notifications.deliver())
        await eventually(clock, lambda: len(receiver.requests) == 2)
        # Whatever the first process says of its attempt now changes nothing.
        made = msgspec.json.decode(receiver.requests[0].raw, type=Notification)
        late = SettleRequest("ada/ops", 1, made, 1, error="too late")
        assert await bus._engine.write(settle_notification, late) is False
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        assert (await progress(bus)).status == "delivering"
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        (attempt,) = await bus.notifications.deliver()
        assert (attempt.error, {request.id for request in receiver.requests}) == (None, {receiver.requests[0].id})
        found = await progress(bus)
        assert (found.status, found.delivered, found.dead, found.error) == ("idle", 1, 0, None)


async def test_a_monitor_that_ends_releases_what_it_was_delivering(
    bus: Bus, clock: FakeClock, user: UserSettings
) -> None:
    async with receiving() as receiver:
        user.webhook(receiver.port)
        async with bus.monitor(interval=5):
            await fails(bus, "a")
            receiver.answers = [None]
            await clock.pass_time(5)
            await eventually(clock, lambda: len(receiver.requests) == 1)
        found = await progress(bus)
        assert (found.status, found.attempts) == ("idle", 0)
        (attempt,) = await bus.notifications.deliver()
        assert attempt.id == receiver.requests[0].id


@pytest.mark.one_engine
async def test_a_slow_receiver_delays_neither_the_monitor_nor_others(
    bus: Bus, clock: FakeClock, user: UserSettings
) -> None:
    async with receiving() as slow, receiving() as fast:
        user.webhook(slow.port, name="slow")
        first = user.path.read_text()
        user.webhook(fast.port, name="fast")
        user.write(first + user.path.read_text().partition("\n")[2])
        slow.answers = [None]
        async with bus.monitor(interval=5) as monitor:
            for number in range(3):
                await fails(bus, f"a-{number}")
                await clock.pass_time(5)
                await eventually(clock, lambda number=number: len(fast.requests) > number)  # type: ignore[misc]
            assert (len(slow.requests), monitor.sweeps >= 3) == (1, True)


@pytest.mark.one_engine
async def test_attempts_that_all_ended_their_process_are_bounded(
    bus: Bus, clock: FakeClock, user: UserSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving() as receiver:
        user.webhook(receiver.port, max_attempts=2)
        await bus.notifications.deliver()
        await fails(bus, "a")

        async def killed(*_: object) -> None:
            raise MemoryError

        monkeypatch.setattr("agentbus.api.notifications._send", killed)
        for _ in range(2):
            with pytest.raises(MemoryError):
                await bus.notifications.deliver()
            clock.advance(91)
        assert await bus.notifications.deliver() == []
        (event,) = await events(bus, "notification_dead")
        assert event.facts["error"] == "every attempt was interrupted"


# Only the settings of the user decide


async def test_another_bus_than_the_user_names_causes_nothing(
    engine: Engine, tmp_path: Path, user: UserSettings
) -> None:
    """A bus that is copied, imported or comes with a repository may contain anything: it is not asked."""
    async with receiving() as receiver, engine.connect() as bus:
        user.webhook(receiver.port, buses=str(tmp_path / "mine"))
        await bus.notifications.deliver()
        hostile = "INSERT INTO notifiers (name, cursor, created, updated) VALUES ('ada/ops', 0, 0, 0)"
        assert await engine.tamper(hostile)
        command = json.dumps({"command": ["/bin/sh", "-c", "touch here"], "url": f"http://127.0.0.1:{receiver.port}/"})
        await bus.state("notifications").set("notifications.toml", json.loads(command))
        await fails(bus, "a")
        async with bus.monitor(interval=5) as monitor:
            clock = bus._engine.clock
            assert isinstance(clock, FakeClock)
            await clock.pass_time(15)
            assert monitor.sweeps > 1
        assert (await bus.notifications.deliver(), receiver.connections) == ([], 0)


async def test_events_of_an_imported_archive_are_no_news(
    bus: Bus, engine: Engine, clock: FakeClock, tmp_path: Path, user: UserSettings
) -> None:
    async with receiving() as receiver:
        user.webhook(receiver.port)
        await bus.notifications.deliver()
        await fails(bus, "mine")
        exported = (await bus.export(tmp_path / "archive.jsonl.gz")).path
        lines = gzip.decompress(Path(exported).read_bytes()).decode().splitlines()
        events = [json.loads(line) for line in lines if '"agent_failed"' in line]
        forged = {**events[0], "id": 5_000, "subject": "forged"}
        content = "\n".join([*lines, json.dumps(forged)]) + "\n"
        (tmp_path / "forged.jsonl.gz").write_bytes(gzip.compress(content.encode()))
        report = await bus.import_archive(tmp_path / "forged.jsonl.gz")
        assert report.imported == {"event": 1}
        await bus.notifications.deliver()
        assert [request.body["subject"] for request in receiver.requests] == []
        await fails(bus, "later")
        await bus.notifications.deliver()
        assert [request.body["subject"] for request in receiver.requests] == ["agent:later"]


async def test_events_with_any_facts_are_notified(bus: Bus, engine: Engine, user: UserSettings) -> None:
    async with receiving() as receiver:
        user.webhook(receiver.port, include=["question", "error"])
        await bus.notifications.deliver()
        facts = json.dumps({
            "evidence": "x", "approval": {"a": [1]}, "condition": "disk_low", "text": 7, "facts": [1],
            "error": {"e": 1},
        })  # fmt: skip
        kinds = ("agent_suspected", "approval_requested", "condition_reported", "session_interrupted", "agent_failed")
        for kind in kinds:
            statement = "INSERT INTO events (at, kind, subject_kind, subject, facts) VALUES "
            assert await engine.tamper(f"{statement} (0, '{kind}', 'agent', '<b>', '{facts}')")
        await bus.notifications.deliver()
        assert receiver.kinds == ["agent_suspected", "disk_low", "session_interrupted", "agent_failed"]


async def test_a_bus_with_a_hostile_identity_cannot_write_headers(bus: Bus, engine: Engine, user: UserSettings) -> None:
    assert await engine.tamper("UPDATE meta SET value = 'x\r\nX-Injected: yes' WHERE key = 'bus'")
    async with receiving() as receiver:
        user.webhook(receiver.port)
        await bus.notifications.deliver()
        await fails(bus, "a")
        await bus.notifications.deliver()
        (request,) = receiver.requests
        assert ("x-injected" in request.headers, request.id.isprintable(), request.is_signed()) == (False, True, True)


@pytest.mark.one_engine
async def test_a_command_is_run_for_a_bus_that_the_user_names(
    engine: Engine, tmp_path: Path, user: UserSettings
) -> None:
    file = tmp_path / "got"
    user.write(f'[command.desk]\ncommand = ["/usr/bin/env", "tee", "-a", "{file}"]\nbuses = ["{engine.url}"]\n')
    async with engine.connect() as bus:
        await bus.notifications.deliver()
        await fails(bus, HOSTILE_AGENT)
        (attempt,) = await bus.notifications.deliver()
    assert (attempt.error, json.loads(file.read_text())["subject"]) == (None, f"agent:{HOSTILE_AGENT}")


HOSTILE_AGENT = "a/../../--help:@"


# Settings


@pytest.mark.one_engine
async def test_settings_are_read_again_when_they_change(bus: Bus, clock: FakeClock, user: UserSettings) -> None:
    async with receiving() as receiver, bus.monitor(interval=5) as monitor:
        user.webhook(receiver.port)
        await clock.pass_time(10)
        await fails(bus, "a")
        await clock.pass_time(10)
        await eventually(clock, lambda: len(receiver.requests) == 1)
        user.path.chmod(0o644)
        await clock.pass_time(10)
        await fails(bus, "b")
        await clock.pass_time(10)
        (finding,) = [one for one in list(monitor._found) if one.kind == "notifications_off"]
        assert "chmod 600" in finding.text
        assert len(receiver.requests) == 1
        user.path.chmod(0o600)
        await clock.pass_time(10)
        await eventually(clock, lambda: len(receiver.requests) == 2)


@pytest.mark.one_engine
async def test_a_test_is_sent_to_a_notifier_whatever_its_buses(bus: Bus, user: UserSettings) -> None:
    with pytest.raises(UnknownNotifier):
        await bus.notifications.test("ops")
    async with receiving() as receiver:
        user.webhook(receiver.port, buses="/nowhere")
        found = await bus.notifications.test("ops")
        assert (found.error, receiver.kinds, receiver.requests[0].is_signed()) == (None, ["test"], True)
        user.path.chmod(0o666)
        with pytest.raises(InvalidSettings):
            await bus.notifications.test("ops")
        with pytest.raises(InvalidSettings):
            await bus.notifications.deliver()
