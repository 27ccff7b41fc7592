"""Types of agents and messages, with the schemas of their payloads.

The sender validates payloads before the transaction: a check may take a second, and every writer would wait for it
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import decode
from agentbus.errors import AgentBusError, BuiltInType
from agentbus.operations.events import event, record
from agentbus.operations.protocol import Op, Outcome, Query, single_operation

if TYPE_CHECKING:
    from agentbus.records import TypeRecord


class DefineRequest(msgspec.Struct, frozen=True):
    """Define or change a type. An empty description or no schema leaves the present one; ``by`` is the agent that first
    used it."""

    kind: str
    name: str
    description: str = ""
    schema: str | None = None
    by: str | None = None


class Unchecked(AgentBusError):
    """The request was not written: the payload of ``item`` has not been validated against the current schema of its
    type. Internal: the sender validates against ``schemas``, those of all types of the request, and sends again."""

    code = "unchecked"
    text = "message {item} is not known to fit the schema of {type!r}"


@single_operation(durable=True, stores_data=True)
def define(request: DefineRequest, now: Now) -> Op[Outcome[None]]:
    """Define or change types. An identical definition records no event."""
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
        change = event(now.wall, "type_changed", subject, request.by, changed=changed)
    else:
        change = event(now.wall, "type_defined", subject, request.by, schema=schema is not None)
    yield from record([change])
    return None


def list_types(kind: str | None, now: Now) -> Op[list[TypeRecord]]:
    from agentbus.records import TypeRecord

    rows = yield Query("type_list", (kind,))
    return [
        TypeRecord(kind, name, bool(builtin), description, None if schema is None else decode(schema), created)
        for kind, name, builtin, description, schema, created in rows
    ]
