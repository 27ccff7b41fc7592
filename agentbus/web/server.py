"""Run the HTTP server: choose a port, guard connections, stop within two seconds, tell other commands where it is."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentbus.api.servers import announce, state_directory
from agentbus.core.validation import check_range
from agentbus.errors import InvalidInput
from agentbus.web.access import Access
from agentbus.web.app import LOOPBACK, MAX_HEADERS, MAX_STREAMS, Application

if TYPE_CHECKING:
    from agentbus import Bus

log = logging.getLogger("agentbus.web")

PORT = 8637
"""The default port: no service is registered for it."""
_PORTS = 100
"""Ports that are tried if the default one is taken."""
HEADER_TIMEOUT = 10.0
"""Seconds in which the headers of a request must arrive."""
KEEP_ALIVE = 30
MAX_CONNECTIONS = 1000
_MAX_BUFFERED = 64 * 1024
"""Bytes that are written at once, without waiting for more."""
_GRACE = 1
"""Seconds for requests under way when the server stops. Streams end at once."""
_STOP = 1.8
"""Seconds after which the server is stopped, whatever is under way."""


class ServerSettings(msgspec.Struct, frozen=True):
    """The options of ``agentbus serve``. ``port`` None: the default one, or the next that is free."""

    host: str = "127.0.0.1"
    port: int | None = None
    read_only: bool = False
    base_path: str = ""
    allowed_hosts: tuple[str, ...] = ()
    monitor: bool = True
    max_streams: int = MAX_STREAMS
    mcp_decisions: bool = False

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK or _is_loopback(self.host)


class Ready(msgspec.Struct, frozen=True):
    """The server accepts requests at ``url``; ``login`` hands the token over in its fragment, which is never sent.
    ``page`` is the path of the file by which a browser is opened."""

    url: str
    login: str
    port: int
    page: str


async def serve(
    bus: Bus,
    settings: ServerSettings,
    operator: str,
    ready: Callable[[Ready], object],
    *,
    location: str = "",
    prime: Callable[[], str] | None = None,
) -> None:
    """Serve a bus until cancelled. ``operator`` is the person who holds the token of the server; ``prime`` returns the
    instructions for agents."""
    _check_base_path(settings.base_path)
    bus_id = await bus.read_id()
    access = Access(bus, bus_id, operator, Path(state_directory(bus_id)))
    listener = listen(settings.host, settings.port)
    port = listener.getsockname()[1]
    url = _url(settings, port)
    app = Application(
        bus,
        bus_id,
        access,
        location=location,
        read_only=settings.read_only,
        base_path=settings.base_path,
        hosts=_hosts(settings),
        any_address=not settings.is_loopback,
        max_streams=settings.max_streams,
        mcp_decisions=settings.mcp_decisions,
        prime=prime,
    )
    server = _Server(_config(app))
    async with AsyncExitStack() as stack:
        stack.callback(listener.close)
        stack.push_async_callback(app.live.close)
        stack.push_async_callback(app.shared.close)
        await stack.enter_async_context(app.rates)
        if settings.monitor:
            await stack.enter_async_context(bus.monitor())
        task = asyncio.create_task(server.serve(sockets=[listener]), name="agentbus web")
        stack.push_async_callback(_stop, server, app, task)
        await asyncio.wait({task, asyncio.ensure_future(server.accepting.wait())}, return_when=asyncio.FIRST_COMPLETED)
        stack.callback(_remove, announce(bus_id, url))
        page = os.path.join(state_directory(bus_id), f"open-{os.getpid()}.html")
        stack.callback(_remove, page)
        ready(Ready(url, f"{url}#token={access.secret}", port, page))
        await asyncio.shield(task)


async def _stop(server: _Server, app: Application, task: asyncio.Task[None]) -> None:
    app.stopping.set()
    server.should_exit = True
    with suppress(TimeoutError, asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(task), _STOP)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class _Server(uvicorn.Server):
    """A server that leaves signals to the command that runs it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _BufferedTransport:
    """A transport that writes together what is written in one step of the event loop: the head of a response and its
    body, which uvicorn writes apart."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > _MAX_BUFFERED:
            self.flush()

    def flush(self) -> None:
        if self._parts:
            content = b"".join(self._parts)
            self._parts, self._size = [], 0
            self._transport.write(content)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._parts.clear()
        self._transport.abort()


class _TimedProtocol(H11Protocol):
    """Closes a connection whose headers do not arrive in time: uvicorn would wait indefinitely."""

    _timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # The access log would contain the queries of requests.
        self.access_log = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_BufferedTransport(transport, self.loop))  # type: ignore[arg-type]
        self._arm()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._arm()
        else:
            self._disarm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEADER_TIMEOUT, self._on_timeout)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.abort()


def _config(app: Application) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_TimedProtocol,
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=_GRACE,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEADERS,
    )


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens: at the port, or without one at the default port or the next free one."""
    # The system would take a greater number modulo 65536.
    ports = range(PORT, PORT + _PORTS) if port is None else (check_range(port, "port", 0, 65535),)
    for number in ports:
        try:
            return _bind(host, number)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port is None:
                continue
            reason = error.strerror or str(error)
            advice = "pass another port, or none: then it is the next free one"
            raise InvalidInput(reason=f"cannot listen at {host}:{number}: {reason}", advice=advice) from None
    return _bind(host, 0)


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]  # fmt: skip
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(512)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _check_base_path(path: str) -> None:
    plain = path.replace("/", "").replace("-", "").replace("_", "")
    if path and (not path.startswith("/") or path.endswith("/") or not (plain.isascii() and plain.isalnum())):
        raise InvalidInput(reason=f"the base path {path!r} must be like /agents, of letters, digits, -, _ and /")


def _hosts(settings: ServerSettings) -> frozenset[str]:
    """Return the names that a Host header may have."""
    own = set() if settings.host in {"", "0.0.0.0", "::"} else {settings.host.lower()}  # noqa: S104 - not bound here
    return LOOPBACK | own | {name.lower() for name in settings.allowed_hosts}


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _url(settings: ServerSettings, port: int) -> str:
    host = "127.0.0.1" if settings.host in {"", "0.0.0.0"} else "::1" if settings.host == "::" else settings.host  # noqa: S104
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{settings.base_path}/"


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def log_to(handler: logging.Handler) -> None:
    """Send the warnings of the server to a handler, without requests: they may name secrets."""
    for name in ("uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(logging.ERROR)


def open_in_browser(ready: Ready) -> None:
    """Open the dashboard in the user's browser, by way of a private file: the arguments of a process, which other users
    can see, do not have the token."""
    import webbrowser
    from html import escape

    with suppress(OSError):
        os.unlink(ready.page)
    descriptor = os.open(ready.page, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(ready.login)}">')
    webbrowser.open(Path(ready.page).as_uri())
