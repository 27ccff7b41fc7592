"""Addresses that a webhook may go to: public ones, in whatever form they are written."""

from __future__ import annotations

import socket

import pytest

from agentbus.core.network import parse_networks, refusal

REFUSED = {
    "127.0.0.1": "loopback", "127.255.255.254": "loopback", "::1": "loopback", "::ffff:127.0.0.1": "loopback",
    "::ffff:7f00:1": "loopback", "64:ff9b::7f00:1": "loopback", "0.0.0.0": "unspecified", "0.1.2.3": "unspecified",  # noqa: S104
    "::": "unspecified", "::ffff:0.0.0.0": "unspecified", "10.0.0.1": "private", "172.16.0.1": "private",
    "172.31.255.255": "private", "192.168.1.1": "private", "64:ff9b::a00:1": "private", "fd00:ec2::254": "private",
    "fec0::1": "private", "169.254.169.254": "link-local", "::ffff:169.254.169.254": "link-local",
    "fe80::1": "link-local", "fe80::1%eth0": "link-local", "100.64.0.1": "shared by a carrier",
    "100.127.255.255": "shared by a carrier", "224.0.0.1": "multicast", "239.255.255.255": "multicast",
    "ff02::1": "multicast", "255.255.255.255": "reserved", "240.0.0.1": "reserved", "192.0.2.1": "reserved",
    "198.18.0.1": "reserved", "192.88.99.1": "reserved", "2001:db8::1": "reserved", "2002:7f00:1::": "reserved",
    "2001::1": "reserved", "::127.0.0.1": "reserved", "64:ff9b:1::7f00:1": "reserved", "100::1": "reserved",
    "5f00::1": "reserved", "4000::1": "reserved",
}  # fmt: skip
PUBLIC = (
    "1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0",
    "223.255.255.255", "::ffff:1.1.1.1", "64:ff9b::101:101", "2606:4700:4700::1111", "2a00::1",
)  # fmt: skip


def test_addresses_that_are_not_public_are_refused_in_every_form() -> None:
    assert {address: refusal(address, ()) for address in REFUSED} == REFUSED
    assert {address: refusal(address, ()) for address in PUBLIC} == dict.fromkeys(PUBLIC)


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0177.0.0.1", "0x7f000001", "0x7f.1", "017700000001", "0"])
def test_a_spelling_that_the_resolver_accepts_is_refused_like_the_address(host: str) -> None:
    found = socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM)
    assert {refusal(str(address[0]), ()) for *_, address in found} <= {"loopback", "unspecified"}


def test_only_what_the_user_allows_is_excepted() -> None:
    allowed = parse_networks(["10.1.0.0/16", "::1"])
    assert [refusal(address, allowed) for address in ("10.1.2.3", "::ffff:10.1.2.3", "::1")] == [None, None, None]
    assert [refusal(address, allowed) for address in ("10.2.0.1", "127.0.0.1")] == ["private", "loopback"]
    with pytest.raises(ValueError, match="host bits"):
        parse_networks(["10.1.2.3/8"])
