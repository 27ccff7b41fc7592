"""One codec decides what JSON is: finite numbers, valid Unicode, bounded depth and size, exact round trips."""

from __future__ import annotations

import math
from typing import Any
from zlib import crc32

import msgspec

from agentbus.errors import (
    DamagedPayload,
    InvalidInput,
    InvalidPayload,
    PayloadMismatch,
    PayloadTooLarge,
    SnapshotTooLarge,
)
from agentbus.errors.base import shown
from agentbus.limits import MAX_DEPTH

_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder().decode
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG = b"0" * 19

LARGE = 256 * 1024
"""Bytes of JSON that take a millisecond or more to look through."""


def encode(value: Any, limit: int) -> tuple[str, int]:
    """JSON text of ``value`` with its checksum, or a named error.

    Whatever decodes to an equal value is taken at once; the rest (tuples, Structs, dates; NaN, number keys)
    is looked at more closely, because msgspec would turn a NaN into null without a word.
    """
    try:
        encoded = _encode(value)
        if len(encoded) > limit:
            raise PayloadTooLarge(size=len(encoded), limit=limit)
        if _is_doubtful(encoded, value):
            _inspect(_builtins(value), 0)
        return encoded.decode(), crc32(encoded)
    except InvalidInput:
        raise
    except _REFUSED as error:
        raise _refusal(error) from None


def encode_metadata(value: object, limit: int) -> str:
    """JSON text of what callers wish to remember of an agent or a session: a dict of theirs."""
    if not isinstance(value, dict):
        raise InvalidInput(reason="metadata must be a dict")
    return encode(value, limit)[0]


class Snapshot(msgspec.Struct, frozen=True):
    """The JSON of a value as it was at one moment. A large one has yet to be looked at closely, by ``settle``."""

    encoded: bytes
    copy: Any = None

    @property
    def large(self) -> bool:
        return len(self.encoded) > LARGE

    def settle(self) -> tuple[str, str]:
        """Its text and SHA-256, or the error that a closer look gives. May run on a thread."""
        if self.large:
            _inspect(self.copy, 0)
        return self.encoded.decode(), digest(self.encoded)


def snapshot(value: Any, limit: int) -> Snapshot:
    """JSON of ``value`` as it is now, or a named error.

    All that needs the value itself is done here, so that it may go on changing. The rest takes ten times as long.
    """
    try:
        encoded = _encode(value)
        if len(encoded) > limit:
            raise SnapshotTooLarge(size=len(encoded), limit=limit)
        if len(encoded) > LARGE:
            return Snapshot(encoded, _builtins(value))
        if _is_doubtful(encoded, value):
            _inspect(_builtins(value), 0)
        return Snapshot(encoded)
    except InvalidInput:
        raise
    except _REFUSED as error:
        raise _refusal(error) from None


def open_snapshot(text: str, expected: str, what: str, as_: Any = None) -> Any:
    """The value of a snapshot, once its checksum is found right; as a type of the caller's, if one is given."""
    if digest(text.encode()) != expected:
        raise DamagedPayload(what=what)
    return _decode(text) if as_ is None else decode_as(text, as_, what)


def decode(text: str) -> Any:
    return _decode(text)


def decode_as(text: str, as_: Any, what: str) -> Any:
    """The same as a type of the caller's: a Struct, a dataclass, ``list[int]`` …"""
    try:
        return msgspec.json.decode(text, type=as_)
    except msgspec.DecodeError as error:
        # Errors are logged and kept; what was stored is nobody's business there.
        reason = _unquoted(str(error))
        raise PayloadMismatch(what=what, type=getattr(as_, "__name__", str(as_)), reason=reason) from None
    except (TypeError, NameError) as error:
        reason = f"{shown(as_, repr)} is not a type to read {what} as: {shown(error, str)}"
        raise InvalidInput(reason=reason) from None


def _unquoted(reason: str) -> str:
    import re

    return re.sub(r"^(Invalid (?:enum )?value) .*?( - at `[^`]*`)?$", r"\1\2", reason, flags=re.DOTALL)


def check(text: str, expected: int, what: str) -> None:
    """Payload bytes escape SQLite's own integrity check, so every reader compares the checksum."""
    if crc32(text.encode()) != expected:
        raise DamagedPayload(what=what)


def open_value(text: str, expected: int, what: str, as_: Any = None) -> Any:
    """A value, once its checksum is found right; as a type of the caller's, if one is given."""
    check(text, expected, what)
    return _decode(text) if as_ is None else decode_as(text, as_, what)


def recheck(text: str) -> None:
    """JSON that comes from elsewhere must be what the bus itself takes, or nobody could read it."""
    try:
        encoded = text.encode()
        value = _decode(encoded)
        if _is_doubtful(encoded, value):
            _inspect(value, 0)
    except msgspec.DecodeError as error:
        raise InvalidPayload(reason=str(error)) from None
    except (UnicodeEncodeError, RecursionError) as error:
        raise _refusal(error) from None


def canonical(text: str) -> bytes:
    """The same bytes for the same JSON, whatever the order of its keys."""
    return _canonical(_decode(text))


def digest(encoded: bytes) -> str:
    """The SHA-256 of JSON."""
    # Imported only here: most of what the command line does needs no such thing.
    from hashlib import sha256

    return sha256(encoded).hexdigest()


def plain(value: Any) -> str:
    """JSON of something of our own: a list of parameters, the facts of an event."""
    return _encode(value).decode()


def plain_payload(value: Any) -> tuple[str, int]:
    """JSON of something of our own, with its checksum."""
    encoded = _encode(value)
    return encoded.decode(), crc32(encoded)


_REFUSED = (UnicodeEncodeError, msgspec.DecodeError, RecursionError, OverflowError, TypeError, ValueError)


def _refusal(error: Exception) -> InvalidPayload:
    """What is wrong with a value that cannot be encoded."""
    if isinstance(error, UnicodeEncodeError | msgspec.DecodeError):
        return InvalidPayload(reason=f"text that is not valid Unicode ({type(error).__name__})")
    if isinstance(error, RecursionError):
        return InvalidPayload(reason=f"it is nested more than {MAX_DEPTH} deep")
    return InvalidPayload(reason=shown(error, str))


def _is_doubtful(encoded: bytes, value: Any) -> bool:
    # Fewer bytes than that cannot be nested too deep; shorter numbers fit into 64 bits.
    deep = len(encoded) > 2 * MAX_DEPTH and encoded.count(b"[") + encoded.count(b"{") > MAX_DEPTH
    return deep or _LONG in encoded.translate(_DIGITS) or bool(_decode(encoded) != value)


def _builtins(value: Any) -> Any:
    """A copy made of nothing but dicts, lists, texts and numbers, infinite ones among them."""
    return msgspec.to_builtins(value, builtin_types=(float,), str_keys=False)


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
                raise InvalidPayload(reason=f"the key {shown(key, repr)} is not a text")
            _inspect(item, depth + 1)
    elif isinstance(value, list | tuple):
        if depth >= MAX_DEPTH:
            raise InvalidPayload(reason=f"it is nested more than {MAX_DEPTH} deep")
        for item in value:
            _inspect(item, depth + 1)
