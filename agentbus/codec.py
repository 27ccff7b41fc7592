"""One codec decides what JSON is: finite numbers, valid Unicode, bounded depth and size, exact round trips."""

from __future__ import annotations

import math
from typing import Any
from zlib import crc32

import msgspec

from agentbus.errors import DamagedPayload, InvalidInput, InvalidPayload, PayloadMismatch, PayloadTooLarge
from agentbus.limits import MAX_DEPTH

_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder().decode
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG = b"0" * 19


def encode(value: Any, limit: int) -> tuple[str, int]:
    """JSON text of ``value`` with its checksum, or a named error.

    Whatever decodes to an equal value is taken at once; the rest (tuples, Structs, dates; NaN, number keys)
    is looked at more closely, because msgspec would turn a NaN into null without a word.
    """
    try:
        encoded = _encode(value)
        if len(encoded) > limit:
            raise PayloadTooLarge(size=len(encoded), limit=limit)
        # Fewer bytes than that cannot be nested too deep; shorter numbers fit into 64 bits.
        deep = len(encoded) > 2 * MAX_DEPTH and encoded.count(b"[") + encoded.count(b"{") > MAX_DEPTH
        if deep or _LONG in encoded.translate(_DIGITS) or _decode(encoded) != value:
            _inspect(msgspec.to_builtins(value, builtin_types=(float,), str_keys=False), 0)
        return encoded.decode(), crc32(encoded)
    except InvalidInput:
        raise
    except (UnicodeEncodeError, msgspec.DecodeError) as error:
        raise InvalidPayload(reason=f"text that is not valid Unicode ({type(error).__name__})") from None
    except RecursionError:
        raise InvalidPayload(reason=f"it is nested more than {MAX_DEPTH} deep") from None
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidPayload(reason=str(error)) from None


def decode(text: str) -> Any:
    return _decode(text)


def decode_as(text: str, type: Any, what: str) -> Any:
    """The same as a type of the caller's: a Struct, a dataclass, ``list[int]`` …"""
    try:
        return msgspec.json.decode(text, type=type)
    except (msgspec.DecodeError, TypeError) as error:
        name = getattr(type, "__name__", None) or str(type)
        raise PayloadMismatch(what=what, type=name, reason=str(error)) from None


def check(text: str, expected: int, what: str) -> None:
    """Payload bytes escape SQLite's own integrity check, so every reader compares the checksum."""
    if crc32(text.encode()) != expected:
        raise DamagedPayload(what=what)


def canonical(text: str) -> bytes:
    """The same bytes for the same JSON, whatever the order of its keys."""
    return _canonical(_decode(text))


def plain(value: Any) -> str:
    """JSON of something of our own: a list of parameters, the facts of an event."""
    return _encode(value).decode()


def plain_payload(value: Any) -> tuple[str, int]:
    """JSON of something of our own, with its checksum."""
    encoded = _encode(value)
    return encoded.decode(), crc32(encoded)


def _inspect(value: Any, depth: int) -> None:
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise InvalidPayload(reason="an integer is beyond 64 bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidPayload(reason=f"{value} is not a finite number")
    elif isinstance(value, dict):
        if depth >= MAX_DEPTH:
            raise InvalidPayload(reason=f"it is nested more than {MAX_DEPTH} deep")
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidPayload(reason=f"the key {key!r} is not a text")
            _inspect(item, depth + 1)
    elif isinstance(value, list | tuple):
        if depth >= MAX_DEPTH:
            raise InvalidPayload(reason=f"it is nested more than {MAX_DEPTH} deep")
        for item in value:
            _inspect(item, depth + 1)
