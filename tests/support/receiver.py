"""A real HTTP server on loopback that receives webhooks, and the settings of a user that name it."""

from __future__ import annotations

import asyncio
import hmac
import json
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

CERTIFICATES = Path(__file__).parent / "certificates"
SECRET = "whsec_" + b64encode(b"0123456789abcdef0123456789abcdef").decode()
HOST = "hooks.example.org"
"""The name in the certificate."""
OK = b"HTTP/1.1 204 No Content\r\n\r\n"


class Request:
    """A request: its first line, headers by small name, and body."""

    def __init__(self, head: str, body: bytes) -> None:
        self.first, *lines = head.split("\r\n")
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        self.raw = body

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.raw)
        return found

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def is_signed(self, secret: str = SECRET) -> bool:
        """Verify the signature as a receiver would, by the text of Standard Webhooks."""
        key = b64decode(secret.removeprefix("whsec_"))
        content = f"{self.id}.{self.headers['webhook-timestamp']}.".encode() + self.raw
        wanted = "v1," + b64encode(hmac.new(key, content, sha256).digest()).decode()
        return hmac.compare_digest(wanted, self.headers["webhook-signature"])


class Receiver:
    """Answers each request with the next of ``answers``, then with 204. None answers nothing until the end."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.answers: list[bytes | None] = []
        self.port = 0
        self._news = asyncio.Event()
        self.names: list[str | None] = []
        """The names that TLS clients asked for."""

    @property
    def kinds(self) -> list[str]:
        return [request.body["kind"] for request in self.requests]

    async def received(self, count: int, seconds: float = 60) -> None:
        """Wait until there were this many requests."""
        async with asyncio.timeout(seconds):
            while len(self.requests) < count:
                self._news.clear()
                await self._news.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().removesuffix("\r\n\r\n")
            request = Request(head, b"")
            request.raw = await reader.readexactly(int(request.headers["content-length"]))
            self.requests.append(request)
            self._news.set()
            answer = self.answers.pop(0) if self.answers else OK
            if answer is None:
                await reader.read()
            else:
                writer.write(answer)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def receiving(*, tls: bool = False) -> AsyncIterator[Receiver]:
    """A server for the length of a block."""
    receiver = Receiver()
    context = None
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERTIFICATES / "server.pem")
        context.sni_callback = lambda _, name, __: receiver.names.append(name)
    server = await asyncio.start_server(receiver._answer, "127.0.0.1", 0, ssl=context)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()


def status(code: int, **headers: str) -> bytes:
    """A response with a status and headers."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {code} Some Reason\r\n{lines}Content-Length: 0\r\n\r\n".encode()


class UserSettings:
    """The file of a user's notifiers."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "agentbus" / "notifications.toml"

    def write(self, text: str, mode: int = 0o600) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(text)
        self.path.chmod(mode)

    def webhook(self, port: int, *, name: str = "ops", buses: str = "*", **options: Any) -> None:
        """Set one webhook up that is allowed on loopback, and may be slow: a lease is 90 seconds."""
        given: Mapping[str, Any] = {
            "url": f"http://127.0.0.1:{port}/hook", "secret": SECRET, "buses": [buses], "allow": ["127.0.0.1"],
            "timeout": 60,
            **options,
        }  # fmt: skip
        lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in given.items())
        self.write(f'owner = "ada"\n[webhook.{name}]\n{lines}\n')


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UserSettings:
    """The settings of a user without any."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return UserSettings(tmp_path / "config")
