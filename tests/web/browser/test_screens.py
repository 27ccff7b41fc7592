"""Every screen: accessible, harmless whatever agents write, usable on a phone and with much data."""

from __future__ import annotations

from importlib import resources
from typing import Any
from urllib.parse import quote

import pytest

import agentbus
from agentbus import Bus
from tests.web.browser.conftest import PATIENCE, Visit, Visiting
from tests.web.browser.seed import Team, fill
from tests.web.conftest import serving

SCREENS = (
    "now", "agents", "agents/planner-1", "agents/planner-1?tab=checkpoints", "lanes", "queues", "messages", "tasks",
    "tasks/rate-limit?sel=approval:plan:0", "tasks/eval-ranking", "tasks/rate-limit?tab=data", "sessions",
    "sessions/release-2.4", "sessions/release-2.4?tab=documents&doc=plan&diff=1", "sessions/db-migration",
    "state?scope=planner-1", "state?tab=histories&kind=openai&name=support%2Fchat-7", "events", "health",
)  # fmt: skip
AXE = """async () => {
    const found = await axe.run(document, { resultTypes: ['violations'] });
    const tell = (node) => node.target + ' ' + node.failureSummary;
    return found.violations.map((one) => `${one.id}: ${one.nodes.map(tell).slice(0, 3).join(' | ')}`);
}"""
OVERFLOWS = """() => [document.documentElement, document.querySelector('main')].some(
    (node) => node.scrollWidth > node.clientWidth + 1)"""


async def settle(visit: Visit) -> None:
    """Wait until nothing is loading."""
    await visit.page.wait_for_function("() => !document.querySelector('.skeleton')", timeout=PATIENCE)


@pytest.mark.one_engine
async def test_every_screen_is_accessible_and_fits(real_bus: Bus, visiting: Visiting) -> None:
    pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    axe = (resources.files("axe_playwright_python") / "axe.min.js").read_text()
    await fill(Team(real_bus, None))
    found: list[str] = []
    async with serving(real_bus) as client:
        for scheme, width, screens in (("light", 1280, SCREENS), ("dark", 400, SCREENS[::3])):
            async with visiting(client, scheme=scheme, width=width) as visit:
                await visit.page.evaluate(axe)
                for screen in screens:
                    await visit.go(screen)
                    await settle(visit)
                    found += [f"{screen} {scheme}: {one}" for one in await visit.page.evaluate(AXE)]
                    if await visit.page.evaluate(OVERFLOWS):
                        found.append(f"{screen} {width}: wider than the window")
                await visit.go("now")
                await visit.page.get_by_role("button", name="Reject").first.click()
                await visit.page.wait_for_selector("dialog[open]")
                found += [f"dialog {scheme}: {one}" for one in await visit.page.evaluate(AXE)]
    assert found == []


HOSTILE = (
    "<img src=x onerror=window.pwned=1><script>window.pwned=1</script>",
    "\"'><svg/onload=window.pwned=1> javascript:window.pwned=1 {{7*7}} ${window.pwned=1}",
    "user\u202egnp.exe\u202c \u2066isolated\u2069 \u200fright\u200e",
    "zero\u200bwidth\ufeff\u00ad\u2060 tag\U000e0041\U000e0042 \u0007bell\x1b[31mred\x9b31m nul\u2400",
    "z" + "\u0301\u0316" * 40 + " שלום עולם مرحبا",
    "l" * 3000,
)
# Written out on the screen, never in the text itself.
INVISIBLE = r"""() => [...document.body.textContent.matchAll(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]|[\u{e0000}-\u{e0fff}]/gu)]
    .map((one) => one[0].codePointAt(0).toString(16))"""


@agentbus.workflow("hostile")
async def hostile(task: agentbus.Task, text: str) -> str:
    async def echo(value: str) -> dict[str, Any]:
        return {value: value}

    async def fail(value: str) -> None:
        raise ValueError(value)

    await task.progress(10, text)
    await task.step("echo", echo, text)
    if (await task.approval("look", show={text: [text]})).approved:
        await task.step("fail", fail, text)
    return text


@pytest.mark.one_engine
async def test_texts_of_agents_are_harmless_on_every_screen(real_bus: Bus, visiting: Visiting) -> None:
    bus = real_bus
    every = "\n".join(HOSTILE)
    short = "".join(one[:60] for one in HOSTILE)
    session = await bus.sessions.start("s", id="s", milestone=None, metadata={short: every})
    agent = await bus.register("a", type="worker", session="s", name=short[:120], prompt=every, model=short[:100],
                               metadata={short: every})  # fmt: skip
    other = await bus.register("b", type="worker", session="s")
    for text in HOSTILE:
        await agent.progress(10, text[:200])
        await agent.send("a", "note", {text[:200]: [text]}, headers={"x": text[:100]})
    message = await agent.receive(timeout=5)
    assert message is not None
    await message.reject(every)
    await agent.state.set("k", {short: every})
    await agent.checkpoint("c", {short: every}, notes=every[:500])
    put = agentbus.HistoryPut(key=short[:200], part=short[:200], body=every.encode(), meta={short: every})
    await bus.histories.write("k", short, [put], meta={short: every})
    for text in (every, short):
        await session.document("d").save(text, author="a")
    await session.checkpoint_all("all", notes=short)
    await session.participants(["a", "b"])
    await session.finish_member("a", {short: every})
    for name in ("one", "two"):
        await bus.tasks.start(
            hostile, every, id=name, name=short[:100], context={short: every}, settings={short: short}
        )
    await bus.tasks.run_worker(hostile, until_idle=True)
    await bus.tasks.approve("one", by="ada", reason=short)
    await bus.tasks.run_worker(hostile, until_idle=True)
    await other.fail(every)
    dead = (await bus.messages.dead()).items[0].message_id
    screens = (
        "now", "agents", "agents/a", "agents/b", "agents/a?tab=state", "agents/a?tab=checkpoints&open=1",
        "agents/a?tab=events", "lanes", "queues", "messages", f"messages/{dead}", "tasks", "tasks/one",
        "tasks/one?sel=step:fail:0", "tasks/one?tab=data", "tasks/two", "sessions", "sessions/s",
        "sessions/s?tab=documents&diff=1", "sessions/s?tab=checkpoints", "state?scope=a",
        f"state?tab=histories&kind=k&name={quote(short)}", "events", "health",
    )  # fmt: skip
    async with serving(bus) as client, visiting(client) as visit:
        wrong: list[str] = []
        for screen in screens:
            page = await visit.go(screen)
            await settle(visit)
            for body in await page.get_by_role("button", name="Body").all():
                await body.click()
            texts = page.locator(".json-bar button:text-is('text')")
            for _ in range(min(3, await texts.count())):
                await texts.first.click()
            if odd := await page.evaluate(INVISIBLE):
                wrong.append(f"{screen}: {set(odd)}")
            if await page.evaluate(
                "() => window.pwned || document.querySelector('main img, main script, main iframe')"
            ):
                wrong.append(f"{screen}: markup")
            if await page.evaluate(OVERFLOWS):
                wrong.append(f"{screen}: overflow")
        assert wrong == []
        await visit.go("agents/a")
        await visit.page.locator(".odd", has_text="U+202E").first.wait_for(timeout=PATIENCE)


@pytest.mark.one_engine
async def test_long_lists_draw_only_what_is_in_view(real_bus: Bus, visiting: Visiting) -> None:
    agent = await real_bus.register("sender", type="worker")
    await agent.send_many([("sender", "note", {"n": number}) for number in range(3000)])
    async with serving(real_bus) as client, visiting(client) as visit:
        page = await visit.go("messages", "[data-key]")
        assert await page.locator("[data-key]").count() < 80
        scroll = page.locator(".scroll")
        async with page.expect_response(lambda one: "cursor=" in one.url):
            await scroll.evaluate("(node) => { node.scrollTop = node.scrollHeight; }")
        await page.wait_for_function(
            "() => document.querySelector('.scroll').scrollHeight > 1050 * 34", timeout=PATIENCE
        )
        assert await page.locator("[data-key]").count() < 80


@pytest.mark.one_engine
async def test_it_works_below_a_path(real_bus: Bus, visiting: Visiting) -> None:
    await real_bus.expect("a", type="worker")
    async with serving(real_bus, base_path="/team/bus") as client, visiting(client) as visit:
        await visit.go("agents", "[data-key='a']")
        await visit.page.locator("[data-key='a'] a.ref").click()
        await visit.sees("Record")
        await real_bus.expect("b", type="worker")
        await visit.go("agents", "[data-key='b']")


@pytest.mark.one_engine
async def test_a_browser_without_a_token_is_asked_for_one(real_bus: Bus, browser: Any) -> None:
    async with serving(real_bus) as client:
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(f"http://127.0.0.1:{client.port}/")
        await page.get_by_label("Token").fill("wrong")
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_role("alert").wait_for(timeout=PATIENCE)
        await page.get_by_label("Token").fill(client.token)
        await page.get_by_role("button", name="Sign in").click()
        await page.wait_for_selector("nav.side", timeout=PATIENCE)
        await page.get_by_label("Sign out").click()
        await page.get_by_label("Token").wait_for(timeout=PATIENCE)
        await context.close()
