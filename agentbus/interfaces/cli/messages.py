"""Messages of the agent that calls: sending, receiving, settling, asking, waiting."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from agentbus.interfaces.cli.command import Call, Command, ending_cleanly
from agentbus.interfaces.cli.failures import NOTHING, Usage
from agentbus.interfaces.cli.output import Result, Rows, Said
from agentbus.interfaces.cli.values import JSON_HELP, seconds, text_option, value

RECEIVED = ("lease", "priority", "type", "sender", "payload:json")
_RECEIVED_HELP = "plain output: lease, priority, type, sender, payload (JSON)"


def send(call: Call) -> Result:
    given = call.arguments
    receipt = call.me.send(_recipient(given), given.type, value(given, "payload"), **_options(given))
    return _receipt(receipt)


def _recipient(given: Any) -> str:
    if given.pool and given.topic:
        raise Usage(reason="--pool and --topic cannot both be", advice="name one of them")
    to: str = given.to
    return f"pool:{to}" if given.pool else f"topic:{to}" if given.topic else to


def _options(given: Any) -> dict[str, Any]:
    names = ("priority", "delay", "ttl", "session", "max_attempts")
    found = {name: value for name in names if (value := getattr(given, name)) is not None}
    return found if given.id is None else {**found, "message_id": given.id}


def _receipt(receipt: Any) -> Result:
    data = {"message_id": receipt.message_id, "delivered": receipt.delivered, "duplicate": receipt.duplicate}
    return Said(data, receipt.message_id or "-")


def _sending(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("to", help="an agent's id, pool:NAME or topic:NAME")
    add("type", help="its type; `agentbus types list` shows those there are")
    add("payload", nargs="?", help=JSON_HELP)
    text_option(parser)
    add("--pool", action="store_true", help="TO is a pool: any one of its members takes it")
    add("--topic", action="store_true", help="TO is a topic: each of its subscribers gets a copy")
    _sent_with(parser)


def _sent_with(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--priority", type=int, metavar="N", help="0 to 9, 9 is the most urgent (5)")
    add("--delay", type=seconds, metavar="S", help="it can be received after so many seconds")
    add("--ttl", type=seconds, metavar="S", help="it expires if nobody took it for so many seconds")
    add("--id", metavar="ID", help="your own id for it: calling again with the same id sends it once")
    add("--session", metavar="ID", help="the session that it belongs to (yours)")
    add("--max-attempts", type=int, metavar="N", help="hand-overs before it becomes a dead letter (5)")


def receive(call: Call) -> Result | int:
    given = call.arguments
    if given.peek and (given.ack or given.wait or given.held):
        raise Usage(reason="--peek takes nothing and waits for nothing", advice="leave out --ack, --wait and --held")
    if given.peek:
        return _received(call.me.peek(1 if given.max is None else given.max))
    if given.held:
        held = call.me.in_hand() if given.max is None else call.me.in_hand(given.max)
        return _received(held, "you hold nothing")
    if sys.__stdout__ is None:
        raise Usage(reason="standard output is closed: nobody would see what is taken", advice="leave out >&-")
    me, most = call.me, 1 if given.max is None else given.max
    # What was taken and could not be printed goes back.
    with ending_cleanly(), me.received(most, timeout=given.wait, lease=given.lease) as messages:
        result = _received(messages)
        call.emit(result)
    if given.ack and messages:
        me.ack(*(message.lease for message in messages if message.lease is not None))
    return result.code


def _received(messages: list[Any], empty: str = "there is nothing for you") -> Result:
    return Rows(messages, RECEIVED, paged=False, whole=True, code=0 if messages else NOTHING, empty=empty)


def _receiving(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--wait", type=seconds, default=0, metavar="S", help="wait so many seconds for one to come (0)")
    add("--max", type=int, metavar="N", help="so many at most (1; with --held all)")
    add("--ack", action="store_true", help="acknowledge them once they are printed")
    add("--peek", action="store_true", help="only look: nothing is taken")
    add("--held", action="store_true", help="what you received and have not settled, with its leases; nothing is taken")
    add("--lease", type=seconds, metavar="S", help="how long they are yours (600); every call of yours extends it")


def ack(call: Call) -> Result:
    before = call.me.ack(*call.arguments.message)
    for message in before:
        call.note(f"{message} was acked by you before")
    return _settled(call, "acked")


def _settled(call: Call, status: str) -> Result:
    return Said([{"message": message, "status": status} for message in call.arguments.message])


def _messages(parser: ArgumentParser) -> None:
    parser.add_argument("message", nargs="+", help="a lease that `receive` printed, or a message_id")


def nack(call: Call) -> Result:
    call.me.nack(*call.arguments.message, delay=call.arguments.delay, error=call.arguments.error)
    return _settled(call, "given back")


def _nack(parser: ArgumentParser) -> None:
    _messages(parser)
    parser.add_argument("--delay", type=seconds, metavar="S", help="seconds until it can be received again (grows)")
    parser.add_argument("--error", metavar="TEXT", help="why, for whoever looks at it later")


def reject(call: Call) -> Result:
    call.me.reject(*call.arguments.message, error=call.arguments.error)
    return _settled(call, "dead")


def _reject(parser: ArgumentParser) -> None:
    _messages(parser)
    parser.add_argument("--error", required=True, metavar="TEXT", help="why trying again would not help")


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
    add("message", help="a lease that `receive` printed, or a message_id")
    add("type", help="the reply's type")
    add("payload", nargs="?", help=JSON_HELP)
    text_option(parser)
    add("--keep", action="store_true", help="only answer: the message is not acknowledged")
    add("--priority", type=int, metavar="N", help="0 to 9 (5)")
    add("--id", metavar="ID", help="your own id for the reply: calling again with the same id sends it once")


def request(call: Call) -> Result:
    given = call.arguments
    payload = value(given, "payload")
    with ending_cleanly():
        answer = call.me.request(_recipient(given), given.type, payload, timeout=given.timeout, **_options(given))
    return Rows([answer], ("message_id", "type", "sender", "payload:json"), paged=False, whole=True, one=True)


def _requesting(parser: ArgumentParser) -> None:
    _sending(parser)
    parser.add_argument("--timeout", type=seconds, default=30, metavar="S", help="seconds to wait for the reply (30)")


def wait(call: Call) -> Result:
    with ending_cleanly():
        found = call.me.wait(call.arguments.timeout)
    return Said({"pending": found}, code=0 if found else NOTHING)


def _waiting(parser: ArgumentParser) -> None:
    parser.add_argument("--timeout", type=seconds, metavar="S", help="give up after so many seconds (never)")


COMMANDS = {
    "send": Command(
        send,
        "Send a message to an agent, a pool or a topic. When this returns, it is on the disk.",
        "agentbus send exec-001 task_assignment '{\"phase\": \"design\"}' --priority 9",
        _sending,
        output="plain output: message_id",
    ),
    "receive": Command(
        receive,
        "Take messages from your mailboxes, most urgent first. Exit code 4 if there is none.",
        "agentbus receive --wait 60 --json",
        _receiving,
        output=_RECEIVED_HELP,
    ),
    "ack": Command(
        ack, "Acknowledge messages: they are done. All, or none.", "agentbus ack m-7#1", _messages,
        output="plain output: nothing",
    ),
    "nack": Command(
        nack, "Give messages back, to be tried again. All, or none.", "agentbus nack m-7#1 --delay 30", _nack,
        output="plain output: nothing",
    ),
    "reject": Command(
        reject, "Make dead letters of messages: trying again would not help. All, or none.",
        "agentbus reject m-7#1 --error 'it names a file that never was'", _reject, output="plain output: nothing",
    ),
    "reply": Command(
        reply, "Answer a message, and acknowledge it in the same commit.",
        "agentbus reply m-7#1 coordination_response '{\"ready\": true}'", _reply, output="plain output: message_id",
    ),
    "request": Command(
        request, "Send a message and wait for its reply. Exit code 4 if none comes in time.",
        "agentbus request exec-001 coordination_request '{\"q\": \"ready?\"}' --timeout 60", _requesting,
        output="plain output: message_id, type, sender, payload (JSON)",
    ),
    "wait": Command(
        wait, "Wait until there is something for you; nothing is taken. Exit code 4 if nothing comes in time.",
        "agentbus wait --timeout 600 && agentbus receive --json", _waiting, output="plain output: nothing",
    ),
}  # fmt: skip
