"""A webhook is posted to the address that was checked, over TLS for the name of the host, and nowhere else."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

import pytest

from agentbus.api import webhook as module
from agentbus.api.webhook import Delivery, Resolved, post
from agentbus.core.notification_settings import Webhook
from tests.support.cases import each
from tests.support.receiver import CERTIFICATES, HOST, OK, SECRET, Receiver, receiving, status

BODY = b'{"text": "payl0ad"}'
AUTHORITY = str(CERTIFICATES / "ca.pem")


def settings(url: str, **options: Any) -> Webhook:
    return Webhook(**{"url": url, "secret": SECRET, "buses": ["*"], "timeout": 20.0, "allow": ["127.0.0.1"], **options})


def resolving(*answers: str) -> Callable[[str, int], Resolved]:
    """A name server whose answer changes with each question; the last one stays."""
    left = list(answers)

    def resolve(host: str, port: int) -> Resolved:
        address = left.pop(0) if len(left) > 1 else left[0]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [(family, address, (address, port))]

    return resolve


async def test_a_notification_is_signed_and_has_the_headers_of_standard_webhooks() -> None:
    async with receiving() as receiver:
        url = f"http://127.0.0.1:{receiver.port}/hook?a=b"
        assert await post(settings(url, headers={"Authorization": "Bearer t"}), "id-1", BODY) == Delivery()
        (request,) = receiver.requests
    assert request.first == "POST /hook?a=b HTTP/1.1"
    assert (request.raw, request.id, request.is_signed()) == (BODY, "id-1", True)
    assert not request.is_signed(SECRET.replace("M", "N"))
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert request.headers["authorization"] == "Bearer t"
    assert request.headers["content-type"] == "application/json"


async def test_one_without_a_signature_has_none() -> None:
    async with receiving() as receiver:
        found = await post(settings(f"http://127.0.0.1:{receiver.port}/", secret=None, signed=False), "id-1", BODY)
        assert (found, "webhook-signature" in receiver.requests[0].headers) == (Delivery(), False)


async def test_tls_verifies_the_name_of_the_host_at_the_pinned_address(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolve(host: str, port: int) -> Resolved:
        asked.append(host)
        return [(socket.AF_INET, "127.0.0.1", ("127.0.0.1", port))]

    monkeypatch.setattr(module, "resolve", resolve)
    async with receiving(tls=True) as receiver:
        url = f"https://{HOST}:{receiver.port}/hook"
        assert await post(settings(url, ca_file=AUTHORITY), "id-1", BODY) == Delivery()
        assert (receiver.names, asked) == ([HOST], [HOST])
        assert receiver.requests[0].is_signed()
        # The same server under another name, and with the authorities of the system.
        other = await post(settings(url.replace("hooks", "other"), ca_file=AUTHORITY), "id-2", BODY)
        unknown = await post(settings(url), "id-3", BODY)
        assert other.error == "the certificate was refused: Hostname mismatch"
        assert unknown.error is not None
        assert unknown.error.startswith("the certificate was refused: ")
        assert len(receiver.requests) == 1
    missing = await post(settings(url, ca_file="/nowhere.pem"), "id-4", BODY)
    assert missing.error is not None


async def test_a_name_that_is_bound_to_another_address_meanwhile_leads_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first answer is public, every later one is loopback, where a server listens: it gets no connection."""
    async with receiving() as receiver:
        connected: list[Any] = []

        async def connect(self: Any, one: socket.socket, address: Any) -> None:
            connected.append(address)
            raise ConnectionRefusedError(111, "refused")

        monkeypatch.setattr(module, "resolve", resolving("1.1.1.1", "127.0.0.1"))
        monkeypatch.setattr(type(asyncio.get_running_loop()), "sock_connect", connect)
        found = await post(settings(f"http://rebound.example.org:{receiver.port}/", allow=[]), "id-1", BODY)
        assert (found.error, connected) == ("no connection: Connection refused", [("1.1.1.1", receiver.port)])
        assert receiver.connections == 0


@each("address, reason", [
    ("127.0.0.1", "loopback"), ("10.0.0.1", "private"), ("169.254.169.254", "link-local"), ("::1", "loopback"),
    ("::ffff:127.0.0.1", "loopback"), ("64:ff9b::7f00:1", "loopback"), ("100.64.1.1", "shared by a carrier"),
    ("0.0.0.0", "unspecified"), ("224.0.0.1", "multicast"), ("fd00::1", "private"), ("240.0.0.1", "reserved"),  # noqa: S104
])  # fmt: skip
async def test_an_address_that_is_not_public_is_refused(
    monkeypatch: pytest.MonkeyPatch, address: str, reason: str
) -> None:
    async with receiving() as receiver:
        monkeypatch.setattr(module, "resolve", resolving(address))
        found = await post(settings(f"http://inside.example.org:{receiver.port}/", allow=[]), "id-1", BODY)
        assert found.error is not None
        assert found.error.startswith(f"the address of the host is {reason};")
        assert (receiver.connections, found.final) == (0, False)


async def test_one_private_address_among_public_ones_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int) -> Resolved:
        return [(socket.AF_INET, one, (one, port)) for one in ("1.1.1.1", "127.0.0.1")]

    monkeypatch.setattr(module, "resolve", resolve)
    found = await post(settings("http://mixed.example.org/", allow=[]), "id-1", BODY)
    assert "loopback" in str(found.error)


@each("answer, error, after, final", [
    (status(200), None, 0, False),
    (status(202, Retry_After="7"), None, 0, False),
    (status(103) + OK, None, 0, False),
    (status(302, Location="http://127.0.0.1/s3cret"), "HTTP status 302; redirects are not followed", 0, False),
    (status(404), "HTTP status 404", 0, False),
    (status(410), "HTTP status 410", 0, True),
    (status(429, Retry_After="120"), "HTTP status 429", 120_000, False),
    (status(503, Retry_After="Thu, 01 Jan 1970 00:00:00 GMT"), "HTTP status 503", 0, False),
    (status(503, Retry_After="99999999999999999999"), "HTTP status 503", 1_000_000_000, False),
    (status(503, Retry_After="-5"), "HTTP status 503", 0, False),
    (status(503, Retry_After="soon"), "HTTP status 503", 0, False),
    (b"s3cret\r\n\r\n", "the response is not HTTP", 0, False),
    (b"HTTP/1.1 2x0 s3cret\r\n\r\n", "the response is not HTTP", 0, False),
    (b"HTTP/1.1 200 OK\r\n", "the response is not HTTP, or too long", 0, False),
    (b"", "the response is not HTTP, or too long", 0, False),
    (b"HTTP/1.1 200 OK\r\nX: " + b"s" * 200_000, "the response is not HTTP, or too long", 0, False),
    (status(100) * 50, "the response does not end", 0, False),
])  # fmt: skip
async def test_the_response_decides(answer: bytes, error: str | None, after: int, final: bool) -> None:
    async with receiving() as receiver:
        receiver.answers = [answer]
        found = await post(settings(f"http://127.0.0.1:{receiver.port}/s3cret"), "id-1", BODY)
        assert (found.error, found.after, found.final) == (error, after, final)
        # No redirect was followed.
        assert len(receiver.requests) == 1


async def test_a_server_that_does_not_answer_is_given_up_in_time() -> None:
    async with receiving() as receiver:
        receiver.answers = [None]
        found = await post(settings(f"http://127.0.0.1:{receiver.port}/", timeout=0.2), "id-1", BODY)
        assert found.error == "no response within 0.2 s"


async def test_an_answer_that_trickles_does_not_extend_the_time() -> None:
    async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not writer.is_closing():
                writer.write(b"H")
                await asyncio.sleep(0.01)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        found = await post(settings(f"http://127.0.0.1:{port}/", timeout=0.2), "id-1", BODY)
        assert found.error == "no response within 0.2 s"
    finally:
        server.close()


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as receiver, receiving() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert await post(settings(f"http://127.0.0.1:{receiver.port}/"), "id-1", BODY) == Delivery()
        assert (len(receiver.requests), proxy.connections) == (1, 0)


async def test_no_error_and_no_log_has_a_secret(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()

    def unknown(host: str, port: int) -> Resolved:
        raise socket.gaierror(-2, f"{host} is not known")

    async def failing(receiver: Receiver) -> list[str | None]:
        plain, shut = f"http://127.0.0.1:{receiver.port}/s3cret", f"http://127.0.0.1:{port}/s3cret"
        secure = f"https://127.0.0.1:{receiver.port}/s3cret"
        receiver.answers = [status(500), b"s3cret"]
        headers = {"Authorization": "s3cret"}
        found = [await post(settings(url, headers=headers), "id-1", BODY) for url in (plain, plain, shut)]
        # The server does not speak TLS, and waits.
        found.append(await post(settings(secure, timeout=0.2), "id-1", BODY))
        monkeypatch.setattr(module, "resolve", unknown)
        missing = await post(settings("http://s3cret.example.org/s3cret"), "id-1", BODY)
        no_secret = await post(settings(plain, secret=None, secret_variable="NOT_SET"), "id-1", BODY)
        return [one.error for one in (*found, missing, no_secret)]

    async with receiving() as receiver:
        errors = await failing(receiver)
    assert None not in errors
    shown = f"{errors}{caplog.text}"
    assert "s3cret" not in shown
    assert "payl0ad" not in shown
    assert SECRET not in shown
