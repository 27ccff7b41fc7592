"""Messages: send, receive, settle, request and wait, as an agent or a person; list, requeue and purge them; declare
pools and topics."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from agentbus.cli.arguments import JSON_HELP, ask_reason, by_option, paging, payload, seconds, text_option
from agentbus.cli.context import Call, Command, ending_cleanly
from agentbus.cli.errors import NOTHING, Usage, echoed, missing
from agentbus.cli.output import CONFIRMED, Done, One, Result, Rows, counted
from agentbus.core.addresses import parse_address
from agentbus.core.validation import Priority
from agentbus.errors import AgentBusError, UnknownMessage
from agentbus.operations.send import Reach, ReachQuery, reach

RECEIVED = ("lease", "priority", "type", "sender", "payload:json")
_RECEIVED_HELP = "plain output: lease, priority, type, sender, payload (JSON)"


def send(call: Call) -> Result:
    given = call.arguments
    content = payload(call)
    to = _recipient(given)
    receipt = call.correspondent.send(to, given.type, content, **_options(given))
    if given.wait_seen is not None:
        return _seen(call, to, receipt)
    found = call.bus.read(reach, _reach_query(call, to))
    where = f"to {to}" if not receipt.delivered else f"to {to}; {REACHED[found.reach]}"
    return _receipt(call, receipt, where, reach=found.reach)


REACHED = {
    "now": "a process waits for its messages",
    "next_tool": "it gets messages after its next tool call",
    "next_turn": "it gets messages with its next turn",
    "when_started": "it gets messages when it is started",
    "unknown": "no adapter declared how it can be woken",
}
"""The words for each reach of a recipient."""


def _reach_query(call: Call, to: str) -> ReachQuery:
    priority = call.arguments.priority
    return ReachQuery(parse_address(to), Priority.NORMAL if priority is None else priority)


def _seen(call: Call, to: str, receipt: Any) -> Result:
    """Wait until all copies of a message were seen."""
    sent = f"sent {receipt.message_id} to {to}"
    if not receipt.delivered:
        data = {**_sent(receipt), "reach": "when_started", "seen": False, "receipts": []}
        return Done(data, f"sent to {to}, which has no subscriber", receipt.message_id or "-", code=NOTHING)
    with ending_cleanly():
        report = call.bus.do(call.bus.messages.wait_seen(*receipt.copy_ids(), timeout=call.arguments.wait_seen))
    found = call.bus.read(reach, _reach_query(call, to))
    data = {
        **_sent(receipt), "reach": found.reach, "seen": report.seen, "seen_copies": report.seen_copies,
        "receipts": report.receipts, "recipient": found,
    }  # fmt: skip
    if report.seen:
        return Done(data, f"{sent}; seen by {seen_by(report)}", receipt.message_id)
    call.note(unseen(call, to, found))
    return Done(data, f"{sent}; not seen yet", receipt.message_id, code=NOTHING)


def seen_by(report: Any) -> str:
    """Return the agents that have seen a message."""
    agents = dict.fromkeys(f"{one.agent} ({one.channel})" for one in report.receipts)
    return ", ".join(agents) if agents else "a program, which has acknowledged it"


def unseen(call: Call, to: str, found: Reach) -> str:
    """Return what is known of a recipient that has not seen a message, and how it can be reached."""
    facts = [f"{found.agent or to} is {found.status}" if found.status else f"no agent reads {to}"]
    now = call.bus.store.clock.now().wall
    if found.last_call is not None:
        facts.append(f"its last call was {max(0, now - found.last_call) // 1000} s ago")
    if found.busy_until is not None:
        facts.append(f"it is busy for another {max(0, found.busy_until - now) // 1000} s")
    return f"not seen: {', '.join(facts)}; {REACHED[found.reach]}. The message stays in its mailbox"


def _recipient(given: Any) -> str:
    if given.pool and given.topic:
        raise Usage(reason="--pool and --topic exclude each other", advice="pass one of them")
    to: str = given.to
    return f"pool:{to}" if given.pool else f"topic:{to}" if given.topic else to


def _options(given: Any) -> dict[str, Any]:
    names = ("priority", "delay", "ttl", "session", "correlation", "max_attempts")
    found = {name: value for name in names if (value := getattr(given, name)) is not None}
    if given.header:
        found["headers"] = _headers(given.header)
    return found if given.id is None else {**found, "message_id": given.id}


def _headers(texts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, separator, content = text.partition("=")
        if not separator or not name:
            raise Usage(reason=f"invalid header {echoed(text)}", advice="use --header NAME=VALUE")
        if name in found:
            raise Usage(reason=f"header {echoed(name)} is given twice", advice="give each name once")
        found[name] = content
    return found


def _sent(receipt: Any) -> dict[str, Any]:
    data = {"message_id": receipt.message_id, "delivered": receipt.delivered, "duplicate": receipt.duplicate}
    return {**data, "held": True, "hold_reason": receipt.hold_reason} if receipt.held else data


def _receipt(call: Call, receipt: Any, where: str, **more: Any) -> Result:
    data = {**_sent(receipt), **more}
    if receipt.duplicate:
        done = f"{receipt.message_id} was sent before"
    elif not receipt.delivered:
        done = f"sent {where}, which has no subscriber"
    else:
        copies = f", {receipt.delivered} copies," if receipt.delivered > 1 else ""
        done = f"sent {receipt.message_id}{copies} {where}"
    if receipt.held:
        # A pipe gets the id only.
        call.note(f"{receipt.message_id} is held: {receipt.hold_reason}")
    return Done(data, done, receipt.message_id or "-")


def _send(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("to", help="agent id, pool:NAME, topic:NAME or task:ID")
    add("type", help="message type (see agentbus types list)")
    add("payload", nargs="?", help=JSON_HELP)
    text_option(parser)
    add("--pool", action="store_true", help="TO is a pool: one of its members receives the message")
    add("--topic", action="store_true", help="TO is a topic: every subscriber receives a copy")
    _send_options(parser)


def _send_and_wait(parser: ArgumentParser) -> None:
    _send(parser)
    parser.add_argument(
        "--wait-seen", type=seconds, metavar="S",
        help="wait up to S seconds until the recipient has seen it; exit code 4 if it has not",
    )  # fmt: skip


def _send_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--priority", type=int, metavar="N", help="0 to 9, 9 is the most urgent (default 5)")
    add("--delay", type=seconds, metavar="S", help="delay of the delivery in seconds")
    add("--ttl", type=seconds, metavar="S", help="time to live in seconds")
    add("--id", metavar="ID", help="id of the message; with the same id it is sent only once")
    add("--session", metavar="ID", help="session (default: that of the calling agent)")
    add("--correlation", metavar="TEXT", help="correlation id: messages that share it are a thread")
    add("--header", action="append", metavar="NAME=VALUE", help="a header of the message (repeatable)")
    add("--max-attempts", type=int, metavar="N", help="deliveries before it becomes a dead letter (default 5)")
    by_option(parser)


def receive(call: Call) -> Result | int:
    given = call.arguments
    if given.peek and (given.ack or given.wait or given.held):
        raise Usage(reason="--peek excludes --ack, --wait and --held", advice="remove them")
    me = call.correspondent
    if given.peek:
        return _received(me.peek(1 if given.max is None else given.max))
    if given.held:
        held = me.in_hand() if given.max is None else me.in_hand(given.max)
        return _received(held, "no messages held")
    if sys.__stdout__ is None:
        raise Usage(reason="standard output is closed: the messages would be lost", advice="remove >&-")
    max_messages = 1 if given.max is None else given.max
    # Messages that could not be printed are released.
    with ending_cleanly(), me.received(max_messages, timeout=given.wait, lease=given.lease) as messages:
        result = _received(messages)
        call.emit(result)
    if messages:
        from agentbus.sync.identity import client_session

        # A receipt that is not written makes a message seem unseen, and nothing else.
        with suppress(AgentBusError):
            names = [message.message_id for message in messages]
            me.seen(*names, channel="receive", client=client_session(os.environ))
    if given.ack and messages:
        me.ack(*(message.lease for message in messages if message.lease is not None))
    return result.code


def _received(messages: list[Any], empty: str = "no messages") -> Result:
    return Rows(messages, RECEIVED, paged=False, whole=True, code=0 if messages else NOTHING, empty=empty)


def _receive(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--wait", type=seconds, default=0, metavar="S", help="seconds to wait for a message (default 0)")
    add("--max", type=int, metavar="N", help="maximum number of messages (default 1; with --held all)")
    add("--ack", action="store_true", help="acknowledge the messages once they are printed")
    add("--peek", action="store_true", help="show messages without receiving them")
    add("--held", action="store_true", help="show the messages that were received and not settled, with their leases")
    add(
        "--lease", type=seconds, metavar="S",
        help="lease in seconds (default: the setting visitor_lease, 600); every call of the agent extends it",
    )  # fmt: skip
    by_option(parser)


def ack(call: Call) -> Result:
    before = call.correspondent.ack(*call.arguments.message)
    for message in before:
        call.note(f"{message} was already acknowledged")
    return _settled(call, "acked", "acknowledged")


def _settled(call: Call, status: str, done: str) -> Result:
    messages = call.arguments.message
    return Done([{"message": message, "status": status} for message in messages], f"{done} {', '.join(messages)}")


def _messages(parser: ArgumentParser) -> None:
    parser.add_argument("message", nargs="+", help="lease from agentbus receive, or message_id")
    by_option(parser)


def nack(call: Call) -> Result:
    given = call.arguments
    dead = call.correspondent.nack(*given.message, delay=given.delay, error=given.error)
    back = [message for message in given.message if message not in dead]
    done = [f"released for redelivery: {', '.join(back)}"] if back else []
    if dead:
        done.append(f"dead-lettered after the last attempt: {', '.join(dead)}")
    statuses = [{"message": one, "status": "dead" if one in dead else "given back"} for one in given.message]
    return Done(statuses, "; ".join(done))


def _nack(parser: ArgumentParser) -> None:
    _messages(parser)
    parser.add_argument(
        "--delay", type=seconds, metavar="S", help="delay of the redelivery in seconds (default: grows)"
    )
    parser.add_argument("--error", metavar="TEXT", help="the reason, stored with the message")


def reject(call: Call) -> Result:
    given = call.arguments
    error = given.error or ask_reason(call, f"reject {', '.join(given.message)}", "--reason")
    call.correspondent.reject(*given.message, error=error)
    return _settled(call, "dead", "dead-lettered")


def _reject(parser: ArgumentParser) -> None:
    _messages(parser)
    parser.add_argument(
        "--reason", "--error", dest="error", metavar="TEXT",
        help="the reason, stored with the message; required, a terminal asks for it",
    )  # fmt: skip


def reply(call: Call) -> Result:
    given = call.arguments
    receipt = call.correspondent.reply(
        given.message,
        given.type,
        payload(call),
        ack=not given.keep,
        priority=given.priority,
        message_id=given.id,
        headers=_headers(given.header) if given.header else None,
    )
    return _receipt(call, receipt, f"as the reply to {given.message}")


def _reply(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("message", help="lease from agentbus receive, or message_id")
    add("type", help="type of the reply")
    add("payload", nargs="?", help=JSON_HELP)
    text_option(parser)
    add("--keep", action="store_true", help="reply without acknowledging the message")
    add("--priority", type=int, metavar="N", help="0 to 9 (default 5)")
    add("--id", metavar="ID", help="id of the reply; with the same id it is sent only once")
    add("--header", action="append", metavar="NAME=VALUE", help="a header of the reply (repeatable)")
    by_option(parser)


def request(call: Call) -> Result:
    given = call.arguments
    content = payload(call)
    me = call.correspondent
    with ending_cleanly():
        answer = me.request(_recipient(given), given.type, content, timeout=given.timeout, **_options(given))
    return Rows([answer], ("message_id", "type", "sender", "payload:json"), paged=False, whole=True, one=True)


def _request(parser: ArgumentParser) -> None:
    _send(parser)
    parser.add_argument(
        "--timeout", type=seconds, default=30, metavar="S", help="seconds to wait for the reply (default 30)"
    )


def wait(call: Call) -> Result:
    given = call.arguments
    if given.agent_id is not None:
        return _wait_for_agent(call)
    if given.status is not None:
        raise Usage(reason="--status needs --for", advice="agentbus wait --for AGENT --status running")
    me = call.correspondent
    with ending_cleanly():
        found = me.wait(given.timeout)
    said = "messages are waiting" if found else "no messages"
    # A pipe gets nothing: the output of the next command follows.
    return Done({"pending": found}, said, "", code=0 if found else NOTHING)


def _wait_for_agent(call: Call) -> Result:
    """Wait until an agent has a status. It need not exist yet."""
    from agentbus.core.addresses import check_agent
    from agentbus.core.validation import AGENT_STATUSES, choices_or_none

    given = call.arguments
    if given.by is not None:
        raise Usage(reason="--for and --by exclude each other", advice="pass one of them")
    agent = check_agent(given.agent_id)
    wanted = choices_or_none((given.status or "running").split(","), "status", AGENT_STATUSES) or ()
    with ending_cleanly():
        status = call.bus.do(_status_of(call, agent, wanted))
    found = status in wanted
    text = f"{agent} is {status}" if status is not None else f"there is no agent {agent} yet"
    return Done({"agent": agent, "status": status, "reached": found}, text, "", code=0 if found else NOTHING)


async def _status_of(call: Call, agent: str, wanted: Sequence[str]) -> str | None:
    """Return the status of an agent once it is one of these, or when the time is over."""
    from agentbus.core.validation import check_seconds
    from agentbus.operations.events import CHANNEL

    clock, timeout = call.bus._engine.clock, call.arguments.timeout
    deadline = None if timeout is None else clock.now().awake + check_seconds(timeout, "timeout", zero=True)
    # Every change of a status is an event. Listen before reading: a change in between wakes the waiter.
    async with call.bus._listening.to(CHANNEL) as waiter:
        while True:
            record = await call.bus.agents.get(agent)
            status = None if record is None else record.status
            left = None if deadline is None else deadline - clock.now().awake
            if status in wanted or (left is not None and left <= 0):
                return status
            await waiter.wait(None if left is None else left / 1000)


def _wait(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--timeout", type=seconds, metavar="S", help="seconds to wait (default: no limit)")
    add("--for", dest="agent_id", metavar="AGENT", help="wait for this agent instead of messages")
    add("--status", metavar="S", help="with --for: its status, or several (a,b) (default: running)")
    by_option(parser)


def declare(call: Call) -> Result:
    from agentbus.api.agents import declaration
    from agentbus.core.addresses import parse_address
    from agentbus.operations.agents import declare

    addresses = [parse_address(text) for text in call.arguments.address]
    for address in addresses:
        if address.kind == "agent":
            advice = f"pool:{address.name} or topic:{address.name}; an agent is announced with agentbus expect"
            raise Usage(reason=f"{address.name} is neither a pool nor a topic", advice=advice)
    names = [str(address) for address in addresses]
    call.bus.write(declare, declaration(addresses))
    return Done([{"address": name} for name in names], f"declared {', '.join(names)}")


def _declare(parser: ArgumentParser) -> None:
    parser.add_argument("address", nargs="+", metavar="ADDRESS", help="pool:NAME or topic:NAME")


COLUMNS = ("message_id", "type", "status:status", "priority", "sender", "recipient", "attempts", "created:time")
_PLAIN = "plain output: message_id, type, status, priority, sender, recipient, attempts, created"


def listed(call: Call) -> Result:
    given = call.arguments
    page = call.bus.do(
        call.bus.messages.list(
            status=given.status.split(",") if given.status else None,
            type=given.type,
            sender=given.sender,
            to=given.to,
            session=given.session,
            correlation=given.correlation,
            holder=given.holder,
            cursor=given.cursor,
            limit=given.limit,
        )
    )
    return Rows(page.items, COLUMNS, cursor=page.cursor, empty="no matching messages")


def show(call: Call) -> Result:
    name = call.arguments.message.partition("#")[0]
    record = call.bus.do(call.bus.messages.get(name))
    if record is None:
        raise missing(UnknownMessage(message_id=name))
    return One(record)


def dead(call: Call) -> Result:
    page = call.bus.do(call.bus.messages.dead(cursor=call.arguments.cursor, limit=call.arguments.limit))
    columns = ("message_id", "type", "sender", "recipient", "attempts", "finished:time", "error")
    return Rows(page.items, columns, cursor=page.cursor, empty="no dead letters")


def requeue(call: Call) -> Result:
    count = call.bus.do(call.bus.messages.requeue(*call.arguments.message))
    return Done({"requeued": count}, f"requeued {counted(count, 'message')}", str(count))


def purge(call: Call) -> Result:
    given = call.arguments
    count = call.bus.do(call.bus.messages.purge(status=given.status, older_than=given.older_than))
    return Done({"purged": count}, f"purged {counted(count, 'message')}", str(count))


def _list(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--status", metavar="S", help="scheduled, queued, leased, acked, dead or expired; or several (a,b)")
    add("--type", metavar="TYPE", help="message type")
    add("--sender", metavar="ID", help="sender")
    add("--to", metavar="ID", help="recipient: an agent id, pool:NAME, topic:NAME or task:ID")
    add("--session", metavar="ID", help="session")
    add("--holder", metavar="ID", help="agent that holds the lease (see also agentbus receive --held)")
    add("--correlation", metavar="TEXT", help="correlation id")
    paging(parser)


def _message(parser: ArgumentParser) -> None:
    parser.add_argument("message", help="its message_id")


def _message_ids(parser: ArgumentParser) -> None:
    parser.add_argument("message", nargs="+", help="the message_id of a dead letter")


def _purge(parser: ArgumentParser) -> None:
    parser.add_argument("--status", metavar="S", help="acked, expired or dead (default: acked and expired)")
    text = "minimum age in seconds since they were settled (default 0)"
    parser.add_argument("--older-than", type=seconds, default=0, metavar="S", help=text)


COMMANDS = {
    "send": Command(
        send,
        "Send a message to an agent, a pool, a topic or a task. It is on disk when the command returns.",
        "agentbus send exec-001 task_assignment '{\"phase\": \"design\"}' --priority 9",
        _send_and_wait,
        output="plain output: message_id\nreach (JSON): now, next_tool, next_turn, when_started or unknown",
    ),
    "receive": Command(
        receive,
        "Receive messages under a lease, most urgent first. Exit code 4 if there is none.",
        "agentbus receive --wait 60 --json",
        _receive,
        output=_RECEIVED_HELP,
        columns=True,
    ),
    "ack": Command(
        ack, "Acknowledge messages. All or none.", "agentbus ack m-7#1", _messages,
        output=CONFIRMED,
    ),
    "nack": Command(
        nack, "Release messages for redelivery. All or none.", "agentbus nack m-7#1 --delay 30", _nack,
        output=CONFIRMED,
    ),
    "reject": Command(
        reject, "Dead-letter messages that cannot be processed. All or none.",
        "agentbus reject m-7#1 --reason 'the file does not exist'", _reject, output=CONFIRMED,
    ),
    "reply": Command(
        reply, "Reply to a message and acknowledge it in the same transaction.",
        "agentbus reply m-7#1 coordination_response '{\"ready\": true}'", _reply, output="plain output: message_id",
    ),
    "request": Command(
        request, "Send a message and wait for its reply. Exit code 4 after a timeout.",
        "agentbus request exec-001 coordination_request '{\"q\": \"ready?\"}' --timeout 60", _request,
        output="plain output: message_id, type, sender, payload (JSON)",
    ),
    "wait": Command(
        wait, "Wait until there are messages, without receiving them; or until an agent has a status. Exit code 4 after"
        " a timeout.",
        "agentbus wait --timeout 600 && agentbus receive --json", _wait,
        output="plain output: nothing\nanother example:\n  agentbus wait --for exec-001 --status running --timeout 60",
    ),
    "declare": Command(
        declare, "Create pools and topics before an agent joins them.", "agentbus declare pool:executors topic:plans",
        _declare, output=CONFIRMED,
    ),
    "messages list": Command(listed, "List messages, newest first.",
                             "agentbus messages list --to exec-001 --status queued", _list, output=_PLAIN,
                             columns=True),
    "messages show": Command(show, "Show a message with its payload and its receipts.",
                             "agentbus messages show m-7", _message,
                             output="plain output: one line per field: name, value", columns=True),
    "messages dead": Command(dead, "List dead letters, newest first, each with its last error.",
                             "agentbus messages dead", paging,
                             output="plain output: message_id, type, sender, recipient, attempts, finished, error",
                             columns=True),
    "messages requeue": Command(requeue, "Put dead letters back into their mailboxes. All or none.",
                                "agentbus messages requeue m-7 m-9", _message_ids,
                                output="plain output: the number of messages"),
    "messages purge": Command(purge, "Delete settled messages.",
                              "agentbus messages purge --status acked --older-than 86400", _purge,
                              output="plain output: the number of messages"),
}  # fmt: skip
