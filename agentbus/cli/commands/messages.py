"""Messages: send, receive, settle, request and wait as an agent; list, requeue and purge as an operator."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from agentbus.cli.arguments import JSON_HELP, paging, seconds, text_option, value
from agentbus.cli.context import Call, Command, ending_cleanly
from agentbus.cli.errors import NOTHING, Usage, missing
from agentbus.cli.output import Notice, One, Result, Rows
from agentbus.errors import UnknownMessage

RECEIVED = ("lease", "priority", "type", "sender", "payload:json")
_RECEIVED_HELP = "plain output: lease, priority, type, sender, payload (JSON)"


def send(call: Call) -> Result:
    given = call.arguments
    receipt = call.me.send(_recipient(given), given.type, value(given, "payload"), **_options(given))
    return _receipt(receipt)


def _recipient(given: Any) -> str:
    if given.pool and given.topic:
        raise Usage(reason="--pool and --topic exclude each other", advice="pass one of them")
    to: str = given.to
    return f"pool:{to}" if given.pool else f"topic:{to}" if given.topic else to


def _options(given: Any) -> dict[str, Any]:
    names = ("priority", "delay", "ttl", "session", "max_attempts")
    found = {name: value for name in names if (value := getattr(given, name)) is not None}
    if given.header:
        headers = [_header(text) for text in given.header]
        found["headers"] = dict(headers)
        if len(found["headers"]) < len(headers):
            raise Usage(reason="a header is given twice", advice="give each name once")
    return found if given.id is None else {**found, "message_id": given.id}


def _header(text: str) -> tuple[str, str]:
    name, separator, content = text.partition("=")
    if not separator:
        raise Usage(reason=f"invalid header {text!r}", advice="use --header NAME=VALUE")
    return name, content


def _receipt(receipt: Any) -> Result:
    data = {"message_id": receipt.message_id, "delivered": receipt.delivered, "duplicate": receipt.duplicate}
    return Notice(data, receipt.message_id or "-")


def _send(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("to", help="agent id, pool:NAME or topic:NAME")
    add("type", help="message type (see agentbus types list)")
    add("payload", nargs="?", help=JSON_HELP)
    text_option(parser)
    add("--pool", action="store_true", help="TO is a pool: one of its members receives the message")
    add("--topic", action="store_true", help="TO is a topic: every subscriber receives a copy")
    _send_options(parser)


def _send_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--priority", type=int, metavar="N", help="0 to 9, 9 is the most urgent (default 5)")
    add("--delay", type=seconds, metavar="S", help="delay of the delivery in seconds")
    add("--ttl", type=seconds, metavar="S", help="time to live in seconds")
    add("--id", metavar="ID", help="id of the message; with the same id it is sent only once")
    add("--session", metavar="ID", help="session (default: that of the calling agent)")
    add("--header", action="append", metavar="NAME=VALUE", help="a header of the message (repeatable)")
    add("--max-attempts", type=int, metavar="N", help="deliveries before it becomes a dead letter (default 5)")


def receive(call: Call) -> Result | int:
    given = call.arguments
    if given.peek and (given.ack or given.wait or given.held):
        raise Usage(reason="--peek excludes --ack, --wait and --held", advice="remove them")
    if given.peek:
        return _received(call.me.peek(1 if given.max is None else given.max))
    if given.held:
        held = call.me.in_hand() if given.max is None else call.me.in_hand(given.max)
        return _received(held, "no messages held")
    if sys.__stdout__ is None:
        raise Usage(reason="standard output is closed: the messages would be lost", advice="remove >&-")
    me, max_messages = call.me, 1 if given.max is None else given.max
    # Messages that could not be printed are released.
    with ending_cleanly(), me.received(max_messages, timeout=given.wait, lease=given.lease) as messages:
        result = _received(messages)
        call.emit(result)
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
    add("--lease", type=seconds, metavar="S", help="lease in seconds (default 600); every call of the agent extends it")


def ack(call: Call) -> Result:
    before = call.me.ack(*call.arguments.message)
    for message in before:
        call.note(f"{message} was already acknowledged")
    return _settled(call, "acked")


def _settled(call: Call, status: str) -> Result:
    return Notice([{"message": message, "status": status} for message in call.arguments.message])


def _messages(parser: ArgumentParser) -> None:
    parser.add_argument("message", nargs="+", help="lease from agentbus receive, or message_id")


def nack(call: Call) -> Result:
    call.me.nack(*call.arguments.message, delay=call.arguments.delay, error=call.arguments.error)
    return _settled(call, "given back")


def _nack(parser: ArgumentParser) -> None:
    _messages(parser)
    parser.add_argument(
        "--delay", type=seconds, metavar="S", help="delay of the redelivery in seconds (default: grows)"
    )
    parser.add_argument("--error", metavar="TEXT", help="the reason, stored with the message")


def reject(call: Call) -> Result:
    call.me.reject(*call.arguments.message, error=call.arguments.error)
    return _settled(call, "dead")


def _reject(parser: ArgumentParser) -> None:
    _messages(parser)
    parser.add_argument("--error", required=True, metavar="TEXT", help="the reason, stored with the message")


def reply(call: Call) -> Result:
    given = call.arguments
    receipt = call.me.reply(
        given.message,
        given.type,
        value(given, "payload"),
        ack=not given.keep,
        priority=given.priority,
        message_id=given.id,
    )
    return _receipt(receipt)


def _reply(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("message", help="lease from agentbus receive, or message_id")
    add("type", help="type of the reply")
    add("payload", nargs="?", help=JSON_HELP)
    text_option(parser)
    add("--keep", action="store_true", help="reply without acknowledging the message")
    add("--priority", type=int, metavar="N", help="0 to 9 (default 5)")
    add("--id", metavar="ID", help="id of the reply; with the same id it is sent only once")


def request(call: Call) -> Result:
    given = call.arguments
    payload = value(given, "payload")
    with ending_cleanly():
        answer = call.me.request(_recipient(given), given.type, payload, timeout=given.timeout, **_options(given))
    return Rows([answer], ("message_id", "type", "sender", "payload:json"), paged=False, whole=True, one=True)


def _request(parser: ArgumentParser) -> None:
    _send(parser)
    parser.add_argument(
        "--timeout", type=seconds, default=30, metavar="S", help="seconds to wait for the reply (default 30)"
    )


def wait(call: Call) -> Result:
    with ending_cleanly():
        found = call.me.wait(call.arguments.timeout)
    return Notice({"pending": found}, code=0 if found else NOTHING)


def _wait(parser: ArgumentParser) -> None:
    parser.add_argument("--timeout", type=seconds, metavar="S", help="seconds to wait (default: no limit)")


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
    return Notice({"requeued": count}, str(count))


def purge(call: Call) -> Result:
    given = call.arguments
    count = call.bus.do(call.bus.messages.purge(status=given.status, older_than=given.older_than))
    return Notice({"purged": count}, str(count))


def _list(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--status", metavar="S", help="scheduled, queued, leased, acked, dead or expired; or several (a,b)")
    add("--type", metavar="TYPE", help="message type")
    add("--sender", metavar="ID", help="sender")
    add("--to", metavar="ID", help="recipient: an agent id, pool:NAME or topic:NAME")
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
        "Send a message to an agent, a pool or a topic. It is on disk when the command returns.",
        "agentbus send exec-001 task_assignment '{\"phase\": \"design\"}' --priority 9",
        _send,
        output="plain output: message_id",
    ),
    "receive": Command(
        receive,
        "Receive messages under a lease, most urgent first. Exit code 4 if there is none.",
        "agentbus receive --wait 60 --json",
        _receive,
        output=_RECEIVED_HELP,
    ),
    "ack": Command(
        ack, "Acknowledge messages. All or none.", "agentbus ack m-7#1", _messages,
        output="plain output: nothing",
    ),
    "nack": Command(
        nack, "Release messages for redelivery. All or none.", "agentbus nack m-7#1 --delay 30", _nack,
        output="plain output: nothing",
    ),
    "reject": Command(
        reject, "Dead-letter messages that cannot be processed. All or none.",
        "agentbus reject m-7#1 --error 'the file does not exist'", _reject, output="plain output: nothing",
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
        wait, "Wait until there are messages, without receiving them. Exit code 4 after a timeout.",
        "agentbus wait --timeout 600 && agentbus receive --json", _wait, output="plain output: nothing",
    ),
    "messages list": Command(listed, "List messages, newest first.",
                             "agentbus messages list --to exec-001 --status queued", _list, output=_PLAIN),
    "messages show": Command(show, "Show a message with its payload.", "agentbus messages show m-7", _message,
                             output="plain output: one line per field: name, value"),
    "messages dead": Command(dead, "List dead letters, newest first, each with its last error.",
                             "agentbus messages dead", paging,
                             output="plain output: message_id, type, sender, recipient, attempts, finished, error"),
    "messages requeue": Command(requeue, "Put dead letters back into their mailboxes. All or none.",
                                "agentbus messages requeue m-7 m-9", _message_ids,
                                output="plain output: the number of messages"),
    "messages purge": Command(purge, "Delete settled messages.",
                              "agentbus messages purge --status acked --older-than 86400", _purge,
                              output="plain output: the number of messages"),
}  # fmt: skip
