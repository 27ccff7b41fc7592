"""Sessions with their documents, participants and checkpoints; recovery of interrupted ones."""

from __future__ import annotations

from typing import Any

import msgspec

from agentbus.api.recovery import WITHIN, RecoveryPlan
from agentbus.core.validation import KEEP_VERSIONS, PAGE_SIZE
from agentbus.errors import PlanOutdated, UnknownCheckpoint, UnknownDocument, UnknownSession
from agentbus.records import (
    AgentRecord,
    Checkpoint,
    CheckpointSummary,
    CutOffSession,
    DocumentRecord,
    DocumentSummary,
    FinishedMember,
    MeetingRecord,
    Page,
    Recovered,
    RecoveryRecord,
    RecoverySummary,
    Rollback,
    SessionRecord,
)
from agentbus.web.call import Body, Call, Count, Created, Done, Query
from agentbus.web.etags import etag_of
from agentbus.web.handlers.agents import CheckpointBody, DocumentBody, ReasonBody
from agentbus.web.handlers.messages import PageQuery


class SessionsQuery(Query, frozen=True):
    """``stale``: open sessions without activity for this many minutes, and no others."""

    status: list[str] | None = None
    operation: str | None = None
    milestone: str | None = None
    stale: float | None = None
    cursor: str | None = None
    limit: int = PAGE_SIZE


class StartSessionBody(Body, frozen=True, kw_only=True):
    operation: str
    id: str | None = None
    milestone: str | None = None
    expects: dict[str, str] | None = None
    metadata: dict[str, Any] | None = None


class StartedSession(msgspec.Struct, frozen=True):
    """A session. ``continued``: it existed, and was resumed."""

    session: SessionRecord
    continued: bool


class SessionView(msgspec.Struct, frozen=True):
    """A session, the number of its agents by status, its documents, and those that are missing, by producer."""

    session: SessionRecord
    agents: dict[str, int]
    documents: list[DocumentSummary]
    missing: dict[str, str]


class PercentBody(Body, frozen=True):
    percent: int


class ErrorBody(Body, frozen=True):
    error: str


class MembersBody(Body, frozen=True):
    members: list[str]
    meeting: str = "participants"


class FinishBody(Body, frozen=True):
    member: str
    result: Any = None
    meeting: str | None = None


class Meetings(msgspec.Struct, frozen=True):
    """The meetings of a session, with their members."""

    meetings: list[MeetingRecord]


class CompositeBody(Body, frozen=True, kw_only=True):
    name: str
    notes: str = ""
    keep: int | None = None


class CheckpointIdBody(Body, frozen=True):
    checkpoint: int


class VersionsQuery(Query, frozen=True):
    limit: int = KEEP_VERSIONS


class SaveDocumentBody(DocumentBody, frozen=True, kw_only=True):
    author: str | None = None


class Documents(msgspec.Struct, frozen=True):
    """The stored versions of a document, newest first."""

    versions: list[DocumentRecord]


class CheckpointsQuery(Query, frozen=True):
    owner: str | None = None
    name: str | None = None
    kind: str | None = None
    cursor: str | None = None
    limit: int = PAGE_SIZE


class SaveCheckpointBody(CheckpointBody, frozen=True, kw_only=True):
    owner: str
    kind: str = "agent"


class PruneBody(Body, frozen=True, kw_only=True):
    owner: str
    name: str | None = None
    keep: int
    kind: str = "agent"


class WithinBody(Body, frozen=True):
    """``within``: seconds in which the agents must register; null for no limit."""

    within: float | None = WITHIN


class RollbackBody(Body, frozen=True):
    checkpoint: int | None = None
    within: float | None = WITHIN


class AbandonBody(Body, frozen=True):
    reason: str


class FollowOnBody(Body, frozen=True, kw_only=True):
    operation: str
    id: str | None = None
    milestone: str | None = None
    expects: dict[str, str] | None = None
    metadata: dict[str, Any] | None = None


class ClearBody(Body, frozen=True):
    """``agent``: one agent of any status; without it, all that are suspect or failed in an open session."""

    agent: str | None = None


class Cleared(msgspec.Struct, frozen=True):
    """The agents that were stopped."""

    agents: list[str]


class Interrupted(msgspec.Struct, frozen=True):
    """Interrupted, degraded and deserted sessions, most recently changed first."""

    sessions: list[CutOffSession]


async def list_sessions(call: Call, query: SessionsQuery) -> Page[SessionRecord]:
    """List sessions, newest first."""
    if query.stale is not None:
        return Page(list(await call.bus.sessions.stale(query.stale))[: query.limit])
    return await call.bus.sessions.list(
        status=query.status, operation=query.operation, milestone=query.milestone, cursor=query.cursor,
        limit=query.limit,
    )  # fmt: skip


async def start_session(call: Call, body: StartSessionBody) -> Created | StartedSession:
    """Start a session that no process owns, or resume one that has not ended."""
    started = await call.bus.sessions.start(
        body.operation, id=body.id, milestone=body.milestone, expects=body.expects, metadata=body.metadata
    )
    return Created(StartedSession(await started.record(), started.continued))


async def get_session(call: Call) -> SessionView:
    """Show a session with its documents and the number of its agents."""
    found = await call.bus.sessions.get(call.names["session"])
    if found is None:
        raise UnknownSession(session=call.names["session"])
    session = await call.bus.sessions.open(found.id)
    return SessionView(found, await session.counts(), await session.documents(), await session.missing())


async def set_progress(call: Call, body: PercentBody) -> SessionRecord:
    """Set the progress of a session, from 0 to 100."""
    session = await call.bus.sessions.open(call.names["session"])
    await session.progress(body.percent)
    return await session.record()


async def pause(call: Call, body: ReasonBody) -> SessionRecord:
    """Pause a session: it is not interrupted when its agents fail."""
    session = await call.bus.sessions.open(call.names["session"], by=call.by)
    await session.pause(body.reason)
    return await session.record()


async def continue_session(call: Call) -> SessionRecord:
    """Resume a session after a pause or an interruption."""
    session = await call.bus.sessions.open(call.names["session"], by=call.by)
    await session.continue_()
    return await session.record()


async def complete(call: Call) -> SessionRecord:
    """Mark a session completed."""
    session = await call.bus.sessions.open(call.names["session"], by=call.by)
    await session.complete()
    return await session.record()


async def fail(call: Call, body: ErrorBody) -> SessionRecord:
    """Mark a session failed."""
    session = await call.bus.sessions.open(call.names["session"], by=call.by)
    await session.fail(body.error)
    return await session.record()


async def meetings(call: Call) -> Meetings:
    """List the meetings of a session, with the results of members that have finished."""
    session = await call.bus.sessions.open(call.names["session"])
    return Meetings(list(await session.meetings()))


async def add_members(call: Call, body: MembersBody) -> Meetings:
    """Add members to a meeting of a session."""
    session = await call.bus.sessions.open(call.names["session"])
    await session.participants(body.members, name=body.meeting)
    return Meetings(list(await session.meetings()))


async def finish_member(call: Call, body: FinishBody) -> FinishedMember:
    """Record that a member of a meeting has finished, with its result."""
    session = await call.bus.sessions.open(call.names["session"])
    return await session.finish_member(body.member, body.result, meeting=body.meeting)


async def composites(call: Call, query: PageQuery) -> Page[CheckpointSummary]:
    """List the composite checkpoints of a session, newest first."""
    session = await call.bus.sessions.open(call.names["session"])
    return await session.composites(cursor=query.cursor, limit=query.limit)


async def save_composite(call: Call, body: CompositeBody) -> Created | CheckpointSummary:
    """Save the whole session in one composite checkpoint."""
    session = await call.bus.sessions.open(call.names["session"])
    return Created(await session.checkpoint_all(body.name, notes=body.notes, keep=body.keep))


async def roll_back(call: Call, body: CheckpointIdBody) -> Rollback:
    """Roll a session back to a composite checkpoint."""
    session = await call.bus.sessions.open(call.names["session"])
    return await session.rollback(body.checkpoint)


# Documents


async def list_documents(call: Call) -> list[DocumentSummary]:
    """List the documents of a session, each with its newest version."""
    return await (await call.bus.sessions.open(call.names["session"])).documents()


async def get_document(call: Call) -> DocumentRecord:
    """Show the newest version of a document."""
    return await _document(call, None)


async def get_document_version(call: Call) -> DocumentRecord:
    """Show one version of a document."""
    return await _document(call, call.numbers["version"])


async def document_versions(call: Call, query: VersionsQuery) -> Documents:
    """List the stored versions of a document, newest first, with their values."""
    session = await call.bus.sessions.open(call.names["session"])
    return Documents(await session.document(call.names["name"]).history(query.limit))


async def save_document(call: Call, body: SaveDocumentBody) -> Created | DocumentRecord:
    """Save a new version of a document."""
    session = await call.bus.sessions.open(call.names["session"])
    document = session.document(call.names["name"])
    return Created(await document.save(body.value, author=body.author, keep=body.keep))


async def _document(call: Call, version: int | None) -> DocumentRecord:
    session = await call.bus.sessions.open(call.names["session"])
    found = await session.document(call.names["name"]).record(version)
    if found is None:
        raise UnknownDocument(session=session.id, name=call.names["name"])
    return found


# Checkpoints


async def list_checkpoints(call: Call, query: CheckpointsQuery) -> Page[CheckpointSummary]:
    """List checkpoints without their snapshots, newest first."""
    return await call.bus.checkpoints.list(
        query.owner, query.name, kind=query.kind, cursor=query.cursor, limit=query.limit
    )


async def get_checkpoint(call: Call) -> Checkpoint:
    """Show a checkpoint with its snapshot."""
    found = await call.bus.checkpoints.get(call.numbers["checkpoint"])
    if found is None:
        raise UnknownCheckpoint(id=call.numbers["checkpoint"])
    return found


async def save_checkpoint(call: Call, body: SaveCheckpointBody) -> Created | Checkpoint:
    """Save a checkpoint of any agent or open session."""
    return Created(
        await call.bus.checkpoints.save(
            body.owner, body.name, body.snapshot, kind=body.kind, notes=body.notes, keep=body.keep
        )
    )


async def delete_checkpoint(call: Call) -> Done:
    """Delete a checkpoint."""
    await call.bus.checkpoints.delete(call.numbers["checkpoint"])
    return Done()


async def prune_checkpoints(call: Call, body: PruneBody) -> Count:
    """Delete all but the newest ``keep`` checkpoints of a name, or of each name."""
    return Count(await call.bus.checkpoints.prune(body.owner, body.name, keep=body.keep, kind=body.kind))


# Recovery


async def interrupted(call: Call) -> Interrupted:
    """List sessions that were interrupted, are degraded by failed agents, or are deserted."""
    return Interrupted(list(await call.bus.sessions.cut_off()))


async def recovery_summary(call: Call) -> RecoverySummary:
    """Summarize interrupted work and past recoveries."""
    return await call.bus.recovery.summary()


async def recovery_agents(call: Call, query: PageQuery) -> Page[AgentRecord]:
    """List incomplete agents: those that have not ended, and those that failed or stopped in an open session."""
    return await call.bus.recovery.agents(cursor=query.cursor, limit=query.limit)


async def clear(call: Call, body: ClearBody) -> Cleared:
    """Stop agents that are suspect or failed, and release their work. Nothing is deleted."""
    return Cleared(await call.bus.recovery.clear(body.agent, by=call.by))


async def recovery_plan(call: Call) -> RecoveryRecord:
    """Show the state of a session and its recovery options, most likely first. Its ETag names this plan."""
    return (await call.bus.recovery.plan(call.names["session"])).record


async def recover_resume(call: Call, body: WithinBody) -> Recovered:
    """Resume the session; its interrupted agents are expected again. If-Match with the ETag of a plan refuses a session
    that has changed since, as for every action of a plan."""
    return await (await _plan(call)).resume(within=body.within)


async def recover_complete(call: Call) -> Recovered:
    """End the session as completed. Refused while an expected document is missing."""
    return await (await _plan(call)).complete()


async def recover_abandon(call: Call, body: AbandonBody) -> Recovered:
    """End the session as failed."""
    return await (await _plan(call)).abandon(body.reason)


async def recover_rollback(call: Call, body: RollbackBody) -> Recovered:
    """Restore a composite checkpoint (default: the newest), then resume the session."""
    return await (await _plan(call)).rollback(body.checkpoint, within=body.within)


async def recover_follow_on(call: Call, body: FollowOnBody) -> Recovered:
    """Start a new session with copies of this one's documents."""
    return await (await _plan(call)).follow_on(
        body.operation, id=body.id, milestone=body.milestone, expects=body.expects, metadata=body.metadata
    )


async def _plan(call: Call) -> RecoveryPlan:
    plan = await call.bus.recovery.plan(call.names["session"], by=call.by)
    expected = call.request.headers.get("if-match")
    if expected is not None and expected != "*" and etag_of(msgspec.json.encode(plan.record)) not in expected:
        raise PlanOutdated(session=plan.session.id, reason="the plan that If-Match names is not the present one")
    return plan
