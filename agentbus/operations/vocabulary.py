"""The vocabulary: which names agents and messages may have as their type, and what their payloads must fit.

Whether a payload fits is found out before, by whoever sends it: a check may take a second, and here everybody waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agentbus.clock import Now
from agentbus.codec import decode
from agentbus.errors import AgentBusError, BuiltInType
from agentbus.operations import Op, Outcome, Query, one_by_one
from agentbus.operations.events import event, record

if TYPE_CHECKING:
    from agentbus.records import TypeRecord


class DefineRequest(msgspec.Struct, frozen=True):
    """A type to be known from now on. An empty description and no schema leave what is there; ``by`` is the agent
    that used it for the first time."""

    kind: str
    name: str
    description: str = ""
    schema: str | None = None
    by: str | None = None


class Unchecked(AgentBusError):
    """Nothing of this request was written: a payload (``item``) is not known to fit the schema that its type has now.

    No caller sees it: the sender learns ``schemas``, those of all types of the request, checks, and sends again.
    """

    code = "unchecked"
    text = "message {item} is not known to fit the schema of {type!r}"


@one_by_one(durable=True, grows=True)
def define(request: DefineRequest, now: Now) -> Op[Outcome[None]]:
    """Add types to the vocabulary, or change them. What is so already is no news."""
    rows = yield Query("type_get", (request.kind, request.name))
    builtin, description, schema = rows[0] if rows else (0, "", None)
    if builtin:
        same = request.schema is None and request.description in {"", description}
        return None if same else BuiltInType(kind=request.kind, name=request.name)
    changed: list[str] = []
    if request.description and request.description != description:
        description = request.description
        changed.append("description")
    if request.schema is not None and request.schema != schema:
        schema = request.schema
        changed.append("schema")
    if rows and not changed:
        return None
    yield Query("type_define", (request.kind, request.name, description, schema, now.wall))
    subject = ("vocabulary", f"{request.kind}/{request.name}")
    if rows:
        trail = event(now.wall, "type_changed", subject, request.by, changed=changed)
    else:
        trail = event(now.wall, "type_defined", subject, request.by, schema=schema is not None)
    yield from record([trail])
    return None


def list_types(kind: str | None, now: Now) -> Op[list[TypeRecord]]:
    from agentbus.records import TypeRecord

    rows = yield Query("type_list", (kind,))
    return [
        TypeRecord(kind, name, bool(builtin), description, None if schema is None else decode(schema), created)
        for kind, name, builtin, description, schema, created in rows
    ]
