"""Every page of the documentation is correct: its blocks run and its links resolve."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import asyncpg
import pytest

from tests.docs.execution import LOCALE, PageRun
from tests.docs.markdown import PARSED, RUN, Page, read_page
from tests.support import zygote
from tests.support.postgres import at_schema, server_url

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ALONE = ("README.md", "CHANGELOG.md", ".github/CONTRIBUTING.md", "benchmarks/README.md", "tests/faults/README.md")
INHERITED = {"HOME", "PATH", "LD_LIBRARY_PATH", "TMPDIR"}
"""Variables that the shell of a page gets, besides those of a PostgreSQL client."""
MAX_NOT_RUN = 13
"""Blocks that cannot run, on all pages together."""


def _pages() -> list[Page]:
    paths = [ROOT / name for name in ALONE]
    paths += sorted(DOCS.rglob("*.md")) + sorted((ROOT / "examples").rglob("*.md"))
    return [read_page(path) for path in paths]


PAGES = _pages()


def _name(page: Page) -> str:
    return page.path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if page.blocks], ids=_name)
def test_the_blocks_of_a_page_run_in_their_order(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not page.problems
    # Not tmp_path: a short path leaves room for the doorbells beside the database.
    with tempfile.TemporaryDirectory(prefix="agentbus-docs-") as name:
        folder = Path(name).resolve()
        directory, home, scratch = (folder / part for part in ("work", "home", "scratch"))
        for part in (directory, home, scratch):
            part.mkdir()
        for variable in [*os.environ]:
            if variable.startswith(("AGENTBUS_", "XDG_")) and not variable.startswith("AGENTBUS_TEST_"):
                monkeypatch.delenv(variable)
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setenv("PATH", zygote.search_path({**LOCALE, "PATH": os.environ["PATH"]}))
        monkeypatch.chdir(directory)
        monkeypatch.syspath_prepend(directory)
        with _server(page) as environment, _own_modules(directory):
            for variable, value in environment.items():
                monkeypatch.setenv(variable, value)
            inherited = {name: value for name, value in os.environ.items() if name in INHERITED or name[:2] == "PG"}
            run = PageRun(page, directory, scratch, inherited | environment)
            asyncio.run(run.run())


@contextmanager
def _own_modules(directory: Path) -> Iterator[None]:
    """Forget the modules of a page when it is done: another page may have files of the same names."""
    try:
        yield
    finally:
        for name, module in [*sys.modules.items()]:
            if Path(getattr(module, "__file__", None) or "/").is_relative_to(directory):
                del sys.modules[name]


@contextmanager
def _server(page: Page) -> Iterator[dict[str, str]]:
    """A schema that does not exist yet, for a page that asks for a server; and no more when it is done."""
    if not any("POSTGRES_URL" in block.text for block in page.blocks if "not run" not in block.marks):
        yield {}
        return
    schema = f"docs_{os.getpid()}"
    try:
        yield {"POSTGRES_URL": at_schema(server_url(), schema)}
    finally:
        asyncio.run(_drop(schema))


async def _drop(schema: str) -> None:
    connection = await asyncpg.connect(server_url())
    try:
        await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    finally:
        await connection.close()


def test_relative_links_and_anchors_resolve() -> None:
    known = {page.path: page for page in PAGES}
    broken = []
    for page in PAGES:
        for link in page.links:
            target = urlsplit(link)
            if target.scheme or target.netloc:
                continue
            path = (page.path.parent / unquote(target.path)).resolve() if target.path else page.path
            if not path.exists() or not path.is_relative_to(ROOT):
                broken.append(f"{_name(page)}: {link}")
            elif target.fragment and path in known and target.fragment not in known[path].anchors:
                broken.append(f"{_name(page)}: {link} (no such heading)")
    assert not broken


def test_every_page_is_in_the_table_of_contents() -> None:
    index = next(page for page in PAGES if page.path == DOCS / "index.md")
    listed = {(DOCS / urlsplit(link).path).resolve() for link in index.links}
    assert [_name(page) for page in PAGES if page.path.parent == DOCS and page.path not in {*listed, index.path}] == []


def test_data_in_blocks_parses() -> None:
    wrong = []
    for page in PAGES:
        for block in page.blocks:
            try:
                if block.language == "json":
                    json.loads(block.text)
                elif block.language == "toml":
                    tomllib.loads(block.text)
            except ValueError as error:
                wrong.append(f"{_name(page)}:{block.line}: {error}")
    assert not wrong


def test_few_blocks_cannot_run() -> None:
    blocks = [(page, block) for page in PAGES for block in page.blocks if block.language in RUN | PARSED]
    left_out = [
        f"{_name(page)}:{block.line}: {block.marks['not run']}" for page, block in blocks if "not run" in block.marks
    ]
    assert len(left_out) <= MAX_NOT_RUN, left_out
    assert len(left_out) * 4 <= len(blocks), left_out
