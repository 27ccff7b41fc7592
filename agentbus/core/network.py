"""Addresses that a request out of this machine may go to: public ones, and those that the user allows.

An address is checked after the name was resolved, so that no spelling of a host (``0177.0.0.1``, ``2130706433``) and no
answer of a name server leads elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

IPAddress: TypeAlias = IPv4Address | IPv6Address
IPNetwork: TypeAlias = IPv4Network | IPv6Network

# The registries of special-purpose addresses (RFC 6890 and its successors), multicast and reserved ranges. Written out,
# because the answers of the module ipaddress differ between versions of Python.
_SPECIAL = {
    "0.0.0.0/8": "unspecified", "10.0.0.0/8": "private", "100.64.0.0/10": "shared by a carrier",
    "127.0.0.0/8": "loopback", "169.254.0.0/16": "link-local", "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved", "192.0.2.0/24": "reserved", "192.31.196.0/24": "reserved",
    "192.52.193.0/24": "reserved", "192.88.99.0/24": "reserved", "192.168.0.0/16": "private",
    "192.175.48.0/24": "reserved", "198.18.0.0/15": "reserved", "198.51.100.0/24": "reserved",
    "203.0.113.0/24": "reserved", "224.0.0.0/4": "multicast", "240.0.0.0/4": "reserved",
    "::/128": "unspecified", "::1/128": "loopback", "fc00::/7": "private", "fe80::/10": "link-local",
    "fec0::/10": "private", "ff00::/8": "multicast", "2001::/23": "reserved", "2001:db8::/32": "reserved",
    "2002::/16": "reserved", "2620:4f:8000::/48": "reserved", "3fff::/20": "reserved",
}  # fmt: skip
_RANGES = [(ip_network(network), reason) for network, reason in _SPECIAL.items()]
_GLOBAL = IPv6Network("2000::/3")
"""All public addresses of version 6."""
_NAT64 = IPv6Network("64:ff9b::/96")
"""Addresses of version 4 as a network without version 4 shows them."""


def parse_networks(texts: Sequence[str]) -> tuple[IPNetwork, ...]:
    """Return networks, each written as ``10.0.0.0/8``, or one address as ``127.0.0.1``. Raises ValueError."""
    return tuple(ip_network(text) for text in texts)


def refusal(address: str, allowed: Sequence[IPNetwork]) -> str | None:
    """Return the reason why no request may go to an address; None if it is public or allowed.

    >>> refusal("127.0.0.1", ()), refusal("::ffff:10.0.0.1", ()), refusal("1.1.1.1", ())
    ('loopback', 'private', None)
    >>> refusal("127.0.0.1", parse_networks(["127.0.0.0/8"]))
    """
    # An address of this link names its interface after a %.
    found = _unwrapped(ip_address(address.partition("%")[0]))
    if any(found.version == network.version and found in network for network in allowed):
        return None
    for network, reason in _RANGES:
        if found.version == network.version and found in network:
            return reason
    return "reserved" if isinstance(found, IPv6Address) and found not in _GLOBAL else None


def _unwrapped(address: IPAddress) -> IPAddress:
    """Return the address of version 4 that an address of version 6 stands for, if it does."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address
