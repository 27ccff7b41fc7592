"""Documents: the named outputs of a session, of which the last versions are kept."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.clock import Now
from agentbus.operations import Actor, Op, Outcome, Query, operation
from agentbus.operations.closed import not_open
from agentbus.operations.fencing import fence
from agentbus.records import DocumentSummary


class SaveRequest(msgspec.Struct, frozen=True):
    """The next version of a document; ``value`` is JSON, ``checksum`` its SHA-256. An agent that saves is fenced."""

    session: str
    name: str
    value: str
    checksum: str
    author: str | None
    keep: int
    actor: Actor | None = None

    @property
    def weight(self) -> int:
        return len(self.value)


class Saved(msgspec.Struct, frozen=True):
    """What became of it."""

    id: int
    version: int
    created: int


class Wanted(msgspec.Struct, frozen=True):
    """The newest versions of a document, or one of them."""

    session: str
    name: str
    version: int | None = None
    limit: int = 1


class Stored(msgspec.Struct, frozen=True):
    """A version of a document as it is stored."""

    id: int
    session: str
    name: str
    version: int
    author: str | None
    created: int
    checksum: str
    value: str


@operation(durable=True, beside=True, grows=True)
def save_document(requests: Sequence[SaveRequest], now: Now) -> Op[list[Outcome[Saved]]]:
    """Save documents, and remove the versions that are too many."""
    refused = yield from fence(request.actor for request in requests)
    outcomes: list[Outcome[Saved]] = []
    for request in requests:
        error = refused.get(request.actor) or (yield from not_open(request.session, f"save {request.name}"))
        if error is not None:
            outcomes.append(error)
            continue
        ((id, version),) = yield Query(
            "document_insert",
            (request.session, request.name, request.checksum, request.author, now.wall, request.value),
        )
        if version > request.keep:
            yield Query("document_trim", (request.session, request.name, version - request.keep))
        outcomes.append(Saved(id, version, now.wall))
    return outcomes


def get_documents(wanted: Wanted, now: Now) -> Op[list[Stored]]:
    """Versions of a document, newest first."""
    rows = yield Query("document_versions", (wanted.session, wanted.name, wanted.version, wanted.limit))
    return [Stored(*row) for row in rows]


def list_documents(session: str, now: Now) -> Op[list[DocumentSummary]]:
    rows = yield Query("document_list", (session,))
    return [DocumentSummary(*row) for row in rows]
