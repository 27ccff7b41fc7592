"""The Markdown that the tests need: fenced blocks with their markers, headings and links."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

RUN = {"python", "sh", "bash", "console"}
PARSED = {"json", "toml"}
SHOWN = {"", "text", "sql", "ini", "mermaid", "yaml"}
LANGUAGES = RUN | PARSED | SHOWN
MARKS = {"not run", "exits", "file", "background", "output", "needs", "sleep"}

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+|~~~+)(?P<language>[^\s`]*)[^`]*$")
_MARK = re.compile(r"^<!--\s*(?P<name>not run|exits|[\w-]+)\s*:?\s*(?P<value>.*?)\s*-->$")
_HEADING = re.compile(r"^#{1,6}\s+(?P<text>.+?)\s*#*$")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\((?P<target><[^>]*>|[^()\s]+)(?:\s+\"[^\"]*\")?\)")
_REFERENCE = re.compile(r"^\[[^\]]+\]:\s+(?P<target>\S+)", re.MULTILINE)
_ATTRIBUTE = re.compile(r"<(?:img|a)\b[^>]*?\b(?:src|href)=\"(?P<target>[^\"]+)\"")
_CODE = re.compile(r"(?P<ticks>`+).+?(?P=ticks)", re.DOTALL)


class Block(NamedTuple):
    """A fenced block, or a setup comment (language ``setup``). ``line`` is that of its first line of content."""

    language: str
    text: str
    line: int
    marks: dict[str, str]


class Page(NamedTuple):
    """A Markdown file taken apart. ``problems`` are marks and languages that no test knows."""

    path: Path
    blocks: list[Block]
    anchors: set[str]
    links: list[str]
    problems: list[str]


def read_page(path: Path) -> Page:
    """Take a Markdown file apart."""
    blocks: list[Block] = []
    problems: list[str] = []
    prose: list[str] = []
    marks: dict[str, str] = {}
    lines = path.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if line.strip() == "<!-- setup":
            end = next(at for at in range(number, len(lines)) if lines[at].strip() == "-->")
            blocks.append(Block("setup", "\n".join(lines[number:end]) + "\n", number + 1, {}))
            number = end + 1
        elif fence := _FENCE.match(line):
            end = _end_of(lines, number, fence["ticks"])
            text = "".join(f"{content.removeprefix(fence['indent'])}\n" for content in lines[number:end])
            block = Block(fence["language"], text, number + 1, marks)
            blocks.append(block)
            problems += _problems_of(block)
            marks = {}
            number = end + 1
        elif mark := _MARK.match(line.strip()):
            marks[mark["name"]] = mark["value"]
        else:
            if line.strip():
                marks = {}
            prose.append(line)
    problems += _unused_files(blocks)
    return Page(path, blocks, _anchors(prose), _links("\n".join(prose)), problems)


def _end_of(lines: list[str], start: int, ticks: str) -> int:
    for at in range(start, len(lines)):
        if lines[at].strip().startswith(ticks) and not lines[at].strip().strip(ticks[0]):
            return at
    return len(lines)


def _problems_of(block: Block) -> list[str]:
    found = [f"line {block.line}: no test knows the mark {name!r}" for name in block.marks if name not in MARKS]
    if block.language not in LANGUAGES:
        found.append(f"line {block.line}: no test knows the language {block.language!r}")
    if "not run" in block.marks and not block.marks["not run"]:
        found.append(f"line {block.line}: no reason for not running it")
    if block.language in SHOWN and "file" not in block.marks and re.search(r"^\$ ", block.text, re.MULTILINE):
        found.append(f"line {block.line}: commands belong in a console block")
    return found


def _unused_files(blocks: list[Block]) -> list[str]:
    """Return the programs that no later block uses: they would never run."""
    return [
        f"line {block.line}: no block uses the file {block.marks['file']}"
        for at, block in enumerate(blocks)
        if "file" in block.marks
        and block.language in RUN
        and not any(
            Path(block.marks["file"]).stem in later.text for later in blocks[at + 1 :] if "not run" not in later.marks
        )
    ]


def _anchors(prose: list[str]) -> set[str]:
    """Return the anchors that GitHub gives to the headings."""
    seen: Counter[str] = Counter()
    anchors: set[str] = set()
    for line in prose:
        if heading := _HEADING.match(line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading["text"])
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return anchors


def _links(prose: str) -> list[str]:
    attributes = [found["target"] for found in _ATTRIBUTE.finditer(prose)]
    references = [found["target"] for found in _REFERENCE.finditer(prose)]
    # A link may have code for its text, so that only the code is taken out.
    text = _CODE.sub("code", prose)
    return [*(found["target"].strip("<>") for found in _LINK.finditer(text)), *references, *attributes]
