"""``bus.tokens``: the tokens of HTTP clients. Imports no event loop: the command line creates and revokes them.

Written by ``make sync`` from ``agentbus.api.tokens``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.api import tokens as api
from agentbus.sync.client.base import Wrapper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.records import TokenRecord
    from agentbus.records.access import NewToken


class Tokens(Wrapper[api.Tokens], wraps=api.Tokens):
    """The tokens of HTTP clients: stored as hashes, so that reading the bus admits no one.

    >>> made = bus.tokens.create("read", operator="ada")                        # doctest: +SKIP
    >>> made.secret                                                                   # doctest: +SKIP
    'ab_…'
    """

    __slots__ = ()

    def create(self, role: str, *, operator: str, expires: float | None = None, by: str | None = None) -> NewToken:
        """Create a token: ``read``, ``operate``, or ``agent:<id>``, which acts as that agent only and never approves.

        ``operator`` is the person who is responsible for it, and whose name the audit log shows. It ends after
        ``expires`` seconds, or never. The secret is returned once, and not stored.

        >>> bus.tokens.create("agent:planner-1", operator="ada").token.id     # doctest: +SKIP
        't-5f2c81d0'
        """
        return self._call(self._inner.create, role, operator=operator, expires=expires, by=by)

    def list(self) -> Sequence[TokenRecord]:
        """Return the tokens, oldest first, without their secrets.

        >>> [token.operator for token in bus.tokens.list()]                     # doctest: +SKIP
        ['ada']
        """
        return self._call(self._inner.list)

    def find(self, hash: str) -> TokenRecord | None:
        """Return the token whose secret has this hash (``hash_secret``); None if there is none, or it has expired.

        >>> bus.tokens.find(hash_secret("ab_…"))                                # doctest: +SKIP
        """
        return self._call(self._inner.find, hash)

    def revoke(self, token: str, *, by: str | None = None) -> TokenRecord:
        """Revoke a token by its id: its next request is refused.

        >>> bus.tokens.revoke("t-5f2c81d0")                                     # doctest: +SKIP
        """
        return self._call(self._inner.revoke, token, by=by)
