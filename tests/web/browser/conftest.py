"""A real Chromium, and pages of the dashboard in it. The tests skip where no browser or no driver is installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("playwright.async_api", reason="playwright is not installed")

from playwright.async_api import Browser, Page, async_playwright

from agentbus import Bus, SystemClock
from tests.conftest import Engine
from tests.web.client import Client

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
PATIENCE = 60_000
"""Milliseconds for anything that must appear."""


def find_browser() -> str | None:
    """Return the path of a Chromium: the one that AGENTBUS_BROWSER names, or one that is installed."""
    return os.environ.get("AGENTBUS_BROWSER") or next((path for name in NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="package")
async def browser(anyio_backend: str) -> AsyncIterator[Browser]:
    """A browser for all of these tests: to start one takes as long as a test."""
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium is installed (apt-get install chromium, or set AGENTBUS_BROWSER)")
    async with async_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = await playwright.chromium.launch(executable_path=path, args=options)
        yield browser
        await browser.close()


class Visit:
    """A page of the dashboard: what it logged, and where it went."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        page.on("console", lambda one: self.errors.append(one.text) if one.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: self.errors.append(f"dialog {dialog.message}"))
        page.on("request", lambda one: self.hosts.add(one.url.split("/")[2] if "//" in one.url else one.url[:20]))

    async def go(self, place: str, wait: str = "main h1") -> Page:
        """Show a screen, such as ``agents?status=failed``."""
        await self.page.goto(f"{self.url}#/{place}")
        await self.page.wait_for_selector(wait, timeout=PATIENCE)
        return self.page

    async def sees(self, text: str, *, within: str = "main") -> None:
        await self.page.locator(within).get_by_text(text).first.wait_for(timeout=PATIENCE)

    async def misses(self, selector: str) -> None:
        """Wait until nothing matches."""
        await self.page.wait_for_selector(selector, state="detached", timeout=PATIENCE)


Visiting = Callable[..., AbstractAsyncContextManager[Visit]]


@pytest.fixture
def visiting(browser: Browser) -> Visiting:
    """Open the dashboard of a server in a browser of its own, logged in by the URL that ``serve`` prints."""

    @asynccontextmanager
    async def visit(
        client: Client, *, width: int = 1280, scheme: Any = "light", errors: bool = False
    ) -> AsyncIterator[Visit]:
        context = await browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        context.set_default_timeout(PATIENCE)
        try:
            page = await context.new_page()
            found = Visit(page, f"http://127.0.0.1:{client.port}{client.base}/")
            await page.goto(f"{found.url}#token={client.token}")
            await page.wait_for_selector("nav.side", timeout=PATIENCE)
            yield found
            assert "token" not in page.url
            assert found.hosts <= {f"127.0.0.1:{client.port}"}
            # A request that fails is logged by the browser itself.
            assert errors or found.errors == []
        finally:
            await context.close()

    return visit


@pytest.fixture
async def real_bus(engine: Engine) -> AsyncIterator[Bus]:
    """An open bus in real time."""
    async with engine.connect(clock=SystemClock()) as bus:
        yield bus
