"""The JSON codec: finite numbers, valid Unicode, bounded depth and size, exact round trips.

Large values are inspected, hashed and decoded on a thread, so that they do not block the event loop.
"""

from __future__ import annotations

import math
from typing import Any
from zlib import crc32

import msgspec

from agentbus.core.threads import run_in_thread
from agentbus.core.validation import MAX_DEPTH
from agentbus.errors import (
    DamagedPayload,
    InvalidInput,
    InvalidPayload,
    PayloadMismatch,
    PayloadTooLarge,
    SnapshotTooLarge,
)
from agentbus.errors.base import shown

_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder().decode
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG = b"0" * 19

LARGE = 256 * 1024
"""Bytes of JSON that take a millisecond or more to inspect."""
_REFUSED = (UnicodeEncodeError, msgspec.DecodeError, RecursionError, OverflowError, TypeError, ValueError)


def encode(value: Any, limit: int) -> tuple[str, int]:
    """Return the JSON text of ``value`` and its checksum, or raise a named error.

    A value that decodes to an equal one is accepted at once. Others (tuples, Structs, dates; NaN, number keys) are
    inspected, because msgspec silently encodes NaN as null.
    """
    try:
        encoded = _encode(value)
        if len(encoded) > limit:
            raise PayloadTooLarge(size=len(encoded), limit=limit)
        if _needs_inspection(encoded, value):
            _inspect(_builtins(value), 0)
        return encoded.decode(), crc32(encoded)
    except InvalidInput:
        raise
    except _REFUSED as error:
        raise _refusal(error) from None


def encode_metadata(value: object, limit: int) -> str:
    """Return the JSON text of a caller's metadata, which must be a dict."""
    if not isinstance(value, dict):
        raise InvalidInput(reason="metadata must be a dict")
    return encode(value, limit)[0]


class Snapshot(msgspec.Struct, frozen=True):
    """The JSON of a value at one moment. A large one is not inspected until ``settle``."""

    encoded: bytes
    copy: Any = None

    @property
    def large(self) -> bool:
        return len(self.encoded) > LARGE

    def settle(self) -> tuple[str, str]:
        """Return its text and SHA-256, or raise the error that the inspection finds. May run on a thread."""
        if self.large:
            _inspect(self.copy, 0)
        return self.encoded.decode(), digest(self.encoded)


def snapshot(value: Any, limit: int) -> Snapshot:
    """Return the JSON of ``value`` as it is now, or raise a named error.

    Everything that needs the value itself is done here, so that the caller may change it afterwards. The rest takes ten
    times as long.
    """
    try:
        encoded = _encode(value)
        if len(encoded) > limit:
            raise SnapshotTooLarge(size=len(encoded), limit=limit)
        if len(encoded) > LARGE:
            return Snapshot(encoded, _builtins(value))
        if _needs_inspection(encoded, value):
            _inspect(_builtins(value), 0)
        return Snapshot(encoded)
    except InvalidInput:
        raise
    except _REFUSED as error:
        raise _refusal(error) from None


def verify_snapshot(text: str, expected: str, what: str, as_: Any = None) -> Any:
    """Verify the checksum of a snapshot and decode it, as the caller's type if one is given."""
    if digest(text.encode()) != expected:
        raise DamagedPayload(what=what)
    return _decode(text) if as_ is None else decode_as(text, as_, what)


def decode(text: str) -> Any:
    return _decode(text)


def decode_as(text: str, as_: Any, what: str) -> Any:
    """Decode JSON as the caller's type: a Struct, a dataclass, ``list[int]`` …"""
    try:
        return msgspec.json.decode(text, type=as_)
    except msgspec.DecodeError as error:
        # Errors are logged and stored; they must not reveal stored values.
        reason = _without_value(str(error))
        raise PayloadMismatch(what=what, type=getattr(as_, "__name__", str(as_)), reason=reason) from None
    except (TypeError, NameError) as error:
        reason = f"{shown(as_, repr)} is not a type to read {what} as: {shown(error, str)}"
        raise InvalidInput(reason=reason) from None


def _without_value(reason: str) -> str:
    import re

    return re.sub(r"^(Invalid (?:enum )?value) .*?( - at `[^`]*`)?$", r"\1\2", reason, flags=re.DOTALL)


def check(text: str, expected: int, what: str) -> None:
    """Verify the checksum of a payload: SQLite's own integrity check does not cover payload bytes."""
    if not is_intact(text, expected):
        raise DamagedPayload(what=what)


def is_intact(text: str, checksum: int) -> bool:
    """Return True if the text of a payload matches its checksum."""
    return crc32(text.encode()) == checksum


def verify_value(text: str, expected: int, what: str, as_: Any = None) -> Any:
    """Verify the checksum of a value and decode it, as the caller's type if one is given."""
    check(text, expected, what)
    return _decode(text) if as_ is None else decode_as(text, as_, what)


def check_json(text: str) -> None:
    """Check that foreign JSON meets the rules of this codec, so that every reader can decode it."""
    try:
        encoded = text.encode()
        value = _decode(encoded)
        if _needs_inspection(encoded, value):
            _inspect(value, 0)
    except msgspec.DecodeError as error:
        raise InvalidPayload(reason=str(error)) from None
    except (UnicodeEncodeError, RecursionError) as error:
        raise _refusal(error) from None


def canonical(text: str) -> bytes:
    """Return the same bytes for equal JSON, independent of the order of keys."""
    return _canonical(_decode(text))


def digest(encoded: bytes) -> str:
    """Return the SHA-256 of JSON."""
    # Imported only here: most commands do not need it.
    from hashlib import sha256

    return sha256(encoded).hexdigest()


def plain(value: Any) -> str:
    """Return the JSON of an internal value: a list of parameters, the facts of an event."""
    return _encode(value).decode()


def plain_payload(value: Any) -> tuple[str, int]:
    """Return the JSON of an internal value and its checksum."""
    encoded = _encode(value)
    return encoded.decode(), crc32(encoded)


def _refusal(error: Exception) -> InvalidPayload:
    """Return the error for a value that cannot be encoded."""
    if isinstance(error, UnicodeEncodeError | msgspec.DecodeError):
        return InvalidPayload(reason=f"text that is not valid Unicode ({type(error).__name__})")
    if isinstance(error, RecursionError):
        return InvalidPayload(reason=f"it is nested more than {MAX_DEPTH} deep")
    return InvalidPayload(reason=shown(error, str))


def _needs_inspection(encoded: bytes, value: Any) -> bool:
    # Fewer bytes than that cannot be nested too deep; shorter numbers fit into 64 bits.
    deep = len(encoded) > 2 * MAX_DEPTH and encoded.count(b"[") + encoded.count(b"{") > MAX_DEPTH
    return deep or _LONG in encoded.translate(_DIGITS) or bool(_decode(encoded) != value)


def _builtins(value: Any) -> Any:
    """Return a copy made of dicts, lists, strings and numbers (including infinite ones)."""
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


async def encode_snapshot(snapshot: Snapshot) -> tuple[str, str]:
    """Return the text and SHA-256 of a snapshot, on a thread if it is large."""
    return await run_in_thread(snapshot.settle) if snapshot.large else snapshot.settle()


async def decode_snapshot(text: str) -> Any:
    """Decode a snapshot, so that the result is independent of the caller's own value."""
    return decode(text) if len(text) <= LARGE else await run_in_thread(decode, text)


async def verify_and_decode(text: str, checksum: str, what: str, as_: Any = None) -> Any:
    """Verify the checksum of a stored snapshot and decode it, on a thread if it is large."""
    if len(text) <= LARGE:
        return verify_snapshot(text, checksum, what, as_)
    return await run_in_thread(verify_snapshot, text, checksum, what, as_)
