"""The agent of a client, the same for its MCP server and its hooks.

A row on the bus maps the client's session, and its process, to one agent. The same session gets the same agent back
after a restart, as a new incarnation; another session of the same process (``/clear``) is the same agent too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.core import process_info
from agentbus.core.validation import check_key
from agentbus.errors import AgentBusError, AgentExists, InvalidName
from agentbus.operations.agent_identity import current_registration
from agentbus.operations.common import LIVE, SESSION_ENDED
from agentbus.operations.hook_ledger import SCOPE
from agentbus.operations.protocol import Op, Query

if TYPE_CHECKING:
    from agentbus.core.clock import Now
    from agentbus.records import AgentRecord
    from agentbus.sync.agent import BlockingAgent
    from agentbus.sync.bus import BlockingBus

SESSION_VARIABLES = (
    "AGENTBUS_CLIENT_SESSION",
    "CLAUDE_CODE_SESSION_ID",
    "CODEX_THREAD_ID",
    "CODEX_SESSION_ID",
    "GEMINI_SESSION_ID",
    "COPILOT_AGENT_SESSION_ID",
)
"""Variables in which clients pass their session to the processes that they start. The first one set counts."""
_TTL = 90 * 24 * 3600 * 1000
"""Milliseconds for which a client is remembered."""
_MAX_KEY = 200
_STARTERS = frozenset(
    {"sh", "bash", "dash", "zsh", "ksh", "fish", "busybox", "env", "timeout", "agentbus", "uv", "uvx", "pipx"}
)
"""Programs that a client starts a hook through. A script named agentbus may wrap the command."""
_MAX_STARTERS = 8
_OWNER = "client"
"""The metadata of an agent that a hook has named: a hash of the session."""
_LONGER = 16
"""Characters that are appended to a name that belongs to another client."""
_PATIENCE = 24 * 3600.0
"""Seconds of silence before an agent with a live process is suspect: it waits for its user."""


class Client(msgspec.Struct, frozen=True):
    """The row of a client: its agent, the epoch of the incarnation that belongs to the client's process, and whether
    the agent was named by the client and not by a hook. ``session`` is the key of the row of its session, which the
    client does not pass to its MCP server."""

    agent: str
    hook: int | None = None
    named: bool = True
    session: str | None = None


def client_session(environment: Mapping[str, str]) -> str | None:
    """Return the session of the client that has started this process, if it says.

    >>> client_session({"CLAUDE_CODE_SESSION_ID": "5b1c"})
    '5b1c'
    """
    return next((found for name in SESSION_VARIABLES if (found := environment.get(name))), None)


def client_process(pid: int | None) -> str | None:
    """Return the name of a client's process, which no other process ever has; None if it is unknown."""
    started = "" if pid is None else process_info.start_time(pid)
    return f"{process_info.host_key()} {pid} {started}" if started else None


def client_pid() -> int | None:
    """Return the process that runs this hook: the nearest ancestor that is not a shell. None if it is unknown.

    Only the nearest: a client may run another one, whose hooks are not its own.
    """
    pid = os.getppid()
    for _ in range(_MAX_STARTERS):
        name, parent = process_info.name_and_parent(pid)
        if pid <= 1 or not name:
            return None
        if name not in _STARTERS:
            return pid
        pid = parent
    return None


def remember_client(
    bus: BlockingBus,
    agent: str,
    *,
    session: str | None,
    process: str | None,
    hook: int | None = None,
    named: bool = True,
    row: str | None = None,
) -> None:
    """Map a session and a process of a client to an agent; the rest as in ``Client``. ``row`` is the key of the row of
    a session whose name is unknown."""
    # Imported only here: most calls of hooks change nothing.
    from agentbus.core.codec import plain_payload
    from agentbus.operations.state import ChangeRequest, change_state

    value: dict[str, Any] = {"agent": agent}
    if hook is not None:
        value |= {"hook": hook, "named": named}
    keys = _keys(session, process)
    if session is not None:
        row = keys[0]
    elif row is not None:
        keys.append(row)
    if row is not None:
        value["session"] = row
    stored = plain_payload(value)
    for key in keys:
        bus.write(change_state, ChangeRequest(SCOPE, key, stored, type="system_data", ttl=_TTL, internal=True))


def find_client(bus: BlockingBus, *, session: str | None, process: str | None = None) -> str | None:
    """Return the agent of a client, by its session, or by its process if it has started another session since.

    That session is remembered too: a hook that reports it maps it for the next start of the server.
    """
    found = client_row(bus, session=session, process=process)
    return None if found is None else found.agent


def client_row(bus: BlockingBus, *, session: str | None, process: str | None = None) -> Client | None:
    """Return the row of a client, as ``find_client`` finds it."""
    for key in _keys(session, process):
        found = bus.read(_client, key)
        if found is not None:
            if session is not None and key != _key("session", session):
                remember_client(bus, found.agent, session=session, process=process, hook=found.hook, named=found.named)
            return found
    return None


def _client(key: str, now: Now) -> Op[Client | None]:
    """Return the row with this key. Read as it is: the state of the bus is imported only to change it."""
    rows = yield Query("state_value", (SCOPE, key, now.wall))
    if not rows:
        return None
    try:
        return msgspec.json.decode(rows[0][0], type=Client)
    except msgspec.ValidationError:
        return None


def _keys(session: str | None, process: str | None) -> list[str]:
    named = (("session", session), ("process", process))
    return [_key(kind, name) for kind, name in named if name is not None]


def _key(kind: str, name: str) -> str:
    """Return the key of a row: the name itself where that is possible."""
    try:
        if len(name) <= _MAX_KEY:
            return check_key(f"{kind}/{name}")
    except InvalidName:
        pass
    from hashlib import sha256

    return f"{kind}/{sha256(name.encode(errors='surrogateescape')).hexdigest()}"


def join_client(
    bus: BlockingBus, name: str, *, session: str | None, process: str | None, pid: int | None
) -> BlockingAgent:
    """Return the agent of a client's hooks: the one that its session or process is, otherwise a new one of this name.

    A live incarnation is joined, whichever part of the client has registered it. A new one belongs to the
    client's process: when that ends, the agent has failed. If the name belongs to another client, a longer one is used.
    """
    known = client_row(bus, session=session, process=process)
    owner = _owner(session, process)
    agent = name if known is None else known.agent
    record = bus.do(bus.agents.get(agent))
    if known is None and owner is not None and record is not None and record.metadata.get(_OWNER) != owner:
        # Names have a short hash of the session: they can coincide. Messages of the other agent are not this client's.
        agent = f"{name}-{owner[:_LONGER]}"
        record = bus.do(bus.agents.get(agent))
    if record is None or record.status not in LIVE:
        joined = _register_for_hooks(bus, agent, record, pid, owner)
    else:
        joined = bus.agent(agent)
    # A concurrent registration under this name is that of the agent itself.
    epoch = joined.epoch if joined._has_called else None if known is None else known.hook
    named = known is not None and known.named
    remember_client(bus, joined.id, session=session, process=process, hook=epoch, named=named)
    return joined


def rename_client(bus: BlockingBus, row: Client, name: str, type: str, **options: Any) -> BlockingAgent | None:
    """Register the name that a client has chosen, in place of that which a hook has given it, unless messages were sent
    to that; return None then. The hooks of the client follow."""
    from agentbus.operations.receive import list_held, list_waiting

    before = bus.agent(row.agent)
    waiting = bus.read(list_waiting, (before._mailboxes.all, 1))
    held = bus.read(list_held, row.agent)
    if waiting or held:
        return None
    agent = register(bus, name, type, options.pop("pools", ()), options.pop("session", None), **options)
    before.stop(f"it continues as {name}")
    return agent


def _owner(session: str | None, process: str | None) -> str | None:
    """Return the mark of the agent of a client, which the registration stores."""
    from hashlib import sha256

    keys = _keys(session, process)
    return sha256(keys[0].encode()).hexdigest() if keys else None


def _register_for_hooks(
    bus: BlockingBus, agent: str, record: AgentRecord | None, pid: int | None, owner: str | None
) -> BlockingAgent:
    before = bus.read(current_registration, agent)
    try:
        return register(
            bus,
            agent,
            "worker" if record is None else record.type,
            () if before is None else tuple(before.pools),
            None if before is None else open_session(bus, before.session),
            topics=() if before is None else tuple(before.subscriptions),
            pid=pid,
            **({} if pid is None else {"patience": _PATIENCE}),
            **({"metadata": {_OWNER: owner}} if record is None and owner is not None else {}),
        )
    except AgentExists:
        return bus.agent(agent)


def register(
    bus: BlockingBus, name: str, type: str, pools: Sequence[str], session: str | None, **options: Any
) -> BlockingAgent:
    """Register an agent that calls now and then."""
    return bus.register(name, type=type, pools=tuple(pools), session=session, **options)


def renew(agent: BlockingAgent, pools: Sequence[str], session: str | None) -> BlockingAgent:
    """Record a call of an agent; it joins further pools, and another session."""
    from agentbus.core.addresses import address_names
    from agentbus.operations.agents import MembershipRequest, change_membership

    agent.heartbeat()
    more = [pool for pool in address_names(pools, "pool") if pool not in agent.registration.pools]
    if more:
        agent.call(change_membership, MembershipRequest(agent._actor, None, tuple(more)))
    if session is not None and session != agent.session:
        agent.join(session)
    return agent.bus.agent(agent.identity)


def open_session(bus: BlockingBus, session: str | None) -> str | None:
    """Return a session if it still takes agents."""
    if session is None:
        return None
    try:
        record = bus.do(bus.sessions.get(session))
    except AgentBusError:
        return None
    return session if record is not None and record.status not in SESSION_ENDED else None
