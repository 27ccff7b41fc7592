"""Post a notification to a URL of the user, in the form of Standard Webhooks.

The host is resolved once, every address is checked, and the connection is made to the address that was checked: a name
server that answers differently the next time changes nothing. TLS verifies the name of the host all the same. Redirects
are not followed, proxies of the environment are not used, and of the response only the status and Retry-After are read.

An error names what happened, never the URL, a header or the body: any of them may be a secret.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from hmac import digest
from ipaddress import ip_address
from typing import TypeAlias

import anyio.to_thread
import msgspec

from agentbus.core.network import parse_networks, refusal
from agentbus.core.notification_settings import Target, Webhook, parse_url, secret_key

Resolved: TypeAlias = list[tuple[int, str, tuple[str, int] | tuple[str, int, int, int]]]
"""Address families, addresses, and what a socket connects to."""
_MAX_HEAD = 64 * 1024
"""Bytes of a response that are read at most."""
_MAX_INTERIM = 10
"""Interim responses (1xx) before the final one."""


class Delivery(msgspec.Struct, frozen=True):
    """The outcome of an attempt. ``after``: the milliseconds that the receiver asked to wait; ``final``: it wants no
    further attempt."""

    error: str | None = None
    after: int = 0
    final: bool = False
    output: str | None = None


class Refused(Exception):
    """The request cannot be made, or has no valid response. Its text may be stored and shown."""


def resolve(host: str, port: int) -> Resolved:
    """Return the addresses of a host. No other function of this module resolves a name."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [(family, str(address[0]), address) for family, _, _, _, address in found]  # type: ignore[misc]


async def post(webhook: Webhook, id: str, body: bytes) -> Delivery:
    """Post a notification, and return what became of it. Never raises but for cancellation."""
    try:
        async with asyncio.timeout(webhook.timeout):
            return await _post(webhook, id, body)
    except TimeoutError:
        return Delivery(f"no response within {webhook.timeout:g} s")
    except Refused as error:
        return Delivery(str(error))
    except ssl.SSLCertVerificationError as error:
        # The host name follows the comma.
        return Delivery(f"the certificate was refused: {error.verify_message.partition(',')[0]}")
    except ssl.SSLError as error:
        return Delivery(f"TLS failed: {error.reason or 'no reason given'}")
    except socket.gaierror:
        return Delivery("the name of the host was not resolved")
    except OSError as error:
        return Delivery(f"no connection: {os.strerror(error.errno) if error.errno else type(error).__name__}")


async def _post(webhook: Webhook, id: str, body: bytes) -> Delivery:
    target, key, context = _prepare(webhook)
    connected = await _connect(webhook, target)
    try:
        reader, writer = await asyncio.open_connection(
            sock=connected,
            ssl=await anyio.to_thread.run_sync(context_of, webhook) if context else None,
            server_hostname=target.host if context else None,
            limit=_MAX_HEAD,
        )
    except BaseException:
        connected.close()
        raise
    try:
        writer.write(_request(webhook, target, key, id, body))
        await writer.drain()
        return await _response(reader)
    finally:
        # Not closed in order: the rest of the response is of no interest.
        writer.transport.abort()


def _prepare(webhook: Webhook) -> tuple[Target, bytes | None, bool]:
    try:
        target = parse_url(webhook.url)
        return target, secret_key(webhook), target.scheme == "https"
    except ValueError as error:
        raise Refused(f"the settings are invalid: {error}") from None


async def _connect(webhook: Webhook, target: Target) -> socket.socket:
    """Return a connection to an address of the host, all of which must be allowed."""
    found = await anyio.to_thread.run_sync(resolve, target.host, target.port, abandon_on_cancel=True)
    check_addresses(webhook, [address for _, address, _ in found])
    failure: OSError = OSError("no address")
    loop = asyncio.get_running_loop()
    for family, _, endpoint in found:
        one = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            one.setblocking(False)
            await loop.sock_connect(one, endpoint)
        except OSError as error:
            one.close()
            failure = error
        except BaseException:
            one.close()
            raise
        else:
            return one
    raise failure


def check_addresses(webhook: Webhook, addresses: Sequence[str]) -> None:
    """Refuse addresses that are neither public nor allowed."""
    allowed = parse_networks(webhook.allow)
    for address in addresses:
        reason = refusal(address, allowed)
        if reason is not None:
            raise Refused(f"the address of the host is {reason}; if that is intended, add it to allow in the settings")


def check_host(webhook: Webhook) -> None:
    """Refuse a URL whose host is such an address. A name is not resolved."""
    host = parse_url(webhook.url).host
    try:
        ip_address(host)
    except ValueError:
        return
    check_addresses(webhook, [host])


def context_of(webhook: Webhook) -> ssl.SSLContext:
    """Return the TLS settings: the system's certificate authorities, or the user's own file."""
    try:
        file = None if webhook.ca_file is None else os.path.expanduser(webhook.ca_file)
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        raise Refused(f"ca_file cannot be read: {error.strerror or type(error).__name__}") from None


def _request(webhook: Webhook, target: Target, key: bytes | None, id: str, body: bytes) -> bytes:
    timestamp = str(int(time.time()))
    headers = {
        "Host": target.authority,
        "User-Agent": "agentbus",
        "Accept": "*/*",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        "webhook-id": id,
        "webhook-timestamp": timestamp,
    }
    if key is not None:
        headers["webhook-signature"] = sign(key, id, timestamp, body)
    lines = [
        f"POST {target.path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in (headers | webhook.headers).items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def sign(key: bytes, id: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a notification, as Standard Webhooks defines it.

    >>> from base64 import b64decode
    >>> key = b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    >>> sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
    'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='
    """
    return "v1," + b64encode(digest(key, f"{id}.{timestamp}.".encode() + body, sha256)).decode()


async def _response(reader: asyncio.StreamReader) -> Delivery:
    """Read the status of the response; the rest of it is not read."""
    try:
        for _ in range(_MAX_INTERIM):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status, headers = _parse(head)
            if status >= 200:
                break
        else:
            raise Refused("the response does not end")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise Refused("the response is not HTTP, or too long") from None
    if 200 <= status < 300:
        return Delivery()
    note = "; redirects are not followed" if 300 <= status < 400 else ""
    return Delivery(f"HTTP status {status}{note}", _retry_after(headers), final=status == 410)


def _parse(head: str) -> tuple[int, dict[str, str]]:
    first, *lines = head.split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest[:3]
    if version not in {"HTTP/1.1", "HTTP/1.0"} or not (code.isascii() and code.isdigit() and len(code) == 3):
        raise Refused("the response is not HTTP")
    pairs = (line.partition(":") for line in lines)
    return int(code), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _retry_after(headers: dict[str, str]) -> int:
    """Return the milliseconds that a receiver asks to wait: seconds, or a date."""
    text = headers.get("retry-after", "")
    if text.isascii() and text.isdigit():
        return min(int(text[:9]), 10**6) * 1000
    from email.utils import parsedate_to_datetime

    try:
        return max(0, round((parsedate_to_datetime(text).timestamp() - time.time()) * 1000))
    except (ValueError, TypeError, OverflowError):
        return 0
