"""Entity tags of responses, so that a client that has the current state receives no body."""

from __future__ import annotations

from hashlib import blake2b


def etag_of(content: bytes) -> str:
    """Return the entity tag of a response body.

    >>> etag_of(b"{}") == etag_of(b"{}"), etag_of(b"{}") == etag_of(b"[]")
    (True, False)
    """
    return f'"{blake2b(content, digest_size=16).hexdigest()}"'


def matches(etag: str, header: str | None) -> bool:
    """Return True if an If-None-Match header names this tag.

    >>> matches('"a"', 'W/"a", "b"'), matches('"a"', '"b"'), matches('"a"', "*")
    (True, False, True)
    """
    if header is None:
        return False
    tags = [one.strip().removeprefix("W/") for one in header.split(",")]
    return "*" in tags or etag in tags
