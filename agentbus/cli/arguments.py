"""Arguments of commands: JSON inline, in a file or on standard input; durations, amounts and sizes."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.cli.errors import InvalidJSON, NotText, Usage, echoed
from agentbus.core.validation import MAX_PAYLOAD, MAX_SECONDS
from agentbus.errors import OutOfRange, PayloadTooLarge, SnapshotTooLarge
from agentbus.errors.base import shortened

if TYPE_CHECKING:
    from agentbus.cli.context import Call

_INDENTED = 16
"""The input may be this many times as large as the value: the limit applies to JSON without spaces."""
_MARK = b"\xef\xbb\xbf"
"""A byte order mark, which some editors write."""
JSON_HELP = "JSON, @FILE, or - to read standard input"


def json_value(
    text: str | None,
    *,
    as_text: bool = False,
    texts: bool = False,
    limit: int = MAX_PAYLOAD,
    too_large: type[PayloadTooLarge] | type[SnapshotTooLarge] = PayloadTooLarge,
) -> Any:
    """Return the value of an argument: JSON, ``@file``, or ``-`` for standard input. None for None.

    ``as_text``: take the input as a string. ``texts``: the command has the option --text. Input that must exceed
    ``limit`` bytes as JSON is ``too_large``, and is not read.
    """
    if text is None:
        return None
    bound = limit + len(_MARK) if as_text else _INDENTED * limit
    if text == "-":
        what, given = "standard input", sys.stdin.buffer.read(bound + 1)
        if len(given) > bound:
            raise too_large(size=f"more than {bound}", limit=limit)
    elif text.startswith("@"):
        what = text[1:]
        try:
            with open(what, "rb") as file:
                # Only a regular file has a size; /dev/zero never ends.
                size = os.fstat(file.fileno()).st_size
                given = b"" if size > bound else file.read(bound + 1)
            if size > bound or len(given) > bound:
                raise too_large(size=size if size > bound else f"more than {bound}", limit=limit)
        except OSError as error:
            raise Usage(reason=f"{shortened(what) or '@'}: {error.strerror}", advice="@FILE reads a file") from None
    else:
        what, given = "the argument", text.encode()
    found = _text(given, what)
    if as_text:
        return found
    try:
        return msgspec.json.decode(found)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid(found, what, error, _advice(text, texts)) from None


def option(call: Call, text: str | None) -> Any:
    """Return the value of an option that is JSON, at most ``max_payload`` bytes of it."""
    return json_value(text, limit=call.settings["max_payload"])


def payload(call: Call, name: str = "payload") -> Any:
    """Return the value of an argument of a command with ``text_option``, at most ``max_payload`` bytes of JSON."""
    given = call.arguments
    return json_value(getattr(given, name), as_text=given.text, texts=True, limit=call.settings["max_payload"])


def snapshot(call: Call, name: str) -> Any:
    """Return the value of an argument of a command with ``text_option``, at most ``max_snapshot`` bytes of JSON."""
    given, limit = call.arguments, call.settings["max_snapshot"]
    return json_value(getattr(given, name), as_text=given.text, texts=True, limit=limit, too_large=SnapshotTooLarge)


def text_option(parser: ArgumentParser) -> None:
    """Add the option --text."""
    parser.add_argument("--text", action="store_true", help="take the value as a string, not as JSON")


def by_option(parser: ArgumentParser) -> None:
    """Add the option with which a person sends and receives messages."""
    parser.add_argument("--by", metavar="NAME", help="act as the person operator:NAME (default: AGENTBUS_OPERATOR)")


def _advice(given: str, texts: bool) -> str:
    as_text = "to pass a string, add --text" if texts else ""
    if given == "-" or given.startswith("@"):
        return as_text or "the input must be JSON"
    quoted = 'quote JSON for the shell: \'{"phase": "design"}\''
    return f"{quoted}; {as_text}" if texts else quoted


def _text(given: bytes, what: str) -> str:
    try:
        return given.removeprefix(_MARK).decode()
    except UnicodeDecodeError as error:
        raise NotText(what=what, position=error.start, byte=f"0x{given[error.start]:02x}") from None


def _invalid(text: str, what: str, error: Exception, advice: str) -> InvalidJSON:
    """Return the error with its position. msgspec counts bytes, and gives no position for truncated JSON."""
    reason, mark, rest = str(error).partition(" (byte ")
    encoded = text.encode()
    position = int(rest.rstrip(")")) if mark else len(encoded)
    before = encoded[:position].decode(errors="ignore")
    line = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1) + 1
    after = encoded[position : position + 20].decode(errors="ignore")
    near = repr(before[-20:] + "⟨here⟩" + after) if text else "empty input"
    return InvalidJSON(
        what=what, reason=reason.removeprefix("JSON is malformed: "), line=line, column=column, near=near, advice=advice
    )


def seconds(text: str) -> int | float:
    """Return a duration in seconds, or with a unit.

    >>> seconds("90"), seconds("0.5"), seconds("500ms"), seconds("10m"), seconds("2d")
    (90, 0.5, 0.5, 600, 172800)
    """
    return _duration(text, 1)


def minutes(text: str) -> int | float:
    """Return a duration, in minutes if it has no unit."""
    return _duration(text, 60)


def hours(text: str) -> int | float:
    """Return a duration, in hours if it has no unit."""
    return _duration(text, 3600)


def days(text: str) -> int | float:
    """Return a duration, in days if it has no unit."""
    return _duration(text, 86_400)


def _duration(text: str, unit: int) -> int | float:
    found = _number(text)
    if found is not None:
        return _bounded(text, found, unit)
    given = text.strip()
    for name, milliseconds in _UNITS.items():
        count = _number(given.removesuffix(name)) if given.endswith(name) else None
        if count is not None:
            # More digits than a float can hold count as infinite.
            found = float(str(count)) * milliseconds / (unit * 1000)
            return _bounded(text, int(found) if found.is_integer() else found, unit)
    raise ArgumentTypeError(f"{echoed(text)} is not a duration: {_EXAMPLES[unit]}, 500ms, 5s, 10m, 1h, 2d")


def _bounded(text: str, found: int | float, unit: int) -> int | float:
    """Return a duration in range. The error shows what was typed: the API has other names and units."""
    if 0 <= found <= MAX_SECONDS / unit:
        return found
    raise OutOfRange(what="duration", value=text, allowed=f"from 0 to {MAX_SECONDS // 86_400}d")


_UNITS = {"ms": 1, "s": 1000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EXAMPLES = {1: "30 (seconds)", 60: "30 (minutes)", 3600: "12 (hours)", 86_400: "7 (days)"}


def number(text: str) -> int | float:
    """Return a number."""
    found = _number(text)
    if found is None:
        raise ArgumentTypeError(f"{echoed(text)} is not a number")
    return found


def amount(text: str) -> int | float | str:
    """Return a number, or ``none``."""
    found = text if text == "none" else _number(text)
    if found is None:
        raise ArgumentTypeError(f"{echoed(text)} is not an amount: 10000, none")
    return found


def size(text: str) -> int | float | str:
    """Return bytes, from a number with or without a unit, or ``none``.

    >>> size("4096"), size("2GiB"), size("1.5 kB")
    (4096, 2147483648, 1500)
    """
    if text == "none":
        return text
    if (found := _number(text)) is not None:
        return found
    count = _number(text.strip().rstrip("iBkKMGT"))
    factor = _SIZES.get(text.strip().lstrip("0123456789. ").removesuffix("B"))
    if count is None or factor is None:
        raise ArgumentTypeError(f"{echoed(text)} is not a size: 2147483648 (bytes), 500MB, 2GiB, none")
    return int(count * factor)


_SIZES = {"": 1} | {
    name + binary: base**power
    for power, names in enumerate(("kK", "M", "G", "T"), 1)
    for name in names
    for binary, base in (("", 1000), ("i", 1024))
}


def _number(text: str) -> int | float | None:
    """Return the number, or None. Its range is checked by the API."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def ask_reason(call: Call, action: str, option: str) -> str:
    """Return the reason that a person types on a terminal. Elsewhere it must be given as an option."""
    if not call.arguments.json and sys.stdin.isatty() and sys.stderr.isatty():
        print("reason: ", end="", file=sys.stderr, flush=True)
        typed = sys.stdin.readline().strip()
        if typed:
            return typed
    raise Usage(reason=f"a reason is required to {action}", advice=f"pass {option} TEXT")


def paging(parser: ArgumentParser) -> None:
    """Add the options of commands that list."""
    parser.add_argument("--limit", type=int, default=100, metavar="N", help="maximum number of results (default 100)")
    parser.add_argument("--cursor", metavar="TEXT", help="cursor of the previous page")


def watch_options(parser: ArgumentParser) -> None:
    """Add the options of commands that can watch."""
    parser.add_argument("--watch", action="store_true", help="refresh in place until Ctrl-C")
    parser.add_argument(
        "--interval", type=seconds, default=1.0, metavar="S", help="seconds between updates (default 1)"
    )
