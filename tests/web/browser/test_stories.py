"""Stories of a person at the dashboard, from the first look to the result on the bus."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

import agentbus
from agentbus import Bus, SystemClock, Task
from agentbus.api.state import State
from tests.api.helpers import running
from tests.conftest import Engine
from tests.support.proxy import proxied, socket_and_schema
from tests.support.zygote import COMMAND, Popen
from tests.web.browser.conftest import PATIENCE, Visit, Visiting
from tests.web.client import Client
from tests.web.conftest import serving

WORKER = """
import asyncio, sys, agentbus
async def main():
    async with agentbus.connect(sys.argv[1]) as bus:
        agent = await bus.register("builder-1", type="executor", session="build")
        await agent.checkpoint("half", {"file": 3})
        print("ready", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


async def first_line(process: Popen) -> str:
    assert process.stdout is not None
    line: str = await asyncio.to_thread(process.stdout.readline)
    return line.strip()


@agentbus.workflow("release")
async def release(task: Task, version: str) -> str:
    verdict = await task.approval("release", show={"version": version, "tests": "214 passed"})
    return f"{version} {verdict.reason or 'released'}" if verdict.approved else f"not {version}: {verdict.reason}"


@pytest.mark.one_engine
async def test_approve_and_reject_by_keyboard_and_the_worker_continues(real_bus: Bus, visiting: Visiting) -> None:
    for version in ("one", "two"):
        await real_bus.tasks.start(release, version, id=version)
    async with serving(real_bus) as client, visiting(client) as visit, running(real_bus.tasks.run_worker(release)):
        page = visit.page
        await visit.sees("214 passed")
        await expect(page).to_have_title("(2) Now · agentbus", timeout=PATIENCE)
        await page.keyboard.press("j")
        await page.wait_for_selector('[data-item="approval:one:release"].on')
        await page.keyboard.press("a")
        assert await real_bus.tasks.result("one", timeout=20) == "one released"
        await visit.misses('[data-item="approval:one:release"]')
        await page.keyboard.press("j")
        await page.keyboard.press("r")
        await page.get_by_label("Reason").fill("not on a Friday")
        await page.keyboard.press("Enter")
        assert await real_bus.tasks.result("two", timeout=20) == "not two: not on a Friday"
        await visit.sees("Nothing waits for you")
        await expect(page).to_have_title("Now · agentbus", timeout=PATIENCE)
    decided = await real_bus.tasks.approvals("two", status="rejected")
    assert [(one.by, one.reason) for one in decided] == [("ada", "not on a Friday")]


@pytest.mark.one_engine
async def test_a_killed_worker_fails_and_its_session_is_recovered_by_a_click(
    engine: Engine, real_bus: Bus, visiting: Visiting
) -> None:
    await real_bus.sessions.start("build", id="build")
    with Popen([sys.executable, "-c", WORKER, engine.url], stdout=-1, text=True) as worker:
        assert await first_line(worker) == "ready"
        async with serving(real_bus) as client, real_bus.monitor(interval=0.2), visiting(client) as visit:
            page = await visit.go("agents")
            await visit.sees("running", within="[data-key='builder-1']")
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            await visit.sees("failed", within="[data-key='builder-1']")
            await visit.go("now", "[data-item='session:build']")
            await visit.sees("dead")
            await page.locator("[data-item='session:build']").get_by_role("button", name="Resume …").click()
            await page.get_by_role("dialog").get_by_role("button", name="Resume").click()
            await visit.misses("[data-item='session:build']")
        session = await real_bus.sessions.get("build")
        assert session is not None
        assert session.status == "active"
        recovered = [one async for one in real_bus.events(kind="session_recovered")]
        assert [(one.facts["action"], one.actor) for one in recovered] == [("resume", "ada")]
        worker.kill()


async def stored(bus: Bus, **expected: object) -> None:
    """Wait until the bus has this view of the operator."""
    async with asyncio.timeout(PATIENCE / 1000):
        while await bus.state("dashboard:ada").get("view") != expected:  # noqa: ASYNC110 - a request does it
            await asyncio.sleep(0.02)


@pytest.mark.one_engine
async def test_the_view_survives_a_refresh_and_another_browser_of_the_operator(
    real_bus: Bus, visiting: Visiting
) -> None:
    for number in range(3):
        await real_bus.expect(f"a-{number}", type="worker" if number else "planner")
    async with serving(real_bus) as client:
        async with visiting(client) as visit:
            page = await visit.go("agents")
            await page.get_by_label("Type").select_option("worker")
            await visit.misses("[data-key='a-0']")
            await page.keyboard.press("Escape")
            await page.locator("main h1").click()
            await page.keyboard.press("j")
            await page.wait_for_selector("[data-key='a-1'].on")
            await page.get_by_label("Theme: auto").click()
            await page.wait_for_selector("html[data-theme='light']")
            before = page.url
            assert "type=worker" in before
            assert "sel=a-1" in before
            await page.reload()
            await page.wait_for_selector("[data-key='a-1'].on", timeout=PATIENCE)
            assert page.url == before
            assert await page.locator("[data-key='a-0']").count() == 0
            # Another browser reads it once, when it is opened.
            await stored(real_bus, theme="light", views={"agents": before.partition("?")[2]})
        async with visiting(client) as other:
            await other.page.wait_for_selector("html[data-theme='light']", timeout=PATIENCE)
            page = await other.go("agents", "[data-key='a-1'].on")
            assert "type=worker" in page.url


@pytest.mark.one_engine
async def test_a_setting_survives_a_refresh_that_reads_before_it_is_stored(
    real_bus: Bus, visiting: Visiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    await real_bus.expect("a", type="worker")
    stall = asyncio.Event()
    set_entry = State.set

    async def stalled(*arguments: Any, **options: Any) -> int:
        await stall.wait()
        return await set_entry(*arguments, **options)

    async with serving(real_bus) as client, visiting(client) as visit:
        page = await visit.go("agents")
        await page.get_by_label("Type").select_option("worker")
        await stored(real_bus, theme="auto", views={"agents": "type=worker"})
        monkeypatch.setattr(State, "set", stalled)
        try:
            await page.get_by_label("Theme: auto").click()
            await page.reload()
            await page.wait_for_selector("html[data-theme='light']", timeout=PATIENCE)
            # The view of another screen is stored with the theme, too.
            await visit.go("tasks?status=failed")
        finally:
            stall.set()
        views = {"agents": "type=worker", "tasks": "status=failed"}
        await stored(real_bus, theme="light", views=views)


@pytest.mark.one_engine
async def test_a_setting_survives_a_refresh_that_cancels_its_request(real_bus: Bus, visiting: Visiting) -> None:
    async with serving(real_bus) as client, visiting(client) as visit:
        page = visit.page
        # The first request does not reach the server.
        await page.route("**/entries/view", lambda route: None, times=1)
        async with page.expect_request("**/entries/view"):
            await page.get_by_label("Theme: auto").click()
        await page.reload()
        await page.wait_for_selector("html[data-theme='light']", timeout=PATIENCE)
        await stored(real_bus, theme="light", views={})


@pytest.mark.one_engine
async def test_settings_that_could_not_be_read_are_not_replaced(real_bus: Bus, visiting: Visiting) -> None:
    await real_bus.state("dashboard:ada").set("view", {"theme": "light", "views": {"tasks": "status=failed"}})
    async with serving(real_bus) as client, visiting(client, errors=True) as visit:
        await visit.page.route("**/entries?prefix=view*", lambda route: route.fulfill(status=503, body="{}"), times=1)
        await visit.page.reload()
        await visit.go("agents?type=worker")
        await stored(real_bus, theme="light", views={"tasks": "status=failed", "agents": "type=worker"})
        await visit.page.wait_for_selector("html[data-theme='light']", timeout=PATIENCE)


@pytest.mark.one_engine
async def test_a_read_token_changes_nothing_and_keeps_its_view_in_the_browser(
    real_bus: Bus, visiting: Visiting
) -> None:
    await real_bus.expect("a", type="worker")
    secret = (await real_bus.tokens.create("read", operator="grace")).secret
    async with serving(real_bus) as client, visiting(client.with_token(secret)) as visit:
        page = await visit.go("agents/a")
        await visit.sees("read-only", within=".bar")
        assert await page.get_by_role("button", name="Stop …").count() == 0
        await page.get_by_label("Theme: auto").click()
        await page.reload()
        await page.wait_for_selector("html[data-theme='light']", timeout=PATIENCE)
    assert (await real_bus.scopes()).items == []


@pytest.mark.one_engine
async def test_two_browsers_see_the_same(real_bus: Bus, visiting: Visiting) -> None:
    await real_bus.tasks.start(release, "one", id="one")
    await real_bus.tasks.run_worker(release, until_idle=True)
    async with serving(real_bus) as client, visiting(client) as first, visiting(client) as second:
        await second.sees("214 passed")
        await first.page.get_by_role("button", name="Approve").click()
        await second.sees("Nothing waits for you")
        await first.sees("Nothing waits for you")


async def look(visit: Visit, text: str) -> None:
    await expect(visit.page.locator(".live")).to_contain_text(text, timeout=PATIENCE)


@pytest.mark.one_engine
async def test_a_restarted_server_is_found_again_and_nothing_is_missed(
    engine: Engine, real_bus: Bus, visiting: Visiting, tmp_path: Path
) -> None:
    environment = {**os.environ, "AGENTBUS_OPERATOR": "ada"}

    async def start(port: int) -> tuple[Popen, str]:
        words = [COMMAND, "serve", "--url", engine.url, "--port", str(port), "--no-monitor"]
        process = Popen(words, stdout=-1, text=True, env=environment)
        return process, await first_line(process)

    await real_bus.expect("a", type="worker")
    process, login = await start(0)
    try:
        port = int(login.split(":")[2].partition("/")[0])
        client = Client(port, login.partition("#token=")[2])
        async with visiting(client, errors=True) as visit:
            await visit.go("agents", "[data-key='a']")
            await look(visit, "Live")
            process.kill()
            process.communicate()
            await look(visit, "Reconnecting")
            await real_bus.expect("b", type="worker")
            process, again = await start(port)
            assert again == login
            await look(visit, "Live")
            await visit.page.wait_for_selector("[data-key='b']", timeout=PATIENCE)
            await real_bus.expect("c", type="worker")
            await visit.page.wait_for_selector("[data-key='c']", timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()


async def test_a_store_that_is_gone_is_reported_and_found_again(engine: Engine, visiting: Visiting) -> None:
    if "postgres" not in engine.url:
        pytest.skip("a file is not reached over a connection")
    socket, schema = socket_and_schema(engine.url)
    async with proxied(socket) as proxy, AsyncExitStack() as stack:
        url = f"postgresql://agentbus@127.0.0.1:{proxy.port}/postgres?schema={schema}"
        bus = await stack.enter_async_context(agentbus.connect(url, clock=SystemClock(), lock_timeout=1))
        await bus.expect("a", type="worker")
        client = await stack.enter_async_context(serving(bus))
        async with visiting(client, errors=True) as visit:
            await visit.go("agents", "[data-key='a']")
            await look(visit, "Live")
            proxy.refuses = True
            await proxy.close()
            # What was read stays on the screen, under the reason why it is not live.
            await visit.sees("cannot reach postgresql://", within=".trouble")
            assert await visit.page.locator("[data-key='a']").count() == 1
            await visit.page.reload()
            await visit.sees("cannot reach postgresql://", within=".trouble")
            assert await visit.page.get_by_text("Live", exact=True).count() == 0
            proxy.refuses = False
            await visit.page.wait_for_selector("[data-key='a']", timeout=2 * PATIENCE)
            await look(visit, "Live")
            await visit.misses(".trouble")


@pytest.mark.one_engine
async def test_rows_stay_under_the_pointer_and_updates_can_be_paused(real_bus: Bus, visiting: Visiting) -> None:
    planner = await real_bus.register("p", type="planner")
    for number in range(5):
        await planner.send("p", "note", {"n": number}, message_id=f"m-{number}x")
    async with serving(real_bus) as client, visiting(client) as visit:
        page = await visit.go("messages", "[data-key]")
        row = page.locator("[data-key]").nth(2)
        key = await row.get_attribute("data-key")
        await row.hover()
        box = await row.bounding_box()
        await planner.send("p", "note", {"n": "late"})
        await visit.sees("1 new", within=".table")
        assert await page.locator(f"[data-key='{key}']").bounding_box() == box
        await page.locator("h1").hover()
        await visit.sees("late")
        await page.locator("h1").click()
        await page.keyboard.press("p")
        await look(visit, "Paused")
        await planner.send("p", "note", {"n": "while paused"})
        await look(visit, "Paused · 1")
        assert await page.get_by_text("while paused").count() == 0
        await page.locator(".live").click()
        await visit.sees("while paused")


@pytest.mark.one_engine
async def test_destructive_actions_name_the_count_and_the_operator(real_bus: Bus, visiting: Visiting) -> None:
    worker = await real_bus.register("w", type="worker")
    for number in range(3):
        await worker.send("w", "note", {"n": 9007199254740993 + number})
        message = await worker.receive(timeout=5)
        assert message is not None
        await message.reject("bad")
    async with serving(real_bus) as client, visiting(client) as visit:
        page = await visit.go("messages?status=dead", "[data-key]")
        await page.locator("[data-key]").first.click()
        # An integer beyond 2^53 stays exact.
        await visit.sees("9007199254740995")
        await page.get_by_role("button", name="Requeue …").click()
        await page.get_by_role("button", name="Requeue 1", exact=True).click()
        await visit.sees("queued", within="header.head")
        await visit.go("queues")
        await page.get_by_role("button", name="Purge dead letters …").click()
        await visit.sees("Delete 2 dead messages?", within="dialog")
        await page.keyboard.press("Escape")
        assert (await real_bus.stats()).messages["dead"] == 2
        await page.get_by_role("button", name="Purge dead letters …").click()
        await page.get_by_role("button", name="Delete 2", exact=True).click()
        await visit.sees("Deleted 2 messages", within=".toasts")
        await visit.go("events?kind=messages_purged", "[data-key]")
        await visit.sees("ada", within="[data-key]")
        await visit.go("messages")
        # The list was left with a filter, and has it again.
        assert "status=dead" in page.url
        await page.get_by_role("button", name="Clear filters").click()
        await page.get_by_role("button", name="Compose").click()
        await page.get_by_label("To", exact=True).nth(1).fill("w")
        await page.get_by_label("Payload: JSON, or text").fill('{"big": 12345678901234567890}')
        await page.get_by_role("button", name="Send").click()
        await page.locator("h1").hover()
        await visit.sees("12345678901234567890")
    assert (await real_bus.stats()).messages.get("dead", 0) == 0
    sent = (await real_bus.messages.list(sender="operator:ada")).items
    assert [one.payload for one in sent] == [{"big": 12345678901234567890}]


@pytest.mark.one_engine
async def test_a_thread_that_the_loop_guard_holds_is_released_or_discarded(real_bus: Bus, visiting: Visiting) -> None:
    await real_bus.quotas.change(thread=1)
    agent = await real_bus.register("w", type="worker")
    for thread in ("good", "bad"):
        assert [(await agent.send("w", "note", thread, correlation=thread)).held for _ in range(2)] == [False, True]
    async with serving(real_bus) as client, visiting(client) as visit:
        page = visit.page
        await expect(page).to_have_title("(2) Now · agentbus", timeout=PATIENCE)
        await visit.sees("w sent 2 messages without progress. 1 message waits for your decision.")
        await page.locator('[data-item="thread:good"]').get_by_role("button", name="Release").click()
        await visit.misses('[data-item="thread:good"]')
        await page.locator('[data-item="thread:bad"]').get_by_role("button", name="Discard").click()
        await page.get_by_label("Reason").fill("they repeat themselves")
        await page.get_by_role("button", name="Discard 1", exact=True).click()
        await visit.sees("Nothing waits for you")
    events = [event async for event in real_bus.events() if event.kind in {"thread_released", "thread_discarded"}]
    assert [(event.subject, event.actor) for event in events] == [("good", "ada"), ("bad", "ada")]
    assert [message.payload for message in await agent.receive_many(9, timeout=0)] == ["good", "good", "bad"]


@pytest.mark.one_engine
async def test_a_hidden_tab_closes_its_stream_and_resumes(real_bus: Bus, visiting: Visiting) -> None:
    # Errors: while this test's own stream is being closed, the tab may be refused once more, and tries again.
    async with serving(real_bus, max_streams=1) as client, visiting(client, errors=True) as visit:
        page = await visit.go("agents")
        await look(visit, "Live")
        assert (await client.get("live")).status == 429
        await page.evaluate("""() => {
            Object.defineProperty(document, 'hidden', { get: () => window.isHidden, configurable: true });
            window.isHidden = true;
            document.dispatchEvent(new Event('visibilitychange'));
        }""")
        async with asyncio.timeout(20):
            while True:
                async with client.stream("live") as stream:
                    if stream.status == 200:
                        break
        await real_bus.expect("meanwhile", type="worker")
        await page.evaluate("() => { window.isHidden = false; document.dispatchEvent(new Event('visibilitychange')); }")
        await page.wait_for_selector("[data-key='meanwhile']", timeout=PATIENCE)
        await look(visit, "Live")


HIDDEN = """() => {
    Object.defineProperty(document, 'hidden', { get: () => window.isHidden ?? false, configurable: true });
    window.hide = (on) => { window.isHidden = on; document.dispatchEvent(new Event('visibilitychange')); };
}"""


@pytest.mark.one_engine
async def test_ten_tabs_of_one_browser_work(real_bus: Bus, visiting: Visiting) -> None:
    """A browser has six connections to a host: only the tab in front has a stream."""
    async with serving(real_bus, max_streams=2) as client, visiting(client) as visit:
        context = visit.page.context
        await context.add_init_script(f"({HIDDEN})()")
        await visit.page.reload()
        tabs = [visit]
        for number in range(9):
            await tabs[-1].page.evaluate("() => hide(true)")
            tabs.append(Visit(await context.new_page(), visit.url))
            await tabs[-1].go("agents" if number % 2 else "now")
            await look(tabs[-1], "Live")
        await real_bus.expect("meanwhile", type="worker")
        for tab in tabs:
            await tabs[-1].page.evaluate("() => hide(true)")
            await tab.page.evaluate("() => hide(false)")
            await tab.go("agents", "[data-key='meanwhile']")
            await look(tab, "Live")
            await tab.page.evaluate("() => hide(true)")


@pytest.mark.one_engine
async def test_progress_in_a_long_list_appears_without_reading_it_all(real_bus: Bus, visiting: Visiting) -> None:
    """Progress is no event; the list has more agents than are read again as a whole."""
    worker = await real_bus.register("a-000", type="worker")
    for number in range(1, 260):
        await real_bus.expect(f"a-{number:03}", type="worker")
    async with serving(real_bus) as client, visiting(client) as visit:
        page = await visit.go("agents", "[data-key='a-000']")
        await visit.sees("260 agents")
        asked: list[str] = []
        page.on("request", lambda one: asked.append(one.url))
        await worker.progress(42, "reading")
        await visit.sees("42 %", within="[data-key='a-000']")
        await visit.sees("reading", within="[data-key='a-000']")
        lists = [url.partition("/agents?")[2] for url in asked if "/agents?" in url]
        assert lists
        assert all("updated_after=" in one for one in lists)
        await real_bus.agents.delete("a-001")
        await visit.misses("[data-key='a-001']")
        await visit.sees("259 agents")


async def charge(amount: int) -> int:
    return amount


@agentbus.workflow("payment")
async def payment(task: Task, amount: int) -> int:
    return await task.step("charge", charge, amount, once=True)


@agentbus.workflow("reviewed")
async def reviewed(task: Task) -> None:
    await task.step("plan", lambda: 1)
    await task.approval("plan")


@pytest.mark.one_engine
async def test_a_question_asked_again_shows_when_it_was_asked_again(real_bus: Bus, visiting: Visiting) -> None:
    await real_bus.tasks.start(reviewed, id="r-1")
    await real_bus.tasks.run_worker(reviewed, until_idle=True)
    (first,) = await real_bus.tasks.approvals("r-1")
    await real_bus.tasks.redo("r-1", "plan", by="ada")
    await real_bus.tasks.run_worker(reviewed, until_idle=True)
    (open_one,) = await real_bus.tasks.approvals("r-1")
    assert open_one.created > first.created
    async with serving(real_bus) as client, visiting(client) as visit:
        page = await visit.go("tasks/r-1", wait=".why time")
        shown = await page.locator(".why time").first.get_attribute("datetime")
    assert shown == datetime.fromtimestamp(open_one.created / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


@pytest.mark.one_engine
async def test_a_step_with_an_unknown_outcome_is_settled(real_bus: Bus, visiting: Visiting) -> None:
    started = asyncio.Event()

    async def hang(amount: int) -> int:
        started.set()
        await asyncio.Event().wait()
        return amount

    @agentbus.workflow("payment")
    async def interrupted(task: Task, amount: int) -> int:
        return await task.step("charge", hang, amount, once=True)

    await real_bus.tasks.start(payment, 40, id="pay")
    async with running(real_bus.tasks.run_worker(interrupted)):
        await started.wait()
    async with serving(real_bus) as client, visiting(client) as visit, running(real_bus.tasks.run_worker(payment)):
        page = visit.page
        await page.get_by_role("button", name="Settle …").click()
        await page.get_by_label("Outcome").select_option("it succeeded")
        await page.get_by_label("Result (JSON), or error").fill("42")
        await page.get_by_role("dialog").get_by_role("button", name="Settle").click()
        assert await real_bus.tasks.result("pay", timeout=20) == 42
        await visit.go("tasks/pay")
        await visit.sees("completed")


@pytest.mark.one_engine
async def test_the_past_is_replayed(real_bus: Bus, visiting: Visiting) -> None:
    first = await real_bus.register("first", type="worker")
    await first.send("first", "note", {})
    message = await first.receive(timeout=5)
    assert message is not None
    await message.ack()
    await first.complete()
    (registered,) = [one.at async for one in real_bus.events(kind="agent_registered")]
    async with serving(real_bus) as client, visiting(client) as visit:
        page = await visit.go("lanes?span=5m", ".lanes-plot")
        await page.wait_for_selector("rect.l-lease")
        assert await page.locator(".lanes-names .status.done").count() == 1
        await visit.go(f"lanes?span=5m&at={registered + 1}&end={registered + 60_000}", ".lanes-plot")
        await visit.sees("1 running", within=".replay")
        await page.get_by_role("button", name="Back to live").click()
        await visit.sees("live", within=".replay")
        assert "at=" not in page.url


@pytest.mark.one_engine
async def test_an_agent_is_steered_and_its_receipt_is_shown(real_bus: Bus, visiting: Visiting) -> None:
    a = await real_bus.register_visitor("a", type="worker")
    await a.declare_reach("tool", channel="hook")
    async with serving(real_bus) as client, visiting(client) as visit:
        page = await visit.go("agents/a")
        await visit.sees("after its next tool call")
        await page.get_by_role("button", name="Steer").click()
        await page.get_by_label("What the agent is to do").fill("use the new API")
        await page.get_by_label("Stop after the current step").check()
        await page.get_by_role("dialog").get_by_role("button", name="Steer").click()
        (message,) = await a.receive(timeout=30)
        assert (message.type, message.sender, message.payload["stop_after"]) == ("steer", "operator:ada", True)
        await a.seen(message.message_id, channel="hook", client="session-5b1c")
        await page.get_by_text("a has seen it").first.wait_for(timeout=PATIENCE)
        await visit.go(f"messages/{message.message_id}")
        await visit.sees("session-5b1c")
        # An answer that is waited for does not move the clock of the page.
        skew = await page.evaluate("""async () => {
            const core = await import("./static/core.js");
            await core.post("agents/a/steer", {text: "again", timeout: 5});
            return core.now() - Date.now();
        }""")
        assert abs(skew) < 1000
        assert visit.errors == []
