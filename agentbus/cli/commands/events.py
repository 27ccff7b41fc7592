"""The audit log: who changed what, and when."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import deque
from typing import Any, Literal

from agentbus.cli.context import Call, Command, ending_cleanly
from agentbus.cli.errors import Usage, echoed
from agentbus.cli.output import Result, Rows

COLUMNS = ("id", "at:time", "kind:event", "subject_kind", "subject", "actor", "facts:json")


def events(call: Call) -> Result | int:
    given = call.arguments
    after = _after(given.after)
    wanted: dict[str, Any] = {"kind": given.kind, "subject": given.subject}
    if given.follow:
        return _follow(call, "now" if after is None else after, wanted)
    if after is not None:
        found = list(call.bus.events(after=after, limit=given.limit, **wanted))
        return _shown(found)
    # The newest events, in order.
    if given.kind is None and given.subject is None:
        from agentbus.operations.events import last_event

        start = max(0, call.bus.read(last_event, None) - _checked(given.limit))
        return _shown(list(call.bus.events(after=start)))
    return _shown(list(deque(call.bus.events(**wanted), maxlen=_checked(given.limit))))


def _follow(call: Call, after: int | Literal["now"], wanted: dict[str, Any]) -> int:
    with ending_cleanly():
        for event in call.bus.events(after=after, follow=True, limit=call.arguments.max, **wanted):
            call.emit(Rows([event], COLUMNS, paged=False, whole=True, one=True, following=True, terminal=_terminal))
    return 0


def _shown(found: list[Any]) -> Result:
    return Rows(found, COLUMNS, paged=False, whole=True, terminal=_terminal, empty="no matching events")


def _terminal(event: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a terminal: the subject in one word, and the facts without braces."""
    about = f"{event['subject_kind']}:{event['subject']}"
    return {
        "id": event["id"], "at:time": event["at"], "kind:event": event["kind"], "about": about,
        "actor": event["actor"], "facts:facts": event["facts"],
    }  # fmt: skip


def _checked(limit: int) -> int:
    from agentbus.core.validation import MAX_BATCH, check_range

    return check_range(limit, "limit", 1, MAX_BATCH)


def _after(text: str | None) -> int | Literal["now"] | None:
    if text is None or text == "now":
        return text  # type: ignore[return-value]
    try:
        return int(text)
    except ValueError:
        raise Usage(
            reason=f"--after {echoed(text)} is not an event id", advice="pass the id of an event, or now"
        ) from None


def _events(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--follow", action="store_true", help="follow new events")
    add(
        "--after",
        metavar="ID",
        help="events after this id; now: only new events (default: the newest; with --follow now)",
    )
    add("--kind", metavar="KIND", help="kind of event: agent_failed, session_interrupted …")
    add("--subject", metavar="KIND:ID", help="subject: agent:planner-1, session:planning-001 …")
    add("--limit", type=int, default=100, metavar="N", help="maximum number of results (default 100)")
    add("--max", type=int, metavar="N", help="with --follow: exit after this number of events")


COMMANDS = {
    "events": Command(
        events, "Print the audit log: who changed what, and when.", "agentbus events --follow --json",
        _events,
        output="plain output: id, at, kind, subject_kind, subject, actor, facts (JSON)\n"
        "with --follow --json one envelope per line",
        columns=True,
    ),
}  # fmt: skip
