"""The retention policy of a bus, kept in the database so that it is the same for everybody; when it was applied."""

from __future__ import annotations

from typing import Any

import msgspec

from agentbus.clock import Now
from agentbus.codec import decode, plain
from agentbus.errors import StoreError
from agentbus.operations import Op, Outcome, Query, one_by_one
from agentbus.operations.events import event, record
from agentbus.records import RetentionPolicy

_POLICY = "retention"
_APPLIED = "retention_applied"


class ChangePolicyRequest(msgspec.Struct, frozen=True):
    """What shall be kept for another time than before; what is not named stays as it is."""

    changes: dict[str, Any]


class TurnRequest(msgspec.Struct, frozen=True):
    """Somebody wants to apply the policy, unless that was done within so many milliseconds."""

    every: int


def read_policy(_: None, now: Now) -> Op[RetentionPolicy]:
    """The policy that holds: the defaults, but for what was changed."""
    rows = yield Query("meta_get", (_POLICY,))
    if not rows:
        return RetentionPolicy()
    try:
        return msgspec.json.decode(rows[0][0], type=RetentionPolicy)
    except msgspec.DecodeError as error:
        reason = f"it cannot be read ({error}); bus.retention.change(…) begins again with the defaults"
        raise StoreError(path="the retention policy of this bus", reason=reason) from None


def is_due(every: int, now: Now) -> Op[bool]:
    """Whether nobody applied the policy within so many milliseconds. A clock that was set back puts nothing off."""
    rows = yield Query("meta_get", (_APPLIED,))
    return not rows or not 0 <= now.wall - int(rows[0][0]) < every


@one_by_one(durable=True)
def change_policy(request: ChangePolicyRequest, now: Now) -> Op[Outcome[RetentionPolicy]]:
    """Keep what was named for another time; the outcome is the policy that holds then."""
    try:
        before = yield from read_policy(None, now)
        rows = yield Query("meta_get", (_POLICY,))
    except StoreError:
        before, rows = RetentionPolicy(), []
    after = msgspec.structs.replace(before, **request.changes)
    changed = {name: value for name, value in request.changes.items() if value != getattr(before, name)}
    # Only what was ever named is kept: for the rest, the defaults of whichever version reads it hold.
    kept = {**(decode(rows[0][0]) if rows else {}), **request.changes}
    yield Query("meta_set", (_POLICY, plain(kept)))
    if changed:
        facts = {"before": {name: getattr(before, name) for name in changed}, "after": changed}
        yield from record([event(now.wall, "retention_changed", ("bus", "retention"), None, **facts)])
    return after


@one_by_one(durable=False)
def take_turn(request: TurnRequest, now: Now) -> Op[Outcome[bool]]:
    """Whether this one is to apply the policy now: of those who ask at once, the first."""
    due = yield from is_due(request.every, now)
    if due:
        yield Query("meta_set", (_APPLIED, str(now.wall)))
    return due
