"""Messages as people look at them, whatever became of them; dead letters; cleaning up."""

from __future__ import annotations

from argparse import ArgumentParser

from agentbus.errors import UnknownMessage
from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.failures import missing
from agentbus.interfaces.cli.output import One, Result, Rows, Said
from agentbus.interfaces.cli.values import paging, seconds

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
    return Rows(page.items, COLUMNS, cursor=page.cursor, empty="there are no such messages")


def show(call: Call) -> Result:
    name = call.arguments.message.partition("#")[0]
    record = call.bus.do(call.bus.messages.get(name))
    if record is None:
        raise missing(UnknownMessage(message_id=name))
    return One(record)


def dead(call: Call) -> Result:
    page = call.bus.do(call.bus.messages.dead(cursor=call.arguments.cursor, limit=call.arguments.limit))
    columns = ("message_id", "type", "sender", "recipient", "attempts", "finished:time", "error")
    return Rows(page.items, columns, cursor=page.cursor, empty="there are no dead letters")


def requeue(call: Call) -> Result:
    count = call.bus.do(call.bus.messages.requeue(*call.arguments.message))
    return Said({"requeued": count}, str(count))


def purge(call: Call) -> Result:
    given = call.arguments
    count = call.bus.do(call.bus.messages.purge(status=given.status, older_than=given.older_than))
    return Said({"purged": count}, str(count))


def _list(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--status", metavar="S", help="scheduled, queued, leased, acked, dead or expired; or several (a,b)")
    add("--type", metavar="TYPE", help="of this type")
    add("--sender", metavar="ID", help="of this sender")
    add("--to", metavar="ID", help="to this agent, pool:NAME or topic:NAME")
    add("--session", metavar="ID", help="of this session")
    add("--holder", metavar="ID", help="those that this agent holds; `agentbus receive --held` shows yours with leases")
    add("--correlation", metavar="TEXT", help="with this correlation")
    paging(parser)


def _message(parser: ArgumentParser) -> None:
    parser.add_argument("message", help="its message_id")


def _messages(parser: ArgumentParser) -> None:
    parser.add_argument("message", nargs="+", help="the message_id of a dead letter")


def _purge(parser: ArgumentParser) -> None:
    parser.add_argument("--status", metavar="S", help="acked, expired or dead (acked and expired)")
    text = "only those that finished so many seconds ago (0)"
    parser.add_argument("--older-than", type=seconds, default=0, metavar="S", help=text)


COMMANDS = {
    "messages list": Command(listed, "List messages, newest first.",
                             "agentbus messages list --to exec-001 --status queued", _list, output=_PLAIN),
    "messages show": Command(show, "Show a message with its payload.", "agentbus messages show m-7", _message,
                             output="plain output: a line for each field: its name, its value"),
    "messages dead": Command(dead, "List dead letters, newest first, each with its last error.",
                             "agentbus messages dead", paging,
                             output="plain output: message_id, type, sender, recipient, attempts, finished, error"),
    "messages requeue": Command(requeue, "Give dead letters another chance. All, or none.",
                                "agentbus messages requeue m-7 m-9", _messages, output="plain output: how many"),
    "messages purge": Command(purge, "Delete messages that are done.",
                              "agentbus messages purge --status acked --older-than 86400", _purge,
                              output="plain output: how many"),
}  # fmt: skip
