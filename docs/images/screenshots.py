"""Take the pictures of docs/dashboard.md: a seeded bus, a server, and a Chromium that is installed.

    python -m docs.images.screenshots

Needs playwright and Pillow, which reduces the colours.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PICTURES = (("now", "now", "light"), ("timeline", "lanes", "dark"), ("task", "tasks/rate-limit", "light"))
SIZE = (1280, 800)


async def start(*words: str, environment: dict[str, str]) -> tuple[asyncio.subprocess.Process, str]:
    """Start a program, and return it with its first line."""
    process = await asyncio.create_subprocess_exec(
        *words, cwd=ROOT, env={**os.environ, **environment}, stdout=asyncio.subprocess.PIPE
    )
    line = await process.stdout.readline() if process.stdout is not None else b""
    return process, line.decode().strip()


async def take(login: str) -> None:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, screen, scheme in PICTURES:
            context = await browser.new_context(
                viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme="dark" if scheme == "dark" else "light"
            )
            page = await context.new_page()
            await page.goto(login)
            await page.wait_for_selector("nav.side")
            await page.goto(f"{login.partition('#')[0]}#/{screen}")
            await page.wait_for_timeout(2500)
            save(await page.screenshot(), HERE / f"dashboard-{name}.png")
            await context.close()
        await browser.close()


def save(content: bytes, path: Path) -> None:
    """Write a picture with 128 colours."""
    from importlib import import_module

    image: Any = import_module("PIL.Image").open(io.BytesIO(content))
    image.convert("RGB").quantize(128).save(path, optimize=True)
    sys.stdout.write(f"{path.name} {path.stat().st_size} bytes\n")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bus = Path(folder) / "search-api" / ".agentbus"
        environment = {"XDG_STATE_HOME": folder, "AGENTBUS_OPERATOR": "ada"}
        seed, _ = await start(sys.executable, "-m", "tests.web.browser.seed", str(bus), environment=environment)
        command = str(Path(sys.executable).with_name("agentbus"))
        server, login = await start(command, "serve", "--port", "0", "--url", str(bus), environment=environment)
        try:
            await asyncio.sleep(30)
            await take(login)
        finally:
            for process in (server, seed):
                with suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()


if __name__ == "__main__":
    asyncio.run(main())
