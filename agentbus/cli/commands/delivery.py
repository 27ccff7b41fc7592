"""Delivery into running agents: a person steers one, and a client watches for arrivals."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentbus.cli.arguments import by_option, seconds
from agentbus.cli.commands.messages import seen_by, unseen
from agentbus.cli.context import Call, Command, ending_cleanly
from agentbus.cli.errors import NOTHING, NoIdentity
from agentbus.cli.operators import require_operator
from agentbus.cli.output import Done, Result, Rows, escape_control_chars
from agentbus.core.validation import STEER_TIMEOUT, check_range

if TYPE_CHECKING:
    from agentbus.operations.rows import Delivery

_EXCERPT = 200
"""Characters of a payload that a line shows."""


def steer(call: Call) -> Result:
    given = call.arguments
    operator = require_operator(call, "steer agents")
    with ending_cleanly():
        steered = call.bus.do(
            call.bus.messages.steer(
                given.agent_id, given.text, by=operator, stop_after=given.stop_after, timeout=given.wait
            )
        )
    sent = f"sent {steered.message_id} to {given.agent_id}"
    if steered.seen:
        return Done(steered, f"{sent}; seen by {seen_by(steered)}", steered.message_id)
    call.note(unseen(call, given.agent_id, steered.reach))
    return Done(steered, f"{sent}; not seen within {given.wait:g} s", steered.message_id, code=NOTHING)


def _steer(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("agent_id", metavar="AGENT", help="agent id")
    add("text", help="what the agent is to do")
    add("--stop-after", action="store_true", help="ask the agent to stop after its current step")
    add(
        "--wait", type=seconds, default=STEER_TIMEOUT, metavar="S",
        help=f"seconds to wait until the agent has seen it (default {STEER_TIMEOUT:g})",
    )  # fmt: skip
    by_option(parser)


def watch(call: Call) -> int:
    from agentbus.sync.receiving import arrivals

    identity = call.settings.text("agent")
    if identity is None:
        raise NoIdentity
    left = None if call.arguments.max is None else check_range(call.arguments.max, "--max", 1, 1_000_000_000)
    with ending_cleanly():
        for message in arrivals(call.bus, identity, _reader_is_gone()):
            arrival = _arrival(message)
            if not call.arguments.json:
                # A frame, which the text itself cannot close.
                arrival["excerpt"] = '"' + arrival["excerpt"].replace('"', "'") + '"'
            columns = ("message_id", "sender", "type", "priority", "excerpt")
            call.emit(Rows([arrival], columns, paged=False, whole=True, one=True, following=True))
            left = None if left is None else left - 1
            if left is not None and left <= 0:
                break
    return 0


def _arrival(message: Delivery) -> dict[str, Any]:
    """Return the columns of a message. Its excerpt is data of its sender: short, and without characters that a terminal
    or a client would interpret."""
    import msgspec

    payload = message.payload
    text = payload.get("text") if isinstance(payload, dict) else payload
    if not isinstance(text, str):
        text = msgspec.json.encode(payload).decode()
    excerpt = escape_control_chars(text[:_EXCERPT])
    return {
        "message_id": message.message_id,
        "sender": message.sender,
        "recipient": message.recipient,
        "type": message.type,
        "priority": message.priority,
        "session": message.session,
        "created": message.created,
        "excerpt": excerpt if len(text) <= _EXCERPT else f"{excerpt}…",
        "truncated": len(text) > _EXCERPT,
    }


def _reader_is_gone() -> Callable[[], bool]:
    """Return a function that checks whether the reader of standard output has closed it."""
    import select

    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except OSError:
        # It is not a file.
        return lambda: False
    return lambda: any(state & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, state in poll.poll(0))


def _watch(parser: ArgumentParser) -> None:
    parser.add_argument("--max", type=int, metavar="N", help="exit after this number of messages")


COMMANDS = {
    "steer": Command(
        steer, "Direct a running agent: a message of priority 9 that is delivered at its next tool call. Waits until"
        " the agent has seen it; exit code 4 if it has not. For people only.",
        "agentbus steer exec-001 'use the new API' --stop-after", _steer,
        output="plain output: message_id",
    ),
    "watch": Command(
        watch, "Print each message of the calling agent that waits or arrives, until Ctrl-C. It does not receive them:"
        " agentbus receive does. While it runs, messages reach the agent at once.",
        "agentbus watch --agent exec-001", _watch,
        output="plain output: message_id, sender, type, priority, excerpt (in quotation marks)\n"
        "with --json one envelope per line",
        columns=True,
    ),
}  # fmt: skip
