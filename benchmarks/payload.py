"""The payload of every contestant: 256 bytes of JSON."""

from __future__ import annotations

import msgspec

SIZE = 256
PAYLOAD: dict[str, str] = {"text": "x" * (SIZE - len('{"text":""}'))}
TEXT = msgspec.json.encode(PAYLOAD).decode()
