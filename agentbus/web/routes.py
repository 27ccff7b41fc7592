"""The one table of routes: method, path, permission and handler of each.

A path is below ``/api/v1`` and names its parameters in braces: ``{task}`` is a name, ``{version:int}`` a number. A name
is one segment of the raw path, so a name that contains ``/`` is written with ``%2F``. The names ``.`` and ``..``, which
clients remove from paths, are written as ``~`` and given in the query: ``/tasks/~/stop?task=..``.

The Structs of the query, the body and the response are the annotations of the handler: ``query``, ``body`` and its
return type. ``Created | T`` answers with status 201.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from starlette.responses import Response

from agentbus.web.access import Permission
from agentbus.web.call import Created
from agentbus.web.handlers import (
    agents,
    events,
    histories,
    items,
    live,
    maintenance,
    messages,
    sessions,
    sign_in,
    state,
    tasks,
)
from agentbus.web.streams import Events

PREFIX = "/api/v1"
METRICS = "/metrics"
"""The path that Prometheus requests by default. It is served as the route of this name."""
ALONE = "~"
"""A segment whose value is in the query."""

READ, AGENT, OPERATE, DECIDE, PUBLIC = (
    Permission.READ,
    Permission.AGENT,
    Permission.OPERATE,
    Permission.DECIDE,
    Permission.PUBLIC,
)


class Route:
    """A route. ``large``: its body may hold a snapshot. ``waits``: its handler may wait for seconds, and is cancelled
    if the client leaves. ``shared``: its result is the same for all callers, and equal requests at one time are
    one. ``media``: the types of a response that is text."""

    def __init__(
        self,
        method: str,
        path: str,
        permission: Permission,
        handler: Callable[..., Awaitable[Any]],
        *,
        large: bool = False,
        waits: bool = False,
        shared: bool = False,
        media: tuple[str, ...] = ("text/html",),
    ) -> None:
        self.method = method
        self.path = path
        self.permission = permission
        self.handler = handler
        self.large = large
        self.waits = waits
        self.shared = shared
        self.media = media
        self.segments = tuple(path.strip("/").split("/"))
        self.fixed = tuple((index, own) for index, own in enumerate(self.segments) if not own.startswith("{"))
        """The segments that are not parameters, with their positions."""
        self.parameters = {
            name.partition(":")[0]: name.partition(":")[2] == "int"
            for segment in self.segments
            if (name := segment[1:-1]) and segment.startswith("{")
        }
        """The parameters in the path; True for a number."""

    def __repr__(self) -> str:
        return f"<Route {self.method} {self.path} {self.permission.value}>"

    @property
    def name(self) -> str:
        """The name of the operation: its subject and what it does."""
        module = self.handler.__module__.rpartition(".")[2]
        return f"{module}_{self.handler.__name__}"

    @property
    def tag(self) -> str:
        return "access" if self.handler.__module__.endswith("sign_in") else self.segments[0]

    @property
    def description(self) -> str:
        return " ".join((self.handler.__doc__ or "").split())

    @property
    def changes(self) -> bool:
        return self.method != "GET"

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self.handler)

    @cached_property
    def query(self) -> type[msgspec.Struct] | None:
        return self._hints.get("query")

    @cached_property
    def body(self) -> type[msgspec.Struct] | None:
        return self._hints.get("body")

    @cached_property
    def body_is_optional(self) -> bool:
        return self.body is not None and all(
            not field.required for field in msgspec.structs.fields(self.body)
        )  # fmt: skip

    @cached_property
    def response(self) -> Any:
        """The type of the response; None for one that is not JSON."""
        found = self._hints["return"]
        kinds = [one for one in get_args(found) or (found,) if one not in {Created, Response}]
        if get_origin(found) is not None and Created not in get_args(found) and Response not in get_args(found):
            kinds = [found]
        return kinds[0] if kinds and kinds[0] is not Events else None

    @cached_property
    def status(self) -> int:
        return 201 if Created in get_args(self._hints["return"]) else 200

    @cached_property
    def streams(self) -> bool:
        return self._hints["return"] is Events


ROUTES: tuple[Route, ...] = (
    # Access
    Route("POST", "/login", PUBLIC, sign_in.log_in),
    Route("POST", "/logout", PUBLIC, sign_in.log_out),
    Route("GET", "/identity", READ, sign_in.identity),
    Route("GET", "/health", PUBLIC, sign_in.health),
    Route("GET", "/openapi.json", PUBLIC, sign_in.openapi),
    # The bus
    Route("GET", "/overview", READ, maintenance.overview, shared=True),
    Route("GET", "/stats", READ, maintenance.stats, shared=True),
    Route("GET", "/metrics", READ, maintenance.metrics, media=maintenance.METRICS_MEDIA),
    Route("GET", "/types", READ, maintenance.list_types),
    Route("POST", "/types", OPERATE, maintenance.define_type),
    Route("GET", "/quotas", READ, maintenance.get_quotas),
    Route("PATCH", "/quotas", OPERATE, maintenance.change_quotas),
    Route("GET", "/retention", READ, maintenance.get_retention),
    Route("PATCH", "/retention", OPERATE, maintenance.change_retention),
    Route("POST", "/retention/apply", OPERATE, maintenance.apply_retention),
    Route("GET", "/doctor", READ, maintenance.doctor, shared=True),
    Route("POST", "/sweep", OPERATE, maintenance.sweep),
    Route("POST", "/backups", OPERATE, maintenance.back_up),
    # Events
    Route("GET", "/events", READ, events.list_events),
    Route("GET", "/events/stream", READ, events.follow_events),
    # Live
    Route("GET", "/live", READ, live.follow),
    Route("GET", "/rates", READ, live.rates, shared=True),
    Route("GET", "/queues", READ, live.list_queues, shared=True),
    Route("GET", "/message-spans", READ, live.message_spans),
    # Agents
    Route("GET", "/agents", READ, agents.list_agents, shared=True),
    Route("POST", "/agents/clear", OPERATE, agents.clear_agents),
    Route("GET", "/agents/{agent}", READ, agents.get_agent),
    Route("PATCH", "/agents/{agent}", AGENT, agents.update_agent),
    Route("DELETE", "/agents/{agent}", OPERATE, agents.delete_agent),
    Route("POST", "/agents/{agent}/register", AGENT, agents.register),
    Route("POST", "/agents/{agent}/expect", OPERATE, agents.expect),
    Route("POST", "/agents/{agent}/heartbeat", AGENT, agents.heartbeat),
    Route("POST", "/agents/{agent}/progress", AGENT, agents.progress),
    Route("POST", "/agents/{agent}/busy", AGENT, agents.busy),
    Route("POST", "/agents/{agent}/complete", AGENT, agents.complete),
    Route("POST", "/agents/{agent}/fail", AGENT, agents.fail),
    Route("POST", "/agents/{agent}/stop", AGENT, agents.stop),
    Route("POST", "/agents/{agent}/join", AGENT, agents.join),
    Route("POST", "/agents/{agent}/membership", AGENT, agents.change_membership),
    Route("POST", "/agents/{agent}/send", AGENT, agents.send),
    Route("POST", "/agents/{agent}/request", AGENT, agents.request, waits=True),
    Route("POST", "/agents/{agent}/receive", AGENT, agents.receive, waits=True),
    Route("POST", "/agents/{agent}/peek", AGENT, agents.peek),
    Route("POST", "/agents/{agent}/in-hand", AGENT, agents.in_hand),
    Route("POST", "/agents/{agent}/ack", AGENT, agents.ack),
    Route("POST", "/agents/{agent}/nack", AGENT, agents.nack),
    Route("POST", "/agents/{agent}/reject", AGENT, agents.reject),
    Route("POST", "/agents/{agent}/extend", AGENT, agents.extend),
    Route("POST", "/agents/{agent}/reply", AGENT, agents.reply),
    Route("POST", "/agents/{agent}/seen", AGENT, agents.seen),
    Route("GET", "/agents/{agent}/reach", READ, agents.get_reach),
    Route("POST", "/agents/{agent}/reach", AGENT, agents.declare_reach),
    Route("POST", "/agents/{agent}/steer", DECIDE, agents.steer, waits=True),
    Route("GET", "/agents/{agent}/state/{key}", READ, agents.get_own_state),
    Route("PUT", "/agents/{agent}/state/{key}", AGENT, agents.set_own_state),
    Route("DELETE", "/agents/{agent}/state/{key}", AGENT, agents.delete_own_state),
    Route("POST", "/agents/{agent}/state/{key}/increment", AGENT, agents.increment_own_state),
    Route("POST", "/agents/{agent}/items/take", AGENT, items.take, waits=True),
    Route("POST", "/agents/{agent}/items/finish", AGENT, items.finish),
    Route("POST", "/agents/{agent}/items/fail", AGENT, items.fail),
    Route("POST", "/agents/{agent}/items/release", AGENT, items.release),
    Route("POST", "/agents/{agent}/checkpoints", AGENT, agents.save_own_checkpoint, large=True),
    Route("POST", "/agents/{agent}/documents/{name}", AGENT, agents.save_own_document, large=True),
    # Messages
    Route("GET", "/messages", READ, messages.list_messages),
    Route("POST", "/messages", OPERATE, messages.send),
    Route("POST", "/messages/requeue", OPERATE, messages.requeue),
    Route("POST", "/messages/purge", OPERATE, messages.purge),
    Route("GET", "/messages/{message_id}", READ, messages.get_message),
    Route("GET", "/messages/{message_id}/receipts", READ, messages.wait_seen, waits=True),
    Route("GET", "/dead-letters", READ, messages.dead_letters, shared=True),
    Route("GET", "/holds", READ, messages.holds),
    Route("POST", "/holds/{thread}/release", DECIDE, messages.release),
    Route("POST", "/holds/{thread}/discard", DECIDE, messages.discard),
    # State
    Route("GET", "/state", READ, state.list_scopes),
    Route("GET", "/state/{scope}/entries", READ, state.list_entries),
    Route("GET", "/state/{scope}/entries/{key}", READ, state.get_entry),
    Route("PUT", "/state/{scope}/entries/{key}", OPERATE, state.set_entry),
    Route("DELETE", "/state/{scope}/entries/{key}", OPERATE, state.delete_entry),
    Route("POST", "/state/{scope}/entries/{key}/increment", OPERATE, state.increment_entry),
    Route("GET", "/state/{scope}/watch", READ, state.watch),
    # Histories
    Route("GET", "/histories", READ, histories.list_histories),
    Route("GET", "/histories/{kind}/{name}", READ, histories.get_history),
    Route("DELETE", "/histories/{kind}/{name}", OPERATE, histories.delete_history),
    # Checkpoints
    Route("GET", "/checkpoints", READ, sessions.list_checkpoints),
    Route("POST", "/checkpoints", OPERATE, sessions.save_checkpoint, large=True),
    Route("POST", "/checkpoints/prune", OPERATE, sessions.prune_checkpoints),
    Route("GET", "/checkpoints/{checkpoint:int}", READ, sessions.get_checkpoint),
    Route("DELETE", "/checkpoints/{checkpoint:int}", OPERATE, sessions.delete_checkpoint),
    # Sessions
    Route("GET", "/sessions", READ, sessions.list_sessions),
    Route("POST", "/sessions", OPERATE, sessions.start_session),
    Route("GET", "/sessions/{session}", READ, sessions.get_session),
    Route("POST", "/sessions/{session}/progress", OPERATE, sessions.set_progress),
    Route("POST", "/sessions/{session}/pause", OPERATE, sessions.pause),
    Route("POST", "/sessions/{session}/continue", OPERATE, sessions.continue_session),
    Route("POST", "/sessions/{session}/complete", OPERATE, sessions.complete),
    Route("POST", "/sessions/{session}/fail", OPERATE, sessions.fail),
    Route("GET", "/sessions/{session}/meetings", READ, sessions.meetings),
    Route("POST", "/sessions/{session}/meetings", OPERATE, sessions.add_members),
    Route("POST", "/sessions/{session}/meetings/finish", OPERATE, sessions.finish_member),
    Route("GET", "/sessions/{session}/composites", READ, sessions.composites),
    Route("POST", "/sessions/{session}/composites", OPERATE, sessions.save_composite),
    Route("POST", "/sessions/{session}/rollback", OPERATE, sessions.roll_back),
    Route("GET", "/sessions/{session}/documents", READ, sessions.list_documents),
    Route("GET", "/sessions/{session}/documents/{name}", READ, sessions.get_document),
    Route("PUT", "/sessions/{session}/documents/{name}", OPERATE, sessions.save_document, large=True),
    Route("GET", "/sessions/{session}/documents/{name}/versions", READ, sessions.document_versions),
    Route("GET", "/sessions/{session}/documents/{name}/versions/{version:int}", READ, sessions.get_document_version),
    Route("GET", "/sessions/{session}/recovery", READ, sessions.recovery_plan),
    Route("POST", "/sessions/{session}/recovery/resume", DECIDE, sessions.recover_resume),
    Route("POST", "/sessions/{session}/recovery/complete", DECIDE, sessions.recover_complete),
    Route("POST", "/sessions/{session}/recovery/abandon", DECIDE, sessions.recover_abandon),
    Route("POST", "/sessions/{session}/recovery/rollback", DECIDE, sessions.recover_rollback),
    Route("POST", "/sessions/{session}/recovery/follow-on", DECIDE, sessions.recover_follow_on),
    # Recovery
    Route("GET", "/recovery/interrupted", READ, sessions.interrupted, shared=True),
    Route("GET", "/recovery/summary", READ, sessions.recovery_summary),
    Route("GET", "/recovery/agents", READ, sessions.recovery_agents),
    Route("POST", "/recovery/clear", DECIDE, sessions.clear),
    # Tasks
    Route("GET", "/approvals", READ, tasks.approvals, shared=True),
    Route("GET", "/resumable-tasks", READ, tasks.resumable),
    Route("GET", "/ready-tasks", READ, items.ready),
    Route("GET", "/task-statistics", READ, tasks.statistics),
    Route("GET", "/tasks", READ, tasks.list_tasks),
    Route("POST", "/tasks", OPERATE, tasks.start_task),
    Route("GET", "/tasks/{task}", READ, tasks.get_task),
    Route("PATCH", "/tasks/{task}", OPERATE, tasks.edit),
    Route("GET", "/tasks/{task}/steps", READ, tasks.task_steps),
    Route("GET", "/tasks/{task}/result", READ, tasks.task_result, waits=True),
    Route("POST", "/tasks/{task}/approve", DECIDE, tasks.approve),
    Route("POST", "/tasks/{task}/reject", DECIDE, tasks.reject),
    Route("POST", "/tasks/{task}/settle", DECIDE, tasks.settle),
    Route("POST", "/tasks/{task}/auto", DECIDE, tasks.set_auto),
    Route("POST", "/tasks/{task}/halt", OPERATE, tasks.halt),
    Route("POST", "/tasks/{task}/continue", OPERATE, tasks.continue_task),
    Route("POST", "/tasks/{task}/stop", OPERATE, tasks.stop),
    Route("POST", "/tasks/{task}/resume", OPERATE, tasks.resume),
    Route("POST", "/tasks/{task}/restart", OPERATE, tasks.restart),
    Route("POST", "/tasks/{task}/redo", OPERATE, tasks.redo),
)


class Table:
    """Finds the route of a request by its method and the segments of its raw path."""

    def __init__(self, routes: tuple[Route, ...] = ROUTES) -> None:
        # The first segment is not a parameter.
        self._by_start: dict[tuple[int, str], list[Route]] = {}
        # A fixed segment before a parameter: /agents/clear is not an agent.
        for route in sorted(routes, key=lambda one: [segment.startswith("{") for segment in one.segments]):
            self._by_start.setdefault((len(route.segments), route.segments[0]), []).append(route)

    def matches(self, segments: tuple[str, ...]) -> list[Route]:
        """Return the routes of a path, one for each method; the first of a method counts."""
        found: dict[str, Route] = {}
        for route in self._by_start.get((len(segments), segments[0]), ()):
            for index, own in route.fixed:
                if segments[index] != own:
                    break
            else:
                found.setdefault(route.method, route)
        return list(found.values())
