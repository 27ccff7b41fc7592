"""The command that the hooks of coding agents call: a heartbeat, and messages that enter the agent's context.

It must never disturb its client: it exits with 0, prints nothing but what the client takes, and ends in time. Without a
bus, with input that it does not understand, or while the store is unavailable, it does nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from agentbus.cli.clients import (
    AFTER_TOOL,
    ALIASES,
    BEFORE_TOOL,
    CLIENTS,
    EVENTS,
    PROMPT,
    SESSION_END,
    SESSION_START,
    STOP,
)
from agentbus.cli.context import Call, Command
from agentbus.cli.errors import DONE, Usage
from agentbus.core import process_info
from agentbus.core.validation import Priority
from agentbus.errors import AgentBusError, AgentFenced, UnknownAgent, VersionConflict

if TYPE_CHECKING:
    from agentbus.operations.hook_ledger import HookRequest, Process
    from agentbus.operations.hooks import Shown, Taken
    from agentbus.operations.protocol import UnitRequest
    from agentbus.sync.agent import BlockingAgent
    from agentbus.sync.bus import BlockingBus

T = TypeVar("T")

_MAX_MESSAGES = 8
"""Messages that one hook shows."""
_CARRIERS: dict[str, frozenset[str]] = {
    "claude": frozenset({SESSION_START, PROMPT, AFTER_TOOL, STOP}),
    "codex": frozenset({SESSION_START, PROMPT, AFTER_TOOL, STOP}),
    "gemini": frozenset({SESSION_START, PROMPT, AFTER_TOOL, STOP}),
    "opencode": frozenset({SESSION_START, PROMPT, AFTER_TOOL, STOP}),
    "kimi": frozenset({PROMPT, STOP}),
    "cursor": frozenset({SESSION_START, AFTER_TOOL, STOP}),
}
"""The events of each client whose output reaches the model. With others a hook claims nothing: it would be lost."""
_DEADLINE = 5.0
"""Seconds after which a hook gives up. Clients wait 10 s."""
_END_DEADLINE = 2.5
"""The same for the end of a session, for which some clients wait 3 s."""
_LOCK_TIMEOUT = 2.0
_MAX_INPUT = 64 * 1024 * 1024
_NEW_CONTEXT = frozenset({"clear", "compact"})
"""Sources of a session's start after which the agent has lost what it was shown."""
_SHARED_PROCESS = frozenset({"opencode", "cursor"})
"""Clients whose process runs several sessions: the process does not say which agent it is."""
_NAMED = 24
"""Characters of a directory in the name of an agent."""
_CONFLICTS = 5
_MAX_SESSION = 200
"""Characters of a session in a receipt."""
_NO_PROCESS = (0, "")


class Input(msgspec.Struct):
    """The JSON of a client. Its fields may have any type: one that does not fit is ignored."""

    session_id: Any = None
    conversation_id: Any = None
    cwd: Any = None
    workspace_roots: Any = None
    hook_event_name: Any = None
    source: Any = None
    reason: Any = None
    stop_hook_active: Any = None
    loop_count: Any = None
    agent_id: Any = None
    prompt: Any = None

    @property
    def session(self) -> str | None:
        named = (self.conversation_id, self.session_id)
        return next((name for name in named if isinstance(name, str) and name), None)

    @property
    def directory(self) -> str:
        roots = self.workspace_roots if isinstance(self.workspace_roots, list) else []
        found = (self.cwd, *roots[:1])
        return next((path for path in found if isinstance(path, str) and path), "")

    @property
    def continued(self) -> bool | None:
        """True if the client says that it was kept from stopping, False if not, None if it does not say."""
        if isinstance(self.stop_hook_active, bool):
            return self.stop_hook_active
        return self.loop_count > 0 if type(self.loop_count) is int else None

    @property
    def is_own_prompt(self) -> bool:
        """True if the prompt is what a hook has printed: some clients pass on as one what keeps the agent working."""
        return isinstance(self.prompt, str) and self.prompt.lstrip().startswith("[agentbus] ")

    @property
    def is_subagent(self) -> bool:
        """True inside a subagent, whose context is not the agent's."""
        return isinstance(self.agent_id, str) and bool(self.agent_id)


def hook(call: Call) -> int:
    event: str = call.arguments.event
    limit = _END_DEADLINE if event == SESSION_END else _DEADLINE
    _give_up_after(limit)
    try:
        given = _read_input()
        call.settings.values["lock_timeout"] = min(_LOCK_TIMEOUT, call.settings.values["lock_timeout"])
        _handle(Hook(call, event, given))
    except AgentBusError:
        # No bus, none that answers, or input that is not understood.
        if call.arguments.debug:
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return DONE


def _give_up_after(seconds: float) -> None:
    def end(*_: object) -> None:
        os._exit(DONE)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _read_input() -> Input:
    """Return what the client passes; without any, an empty input. Raises Usage: then the hook does nothing."""
    try:
        given = b"" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read(_MAX_INPUT)
        return msgspec.json.decode(given, type=Input) if given.strip() else Input()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        reason = f"standard input is not a JSON object: {error}"
        raise Usage(reason=reason, advice="pass what the client passes to its hooks") from None


class Hook:
    """One call of a hook."""

    def __init__(self, call: Call, event: str, given: Input) -> None:
        self.call = call
        self.event = event
        self.given = given
        self.client: str = ALIASES.get(call.arguments.client, call.arguments.client)
        self.fixed = call.settings.text("agent")

    @property
    def bus(self) -> BlockingBus:
        return self.call.bus

    @property
    def joins(self) -> bool:
        """True for the events with which a session that is not yet an agent becomes one."""
        return self.event in {SESSION_START, PROMPT} and not self.call.arguments.no_join and not self.given.is_subagent

    @property
    def pid(self) -> int | None:
        """The process of the client."""
        from agentbus.sync.identity import client_pid

        given: int | None = self.call.arguments.client_pid
        return client_pid() if given is None else given or None

    def agent(self) -> BlockingAgent | None:
        """Return the agent that the client is; None if it is none."""
        if self.fixed is not None:
            try:
                return self.call.me
            except UnknownAgent:
                return self.join() if self.joins else None
        from agentbus.sync.identity import find_client

        found = find_client(self.bus, session=self.given.session)
        if found is None and self.client not in _SHARED_PROCESS:
            from agentbus.sync.identity import client_process

            found = find_client(self.bus, session=self.given.session, process=client_process(self.pid))
        if found is None:
            return self.join() if self.joins else None
        return self.bus.agent(found)

    def join(self) -> BlockingAgent | None:
        """Register the agent of the client, or its next incarnation."""
        from agentbus.sync.identity import client_process, join_client

        pid = self.pid
        if self.fixed is not None:
            # The name identifies the agent, not its session. A name with an epoch is one incarnation: it never returns.
            return None if "#" in self.fixed else join_client(self.bus, self.fixed, session=None, process=None, pid=pid)
        process = None if self.client in _SHARED_PROCESS else client_process(pid)
        if self.given.session is None and process is None:
            return None
        return join_client(self.bus, self._name(pid), session=self.given.session, process=process, pid=pid)

    def _name(self, pid: int | None) -> str:
        """Return the name of a new agent: the client, the directory, and the start of a hash of the session."""
        from hashlib import sha256

        directory = os.path.basename(os.path.normpath(self.given.directory or os.getcwd()))
        project = "".join(one if one.isascii() and (one.isalnum() or one in "._-") else "-" for one in directory)
        session = self.given.session or f"{pid} {os.getcwd()}"
        digest = sha256(session.encode(errors="surrogatepass")).hexdigest()[:8]
        return "-".join(part for part in (self.client, project.strip("-.")[:_NAMED], digest) if part)


def _handle(hook: Hook) -> None:
    agent = hook.agent()
    if agent is None:
        return
    if hook.event == SESSION_END:
        _end(hook, agent)
        return
    if hook.event == BEFORE_TOOL or hook.given.is_subagent:
        agent.heartbeat()
        return
    try:
        _deliver(hook, agent)
    except (AgentFenced, UnknownAgent):
        # It was marked failed while its client slept, or its client has ended in between.
        again = hook.join() if hook.joins else None
        if again is None:
            raise
        _deliver(hook, again)


def _end(hook: Hook, agent: BlockingAgent) -> None:
    """Fail an agent that a hook has registered: its leases return, and its mailbox still accepts messages. After
    ``/clear`` it continues in the next session."""
    from agentbus.sync.identity import client_row

    row = client_row(hook.bus, session=hook.given.session)
    if hook.given.reason == "clear":
        agent.heartbeat()
    elif row is None or row.hook != agent.epoch:
        agent.declare_reach(None, channel="hook")
    else:
        agent.fail("its client session ended")


def _deliver(hook: Hook, agent: BlockingAgent) -> None:
    """Record the call, and show the messages that this event shows."""
    from agentbus.operations.hook_ledger import CHANNEL, HookRequest, find_work

    given, event, options = hook.given, hook.event, hook.call.arguments
    minimum = {AFTER_TOOL: options.urgent, STOP: options.stop_priority}.get(event, 0)
    carried = event in _CARRIERS[hook.client] and (event != STOP or options.max_stops > 0)
    request = HookRequest(
        agent._actor,
        agent.bus.lease,
        (agent.registration.mailbox, *agent.registration.subscriptions.values()),
        _NO_PROCESS,
        _MAX_MESSAGES,
        minimum if carried else None,
        again=event == SESSION_START and given.source in _NEW_CONTEXT,
        remind=event == STOP,
        max_stops=options.max_stops if event == STOP else None,
        continued=given.continued if event == STOP else None,
        prompted=(event == PROMPT and not given.is_own_prompt)
        or (event == SESSION_START and given.source != "compact"),
        wakes="tool" if AFTER_TOOL in _CARRIERS[hook.client] and event != STOP else "turn",
    )
    work = hook.bus.read(find_work, request)
    taken = None
    if work.needed:
        taken = _take(hook, request, work.pending)
        agent._has_called = True
    elif work.declare:
        agent.declare_reach("turn" if request.wakes == "turn" else "tool", channel=CHANNEL)
    elif not agent._has_called:
        agent.heartbeat()
    introduced = event == SESSION_START and carried and given.source != "resume"
    if introduced or (taken is not None and taken.messages):
        _show(hook, agent, taken, introduced)


def _take(hook: Hook, request: HookRequest, pending: Sequence[Process]) -> Taken:
    from agentbus.operations.hooks import take

    gone = tuple(process for process in pending if process_info.is_gone(*process, None))
    request = msgspec.structs.replace(request, process=_this_process(), gone=gone)
    return _unless_changed(lambda: hook.bus.write(take, request))


def _this_process() -> Process:
    return os.getpid(), process_info.start_time(os.getpid())


def _unless_changed(write: Callable[[], T]) -> T:
    """Return the result of a change of the ledger, repeated when another hook of the agent was faster."""
    for _ in range(_CONFLICTS):
        try:
            return write()
        except VersionConflict:
            continue
    return write()


def _show(hook: Hook, agent: BlockingAgent, taken: Taken | None, introduced: bool) -> None:
    """Print, and confirm as the last act: what is not confirmed is shown again."""
    from agentbus.cli.hook_output import answer, frame, introduction

    option = "" if hook.call.settings.sources["agent"] == "environment" else f" --agent {agent.id}"
    messages = () if taken is None else taken.messages
    texts = [introduction(agent.id, option)] if introduced else []
    if taken is not None and messages:
        texts.append(frame(messages, agent.id, option, more=taken.more))
    done = _confirmation(hook, agent, messages) if messages else None
    # No timeout from here on: the client cannot use part of an answer.
    signal.setitimer(signal.ITIMER_REAL, 0)
    output = sys.stdout.buffer
    output.write(answer(hook.client, hook.event, hook.given.hook_event_name, "\n\n".join(texts)) + b"\n")
    output.flush()
    if done is not None:
        _confirm(hook, done)


def _confirmation(hook: Hook, agent: BlockingAgent, messages: Sequence[Shown]) -> UnitRequest:
    """Return the request that records that messages are in the context."""
    from agentbus.api.deliveries import seen_request
    from agentbus.operations.hook_ledger import CHANNEL
    from agentbus.operations.hooks import ConfirmRequest, confirm
    from agentbus.operations.protocol import Part, UnitRequest
    from agentbus.operations.receipts import mark_seen

    leases = tuple((one.row.id, one.lease) for one in messages)
    given = hook.given.session
    session = given[:_MAX_SESSION] if given is not None and given.isprintable() else None
    confirmation = ConfirmRequest(agent.id, _this_process(), leases, halted=any(one.halts for one in messages))
    parts = (
        Part(confirm, confirmation),
        Part(mark_seen, seen_request(agent._actor, [one.row.public_id for one in messages], CHANNEL, session)),
    )
    return UnitRequest(parts)


def _confirm(hook: Hook, request: UnitRequest) -> None:
    """Confirm, and end at once. The client discards the output of a hook that is killed: the time between confirmation
    and end must be short, and closing the store takes longer."""
    from agentbus.operations.protocol import unit

    # If the agent has ended, it is shown them again: a second answer now would corrupt the first.
    with suppress(AgentFenced, UnknownAgent):
        _unless_changed(lambda: hook.bus.write(unit, request))
    os._exit(DONE)


def _priority(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 9:
        raise ValueError
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("event", choices=EVENTS, metavar="EVENT", help=f"what happened: {', '.join(EVENTS)}")
    add(
        "--client",
        choices=(*CLIENTS, *ALIASES),
        default="claude",
        metavar="CLIENT",
        help=f"the coding agent that calls: {', '.join(CLIENTS)} (default claude)",
    )
    add(
        "--urgent",
        type=_priority,
        default=Priority.HIGH,
        metavar="N",
        help="lowest priority that is shown after a tool (default 7)",
    )
    add(
        "--stop-priority",
        type=_priority,
        default=Priority.NORMAL,
        metavar="N",
        help="lowest priority that keeps the agent from stopping (default 5)",
    )
    add(
        "--max-stops",
        type=_count,
        default=3,
        metavar="N",
        help="how often in a row it is kept from stopping (default 3; 0: never)",
    )
    add(
        "--client-pid",
        type=_count,
        metavar="N",
        help="the client's process (default: the nearest ancestor that is not a shell; 0: unknown)",
    )
    add("--no-join", action="store_true", help="do not register a session that is not yet an agent")


COMMANDS = {
    "hook": Command(
        hook, "Record a heartbeat of a coding agent, and show it its messages. Called by the hooks that agentbus setup"
        " writes, with the client's JSON on standard input.",
        "agentbus hook after-tool --client claude", _arguments,
        output="plain output: what the client takes, nothing if there is nothing to say; the exit code is always 0",
    ),
}  # fmt: skip
