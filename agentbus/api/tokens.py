"""``bus.tokens``: the tokens of HTTP clients. Imports no event loop: the command line creates and revokes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentbus.core.addresses import check_agent
from agentbus.core.validation import check_name, check_seconds, check_text
from agentbus.errors import OutOfRange
from agentbus.operations.tokens import (
    CreateTokenRequest,
    RevokeTokenRequest,
    create_token,
    find_token,
    list_tokens,
    revoke_token,
)
from agentbus.records.access import NewToken

if TYPE_CHECKING:
    from agentbus.engine.interface import Engine
    from agentbus.records import TokenRecord

PREFIX = "ab_"
"""Marks a secret as a token of agentbus, so that scanners find one that was published."""
_BYTES = 32


class Tokens:
    """The tokens of HTTP clients: stored as hashes, so that reading the bus admits no one.

    >>> made = await bus.tokens.create("read", operator="ada")                        # doctest: +SKIP
    >>> made.secret                                                                   # doctest: +SKIP
    'ab_…'
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def create(
        self, role: str, *, operator: str, expires: float | None = None, by: str | None = None
    ) -> NewToken:
        """Create a token: ``read``, ``operate``, or ``agent:<id>``, which acts as that agent only and never approves.

        ``operator`` is the person who is responsible for it, and whose name the audit log shows. It ends after
        ``expires`` seconds, or never. The secret is returned once, and not stored.

        >>> (await bus.tokens.create("agent:planner-1", operator="ada")).token.id     # doctest: +SKIP
        't-5f2c81d0'
        """
        secret = new_secret()
        made = await self._engine.write(
            create_token,
            CreateTokenRequest(
                f"t-{os.urandom(4).hex()}",
                hash_secret(secret),
                check_role(role),
                check_text(operator, "operator", 200, low=1),
                None if expires is None else check_seconds(expires, "expires"),
                by,
            ),
        )
        return NewToken(made, secret)

    async def list(self) -> Sequence[TokenRecord]:
        """Return the tokens, oldest first, without their secrets.

        >>> [token.operator for token in await bus.tokens.list()]                     # doctest: +SKIP
        ['ada']
        """
        return await self._engine.read(list_tokens, None)

    async def find(self, hash: str) -> TokenRecord | None:
        """Return the token whose secret has this hash (``hash_secret``); None if there is none, or it has expired.

        >>> await bus.tokens.find(hash_secret("ab_…"))                                # doctest: +SKIP
        """
        return await self._engine.read_inline(find_token, hash)

    async def revoke(self, token: str, *, by: str | None = None) -> TokenRecord:
        """Revoke a token by its id: its next request is refused.

        >>> await bus.tokens.revoke("t-5f2c81d0")                                     # doctest: +SKIP
        """
        return await self._engine.write(revoke_token, RevokeTokenRequest(check_name(token, "token"), by))


def check_role(role: object) -> str:
    """Return a valid role: read, operate, or agent:<id>."""
    if isinstance(role, str) and role.startswith("agent:"):
        return f"agent:{check_agent(role.removeprefix('agent:'))}"
    if role not in ("read", "operate"):
        advice = "read shows the bus, operate also changes it, agent:planner-1 acts as that agent"
        raise OutOfRange(what="role", value=role, allowed="read, operate, or agent:<id>", advice=advice)
    return str(role)


def new_secret() -> str:
    """Return a new random secret."""
    from base64 import urlsafe_b64encode

    return PREFIX + urlsafe_b64encode(os.urandom(_BYTES)).decode().rstrip("=")


def hash_secret(secret: str) -> str:
    """Return the hash under which a secret is stored. A random secret of 256 bits needs no slow hash."""
    from hashlib import sha256

    return sha256(secret.encode("utf-8", "backslashreplace")).hexdigest()
