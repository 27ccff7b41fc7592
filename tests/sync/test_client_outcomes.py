"""Every call of the synchronous API has the outcome of its asynchronous counterpart: results, errors and events.

Both work on SQLite only: which engine is below makes no difference to a wrapper.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus import Task, pool, sync, topic
from agentbus.records import HistoryPut, HistoryWrite, RetentionPolicy
from tests.conftest import SQLiteStore
from tests.support.clock import START, FakeClock
from tests.support.receiver import UserSettings, user
from tests.sync.stories import Enter, First, Leave, Quiet, Refused, Story, tell, tell_async

__all__ = ["user"]

Steps = Generator[Any, Any, None]


def agents(bus: Any) -> Steps:
    a = yield bus.register("a", type="worker", capabilities=["code"], pools=["jobs"])
    b = yield bus.register("b", type="worker", parent="a")
    c = yield bus.register("c", type="worker")
    yield bus.declare(topic("news"))
    yield a.id, a.epoch, a.session, a.ended, a.restored
    listing = bus.agents
    yield listing == bus.agents, listing == bus.tasks, bus.agents in {listing}
    yield bus.expect("late", type="worker", within=60, capabilities=["code"])
    page = yield bus.agents.list(status="running", limit=2)
    yield bus.agents.last_seen(page.items)
    yield bus.agents.find("code")
    yield bus.agents.update("b", name="Bea", load=40)
    yield Refused("unknown_agent", lambda: bus.agents.update("nowhere", load=1))
    yield a.subscribe("news")
    yield b.publish("news", "note", 1)
    yield a.leave("jobs")
    yield a.unsubscribe("news")
    yield b.publish("news", "note", 2)
    yield a.busy(60)
    saving = a.checkpoint_every(60, lambda: {"step": 1}, name="half")
    yield Enter(saving)
    yield Leave(saving)
    yield bus.messages.queues()
    yield Refused("wrong_state", lambda: bus.agents.delete("a"))
    yield b.fail("broken")
    yield c.stop("enough")
    yield a.ended, b.ended, c.ended
    yield Refused("agent_fenced", b.complete)
    yield bus.recovery.agents()
    yield bus.agents.delete("b", by="ada")
    yield bus.agents.clear(by="ada")


def mail(bus: Any) -> Steps:
    a = yield bus.register("a", type="worker")
    b = yield bus.register("b", type="worker")
    yield bus.declare(topic("news"))
    yield bus.quotas.change(depth=3, by="ada")
    yield bus.quotas.policy()
    yield bus.messages.reach("b")
    yield b.declare_reach("tool", channel="hook")
    yield bus.messages.reach("b")
    for number in range(3):
        yield a.send("b", "note", {"n": number}, message_id=f"m{number}", correlation="c", headers={"h": "1"})
    yield Refused("queue_full", lambda: a.send("b", "note", 3))
    yield bus.messages.deepest()
    yield bus.newest_message()
    first = yield b.receive()
    yield (first.id, first.recipient, first.session, first.correlation, first.created, first.headers, first.raw)
    yield b.seen("m0#1", channel="hook")
    yield bus.messages.receipts("m0")
    yield first.decode(dict[str, int])
    yield Refused("payload_mismatch", lambda: first.decode(list[str]))
    yield first.extend(600)
    yield first.reply("note", "answer")
    yield first.ack()
    yield bus.messages.wait_seen("m0")
    second = yield b.receive()
    yield second.reject("broken")
    yield Refused("lease_lost", second.ack)
    yield bus.messages.dead()
    yield bus.messages.requeue("m1", by="ada")
    yield bus.messages.spans(START - 1000, START + 1000)
    yield bus.messages.purge(status="acked", dry_run=True)
    yield bus.messages.purge(status="acked", by="ada")
    yield bus.messages.send("a", "note", "hello", by="ada")
    yield bus.messages.steer("a", "stop", by="ada", timeout=0)
    yield Refused("not_an_operator", lambda: bus.messages.steer("a", "stop", by="b", timeout=0))
    unit = a.unit()
    yield Enter(unit)
    letter = yield a.receive()
    unit.ack(letter)
    unit.progress(50, "half")
    unit.publish("news", "note", 1)
    unit.checkpoint("half", {"step": 1})
    yield Leave(unit)
    yield bus.messages.list()


def threads_that_are_held(bus: Any) -> Steps:
    a = yield bus.register("a", type="worker")
    yield bus.quotas.change(thread=2)
    for thread in ("one", "two"):
        yield a.send("a", "note", 0, message_id=thread)
        for number in (1, 2):
            message = yield a.receive()
            yield message.reply("note", number)
            yield message.ack()
    yield bus.holds.list()
    yield bus.holds.release("one", by="ada")
    yield bus.holds.discard("two", by="ada", reason="no progress")
    yield Refused("nothing_held", lambda: bus.holds.release("two", by="ada"))


def visitors(bus: Any) -> Steps:
    yield bus.sessions.start("planning", id="s")
    yield bus.declare(topic("quiet"))
    b = yield bus.register("b", type="worker")
    a = yield bus.register_visitor("a", type="worker", by="ada")
    yield a.id, a.epoch, a.session
    yield a.heartbeat()
    yield a.join("s")
    yield a.session
    yield a.change_membership(pools=["jobs"], topics=["news"])
    yield b.send("pool:jobs", "note", "work", message_id="j")
    yield b.publish("news", "note", "new", message_id="n")
    for number in range(4):
        yield a.send("a", "note", number, message_id=f"m{number}")
    yield a.declare_reach("turn", channel="http")
    yield a.peek(10)
    yield a.receive(3)
    yield a.receive(10, lease=60)
    yield a.seen("m0#1", channel="http")
    yield a.in_hand()
    yield a.reply("j", "note", "done")
    yield a.extend("m0", seconds=600)
    yield a.ack("m0")
    hasty = yield bus.visitor("a")
    yield hasty.receive(10)
    yield b.send("a", "note", "late", message_id="late")
    yield hasty.receive()
    yield hasty.abandon()
    yield hasty.heartbeat()
    yield bus.messages.get("late")
    yield a.nack("m1#1", delay=60, error="later")
    yield a.reject("m2", error="broken")
    yield Refused("already_settled", lambda: a.ack("m2"))
    yield Refused("request_died", lambda: a.request("topic:quiet", "note", "?", timeout=60))
    yield a.state().set("phase", "design")
    yield a.checkpoint("half", {"step": 1})
    yield a.document("plan", {"phases": 3})
    yield bus.tasks.add("review", id="r")
    yield a.items.take()
    yield a.items.progress("r", 50, "half")
    yield a.items.finish("r", {"ok": True})
    yield a.change_membership(pools=["jobs"], leave=True)
    yield a.progress(40, "half")
    yield a.busy(60)
    again = yield bus.visitor("a", epoch=1)
    yield again.receive(10)
    ahead = yield bus.visitor("a", epoch=2)
    yield Refused("agent_fenced", ahead.heartbeat)
    yield a.complete(by="ada")
    failed = yield bus.register_visitor("f", type="worker")
    yield failed.fail("broken")
    stopped = yield bus.register_visitor("g", type="worker")
    yield stopped.stop("enough")
    yield bus.messages.list()


def sessions(bus: Any) -> Steps:
    block = bus.session("planning", id="s", milestone="v1", expects={"a": "plan", "b": "risks"})
    s = yield Enter(block)
    yield s.id, s.operation, s.milestone, s.continued, s.ended
    yield s.record()
    yield s.progress(40)
    yield s.pause("budget")
    yield s.continue_()
    yield s.expect("late", type="worker")
    yield s.counts()
    yield s.state.set("phase", 1)
    document = s.document("plan")
    yield document.session, document.name
    yield document.save({"v": 1})
    yield s.missing()
    point = yield s.checkpoint_all("before")
    yield document.save({"v": 2})
    yield document.history()
    yield document.record(1)
    yield s.documents()
    yield s.checkpoint("half", {"step": 1})
    yield s.restore("half")
    saving = s.checkpoint_every(60)
    yield Enter(saving)
    yield Leave(saving)
    meeting = yield s.participants(["x", "y"])
    yield s.finish_member("x", {"agrees": True})
    yield meeting.session, meeting.name, meeting.members, meeting.finished, meeting.remaining
    yield meeting.refresh()
    yield meeting.finished, meeting.results
    yield s.meetings()
    yield s.composites()
    yield s.rollback(point.id)
    yield document.latest()
    yield s.complete()
    yield Leave(block)
    yield s.ended
    other = yield bus.sessions.start("review", id="t")
    same = yield bus.sessions.open("t", by="ada")
    yield same.fail("no budget")
    yield Refused("session_ended", other.complete)
    yield Refused("unknown_session", lambda: bus.sessions.open("u"))
    yield bus.sessions.list(status="failed")
    yield bus.sessions.stale(5)


def recovery(bus: Any) -> Steps:
    plans = []
    for name in ("resumed", "completed", "abandoned", "rolled-back", "followed"):
        session = yield bus.sessions.start("execution", id=name)
        yield session.document("plan").save({"v": 1})
        yield session.checkpoint_all("before")
        agent = yield bus.register(f"agent-{name}", type="worker", session=name)
        yield agent.checkpoint("half", {"step": 1})
        yield agent.fail("crashed")
        plan = yield bus.recovery.plan(name, by="ada")
        plans.append(plan)
    yield bus.sessions.cut_off()
    yield Quiet(bus.recovery.summary())
    resumed, completed, abandoned, rolled_back, followed = plans
    yield resumed.record
    yield resumed.session, resumed.agents, resumed.present, resumed.missing
    yield resumed.checkpoints, resumed.follow_ons, resumed.options
    yield resumed.resume(within=60)
    yield completed.complete()
    yield abandoned.abandon("no budget")
    yield rolled_back.rollback()
    yield followed.follow_on("execution", id="next")
    yield Refused("plan_outdated", abandoned.resume)
    yield Refused("unknown_session", lambda: bus.recovery.plan("nowhere"))
    yield bus.recovery.clear("agent-resumed", by="ada")
    yield bus.sessions.list()


def stored_values(bus: Any) -> Steps:
    a = yield bus.register("a", type="worker")
    yield bus.define("ticket", description="a ticket", schema={"type": "object", "required": ["n"]})
    yield bus.types("message")
    yield Refused("invalid_payload", lambda: a.send("a", "ticket", {}))
    state = bus.state("shared")
    yield state.scope, str(state) == repr(state)
    yield state.set("k", 1, ttl=60)
    yield state.entry("k")
    yield state.increment("k", 2)
    yield Refused("version_conflict", lambda: state.set("k", 1, if_version=9))
    yield state.delete("k", if_version=2)
    yield state.delete("k")
    yield state.set("rest", 1)
    yield bus.scopes()
    yield bus.sessions.start("planning", id="s")
    saved = yield bus.checkpoints.save("s", "half", {"step": 1}, kind="session")
    yield bus.checkpoints.save("s", "half", {"step": 2}, kind="session")
    yield bus.checkpoints.get(saved.id)
    yield bus.checkpoints.latest("s", kind="session")
    yield bus.checkpoints.list("s", kind="session")
    yield bus.checkpoints.verify(saved.id)
    yield bus.checkpoints.prune("s", keep=1, kind="session")
    yield Refused("unknown_checkpoint", lambda: bus.checkpoints.delete(saved.id))
    yield bus.checkpoints.delete(saved.id + 1)
    puts = [HistoryPut(key="x", body=b"1")]
    yield bus.histories.write_all([HistoryWrite(kind="chat", name=name, puts=puts) for name in ("one", "two")])
    yield bus.histories.get("chat", "one", "x")
    yield bus.histories.kinds()
    yield Refused("history_conflict", lambda: bus.histories.write("chat", "one", puts, if_version=0))


@agentbus.workflow("build")
async def build(task: Task) -> str:
    await task.expose("stage", {"phase": "plan"})
    plan = await task.step("plan", lambda: "plan")
    await task.approval("go", show=plan)
    return str(plan)


def tasks(bus: Any) -> Steps:
    control = bus.tasks
    for name in ("t", "u"):
        # One after the other: the order of the events of concurrent tasks is open.
        yield control.start(build, id=name)
        yield control.run_worker(build, agent="w", until_idle=True)
    yield control.steps("t")
    yield control.query("t")
    yield control.query("t", "stage", as_=dict[str, str])
    yield Refused("not_exposed", lambda: control.query("t", "stages"))
    yield control.reject("t", "go", by="ada", reason="no")
    yield control.run_worker(build, agent="w", until_idle=True)
    yield control.redo("u", "plan", by="ada", note="again")
    yield control.run_worker(build, agent="w", until_idle=True)
    yield control.steps("u", history=True)
    yield control.signal("u", "news", {"n": 1}, signal_id="s", by="ada")
    yield control.approve("u", by="ada")
    yield Refused("unknown_step", lambda: control.settle("u", "test", by="ada", redo=True))
    yield control.add("review", 1, id="r")
    yield Refused("receives_nothing", lambda: control.signal("r", "news"))
    yield control.edit("r", name="Review", priority=9, by="ada")
    yield control.auto("r", by="ada")
    yield control.halt("r", by="ada", reason="wait")
    yield control.resumable()
    yield control.continue_("r", by="ada")
    yield control.stop("r", by="ada", reason="enough")
    yield control.resume("r", by="ada")
    yield control.stop("r", by="ada")
    yield control.restart("r", by="ada")
    yield control.list(workflow="review")
    yield Quiet(control.statistics(workflow="review"))
    yield Refused("unknown_task", lambda: control.halt("nowhere"))


def items(bus: Any) -> Steps:
    a = yield bus.register("a", type="worker")
    for number in range(4):
        yield bus.tasks.add("review", {"n": number}, id=f"r{number}", name="Review", restarts=1)
    item = yield a.items.take()
    yield item.task
    yield item.name, item.workflow, item.decode(dict[str, int])
    yield Refused("payload_mismatch", lambda: item.decode(list[str]))
    yield item.extend(600)
    yield item.release("not mine")
    item = yield a.items.take("r1")
    yield item.fail("broken")
    yield Refused("task_lost", item.finish)
    yield a.items.take("r2")
    yield a.items.progress("r2", 40, "half")
    yield a.items.release("r2", "later")
    yield a.items.take("r3")
    yield a.items.fail("r3", "broken")
    yield a.items.take("r2")
    yield a.items.finish("r2", {"ok": True})
    yield bus.tasks.list()


def maintenance(bus: Any) -> Steps:
    s = yield bus.sessions.start("planning", id="s")
    document = s.document("plan")
    yield document.save({"v": 1})
    path = yield Quiet(document.export(Path() / "plan.json"))
    yield path.read_bytes()
    yield s.complete()
    report = yield Quiet(bus.export(Path() / "export.jsonl.gz"))
    yield report.exported
    report = yield Quiet(bus.import_archive(Path() / "export.jsonl.gz"))
    yield report.imported, report.problems
    (Path() / "old").mkdir()
    (Path() / "old" / "agents.json").write_text('{"old-1": {"type": "worker"}}')
    report = yield Quiet(bus.import_path(Path() / "old"))
    yield report.imported, report.problems
    backup = yield Quiet(bus.backup(Path() / "copy.db"))
    yield Path(backup.path).name, Path(backup.path).stat().st_size > 0
    checks = yield Quiet(bus.doctor())
    yield [(one.name, one.status) for one in checks if one.status != "skipped"]
    families = yield Quiet(bus.metrics())
    yield [one.name for one in families]
    identity = yield Quiet(bus.read_id())
    yield len(identity)
    waits = yield Quiet(bus.lock_waits())
    yield waits >= 0
    yield bus.retention.change(events=86_400, by="ada")
    yield bus.retention.policy()
    yield bus.retention.apply(dry_run=True)
    yield bus.retention.apply(policy=RetentionPolicy())
    yield Refused("not_writable", lambda: bus.export(Path() / "export.jsonl.gz"))
    yield bus.recent_events(limit=3)


def watching(bus: Any) -> Steps:
    yield bus.declare(pool("jobs"))
    a = yield bus.register("a", type="worker")
    monitor = bus.monitor(deep_queue=1, notify=False)
    yield a.send("a", "note", 1)
    yield a.send("a", "note", 2)
    started = yield First(bus.events(limit=1))
    yield started
    yield First(bus.live(after="0.0", coalesce=0), 1)
    yield Enter(monitor)
    yield First(monitor.findings(), 1)
    yield Leave(monitor)
    yield monitor.sweeps > 0, monitor.last is not None
    yield bus.notifications.list()
    yield bus.notifications.deliver()
    yield Refused("unknown_notifier", lambda: bus.notifications.test("ops"))
    created = yield Quiet(bus.tokens.create("read", operator="ada", expires=60, by="ada"))
    listed = yield Quiet(bus.tokens.list())
    yield listed == [created.token], created.token.role, created.token.expires
    found = yield Quiet(bus.tokens.find(sha256(created.secret.encode()).hexdigest()))
    yield found == created.token
    yield Quiet(bus.tokens.revoke(created.token.id, by="ada"))
    yield bus.tokens.list()
    yield Refused("unknown_token", lambda: bus.tokens.revoke("nothing"))


STORIES: tuple[Story, ...] = (
    agents, mail, threads_that_are_held, visitors, sessions, recovery, stored_values, tasks, items, maintenance,
    watching,
)  # fmt: skip


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_each_call_has_the_outcome_of_the_asynchronous_api(
    story: Story, template: Path, tmp_path: Path, user: UserSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store(name: str) -> SQLiteStore:
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        return SQLiteStore(tmp_path / name / "bus", FakeClock(), template)

    async def on_the_loop() -> list[Any]:
        async with store("async").connect() as bus:
            return await tell_async(story, bus)

    expected = asyncio.run(on_the_loop())
    with sync.Bus(store("sync").connect()) as bus:
        assert tell(story, bus) == expected
