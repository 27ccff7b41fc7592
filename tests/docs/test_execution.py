"""The tests of the documentation detect faults of a page."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.docs.execution import BlockFailed, PageRun
from tests.docs.markdown import Page, read_page

STARTED = "```sh\nuntil [ -e started ]; do sleep 0.01; done\n```\n"
"""Waits for a background command."""


def _page(directory: Path, text: str) -> Page:
    path = directory / "page.md"
    path.write_text(text, encoding="utf-8")
    return read_page(path)


def _run(directory: Path, text: str) -> None:
    work, scratch = directory / "work", directory / "scratch"
    work.mkdir()
    scratch.mkdir()
    asyncio.run(PageRun(_page(directory, text), work, scratch, {"PATH": os.environ["PATH"]}).run())


def test_blocks_share_a_namespace_a_shell_and_a_directory(tmp_path: Path) -> None:
    _run(
        tmp_path,
        "<!-- setup\nclosed = []\n-->\n"
        "```python\nimport asyncio\nx = await asyncio.sleep(0, 1)\n```\n"
        "```python\nprint('x is', x)\n```\n<!-- output -->\n```text\nx is …\n```\n"
        "<!-- file: hello.txt -->\n```text\nhello\n```\n"
        "```sh\nexport NAME=world\n```\n```console\n$ cat hello.txt; \\\n> echo $NAME\nhello\nworld\n$ true\n```\n"
        "<!-- exits 3 -->\n```sh\n(exit 3)\n```\n<!-- not run: it fails -->\n```sh\nfalse\n```\n",
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("```python\n1 / 0\n```\n", 2),
        ("```python\nraise SystemError\nawait x\n```\n", 2),
        ("```sh\nfalse\ntrue\n```\n", 2),
        ("<!-- exits 1 -->\n```sh\ntrue\n```\n", 3),
        ("```console\n$ echo one\ntwo\n```\n", 2),
        ("```console\n$ echo one; echo two\none\n```\n", 2),
        ("```python\nprint(1)\n```\n\n<!-- output -->\n```text\n2\n```\n", 7),
        (f"<!-- background -->\n```sh\ntrap '' INT; touch started; exit 1\n```\n{STARTED}", 3),
    ],
)
def test_a_block_that_does_not_do_what_its_page_says_fails(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(BlockFailed, match=rf"page\.md:{line}\b|line {line}\b"):
        _run(tmp_path, text)


def test_a_process_left_behind_fails_the_page_and_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.execution.GRACE", 0.2)
    with pytest.raises(BlockFailed, match="left processes behind"):
        _run(tmp_path, "```sh\nsleep 600 &\necho $! > pid\n```\n")
    pid = int((tmp_path / "work" / "pid").read_text())
    deadline = time.monotonic() + 30
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[-1]:
            os.kill(pid, 0)
            time.sleep(0.01)
    assert time.monotonic() < deadline


def test_a_background_command_is_interrupted_when_the_page_ends(tmp_path: Path) -> None:
    _run(
        tmp_path,
        "<!-- background -->\n```sh\n"
        "trap 'touch ended; exit 0' INT; touch started; while :; do sleep 0.05; done\n```\n" + STARTED,
    )
    assert (tmp_path / "work" / "ended").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```pyhton\n```\n", "language"),
        ("<!-- notrun: why -->\n```sh\n```\n", "mark"),
        ("<!-- not run: -->\n```sh\n```\n", "reason"),
        ("<!-- file: x.py -->\n```python\n```\n", "file x.py"),
        ("```text\n$ agentbus status\n```\n", "console"),
    ],
)
def test_a_block_that_no_test_runs_is_a_problem(tmp_path: Path, text: str, problem: str) -> None:
    (found,) = _page(tmp_path, text).problems
    assert problem in found


def test_anchors_and_links_are_those_of_github(tmp_path: Path) -> None:
    page = _page(
        tmp_path,
        "# Hello, World!\n## `bus.state`: a_b\n## Hello, world\n```sh\n# no heading\n```\n"
        '[a](x.md "title") ![b](y.svg) [`c`](z.md#c) `[d](no.md)` <img src="w.png">\n\n[ref]: v.md\n',
    )
    assert page.anchors == {"hello-world", "busstate-a_b", "hello-world-1"}
    assert page.links == ["x.md", "y.svg", "z.md#c", "v.md", "w.png"]
