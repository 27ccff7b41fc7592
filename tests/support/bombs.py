"""Archives that inflate to far more than they are."""

from __future__ import annotations

import zlib
from pathlib import Path

MB = 1024 * 1024
HEADER = b'{"record": "archive", "format": 1, "created": 1}\n'


def member(*parts: bytes) -> bytes:
    """A gzip member of these parts."""
    deflater = zlib.compressobj(wbits=31)
    return b"".join(deflater.compress(part) for part in parts) + deflater.flush()


def overlapping(path: Path, headers: int, inflated: int) -> Path:
    """A whole member, then headers one inside the other, before one stream of zeros whose checksum is wrong.

    Each header has an extra field that covers the headers behind it.
    """
    deflater = zlib.compressobj(wbits=-15)
    # After a full flush the same megabyte can be said again.
    stream = (deflater.compress(bytes(MB)) + deflater.flush(zlib.Z_FULL_FLUSH)) * (inflated // MB) + deflater.flush()
    nested = [
        b"\x1f\x8b\x08\x04\0\0\0\0\0\xff" + (12 * (headers - number)).to_bytes(2, "little")
        for number in range(1, headers + 1)
    ]
    path.write_bytes(member(HEADER) + b"".join(nested) + stream + b"\1" * 8)
    return path
