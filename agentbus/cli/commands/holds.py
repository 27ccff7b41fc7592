"""Held messages: list the threads that the loop guard has stopped, release or discard their messages. A decision
carries the name of a person."""

from __future__ import annotations

from argparse import ArgumentParser

from agentbus.cli.arguments import paging
from agentbus.cli.context import Call, Command
from agentbus.cli.operators import require_operator
from agentbus.cli.output import Done, Result, Rows, counted

_COLUMNS = ("thread", "held", "sent", "agents:names", "since:time")


def listed(call: Call) -> Result:
    page = call.bus.do(call.bus.holds.list(cursor=call.arguments.cursor, limit=call.arguments.limit))
    return Rows(page.items, _COLUMNS, cursor=page.cursor, empty="no held messages")


def release(call: Call) -> Result:
    thread = call.arguments.thread
    by = require_operator(call, "release held messages")
    count = call.bus.do(call.bus.holds.release(thread, by=by))
    data = {"thread": thread, "released": count, "by": by}
    return Done(data, f"released {counted(count, 'message')} of thread {thread}", str(count))


def discard(call: Call) -> Result:
    thread = call.arguments.thread
    by = require_operator(call, "discard held messages")
    count = call.bus.do(call.bus.holds.discard(thread, by=by, reason=call.arguments.reason))
    data = {"thread": thread, "discarded": count, "by": by}
    return Done(data, f"discarded {counted(count, 'message')} of thread {thread}", str(count))


def _release(parser: ArgumentParser) -> None:
    parser.add_argument("thread", help="the thread, from agentbus holds list")
    parser.add_argument(
        "--by", metavar="NAME", help="the person who decides (default: AGENTBUS_OPERATOR, or the user account)"
    )


def _discard(parser: ArgumentParser) -> None:
    _release(parser)
    parser.add_argument("--reason", metavar="TEXT", help="the reason, stored with the messages")


COMMANDS = {
    "holds list": Command(
        listed, "List the threads whose messages wait for a person: too many without progress.", "agentbus holds list",
        paging, output="plain output: thread, held, sent, agents (JSON), since", columns=True,
    ),
    "holds release": Command(
        release, "Deliver the held messages of a thread, which may then have as many messages again.",
        "agentbus holds release m-7", _release, output="plain output: the number of messages",
    ),
    "holds discard": Command(
        discard, "Expire the held messages of a thread. Its next message waits for a person again.",
        "agentbus holds discard m-7 --reason 'they repeat themselves'", _discard,
        output="plain output: the number of messages",
    ),
}  # fmt: skip
