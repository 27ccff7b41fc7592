"""A block of tables at the end of a TOML file, between two comments. The rest of the file keeps every byte.

The standard library reads TOML and does not write it. A block of tables can be appended to any file whose keys it does
not repeat; that the result is the sum of both is checked by reading it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from typing import Any

BEGIN = "# agentbus begin"
END = "# agentbus end"
_BLOCK = re.compile(rf"^{BEGIN}[^\n]*\n(.*?)^{END}[^\n]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_HEADER = re.compile(r"^[ \t]*\[", re.MULTILINE)


class NotTOML(ValueError):
    """The text is not TOML, or the block does not fit into it."""


def load(text: str) -> dict[str, Any]:
    """Return the tables that a text holds."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise NotTOML(str(error)) from None


def without_block(text: str, is_ours: Callable[[dict[str, Any]], bool]) -> str:
    """Return the text without its block, but with the tables that another program has put into it.

    Programs that append a table do so before the comments at the end of the file, which is within the block.
    """
    found = _BLOCK.search(text)
    if found is None:
        return text
    starts = [one.start() for one in _HEADER.finditer(found[1])]
    parts = [found[1][start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
    kept = "".join(part for part in parts if not is_ours(load(part)))
    before, after = text[: found.start()], text[found.end() :]
    if not kept and not after:
        # The line that was left empty before the block.
        before = before[: -len("\n")] if before.endswith("\n\n") else before
    return without_block(before + kept + after, is_ours)


def with_block(text: str, block: str, comment: str) -> str:
    """Return the text with the block at its end. It is an error if the result is not the sum of both."""
    newline = "\r\n" if "\r\n" in text else "\n"
    body = f"{BEGIN}: {comment}\n{block.rstrip()}\n{END}\n".replace("\n", newline)
    lead = "" if not text else newline if text.endswith("\n") else newline * 2
    result = text + lead + body
    if load(result) != merged(load(text), load(block)):
        raise NotTOML("a table of the same name is there in another form")
    return result


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the sum of two documents: tables are united, arrays of tables joined."""
    result = dict(one)
    for key, value in other.items():
        there = result.get(key)
        if isinstance(there, dict) and isinstance(value, dict):
            result[key] = merged(there, value)
        elif isinstance(there, list) and isinstance(value, list):
            result[key] = [*there, *value]
        elif key in result:
            raise NotTOML(f"{key} is there already")
        else:
            result[key] = value
    return result


def quoted(value: str | list[str]) -> str:
    """Return a string or a list of strings in TOML."""
    if isinstance(value, list):
        return "[" + ", ".join(quoted(one) for one in value) + "]"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\u{ord(found[0]):04x}", escaped) + '"'
