"""Tokens of HTTP clients: stored as hashes, with a role and the operator who is responsible for each."""

from __future__ import annotations

import msgspec

from agentbus.core.clock import Now
from agentbus.errors import UnknownToken
from agentbus.operations.events import event, record
from agentbus.operations.protocol import Op, Outcome, Query, single_operation
from agentbus.records.access import TokenRecord

_SUBJECT = ("bus", "tokens")


class CreateTokenRequest(msgspec.Struct, frozen=True):
    """A token to store; ``lifetime`` is in milliseconds, None for no end."""

    id: str
    hash: str
    role: str
    operator: str
    lifetime: int | None = None
    by: str | None = None


class RevokeTokenRequest(msgspec.Struct, frozen=True):
    """A token to delete."""

    id: str
    by: str | None = None


@single_operation(durable=True)
def create_token(request: CreateTokenRequest, now: Now) -> Op[Outcome[TokenRecord]]:
    """Store the hash of a token."""
    expires = None if request.lifetime is None else now.wall + request.lifetime
    made = TokenRecord(request.id, request.role, request.operator, now.wall, expires)
    yield Query("token_insert", (request.id, request.hash, request.role, request.operator, now.wall, expires))
    facts = {"token": made.id, "role": made.role, "operator": made.operator}
    yield from record([event(now.wall, "token_created", _SUBJECT, request.by, **facts)])
    return made


@single_operation(durable=True)
def revoke_token(request: RevokeTokenRequest, now: Now) -> Op[Outcome[TokenRecord]]:
    """Delete a token: its next request is refused."""
    rows = yield Query("token_delete", (request.id,))
    if not rows:
        return UnknownToken(token=request.id)
    gone = TokenRecord(*rows[0])
    facts = {"token": gone.id, "role": gone.role, "operator": gone.operator}
    yield from record([event(now.wall, "token_revoked", _SUBJECT, request.by, **facts)])
    return gone


def find_token(hash: str, now: Now) -> Op[TokenRecord | None]:
    """Return the token with this hash; None if there is none, or it has expired."""
    rows = yield Query("token_find", (hash,))
    found = TokenRecord(*rows[0]) if rows else None
    return None if found is None or (found.expires is not None and found.expires <= now.wall) else found


def list_tokens(_: None, now: Now) -> Op[list[TokenRecord]]:
    """Return all tokens, oldest first."""
    return [TokenRecord(*row) for row in (yield Query("token_list"))]
