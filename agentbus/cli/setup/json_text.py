"""Edits of JSON text that keep every other byte: comments, trailing commas, order and indentation stay as they are.

The clients read JSON with comments, and their users write it. A parser that returns values would lose the text, so this
one returns the position of every value, and an edit replaces only its part of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

MAX_DEPTH = 100
"""Levels of nesting that are read."""
_BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_SPACE = " \t\r\n"
_REST_OF_LINE = re.compile(r"(?:[ \t]+|/\*[^\n]*?\*/)*(?://[^\n]*)?")
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"')
_SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_INDENT = re.compile(r"^([ \t]+)\S", re.MULTILINE)
_CLOSING = {"{": "}", "[": "]"}

Path = Sequence[str | int]


class NotJSON(ValueError):
    """The text is not JSON, not even with comments and trailing commas."""

    def __init__(self, reason: str, text: str, position: int) -> None:
        line = text.count("\n", 0, position) + 1
        column = position - text.rfind("\n", 0, position)
        super().__init__(f"{reason} at line {line}, column {column}")


class Node:
    """A value and its position. ``items`` are its members or elements, ``starts`` where each begins: at its key,
    if it has one."""

    __slots__ = ("end", "items", "keys", "kind", "scalar", "start", "starts")

    def __init__(self, kind: str, start: int) -> None:
        self.kind = kind
        self.start = start
        self.end = start
        self.scalar: Any = None
        self.keys: dict[str, int] = {}
        self.items: list[Node] = []
        self.starts: list[int] = []

    @property
    def value(self) -> Any:
        if self.kind == "{":
            return {key: item.value for key, item in zip(self.keys, self.items, strict=True)}
        return [item.value for item in self.items] if self.kind == "[" else self.scalar

    def get(self, path: Path) -> Node | None:
        """Return the value below a path of keys and indexes, or None."""
        node = self
        for step in path:
            index = step
            if isinstance(step, str):
                if node.kind != "{" or step not in node.keys:
                    return None
                index = node.keys[step]
            elif node.kind != "[" or step >= len(node.items):
                return None
            node = node.items[int(index)]
        return node


@lru_cache(maxsize=2)
def parse(text: str) -> Node:
    """Return the value that the text holds, with positions."""
    start = _skip(text, 1 if text.startswith("\ufeff") else 0)
    node = _parse_value(text, start, 0)
    end = _skip(text, node.end)
    if end != len(text):
        raise NotJSON("more text after the value", text, end)
    return node


def _skip(text: str, position: int) -> int:
    found = _BLANK.match(text, position)
    return position if found is None else found.end()


def _parse_value(text: str, start: int, depth: int) -> Node:
    opening = text[start : start + 1]
    node = Node(opening if opening in _CLOSING else "scalar", start)
    if node.kind == "scalar":
        found = (_STRING if opening == '"' else _SCALAR).match(text, start)
        if found is None:
            raise NotJSON("no value", text, start)
        node.end = found.end()
        node.scalar = _decode(text, start, found[0])
    elif depth == MAX_DEPTH:
        raise NotJSON(f"more than {MAX_DEPTH} levels of nesting", text, start)
    else:
        _parse_items(text, node, depth)
    return node


def _parse_items(text: str, node: Node, depth: int) -> None:
    closing = _CLOSING[node.kind]
    position = _skip(text, node.start + 1)
    while text[position : position + 1] != closing:
        node.starts.append(position)
        if node.kind == "{":
            position = _parse_key(text, node, position)
        item = _parse_value(text, position, depth + 1)
        node.items.append(item)
        position = _skip(text, item.end)
        if text[position : position + 1] == ",":
            position = _skip(text, position + 1)
        elif text[position : position + 1] != closing:
            raise NotJSON(f"neither , nor {closing}", text, position)
    node.end = position + 1


def _parse_key(text: str, node: Node, position: int) -> int:
    """Read a key. Return the position of its value."""
    found = _STRING.match(text, position)
    if found is None:
        raise NotJSON("no key in quotes", text, position)
    key = _decode(text, position, found[0])
    if key in node.keys:
        raise NotJSON(f"the key {key!r} appears twice", text, position)
    node.keys[key] = len(node.items)
    position = _skip(text, found.end())
    if text[position : position + 1] != ":":
        raise NotJSON("no : after a key", text, position)
    return _skip(text, position + 1)


def _decode(text: str, start: int, token: str) -> Any:
    if token[0] == '"' and "\\" not in token:
        return token[1:-1]
    try:
        return json.loads(token)
    except ValueError:
        raise NotJSON("an invalid value", text, start) from None


def set_value(text: str, path: Path, value: Any) -> str:
    """Return the text with this value below a path. Missing objects on the way are created."""
    node, depth = parse(text), 0
    while depth < len(path) and (inner := node.get(path[depth : depth + 1])) is not None:
        node, depth = inner, depth + 1
    if depth == len(path):
        return text if node.value == value else _replace(text, node, value)
    for key in reversed(path[depth + 1 :]):
        value = {key: value}
    return _insert(text, node, str(path[depth]), value)


def append(text: str, path: Path, value: Any) -> str:
    """Return the text with one more element in the array below a path, which is created if it is missing."""
    node = parse(text).get(path)
    return set_value(text, path, [value]) if node is None else _insert(text, node, None, value)


def remove(text: str, path: Path) -> str:
    """Return the text without the value below a path."""
    owner = parse(text).get(path[:-1])
    if owner is None:
        return text
    last = path[-1]
    index = owner.keys[last] if isinstance(last, str) else int(last)
    start, end = owner.starts[index], owner.items[index].end
    comma = _comma(text, end)
    if index + 1 < len(owner.items) and comma is not None:
        return text[:start] + text[comma + 1 :].lstrip(_SPACE)
    before = text[:start].rstrip(_SPACE)
    after = text[end if comma is None else comma + 1 :]
    previous = _comma(text, owner.items[index - 1].end) if index > 0 and comma is None else None
    if previous is not None:
        before = before[:previous] + before[previous + 1 :]
    if len(owner.items) == 1 and len(before) == owner.start + 1 and after.lstrip(_SPACE)[0] == _CLOSING[owner.kind]:
        # Nothing is left but space: {} as an editor writes it.
        after = after.lstrip(_SPACE)
    if "//" in before[before.rfind("\n") + 1 :] and after.lstrip(" \t\r")[:1] != "\n":
        # It may be a comment, which ends with its line.
        before += _newline(text) if "\n" in text[:start][len(text[:start].rstrip(_SPACE)) :] else ""
    return before + after


def _comma(text: str, position: int) -> int | None:
    position = _skip(text, position)
    return position if text[position : position + 1] == "," else None


def _replace(text: str, node: Node, value: Any) -> str:
    return text[: node.start] + _render(text, value, _line_indent(text, node.start)) + text[node.end :]


def _insert(text: str, owner: Node, key: str | None, value: Any) -> str:
    """Insert a member or an element at the end of an object or an array."""
    prefix = "" if key is None else f"{json.dumps(key, ensure_ascii=False)}: "
    closing = owner.end - 1
    inline = _is_inline(text, owner)
    indent = _line_indent(text, owner.starts[0]) if owner.items else _line_indent(text, owner.start) + _unit(text)
    lead = "" if inline else f"{_newline(text)}{indent}"
    added = f"{prefix}{_render(text, value, None if inline else indent)}"
    if not owner.items:
        inside = text[owner.start + 1 : closing].rstrip(_SPACE)
        tail = "" if inline else f"{_newline(text)}{_line_indent(text, owner.start)}"
        return f"{text[: owner.start + 1]}{inside}{lead}{added}{tail}{text[closing:]}"
    end = owner.items[-1].end
    comma = _comma(text, end)
    after = end if comma is None else comma + 1
    # A comment at the end of the line belongs to the value before it.
    rest = _REST_OF_LINE.match(text, after)
    if rest is not None and rest[0].strip() and rest.end() <= closing and not inline:
        after = rest.end()
    if comma is not None:
        return f"{text[:after]}{lead or ' '}{added},{text[after:]}"
    return f"{text[:end]},{text[end:after]}{lead or ' '}{added}{text[after:]}"


def _is_inline(text: str, owner: Node) -> bool:
    """Return whether an object or array is written on one line: then it stays so, unless it is the whole text."""
    if owner.items:
        return "\n" not in text[owner.start : owner.end]
    return "\n" not in text.strip() and owner.start != _skip(text, 0)


def _render(text: str, value: Any, indent: str | None) -> str:
    """Return JSON as the rest of the text is written; None: on one line."""
    if indent is None:
        return json.dumps(value, ensure_ascii=False)
    rendered = json.dumps(value, ensure_ascii=False, indent=_unit(text))
    return rendered.replace("\n", f"{_newline(text)}{indent}")


def _unit(text: str) -> str:
    found = _INDENT.search(text)
    return "  " if found is None or len(found[1]) > 8 else found[1]


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _line_indent(text: str, position: int) -> str:
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip(" \t"))]
