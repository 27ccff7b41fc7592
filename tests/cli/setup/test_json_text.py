"""Edits of JSON text: the value changes as asked, and no byte beside the edit."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from agentbus.cli.setup import json_text
from agentbus.cli.setup.json_text import NotJSON, append, parse, remove, set_value

SEED = 20
KEYS = ["a", "b", 'q"', "ü", "//", "/*", "key,", "{"]


class Writer:
    """Writes a value with random spaces, comments and trailing commas."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.comments: list[str] = []

    def blank(self) -> str:
        chosen = self.rng.random()
        if chosen < 0.1:
            self.comments.append(f"c{len(self.comments)}")
            return f' // {self.comments[-1]} }} ] " ,\n'
        if chosen < 0.2:
            self.comments.append(f"c{len(self.comments)}")
            return f'/* {self.comments[-1]}\n " }} */'
        return self.rng.choice(["", "", " ", "\n  ", "\n\t", "\r\n"])

    def write(self, value: Any) -> str:
        if not isinstance(value, dict | list):
            return json.dumps(value, ensure_ascii=self.rng.random() < 0.5)
        items = (
            [f"{json.dumps(key)}{self.blank()}:{self.blank()}{self.write(one)}" for key, one in value.items()]
            if isinstance(value, dict)
            else [self.write(one) for one in value]
        )
        body = ",".join(f"{self.blank()}{item}{self.blank()}" for item in items)
        tail = "," if items and self.rng.random() < 0.3 else ""
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        return f"{opening}{body or self.blank()}{tail}{self.blank()}{closing}"


def invent(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth < 4 and kind < 0.35:
        return {key: invent(rng, depth + 1) for key in rng.sample(KEYS, rng.randint(0, 3))}
    if depth < 4 and kind < 0.6:
        return [invent(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    return rng.choice([None, True, 0, -1.5, "", 'text "//" /* */ , }', "\u2028\n"])


def paths(value: Any, here: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(path for key, one in inner for path in paths(one, (*here, key)))]


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def test_random_edits_change_the_value_as_asked_and_lose_no_comment() -> None:
    rng = random.Random(SEED)
    edits = 0
    for _ in range(400):
        value = {"top": invent(rng), "rest": invent(rng)}
        writer = Writer(rng)
        text = writer.blank() + writer.write(value) + writer.blank()
        assert parse(text).value == value
        path = rng.choice(paths(value))
        target = at(value, path)
        added = invent(rng, 2)
        copy = json.loads(json.dumps(value))
        if isinstance(target, dict):
            at(copy, path)["new"] = {"x": added}
            edited = set_value(text, (*path, "new", "x"), added)
            undone = remove(edited, (*path, "new"))
        elif isinstance(target, list):
            at(copy, path).append(added)
            edited = append(text, path, added)
            undone = remove(edited, (*path, len(target)))
        else:
            continue
        edits += 1
        assert parse(edited).value == copy, (text, path)
        assert parse(undone).value == value, (text, path)
        for changed in (edited, undone):
            assert all(comment in changed for comment in writer.comments), (text, path)
        if path and target:
            last = rng.choice(list(target if isinstance(target, dict) else range(len(target))))
            shorter = remove(text, (*path, last))
            del at(value, path)[last]
            assert parse(shorter).value == value, (text, path, last)
    assert edits > 150


@pytest.mark.parametrize(
    "text",
    ["", "{", "{]", '{"a": 1 "b": 2}', '{"a"}', "{a: 1}", "[1,,2]", "[,]", '{"a": 1} x', '"\n"', "01", "+1", "'a'",
     "/*", '{"a": 1, "a": 2}', '"\\x"', "nul", "[" * 200 + "]" * 200, '{"a": /}', "\x00"],
)  # fmt: skip
def test_what_is_not_json_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(NotJSON, match=r"at line \d+, column \d+"):
        parse(text)


def test_formatting_follows_the_text() -> None:
    text = '{\n    "a": {\n        "b": 1\n    }\n}\n'
    assert set_value(text, ("a", "c"), [1]) == (
        '{\n    "a": {\n        "b": 1,\n        "c": [\n            1\n        ]\n    }\n}\n'
    )
    assert set_value('{"a": {"b": 1}}', ("a", "c"), {"d": 2}) == '{"a": {"b": 1, "c": {"d": 2}}}'
    assert append('{\n\t"a": [\n\t\t1 // one\n\t]\n}', ("a",), 2) == '{\n\t"a": [\n\t\t1, // one\n\t\t2\n\t]\n}'
    assert append("[\n  1, // one\n]", (), 2) == "[\n  1, // one\n  2,\n]"


def test_a_large_text_is_edited_in_time_that_grows_with_it() -> None:
    """Ten thousand keys of one object, and one string of a megabyte."""
    value = {"projects": {f"/srv/{number}": {"history": []} for number in range(10_000)}, "blob": "x" * 1_000_000}
    text = json.dumps(value, indent=2)
    edited = set_value(text, ("mcpServers", "agentbus"), {"command": "agentbus"})
    assert len(edited) - len(text) == len(
        ',\n  "mcpServers": {\n    "agentbus": {\n      "command": "agentbus"\n    }\n  }'
    )
    assert remove(edited, ("mcpServers",)) == text
    json_text.parse.cache_clear()
